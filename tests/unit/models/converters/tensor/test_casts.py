"""Changes of the element type, against ONNX Runtime: every pair of types, and numbers that the new one cannot hold."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support import nets
from tests.support.nets import node, value
from tests.support.one_node import agree, agree_model, fed
from toolchain.tensors import DTYPES

KINDS = [np.dtype(name) for name in DTYPES]


def element(kind):
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(kind)))


@pytest.mark.parametrize("source", DTYPES)
def test_numbers_that_both_hold(source):
    values = np.array([[0, 1, 2], [3, 100, 7]]).astype(source)
    agree([fed("Cast", values, to=element(kind)) for kind in KINDS if kind != values.dtype], opset=19)


@pytest.mark.parametrize("source", ["float32", "float64", "float16"])
def test_fractions(source):
    values = np.array([0.5, -0.5, -1.9, 1.9, 0.0, 1e-7, -100.7, 120.2, np.nan, np.inf], source)
    agree([fed("Cast", values, to=element("bool"))])
    signed = ("int8", "int16", "int32", "int64", "float16", "float32", "float64")
    agree([fed("Cast", values[:8], to=element(kind)) for kind in signed if kind != source])


@pytest.mark.parametrize("source", ["float32", "float64"])
def test_numbers_that_the_new_type_does_not_hold(source):
    values = np.array([np.nan, np.inf, -np.inf, 300.0, -300.0, 70000.0, -70000.0, 3e9, -3e9, 1e20], source)
    kinds = ("int8", "uint8", "int16", "uint16", "int32", "int64")
    agree([fed("Cast", values, to=element(kind)) for kind in kinds])


def test_integers_wrap_around():
    values = np.array([-1, 300, 2**31 - 1, -(2**31), 70000], "int32")
    agree([fed("Cast", values, to=element(kind)) for kind in KINDS if kind != values.dtype])


def test_casts_to_the_type_of_another():
    other = np.zeros((3,))
    agree([fed("CastLike", np.array([0.5, -7.5, 0]), other.astype(kind)) for kind in ("bool", "int8", "float32")])


def test_bits_under_another_name():
    values = np.array([1.0, -2.5, np.inf], "float32")
    agree([fed("BitCast", values, to=element("int32"))], opset=26)


def test_there_and_back_through_bfloat16_rounds():
    nodes = [node("Cast", ["x"], ["b"], to=element_of("BFLOAT16")), node("Cast", ["b"], ["y"], to=element("float32"))]
    proto = nets.model(nodes, [value("x", (9,))], [value("y", (9,))])
    numbers = [1 / 3, -2.181964, 1e-40, np.nan, np.inf, 1.00390625, 1.01171875, 3e38, 0]
    agree_model(proto, [np.array(numbers, "float32")], rtol=0, atol=0)


def element_of(name):
    return int(TensorProto.DataType.Value(name))
