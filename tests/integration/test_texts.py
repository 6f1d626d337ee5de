"""Releases with a vocabulary: deployed, run, and used by an application, beside Python's own decoders."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.integration.test_sdk import python_binding, sdk  # noqa: F401 - the fixture
from tests.support import nets
from tests.support.commands import done, parsed, toolchain
from toolchain import bundle, texts

TOKENS = ["<s>", "</s>", "\u0120the", "re", "\u00c3", "\u00bc", "!", "##able", "\u2581is", "<0xE2>", "<0x82>", "<0xAC>"]
ROWS = 9


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model of rows of scores, which it takes as they are, and its vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    shape = (1, ROWS, len(TOKENS))
    net = nets.model([nets.node("Neg", ["x"], ["y"])], [nets.value("x", shape)], [nets.value("y", shape)], {})
    onnx.save(net, folder / "net.onnx")
    (folder / "vocabulary.txt").write_text("".join(f"{token}\n" for token in TOKENS))
    return folder


@pytest.fixture(scope="module")
def binding(sdk):  # noqa: F811 - as pytest has it
    return python_binding(), sdk / "lib" / "libedge_model.so.1"


def step(models, kind):
    return ["--post", f"tokens:labels={models / 'vocabulary.txt'},kind={kind},end=</s>,skip=<s>"]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "sentencepiece"])
def test_the_library_writes_what_python_writes(kind, models, binding, tmp_path):
    done("build", models / "net.onnx", *step(models, kind), "-o", tmp_path / "made")
    manifest = bundle.load(tmp_path / "made").manifest
    assert manifest.texts.labels == tuple(TOKENS)
    edge_model, library = binding
    stream = np.random.default_rng(0)
    with edge_model.Model(tmp_path / "made", library=library) as model:
        for _ in range(500):
            numbers = stream.integers(0, len(TOKENS), 12).tolist()
            pieces = [TOKENS[number] for number in (*numbers, 1)[: (*numbers, 1).index(1)] if number]
            assert model.text_of(numbers) == texts.join(pieces, kind) == manifest.texts.text(numbers)
        assert model.text_of([]) == ""
        for wrong in (-1, len(TOKENS), 1 << 40):
            with pytest.raises(edge_model.EdgeError, match="not that of a token") as caught:
                model.text_of([2, wrong])
            assert caught.value.code == 2


def test_a_run_prints_the_text_of_each_sample(models, tmp_path):
    options = ["--board", "local", "--root", tmp_path / "store"]
    done("deploy", models / "net.onnx", *options, *step(models, "bpe"), "--budget", 0)
    rows = np.zeros((2, 1, ROWS, len(TOKENS)), np.float32)
    for sample, numbers in enumerate([[0, 2, 3, 6, 1, 3, 3, 3, 3], [4, 5, 2, 2, 2, 2, 2, 2, 4]]):
        rows[sample, 0, range(ROWS), numbers] = -1
    np.savez(tmp_path / "x.npz", x=rows)
    report = parsed("run", *options, "--input", tmp_path / "x.npz", "-o", tmp_path / "y.npz")
    expected = [" there!", "\u00fc" + 6 * " the" + "\ufffd"]
    assert [item["text"] for item in report["texts"]] == expected


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (["--pre", "scale=2", "--post", "tokens:labels={v}"], "no step 'tokens'"),
        (["--post", "tokens:labels={v}", "--post", "topk=2"], "no step 'topk'"),
        (["--post", "topk=2"], "at least one step before the model"),
    ],
)
def test_steps_that_do_not_go_together_are_refused(steps, message, models, tmp_path):
    arguments = [argument.replace("{v}", str(models / "vocabulary.txt")) for argument in steps]
    outcome = toolchain("build", models / "net.onnx", *arguments, "-o", tmp_path / "no")
    assert (outcome.code, message in outcome.err) == (2, True), outcome.err
