"""Operators on bytes, within a step of ONNX Runtime's: a sum that lies between two steps may go to either."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.one_node import One, agree

STEP = 1
A, B, C = (
    [np.array(scale, np.float32), np.array(zero, np.uint8)] for scale, zero in ((0.03, 120), (0.05, 7), (0.07, 99))
)
S = [np.array(0.02, np.float32), np.array(-5, np.int8)]


def whole(*shape, dtype="uint8", seed=0):
    # ONNX Runtime limits sums of two products to 16 bits on processors without VNNI: 2 * 255 * 64 is within.
    lowest, highest = (-64, 63) if dtype == "int8" else (0, 255)
    return np.random.default_rng(seed).integers(lowest, highest, shape, dtype, endpoint=True)


def along(count, *, seed=1):
    return np.random.default_rng(seed).uniform(0.01, 0.05, count).astype(np.float32)


def theirs(operator, inputs, attributes=None, **more):
    """Return a node of ONNX Runtime's own."""
    return One(operator, inputs, attributes or {}, domain="com.microsoft", **more)


def check(*nodes, opset=13):
    agree(nodes, opset, rtol=0, atol=STEP)


@pytest.mark.parametrize("input_count", [1, 9])
def test_convolutions(input_count):
    weights, scale, zero = whole(4, 3, 3, 3, dtype="int8", seed=1), along(4), np.zeros(4, np.int8)
    bias = np.array([100, -20000, 0, 7], np.int32)
    how = {"pads": [1, 1, 0, 2], "strides": [2, 1]}
    wide = whole(4, 1, 3, 3, seed=2)
    nodes = [
        One("QLinearConv", [whole(1, 3, 6, 7), *A, weights, scale, zero, *C, bias], how),
        One("QLinearConv", [whole(2, 4, 5, 5), *A, wide, *B, *C], {"group": 4}),
        One(
            "QLinearConv",
            [whole(1, 3, 6, 7, dtype="int8"), *S, weights, scale, zero, *S, bias],
            {"auto_pad": "SAME_UPPER"},
        ),
    ]
    check(*(replace(node, given=min(input_count, len(node.inputs))) for node in nodes))


def test_products_of_matrices():
    columns = [whole(6, 4, dtype="int8", seed=1), along(4), np.zeros(4, np.int8)]
    check(
        One("QLinearMatMul", [whole(3, 6), *A, *columns, *C]),
        One("QLinearMatMul", [whole(2, 3, 6), *A, *columns, *C], given=8),
        One("QLinearMatMul", [whole(2, 3, 6), *A, whole(2, 6, 4, seed=1), *B, *C]),
    )


def test_fully_connected_layers():
    weights, bias = whole(5, 6, dtype="int8", seed=1), np.array([5, -3000, 0, 9, 70], np.int32)
    scale, zero = along(5), np.zeros(5, np.int8)
    check(
        theirs("QGemm", [whole(3, 6), *A, weights, scale, zero, bias, *C], {"transB": 1}),
        theirs("QGemm", [whole(3, 6), *A, weights.T, along(()), np.int8(0).reshape(()), None, *C], {"alpha": 0.5}),
    )
    agree([theirs("QGemm", [whole(3, 6), *A, weights, scale, zero, bias], {"transB": 1})], 13)


def test_two_tensors():
    x, y = whole(2, 3, 4), whole(3, 1, seed=1)
    check(
        theirs("QLinearAdd", [x, *A, y, *B, *C]),
        theirs("QLinearMul", [x, *A, y, *B, *C], given=8),
        theirs("QLinearAdd", [whole(5, dtype="int8"), *S, whole(5, dtype="int8", seed=1), *S, *S]),
        theirs("QLinearConcat", [*C, x, *A, whole(2, 5, 4), *B], {"axis": 1}, given=0),
        theirs("QLinearWhere", [x > 99, x, *A, whole(2, 3, 4, seed=2), *B, *C]),
    )


def test_functions_and_pools():
    image, last = whole(1, 3, 6, 6), whole(1, 6, 6, 3)
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    check(
        theirs("QLinearSigmoid", [image, *A, *C]),
        theirs("QLinearLeakyRelu", [image, *A, *C], {"alpha": 0.2}),
        theirs("QLinearSoftmax", [whole(3, 8), *A, *C], {"axis": -1, "opset": 13}),
        theirs("QLinearGlobalAveragePool", [image, *A, *C]),
        theirs("QLinearGlobalAveragePool", [last, *A, *C], {"channels_last": 1}),
        theirs("QLinearAveragePool", [image, *A, *C], window),
        theirs("QLinearAveragePool", [image, *A, *C], {**window, "count_include_pad": 1}),
    )


def test_products_to_numbers():
    x = np.random.default_rng(3).standard_normal((2, 3, 8)).astype(np.float32)
    weights, bias = whole(8, 5, dtype="int8"), along(5)
    zeros = whole(5, dtype="int8", seed=2)
    agree(
        [
            theirs("DynamicQuantizeMatMul", [x, weights, along(5), zeros, bias]),
            theirs("DynamicQuantizeMatMul", [x, weights, along(1), np.array([3], np.int8)], given=4),
            theirs(
                "MatMulIntegerToFloat",
                [whole(3, 8), weights, along(()), along(5), np.uint8(7).reshape(()), zeros, bias],
            ),
        ],
        13,
    )
