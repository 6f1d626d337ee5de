from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets, paths
from tests.support.nets import node, value
from toolchain.models import importer, inspection
from toolchain.models import source as model
from toolchain.tensors import TensorSpec

IMAGE = TensorSpec("x", (1, 3, 8, 8), "float32")
DATA = paths.DATA / "models"


def load(name: str, **options) -> model.SourceModel:
    return model.load(str(DATA / f"{name}.onnx"), **options)


def test_inspection_of_a_net_made_by_hand(tmp_path):
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("Reshape", ["r", "shape"], ["f"]),
        node("Gemm", ["f", "m"], ["y"]),
    ]
    stream = np.random.default_rng(0)
    weights = {
        "w": stream.standard_normal((500, 3, 3, 3), np.float32),
        "b": np.zeros(500, "float32"),
        "shape": np.array([1, 18000]),
        "m": np.zeros((18000, 10), "float32"),
    }
    proto = nets.model(nodes, [value("x", (1, 3, 8, 8))], [value("y", (1, 10))], weights, opset=19)
    summary = inspection.inspect(model.load(nets.save(proto, tmp_path, "hand.onnx")))
    assert summary == inspection.Inspection(
        name="hand",
        opset=19,
        inputs=(IMAGE,),
        outputs=(inspection.Output("y", (1, 10), "float32"),),
        parameters=500 * 27 + 500 + 180_000,
        gflops=round(2 * (500 * 36 * 27 + 18000 * 10) / 1e9, 4),
        operators={"Conv": 1, "Gemm": 1, "Relu": 1, "Reshape": 1},
        imported={"Conv": 1, "Gemm": 1, "Relu": 1, "Reshape": 1},
        guessed=(),
        sparsity=summary.sparsity,
        few_bits=None,
        unsupported=(),
    )
    assert summary.sparsity.zeros == pytest.approx(180_000 / (500 * 27 + 180_000))
    assert summary.sparsity.blocks["8x1"] == pytest.approx(2 * 18_000 / (63 * 27 + 2 * 18_000))


def test_inspection_of_a_model_that_cannot_be_imported():
    summary = inspection.inspect(load("unsupported-operators"))
    assert summary.unsupported == (importer.UnsupportedNode("TfIdfVectorizer", "count_words", 1),)
    assert summary.operators == {"Abs": 1, "Det": 1, "TfIdfVectorizer": 1}


def test_inspection_of_the_zoo():
    # ResNet-18 has 1.8 billion multiply-adds and 11.7 million parameters; its running statistics count as well.
    summary = inspection.inspect(model.load("resnet-18"))
    assert summary.gflops == pytest.approx(3.63, abs=0.05)
    assert summary.parameters == pytest.approx(11_689_512, rel=2e-3)


def test_work_of_an_unknown_shape_is_unknown():
    summary = inspection.inspect(load("data-dependent-output"))
    assert summary.outputs == (inspection.Output("y", (2, 0), "int64"),)
    assert summary.gflops == 0


def test_the_shapes_of_outputs_that_shape_inference_does_not_know():
    summary = inspection.inspect(model.load(str(paths.DATA / "ml" / "sk-forest-two-classes.onnx")))
    assert [(output.name, output.shape) for output in summary.outputs] == [
        ("output_label", (1,)),
        ("output_probability", (1, 2)),
    ]


def test_an_output_of_no_known_shape(tmp_path):
    nodes = [node("Foreign", ["x"], ["y"], domain="com.example")]
    proto = nets.model(nodes, [value("x", (1, 4))], [value("y", None)])
    proto.opset_import.add(domain="com.example", version=1)
    (output,) = inspection.inspect(model.load(nets.save(proto, tmp_path))).outputs
    assert output.shape is None
