"""Random inputs are values that the model accepts."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support import nets
from tests.support.forests import forest
from tests.support.nets import node, value
from toolchain.models import draws, inputs, reference, source
from toolchain.tensors import Draw, TensorSpec

TABLE = {"table": np.ones((4, 8), np.float32)}


def of(nodes, ends, weights=None, *, tmp_path, result="float32"):
    """Load a model with one output `y`; its random inputs must run with the reference."""
    shaped = nets.model(nodes, ends, [value("y", None, result)], weights)
    loaded = source.load(nets.save(shaped, tmp_path))
    for seed in range(5):
        reference.run(loaded, inputs.random(loaded.inputs, seed))
    return {spec.name: spec.draw for spec in loaded.inputs}


def ids(*shape, name="i", dtype="int64"):
    return value(name, shape, dtype)


CASES = {
    "rows of a table": ([node("Gather", ["table", "i"], ["y"])], [ids(6)], TABLE, Draw(0, 4)),
    "columns": ([node("Gather", ["table", "i"], ["y"], axis=1)], [ids(6)], TABLE, Draw(0, 8)),
    "rows, moved and converted before": (
        [
            node("Cast", ["i"], ["c"], to=TensorProto.INT64),
            node("Reshape", ["c", "to"], ["r"]),
            node("Gather", ["table", "r"], ["y"]),
        ],
        [ids(6, dtype="int32")],
        {**TABLE, "to": np.array([2, 3])},
        Draw(0, 4),
    ),
    "the smaller of two tables": (
        [node("Gather", ["table", "i"], ["a"]), node("Gather", ["small", "i"], ["b"]), node("Add", ["a", "b"], ["y"])],
        [ids(6)],
        {**TABLE, "small": np.ones((2, 8), np.float32)},
        Draw(0, 2),
    ),
    "rows behind a few special ones": (
        [node("Add", ["i", "two"], ["j"]), node("Gather", ["table", "j"], ["y"])],
        [ids(6)],
        {**TABLE, "two": np.array(2)},
        Draw(-2, 2),
    ),
    "bytes that are rows of a longer table": (
        [node("Cast", ["i"], ["c"], to=TensorProto.INT32), node("Gather", ["long", "c"], ["y"])],
        [ids(6, dtype="uint8")],
        {"long": np.ones((300, 2), np.float32)},
        Draw(0, 255),
    ),
    "classes of a loss": (
        [node("SoftmaxCrossEntropyLoss", ["x", "i"], ["y"])],
        [value("x", (5, 3)), ids(5)],
        {},
        Draw(0, 3),
    ),
    "a computed table": (
        [node("Relu", ["x"], ["t"]), node("Gather", ["t", "i"], ["y"])],
        [value("x", (3, 2)), ids(6)],
        {},
        Draw(0, 3),
    ),
    "elements of an axis": (
        [node("GatherElements", ["x", "i"], ["y"], axis=1)],
        [value("x", (2, 3)), ids(2, 3)],
        {},
        Draw(0, 3),
    ),
    "coordinates": ([node("GatherND", ["x", "i"], ["y"])], [value("x", (5, 3)), ids(4, 2)], {}, Draw(0, 3)),
    "classes": (
        [node("OneHot", ["i", "depth", "values"], ["y"])],
        [ids(6)],
        {"depth": np.array(5), "values": np.array([0, 1], np.float32)},
        Draw(0, 5),
    ),
    "a divisor": ([node("Div", ["a", "i"], ["y"])], [ids(4, name="a"), ids(4)], {}, Draw(1, 10)),
    "a mask by its type": (
        [node("Cast", ["i"], ["c"], to=TensorProto.BOOL), node("Not", ["c"], ["y"])],
        [ids(4)],
        {},
        Draw(0, 2),
    ),
    "lengths of sequences": (
        [node("ReverseSequence", ["x", "i"], ["y"])],
        [value("x", (5, 3)), ids(3)],
        {},
        Draw(1, 6),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_integers(name, tmp_path):
    nodes, ends, weights, expected = CASES[name]
    result = {"a divisor": "int64", "a mask by its type": "bool"}.get(name, "float32")
    assert of(nodes, ends, weights, tmp_path=tmp_path, result=result)["i"] == expected


@pytest.mark.parametrize("name", ["attention_mask", "decoder.padding_mask", "is_first"])
def test_masks_by_their_names(name, tmp_path):
    nodes = [node("Cast", [name], ["y"], to=TensorProto.FLOAT)]
    assert of(nodes, [ids(4, name=name)], tmp_path=tmp_path) == {name: Draw(0, 2)}


@pytest.mark.parametrize(
    ("operator", "low", "high"), [("Log", 0.05, 1), ("Sqrt", 0, 1), ("Acos", -0.95, 0.95), ("Acosh", 1.05, 3)]
)
def test_floats(operator, low, high, tmp_path):
    draws = of([node(operator, ["x"], ["y"])], [value("x", (100,))], tmp_path=tmp_path)
    assert draws == {"x": Draw(low, high)}
    array = inputs.random([TensorSpec("x", (100,), "float32", draw=draws["x"])], 0)["x"]
    assert array.dtype == np.float32
    assert low <= array.min() < array.max() < high


def test_what_the_graph_does_not_restrict_is_drawn_as_ever(tmp_path):
    draws = of([node("Relu", ["x"], ["y"]), node("Neg", ["i"], ["z"])], [value("x", (2, 3)), ids(4)], tmp_path=tmp_path)
    assert draws == {"x": None, "i": None}


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_features_of_trees_lie_between_the_thresholds(dtype, tmp_path):
    trees = helper.make_node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "y"],
        domain="ai.onnx.ml",
        classlabels_int64s=[0, 1],
        **forest("class", [0]),
    )
    proto = nets.model([trees], [value("x", (2, 4), dtype)], [value("y", (2, 2))])
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    loaded = source.load(nets.save(proto, tmp_path))
    assert loaded.inputs[0].draw == Draw(-2, 2)
    reference.run(loaded, inputs.random(loaded.inputs, 0))


def test_zeros_and_ones():
    specs = draws.binary([TensorSpec("i", (50,), "int64"), TensorSpec("x", (2,), "float32")])
    assert [spec.draw for spec in specs] == [Draw(0, 2), None]
    assert set(inputs.random(specs, 0)["i"]) == {0, 1}


@pytest.mark.parametrize(
    ("dtype", "draw", "possible"),
    [
        ("int64", Draw(0, 2), True),
        ("int8", Draw(0, 300), False),
        ("uint8", Draw(-1, 2), False),
        ("int64", Draw(0.5, 2), False),
        ("int64", Draw(2, 2), False),
        ("float32", Draw(0, float("inf")), False),
        ("float32", Draw(float("nan"), 1), False),
        ("bool", Draw(0, 2), True),
    ],
)
def test_what_can_be_drawn(dtype, draw, possible):
    assert TensorSpec("x", (2,), dtype, draw=draw).can_be_drawn is possible
