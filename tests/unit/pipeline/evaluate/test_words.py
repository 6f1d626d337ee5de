"""The word error rate: equal to that of jiwer, on random texts."""

from __future__ import annotations

from pathlib import Path

import jiwer
import numpy as np
import pytest

from toolchain.errors import InputError
from toolchain.pipeline.evaluate import data, extras
from toolchain.pipeline.evaluate.catalog import open_metric
from toolchain.pipeline.evaluate.data import Reader, Target
from toolchain.pipeline.evaluate.functions import UserFunction
from toolchain.pipeline.evaluate.paired import Verdict
from toolchain.pipeline.evaluate.words import WordErrorRate
from toolchain.tensors import TensorSpec

X = TensorSpec("x", (1, 4), "float32")


def random_text(stream, most):
    return " ".join(stream.choice(["one", "two", "three", " four", "six", "ten"], stream.integers(0, most)))


def metric_of(texts):
    function = UserFunction("own:text", lambda _outputs, path: texts[int(path.name)], "")
    return WordErrorRate("wer", unit="points", scale=100.0, sign=-1.0, text=function)


def scored(references, texts):
    metric = metric_of(texts)
    return metric, [
        metric.score({}, Target(str(number), text, {}, Path(str(number)))) for number, text in enumerate(references)
    ]


def check_equal(seed):
    stream = np.random.default_rng(seed)
    count = int(stream.integers(1, 12))
    references, texts = ([random_text(stream, most) for _ in range(count)] for most in (9, 10))
    metric, scores = scored(references, texts)
    assert metric.total(scores) / 100 == pytest.approx(jiwer.wer(references, texts), abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_equal_to_jiwer(seed):
    check_equal(seed)


@pytest.mark.nightly
def test_equal_to_jiwer_on_a_thousand_sets():
    for seed in range(1000):
        check_equal(seed)


def test_a_loss_of_many_texts():
    references = [f"number {number} of many words" for number in range(60)]
    metric, first = scored(references, references)
    _, second = scored(references, [text.replace("many", "any") for text in references])
    assert metric.compare(first, first).verdict is Verdict.SAME
    loss = metric.compare(first, second)
    assert (loss.verdict, loss.value, loss.worse) == (Verdict.WORSE, pytest.approx(20), 60)
    assert metric.compare(second, first).verdict is Verdict.BETTER
    assert (second[0].answer, scored(["a"], [" "])[1][0].answer) == ("number 0 of any words", "(no words)")


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Write a table of .npz files, or of sounds, with transcripts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_words.py").write_text(
        "def text(outputs, path):\n    return 'a b'\ndef number(outputs, path):\n    return 3\n"
    )

    def write(*transcripts, ending="npz", column="transcript"):
        lines = [f"file,{column}"]
        for number, text in enumerate(transcripts):
            name = f"{number}.{ending}"
            if ending == "npz":
                np.savez(tmp_path / name, x=np.zeros((1, 4), np.float32))
            else:
                (tmp_path / name).write_bytes(b"RIFF")
            lines.append(f"{name},{text}")
        (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
        return Reader(data.read(tmp_path / "all.csv"), (X,))

    return write


def test_transcripts_of_a_table(table):
    reader = table("a b", "a c d")
    metric = open_metric("wer", reader.dataset, None, "own_words:text")
    metric.check(reader, [])
    scores = [metric.score({}, reader.target(sample)) for sample in reader.dataset.samples]
    assert metric.total(scores) == pytest.approx(40)
    with pytest.raises(InputError, match=r"own_words:number returned int for 0\.npz"):
        open_metric("wer", reader.dataset, None, "own_words:number").score({}, reader.target(reader.dataset.samples[0]))


def test_what_wer_needs(table, monkeypatch):
    reader = table("", "")
    with pytest.raises(InputError, match=r"no sample of .* has a transcript, which wer needs"):
        open_metric("wer", reader.dataset, None, "own_words:text").check(reader, [])
    with pytest.raises(InputError, match="wer needs a text, which no step of the release reads"):
        open_metric("wer", reader.dataset, None).of_release(None, ["y"], own_reader=False)
    with pytest.raises(InputError, match="--postprocess has no effect on the metric mse"):
        open_metric("mse", reader.dataset, None, "own_words:text")
    with pytest.raises(InputError, match="does not have the columns"):
        table("a", column="words")
    with pytest.raises(InputError, match=r"neither a picture nor an \.npz file") as caught:
        table("a", ending="wav").check()
    assert "--preprocess" in caught.value.hint

    def absent(module):
        raise ModuleNotFoundError(f"No module named {module!r}")

    monkeypatch.setattr(extras, "load", absent)
    with pytest.raises(InputError, match="wer needs jiwer, which is not installed"):
        open_metric("wer", reader.dataset, None, "own_words:text")
