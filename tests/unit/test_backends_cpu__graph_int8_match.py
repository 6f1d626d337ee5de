"""Which operations of a quantised network are one layer."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.nets import node
from tests.unit.cpu_bytes import WIDE
from tests.unit.qdq_nets import floating, imported, quantized, residual, weights
from toolchain.backends.cpu._graph import patterns
from toolchain.backends.cpu._graph.int8_match import NUMBERS, Matcher
from toolchain.backends.cpu._graph.values import read
from toolchain.backends.cpu._layers import QuantizedConv, QuantizedMap, QuantizedPool


def block_of(proto):
    module = imported(proto)
    (block,) = (one for one in module["main"].body.blocks if isinstance(one, relax.DataflowBlock))
    values = read(block, module)
    patterns.found(values)
    return values


def matched(proto, without=frozenset()):
    """Return what a network's regions make, in order; those whose work has joined that of others are among them."""
    return [*Matcher(block_of(proto), WIDE, without).run().values()]


def convs(tensors):
    return [one.regions[0] for one in tensors if one.grid and isinstance(one.regions[0].bare, QuantizedConv)]


def test_first_and_last_regions(tmp_path):
    found = matched(quantized(residual(), tmp_path))
    (first,), (last,) = found[0].regions, found[-1].regions
    assert isinstance(first.bare, QuantizedMap)
    assert first.grid is NUMBERS
    assert (first.reads_plain, first.bare.out.lanes) == (True, 4)
    assert last.is_bytes_as_numbers
    assert (last.reads_plain, last.bare.out.lanes, found[-1].grid) == (False, 1, None)


def test_a_region_has_weights_bias_and_grids(tmp_path):
    region = convs(matched(quantized(residual(), tmp_path)))[0]
    assert region.weights.numbers.shape == (20, 3, 3, 3)
    assert region.bias.shape == (20,)
    assert np.abs(region.bias).max() > 1
    assert region.grids == [region.made]
    assert (region.bare.strides, region.bare.padding) == ((2, 2), (1, 1, 1, 1))


def test_grids_of_steps_come_in_order(tmp_path):
    region = next(one for one in convs(matched(quantized(residual(), tmp_path))) if len(one.done) > 1)
    assert [use.step.kind for use in region.done] == ["quantize", "add"]
    rounding, add = region.done
    assert region.grids == [rounding.grid, add.grid, region.made]
    assert len(set(region.grids)) == 3


def test_rounding_twice_to_one_grid_is_rounding_once(tmp_path):
    """The tool rounds what a maximum makes to the grid of its input; a change of shape makes no bytes of its own."""
    found = matched(quantized(residual(), tmp_path))
    (pool,) = (
        one for one in found if isinstance(one.regions[0].bare, QuantizedPool) and one.regions[0].bare.reduce == "max"
    )
    assert pool.grid == pool.regions[0].grid
    assert convs(found)[-1].bare.data.shape == (1, 2, 1, 1, 16)


def two_readers():
    held = {"w1": weights(16, 16, 1, 1, seed=1), "w2": weights(16, 16, 1, 1, seed=2)}
    nodes = [
        node("Conv", ["x", "w1"], ["c1"]),
        node("Sigmoid", ["c1"], ["s1"]),
        node("Conv", ["c1", "w2"], ["c2"]),
        node("Add", ["s1", "c2"], ["y"]),
    ]
    return floating(nodes, (1, 16, 4, 4), held)


def test_bytes_that_others_need_are_made(tmp_path):
    found = matched(quantized(two_readers(), tmp_path))
    made = [
        (type(region.bare).__name__, [use.step.kind for use in region.done]) for one in found for region in one.regions
    ]
    assert ("QuantizedConv", []) in made
    assert ("QuantizedMap", ["sigmoid"]) in made
    assert made[-2] == ("QuantizedConv", ["quantize", "add"])


@pytest.mark.parametrize(
    ("node_", "kind"),
    [
        (node("Relu", ["c"], ["f"]), "relu"),
        (node("Tanh", ["c"], ["f"]), "tanh"),
        (node("HardSigmoid", ["c"], ["f"]), "hard_sigmoid"),
        (node("HardSwish", ["c"], ["f"]), "hard_swish"),
    ],
)
def test_functions_join_the_layer_before(node_, kind, tmp_path):
    nodes = [node("Conv", ["x", "w"], ["c"]), node_, node("Conv", ["f", "w"], ["y"])]
    proto = floating(nodes, (1, 16, 4, 4), {"w": weights(16, 16, 1, 1)})
    found = convs(matched(quantized(proto, tmp_path, "int8")))
    assert ["quantize", kind] in [[use.step.kind for use in region.done] for region in found]


def test_what_no_template_computes_is_no_region(tmp_path):
    proto = quantized(residual(), tmp_path)
    assert convs(matched(proto, frozenset({"int8"}))) == []
    assert matched(proto, frozenset({"int8", "int8_map"})) == []


def test_numbers_of_a_layer_that_nothing_rounds(tmp_path):
    proto = quantized(residual(), tmp_path)
    block = block_of(proto)
    matcher = Matcher(block, WIDE, frozenset())
    matcher.run()
    (gemm,) = (one.out for one in block.operations if one.name == "matmul")
    tensor = matcher.numbers(gemm)
    assert (tensor.grid, tensor.place.dtype, tensor.place.channels) == (None, "float32", 10)
    (data,) = (one for one in block.operations[0].inputs if one.variable is not None)
    assert matcher.numbers(data) is None
