"""Sums of products of bytes, bit for bit as ONNX Runtime has them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.one_node import One, agree
from tests.support.operator_cases import RIGHT, cases, judged


def whole(*shape, dtype="uint8", seed=0):
    # ONNX Runtime limits sums of two products to 16 bits on processors without VNNI: 2 * 255 * 64 is within.
    lowest, highest = (-64, 63) if dtype == "int8" else (0, 255)
    return np.asarray(np.random.default_rng(seed).integers(lowest, highest, shape, dtype, endpoint=True))


@pytest.mark.parametrize("input_count", [1, 4])
def test_convolutions_of_bytes(input_count):
    wide = {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}
    tables = [
        One(
            "ConvInteger",
            [whole(1, 3, 6, 7), whole(4, 3, 3, 3, dtype="uint8"), np.array(9, "uint8"), np.array(130, "uint8")],
            wide,
        ),
        One("ConvInteger", [whole(2, 4, 5, 5), whole(4, 2, 3, 3), np.array(9, "uint8")], {"group": 2}),
        One("ConvInteger", [whole(1, 3, 8), whole(2, 3, 3)], {"auto_pad": "SAME_UPPER"}),
    ]
    nodes = [
        One(node.operator, node.inputs, node.attributes, given=min(input_count, len(node.inputs))) for node in tables
    ]
    agree(nodes, 10, rtol=0, atol=0)


@pytest.mark.parametrize("input_count", [1, 4])
def test_products_of_bytes(input_count):
    tables = [
        One("MatMulInteger", [whole(5, 300), whole(300, 6, dtype="int8"), np.array(9, "uint8"), np.array(3, "int8")]),
        One("MatMulInteger", [whole(2, 5, 7), whole(7, 6), whole(1), whole(6)]),
        One("MatMulInteger", [whole(2, 3, 5, 7), whole(2, 3, 7, 6, dtype="int8")]),
        One("MatMulInteger", [whole(7), whole(7, 6, dtype="int8"), np.array(9, "uint8")]),
    ]
    nodes = [
        One(node.operator, node.inputs, node.attributes, given=min(input_count, len(node.inputs))) for node in tables
    ]
    agree(nodes, 10, rtol=0, atol=0)


@pytest.mark.nightly
def test_cases_of_the_standard():
    names = [name for name in cases() if name.startswith(("test_qlinear", "test_convinteger"))]
    assert {name: judged(cases()[name]).kind for name in names} == dict.fromkeys(names, RIGHT)
