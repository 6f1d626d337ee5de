from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets
from tests.support.nets import node, value
from toolchain.errors import InputError
from toolchain.quantize import strip
from toolchain.quantize.ranges import Range

HELD = {
    "half": np.float32(0.5),
    "third": np.float32(1 / 3),
    "each": np.array([0.5, 0.25], np.float32),
    "zero": np.int8(0),
    "zeros": np.zeros(2, np.int8),
    "one": np.int8(1),
    "ones": np.ones(2, np.int8),
    "low": np.int8(-128),
    "u0": np.uint8(0),
    "u7": np.uint8(7),
    "w": np.array([[1, 2], [3, 4]], np.int8),
    "b": np.array([8, 9], np.int32),
    "b0": np.int32(0),
}


def net(*nodes, outputs=("y",), dtype="float32", constants=None):
    return nets.model(
        nodes, [value("x", (2, 2), dtype)], [value(name, None) for name in outputs], {**HELD, **(constants or {})}
    )


def pair(source, output, scale="half", zero="zero"):
    constants = [scale, zero] if zero else [scale]
    quantize = node("QuantizeLinear", [source, *constants], [f"{output}.q"])
    return quantize, node("DequantizeLinear", [f"{output}.q", *constants], [output])


def operators(proto):
    return [node.op_type for node in proto.graph.node]


@pytest.mark.parametrize(
    ("scale", "zero", "shiftable"),
    [
        ("half", "zero", True),
        ("third", "zero", False),
        ("each", "zeros", False),
        ("half", "one", True),
        ("half", "ones", False),
        ("half", "u0", False),
        ("half", "", False),
    ],
)
def test_what_shifts_can_compute(scale, zero, shiftable):
    assert strip.is_shiftable(net(*pair("x", "y", scale, zero))) == shiftable


def test_constants_need_no_zero_point():
    weight = [node("DequantizeLinear", ["w", "half"], ["f"]), node("DequantizeLinear", ["b", "half", "b0"], ["c"])]
    assert strip.is_shiftable(net(*pair("x", "r"), *weight, node("Gemm", ["r", "f", "c"], ["y"])))
    weight[0] = node("DequantizeLinear", ["w", "half", "one"], ["f"])
    assert not strip.is_shiftable(net(*pair("x", "r"), *weight, node("Gemm", ["r", "f", "c"], ["y"])))
    assert not strip.is_shiftable(net(*weight, node("Gemm", ["x", "f", "c"], ["y"])))  # its activations are floats


def test_a_float_model_stays():
    proto = net(node("Relu", ["x"], ["y"]))
    before = proto.SerializeToString()
    assert strip.strip(proto, "net") is None
    assert proto.SerializeToString() == before


def test_pairs_vanish_and_constants_become_floats():
    weight = [
        node("DequantizeLinear", ["w", "each", "zeros"], ["f"], axis=0),
        node("DequantizeLinear", ["b", "half"], ["c"]),
    ]
    proto = net(
        *pair("x", "r"),
        *weight,
        node("Gemm", ["r", "f", "c"], ["g"]),
        *pair("g", "h", "third", "u7"),
        node("Neg", ["h"], ["y"]),
    )
    ranges = strip.strip(proto, "net")
    assert ranges["x"] == Range(-64, 63.5)
    assert ranges["g"] == Range(pytest.approx(-7 / 3), pytest.approx(248 / 3))
    assert operators(proto) == ["Gemm", "Neg"]
    x = np.array([[1, 2], [3, 5]], np.float32)
    expected = -(x @ np.array([[0.5, 1], [0.75, 1]]) + [4, 4.5])
    np.testing.assert_allclose(nets.run(proto, {"x": x})[0], expected)


@pytest.mark.parametrize("axis", [1, -1])
def test_scales_lie_along_their_axis(axis):
    proto = net(
        node("DequantizeLinear", ["w", "each"], ["f"], axis=axis), *pair("x", "r"), node("Add", ["r", "f"], ["y"])
    )
    strip.strip(proto, "net")
    (result,) = nets.run(proto, {"x": np.zeros((2, 2), np.float32)})
    assert result.tolist() == [[0.5, 0.5], [1.5, 1]]


@pytest.mark.parametrize(("zero", "relu"), [("u0", True), ("low", True), ("", True), ("u7", False), ("zero", False)])
def test_a_bound_that_the_zero_point_stands_for_comes_back(zero, relu):
    proto = net(node("Add", ["x", "x"], ["a"]), *pair("a", "h", "half", zero), node("Neg", ["h"], ["y"]))
    strip.strip(proto, "net")
    assert operators(proto) == ["Add", *(["Clip"] if relu else []), "Neg"]
    nets.run(proto, {"x": np.zeros((2, 2), np.float32)})


