"""Which operations of a quantised network are one layer."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.support.cpu_bytes import WIDE
from tests.support.nets import node
from tests.support.qdq_nets import floating, imported, quantized, residual, weights
from toolchain.backends.cpu.graph.match import plan_items
from toolchain.backends.cpu.graph.plans import BytePlan
from toolchain.backends.cpu.layers import Conv, Map, Pool
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph import patterns
from toolchain.backends.graph.quantization import NUMBERS
from toolchain.backends.graph.values import read


def block_of(proto):
    module = imported(proto)
    (block,) = (item for item in module["main"].body.blocks if isinstance(item, relax.DataflowBlock))
    values = read(block, module)
    patterns.replace(values)
    return values


def plans(proto, without=frozenset(), processor=WIDE):
    """Return the layers of a network that read or make bytes, in order."""
    return [item for item in plan_items(block_of(proto), processor, without) if isinstance(item, BytePlan)]


def kinds(plan):
    return [item.op.kind for item in plan.split_effects()[1]]


def convs(actual):
    return [plan for plan in actual if isinstance(plan.bare, Conv)]


def test_the_first_and_the_last_layer(tmp_path):
    first, *_, last = plans(quantized(residual(), tmp_path))
    assert isinstance(first.bare, Map)
    assert first.data_grid is NUMBERS
    assert (first.bare.data.lanes, first.bare.out.lanes) == (1, 4)
    assert (kinds(last), last.result_grid) == ([], None)
    assert (last.bare.data.lanes, last.bare.out.lanes, last.bare.out.dtype) == (16, 1, "float32")


def test_a_layer_has_weights_bias_and_grids(tmp_path):
    plan = convs(plans(quantized(residual(), tmp_path)))[0]
    assert plan.scaled.numbers.shape == (20, 3, 3, 3)
    assert plan.bias().shape == (20,)
    assert np.abs(plan.bias()).max() > 1
    assert (kinds(plan), plan.result_grid is None) == ([], False)
    assert (plan.bare.strides, plan.bare.padding) == ((2, 2), (1, 1, 1, 1))


def test_grids_of_post_ops_come_in_order(tmp_path):
    plan = next(item for item in convs(plans(quantized(residual(), tmp_path))) if "add" in kinds(item))
    assert kinds(plan)[:2] == ["quantize", "add"]
    grids = [*(post_op.grid for post_op in plan.split_effects()[1] if post_op.grid), plan.result_grid]
    assert len(set(grids)) == len(grids) >= 3


def test_rounding_twice_to_one_grid_is_rounding_once(tmp_path):
    """The tool rounds what a maximum makes to the grid of its input; a change of shape makes no bytes of its own."""
    actual = plans(quantized(residual(), tmp_path))
    (pool,) = (item for item in actual if isinstance(item.bare, Pool) and item.bare.reduce == "max")
    assert pool.result_grid == pool.data_grid
    assert convs(actual)[-1].bare.data.shape == (1, 2, 1, 1, 16)


def two_readers():
    constants = {"w1": weights(16, 16, 1, 1, seed=1), "w2": weights(16, 16, 1, 1, seed=2)}
    nodes = [
        node("Conv", ["x", "w1"], ["c1"]),
        node("Sigmoid", ["c1"], ["s1"]),
        node("Conv", ["c1", "w2"], ["c2"]),
        node("Add", ["s1", "c2"], ["y"]),
    ]
    return floating(nodes, (1, 16, 4, 4), constants)


def test_bytes_that_others_need_are_made(tmp_path):
    built = [(type(plan.bare).__name__, kinds(plan)) for plan in plans(quantized(two_readers(), tmp_path))]
    assert ("Conv", []) in built
    assert ("Map", ["sigmoid"]) in built
    assert built[-2] == ("Conv", ["quantize", "add"])


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
    assert ["quantize", kind] in [kinds(plan) for plan in convs(plans(quantized(proto, tmp_path, "int8")))]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("dot", "channel", "expected"), [("smull", 3, True), ("smull", 2, False), ("sdot", 3, False)])
def test_a_layer_says_where_two_products_may_not_fit_int16(dot, channel, expected, groups):
    """On processors that add them so: channels 1 and 3 meet."""
    constants = np.ones((16, 16 // groups, 1, 1), np.int8)
    constants[5, [1, channel]] = -128
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "s", "z"], ["f"]),
        node("Conv", ["d", "f"], ["y"], group=groups),
    ]
    scalars = {"s": np.float32(0.1), "z": np.int8(0)}
    proto = floating(nodes, (1, 16, 4, 4), {"w": constants, **scalars})
    (conv,) = convs(plans(proto, processor=Machine(4, 32, dot)))
    assert conv.bare.unpaired == expected


def test_what_no_template_computes_is_no_layer_on_bytes(tmp_path):
    proto = quantized(residual(), tmp_path)
    assert convs(plans(proto, frozenset({"int8"}))) == []
    assert plans(proto, frozenset({"int8_map"})) == []


def test_a_deep_network_of_floats_is_looked_at_once():
    """Forty layers, each of which two rules ask for: 2**40 looks would never end."""
    nodes, name = [], "x"
    for number in range(40):
        nodes += [node("Mul", [name, "s"], [f"m{number}"]), node("Relu", [f"m{number}"], [f"r{number}"])]
        name = f"r{number}"
    constants = {"s": np.linspace(1, 2, 16, dtype=np.float32).reshape(1, 16, 1, 1)}
    assert plans(floating([*nodes, node("Mul", [name, "s"], ["y"])], (1, 16, 2, 2), constants)) == []
