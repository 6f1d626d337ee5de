"""The `model` commands."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.support.commands import done, parsed, toolchain
from toolchain.models import zoo


def test_models_are_listed():
    names = [model["name"] for model in parsed("model", "list")]
    assert {"resnet-50", "mobilenet", "mlp", "resnet3d-18", "inception_v3"} <= set(names)
    assert "mobilenet" in done("model", "list").out


def test_a_pruned_model_is_written_and_inspected(tmp_path):
    file = tmp_path / "sparse.onnx"
    pruned = parsed("model", "prune", "mlp", "--sparsity", "0.8", "--block", "8x1", "-o", file)
    assert pruned["sparsity"]["blocks"]["8x1"] == pytest.approx(0.8, abs=0.01)
    assert pruned["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert parsed("inspect", "model", file)["sparsity"] == pruned["sparsity"]
    assert "80%; of the blocks" in done("inspect", "model", file).out


def test_an_earlier_result_is_replaced_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("model", "prune", "mlp", "--sparsity", "0.5", "--random")
    assert "fc1" in done(*arguments).out
    first = Path("mlp-sparse.onnx").read_bytes()
    done(*arguments, "--seed", "1")
    assert Path("mlp-sparse.onnx").read_bytes() != first
    for content in (b"notes", zoo.build("mlp", 0).SerializeToString()):
        Path("other.onnx").write_bytes(content)
        result = toolchain(*arguments, "-o", "other.onnx")
        assert (result.code, Path("other.onnx").read_bytes()) == (2, content)
    result = toolchain("model", "prune", "mlp-sparse.onnx", "--sparsity", "0.5", "-o", "mlp-sparse.onnx")
    assert "is the model itself" in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sparsity", "1"), "1.0 is not in the range"),
        (("--sparsity", "0.5", "--block", "16"), "'16' is not a block of weights"),
        (("--sparsity", "0.5", "--block", "999x1"), "no layer of the model has 999 outputs"),
    ],
)
def test_wrong_options(options, message, tmp_path):
    result = toolchain("model", "prune", "mlp", *options, "-o", tmp_path / "out.onnx")
    assert (result.code, message in result.err, list(tmp_path.iterdir())) == (2, True, [])