@pytest.mark.parametrize("opset", [10, 13])
def test_it_bounds_as_the_bytes_did(opset):
    """ONNX Runtime's quantizer takes away the 6 of a hard swish, too: the byte saturates there."""
    proto = net(node("Add", ["x", "x"], ["a"]), *pair("a", "h", "third", ""), node("Neg", ["h"], ["y"]))
    proto.opset_import[0].version = opset
    strip.strip(proto, "net")
    (result,) = nets.run(proto, {"x": np.array([[-3, 3], [30, 300]], np.float32)})
    expected = [[0, -6], [-60, -85 if opset > 10 else -600]]
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_it_does_not_come_twice():
    proto = net(node("Relu", ["x"], ["a"]), *pair("a", "h", "half", "u0"), node("Neg", ["h"], ["y"]))
    strip.strip(proto, "net")
    assert operators(proto) == ["Relu", "Neg"]


def test_ranges_are_those_of_the_grids():
    proto = net(
        *pair("x", "r", "half", "u7"),
        node("Transpose", ["r"], ["t"]),
        node("Add", ["t", "r"], ["a"]),
        *pair("a", "h", "third", "u0"),
        *pair("a", "g", "half", "low"),
        node("Sub", ["h", "g"], ["y"]),
    )
    ranges = strip.strip(proto, "net")
    assert ranges == {"x": Range(-3.5, 124), "t": Range(-3.5, 124), "h.q": Range(0, pytest.approx(85)),
                     "g.q": Range(0, 127.5)}  # fmt: skip


def test_what_a_relu_makes_is_not_negative():
    """Whether the grid is that of its own result, of what it reads, or of what is moved from it."""
    quantize, dequantize = pair("x", "r")
    dequantize.input[0] = "p"
    on_bytes = [quantize, node("Relu", ["r.q"], ["p"]), dequantize]
    last = [node("Transpose", ["n"], ["t"]), *pair("t", "h", "third"), node("Neg", ["h"], ["y"])]
    ranges = strip.strip(net(*on_bytes, node("Relu", ["r"], ["n"]), *last), "net")
    third = pytest.approx(127 / 3)
    assert ranges == {"x": Range(-64, 63.5), "p": Range(0, 63.5), "n": Range(0, 63.5), "t": Range(0, third)}


def test_what_a_relu_makes_of_what_is_not_known_is_not_known():
    proto = net(node("Relu", ["x"], ["n"]), node("Neg", ["n"], ["m"]), *pair("m", "h"), node("Neg", ["h"], ["y"]))
    assert strip.strip(proto, "net") == {"m": Range(-64, 63.5)}


def test_what_only_moves_bytes_moves_floats():
    quantize, dequantize = pair("x", "r")
    dequantize.input[0] = "t"
    proto = net(quantize, node("Transpose", ["r.q"], ["t"]), dequantize, node("Neg", ["r"], ["y"]))
    strip.strip(proto, "net")
    assert operators(proto) == ["Transpose", "Neg"]
    assert nets.run(proto, {"x": np.array([[1, 2], [3, 4]], np.float32)})[0].tolist() == [[-1, -3], [-2, -4]]


def test_a_result_keeps_its_name():
    proto = net(node("Neg", ["x"], ["n"]), *pair("n", "y"))
    strip.strip(proto, "net")
    assert operators(proto) == ["Neg", "Identity"]


def test_integers_at_the_edges_are_refused():
    quantize, dequantize = pair("x", "y")
    with pytest.raises(InputError, match="a result of integers"):
        strip.strip(net(quantize, outputs=("y.q",)), "net")
    dequantize.input[0] = "x"
    with pytest.raises(InputError, match="an input of integers"):
        strip.strip(net(dequantize, dtype="int8"), "net")


def test_weights_in_blocks_are_refused():
    blocks = node("DequantizeLinear", ["w", "blocks"], ["f"], axis=0, block_size=1)
    proto = net(blocks, node("Add", ["x", "f"], ["y"]), constants={"blocks": np.ones((2, 2), np.float32)})
    with pytest.raises(InputError, match="in blocks"):
        strip.strip(proto, "net")


@pytest.mark.parametrize(
    "operator", ["QLinearConv", "QLinearAdd", "ConvInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"]
)
def test_integer_operators_are_refused(operator):
    with pytest.raises(InputError, match="compute with integers") as fault:
        strip.strip(net(node(operator, ["x"], ["y"], "odd")), "net")
    assert fault.value.details == f"{operator} 'odd'"
