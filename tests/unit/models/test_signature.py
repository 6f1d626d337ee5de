"""Which inputs a model has once shapes and constants were given."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support import nets
from tests.support.nets import node, value
from toolchain.errors import InputError
from toolchain.models import signature


def with_inputs(*inputs):
    return nets.model([node("Identity", [inputs[0].name], ["y"])], inputs, [value("y", None)])


def shapes(proto):
    return {spec.name: spec.shape for spec in signature.specs(proto)}


@pytest.mark.parametrize(
    "first", ["batch", "N", "batch_size", "unk__214", "?", "-1", "", "s77", "p2o.DynamicDimension.0"]
)
def test_an_open_batch_is_one_and_told(first):
    proto = with_inputs(value("x", (first, 3, 8)))
    (line,) = signature.set_shapes(proto, {})
    assert shapes(proto) == {"x": (1, 3, 8)}
    assert "input x is" in line
    assert "using a batch of 1" in line


@pytest.mark.parametrize("shape", [("sequence", 3), (1, "batch"), ("n",), (3, "n", 4)])
def test_other_open_dimensions_are_asked_for(shape):
    with pytest.raises(InputError, match="input x has open dimensions") as caught:
        signature.set_shapes(with_inputs(value("x", shape)), {})
    assert any(option in caught.value.hint for option in ("--dim sequence=64", "--dim batch=64", "--dim n=64"))


def test_all_open_inputs_are_named_at_once():
    proto = with_inputs(value("x", ("batch", "length")), value("mask", ("batch", "other")), value("z", (2,)))
    with pytest.raises(InputError, match="inputs x, mask have open dimensions") as caught:
        signature.set_shapes(proto, {})
    assert caught.value.details.splitlines() == [
        "x: batch x length",
        "mask: batch x other",
        "dimension length of x",
        "dimension other of mask",
    ]
    assert caught.value.hint == "set them, for example: --dim length=64 --dim other=64"


def test_a_dimension_of_one_name_is_one_size():
    proto = with_inputs(
        value("x", ("batch", "length")), value("mask", ("batch", "length")), value("h", (2, "batch", 4))
    )
    assert len(signature.set_shapes(proto, {"mask": (5, 7)})) == 0
    assert shapes(proto) == {"x": (5, 7), "mask": (5, 7), "h": (2, 5, 4)}


def test_a_guessed_batch_is_that_of_the_others():
    proto = with_inputs(value("x", ("batch", 7)), value("h", (2, "batch", 4)))
    assert len(signature.set_shapes(proto, {})) == 1
    assert shapes(proto) == {"x": (1, 7), "h": (2, 1, 4)}


@pytest.mark.parametrize(
    ("dtype", "shape", "text", "expected"),
    [
        ("int64", (), "16000", np.int64(16000)),
        ("int64", (1,), "3", np.array([3])),
        ("float32", (2,), "0.5,-1", np.array([0.5, -1], "float32")),
        ("float32", (2, 2), "2", np.full((2, 2), 2, "float32")),
        ("bool", (), "true", np.ones((), bool)),
        ("int32", ("n",), "1,2,3", np.array([1, 2, 3], "int32")),
    ],
)
def test_an_input_becomes_a_constant(dtype, shape, text, expected):
    proto = with_inputs(value("x", (1,)), value("k", shape, dtype))
    signature.fix(proto, {"k": text})
    assert [item.name for item in proto.graph.input] == ["x"]
    constant = numpy_helper.to_array(proto.graph.initializer[0])
    assert (constant.dtype, constant.shape) == (np.asarray(expected).dtype, np.asarray(expected).shape)
    np.testing.assert_array_equal(constant, expected)


@pytest.mark.parametrize(
    ("dtype", "shape", "text"),
    [("int64", (), "1.5"), ("int64", (), "1,2"), ("int8", (), "300"), ("bool", (), "2"), ("int64", (2,), "1,2,3"),
     ("float32", (), "x")],
)  # fmt: skip
def test_values_that_an_input_cannot_have(dtype, shape, text):
    with pytest.raises(InputError, match=r"is not a valid value for input k|numbers; input k"):
        signature.fix(with_inputs(value("x", (1,)), value("k", shape, dtype)), {"k": text})


def test_a_value_for_no_input():
    with pytest.raises(InputError, match="the model has no input 'q'"):
        signature.fix(with_inputs(value("x", (1,))), {"q": "1"})


def test_weights_are_no_inputs():
    proto = with_inputs(value("x", (1,)), value("w", (2,)))
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(2, "float32"), "w"))
    signature.drop_weights(proto)
    assert shapes(proto) == {"x": (1,)}


def test_closed_shapes_keep_what_was_inferred():
    proto = onnx.shape_inference.infer_shapes(nets.relu((2, 3)))
    before = proto.SerializeToString(deterministic=True)
    assert signature.set_shapes(proto, {}) == ()
    assert proto.SerializeToString(deterministic=True) == before
