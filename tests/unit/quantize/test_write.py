"""What is written for given scales and biases; test_network.py runs what is written."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support import nets, qdq_nets
from tests.support.nets import node, value
from toolchain.quantize.graph import Graph
from toolchain.quantize.plan import plan
from toolchain.quantize.ranges import Grid, Range
from toolchain.quantize.scales import Exponents
from toolchain.quantize.write import write

SHAPE = (1, 2, 3, 3)
STEM = node("Conv", ["x", "s"], ["a"])
NODES = [STEM, node("Conv", ["a", "w"], ["b"], "first"), node("Conv", ["b", "w"], ["c"], "second")]
BIAS = np.array([1.0, -2.0])
UNIT = 2.0**-8
GRID = Grid.about(-4)


def quantized_network(*nodes, outputs=("c",), bias=BIAS, grid=GRID, **constants):
    """Write a network of convolutions with one weight, of scale 1/16, as is that of each activation."""
    weights = {"s": qdq_nets.weights(2, 2, 1, 1), "w": np.full((2, 2, 1, 1), 0.3, np.float32), **constants}
    proto = nets.model(nodes or NODES, [value("x", SHAPE)], [value(name, SHAPE) for name in outputs], weights)
    graph = Graph(proto)
    chosen = plan(graph, ("a",), "net")
    exponents = Exponents(dict.fromkeys(chosen.tensors, grid), {"w": (-4,)})
    before = proto.SerializeToString()
    result = write(graph, chosen, exponents, {layer.conv: bias for layer in chosen.layers})
    assert proto.SerializeToString() == before
    onnx.checker.check_model(result.proto, full_check=True)
    return result


def constants(result):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in result.proto.graph.initializer}


def operators(result):
    return [node.op_type for node in result.proto.graph.node]


def makers(result):
    return {node.output[0]: node for node in result.proto.graph.node}


def test_a_weight_that_layers_share_is_written_once_and_the_float_one_not_at_all():
    result = quantized_network()
    assert operators(result).count("DequantizeLinear") == 3 + 1  # a, b, c; the weight
    weights = constants(result)
    assert weights["w.int8"].dtype == np.int8
    assert set(weights["w.int8"].flat) == {5}  # 0.3 in sixteenths
    assert "w" not in weights
    assert "s" in weights, "what is excluded stays on floats"


def test_equal_scales_are_one_constant():
    assert {name for name in constants(quantized_network()) if name.startswith(("scale", "zero"))} == {
        "scale_-4",
        "zero_int8",
    }


def test_zero_points_are_those_of_activations_alone():
    result = quantized_network(grid=Range(0, 15).on(-4))
    zeros = {name: value for name, value in constants(result).items() if name.startswith("zero")}
    assert zeros == {"zero_int8": 0, "zero_-128_int8": -128}
    assert {node.input[2] for node in result.proto.graph.node if node.op_type == "QuantizeLinear"} == {"zero_-128_int8"}
    assert makers(result)["w.rounded"].input[2] == "zero_int8"


def test_a_bias_lies_a_quarter_above_a_whole_number():
    result = quantized_network(bias=BIAS + UNIT / 3)
    np.testing.assert_array_equal(constants(result)["b.bias"], BIAS + UNIT / 4)
    assert constants(result)["b.bias"].dtype == np.float32
    assert result.inexact == ()


@pytest.mark.parametrize(("steps", "inexact"), [(2**21 - 1, ()), (2**21, ("first", "second"))])
def test_a_bias_without_room_for_a_quarter_is_whole(steps, inexact):
    result = quantized_network(bias=np.array([0.0, -steps * UNIT]))
    assert result.inexact == inexact
    quarter = 0 if inexact else UNIT / 4
    assert constants(result)["b.bias"].tolist() == [quarter, -steps * UNIT + quarter]


def test_readers_read_what_was_rounded():
    result = quantized_network()
    assert result.rounded == {"a": "a.rounded", "b": "b.rounded", "c": "c"}
    assert list(makers(result)["b"].input) == ["a.rounded", "w.rounded", "b.bias"]
    assert list(makers(result)["a.rounded"].input) == ["a.int8", "scale_-4", "zero_int8"]


def test_a_result_keeps_its_name_for_what_was_rounded():
    result = quantized_network(outputs=("b", "c"))
    assert makers(result)["b"].op_type == "DequantizeLinear"
    assert makers(result)["b.exact"].op_type == "Conv"
    assert makers(result)["c.exact"].input[0] == "b"


def test_names_that_are_taken_get_another():
    extra = node("Add", ["c", "scale_-4"], ["a.rounded"])
    result = quantized_network(*NODES, extra, outputs=("a.rounded",), **{"scale_-4": np.ones(SHAPE, np.float32)})
    assert result.rounded["a"] == "a.rounded_"
    assert constants(result)["scale_-4"].shape == SHAPE
    assert constants(result)["scale_-4_"] == 1 / 16


def test_an_input_is_rounded_where_it_comes_in():
    """What a layer adds to its sums may be an input of the network."""
    result = quantized_network(STEM, node("Conv", ["a", "w"], ["b"], "first"), node("Add", ["b", "x"], ["c"]))
    assert operators(result)[:2] == ["QuantizeLinear", "DequantizeLinear"]
    assert makers(result)["x.int8"].input[0] == "x"
    assert list(makers(result)["c.exact"].input) == ["b", "x.rounded"]
