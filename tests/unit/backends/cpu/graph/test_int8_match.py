"""Which operations of a quantised network are one layer."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.support.cpu_bytes import WIDE
from tests.support.nets import node
from tests.support.qdq_nets import floating, imported, quantized, residual, weights
from toolchain.backends.cpu.graph.int8_match import NUMBERS, Matcher
from toolchain.backends.cpu.layers import Conv, Map, Pool
from toolchain.backends.graph import patterns
from toolchain.backends.graph.values import read


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
    return [one.regions[0] for one in tensors if one.grid and isinstance(one.regions[0].bare, Conv)]


def test_first_and_last_regions(tmp_path):
    found = matched(quantized(residual(), tmp_path))
    (first,), (last,) = found[0].regions, found[-1].regions
    assert isinstance(first.bare, Map)
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
    assert [use.op.kind for use in region.done] == ["quantize", "add"]
    rounding, add = region.done
    assert region.grids == [rounding.grid, add.grid, region.made]
    assert len(set(region.grids)) == 3


def test_rounding_twice_to_one_grid_is_rounding_once(tmp_path):
    """The tool rounds what a maximum makes to the grid of its input; a change of shape makes no bytes of its own."""
    found = matched(quantized(residual(), tmp_path))
    (pool,) = (one for one in found if isinstance(one.regions[0].bare, Pool) and one.regions[0].bare.reduce == "max")
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
        (type(region.bare).__name__, [use.op.kind for use in region.done]) for one in found for region in one.regions
    ]
    assert ("Conv", []) in made
    assert ("Map", ["sigmoid"]) in made
    assert made[-2] == ("Conv", ["quantize", "add"])


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
    assert ["quantize", kind] in [[use.op.kind for use in region.done] for region in found]


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


def test_each_value_is_looked_at_once():
    """A deep network of floats, each layer of which is asked for by two rules: 2**40 looks would never end."""
    nodes, name = [], "x"
    for number in range(40):
        nodes += [node("Mul", [name, "s"], [f"m{number}"]), node("Relu", [f"m{number}"], [f"r{number}"])]
        name = f"r{number}"
    held = {"s": np.linspace(1, 2, 16, dtype=np.float32).reshape(1, 16, 1, 1)}
    block = block_of(floating([*nodes, node("Mul", [name, "s"], ["y"])], (1, 16, 2, 2), held))
    [*_, last] = [operation.out for operation in block.operations if operation.name == "multiply"]
    assert Matcher(block, WIDE, frozenset()).numbers(last) is None
