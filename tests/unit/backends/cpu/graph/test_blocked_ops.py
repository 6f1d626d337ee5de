from __future__ import annotations

import numpy as np
import pytest

from tests.support import naive_template, nets, relax_nets
from tests.support.relax_nets import counts, net, normal, prepared, processor
from toolchain.backends.cpu import graph, kernels
from toolchain.backends.cpu.graph import blocked_ops
from toolchain.backends.graph import values

LANES = 4


@pytest.fixture(autouse=True)
def naive(monkeypatch):
    monkeypatch.setattr(kernels, "_TEMPLATES", {naive_template.NAME: naive_template})


def between(nodes, channels=8, **weights):
    """Return a model with something between two convolutions, `a` and the result."""
    around = {"v": normal(channels, 3, 1, 1), "w": normal(5, channels, 1, 1)}
    return net([("Conv", "x v", "a"), *nodes, ("Conv", "b w", "y")], (1, 3, 4, 5), around | weights)


def check(proto, *, stays=True):
    """Compare what is computed; if it stays in blocks, there is a single change of layout, at the end."""
    machine, feeds = processor(LANES), relax_nets.feeds(proto)
    module = graph.insert_stand_ins(prepared(proto), machine)
    assert (counts(module)["Map"] == 1) is stays
    built = graph.emit_kernels(module, machine, lambda layer: kernels.default(layer, machine))
    [mine], [other] = relax_nets.computed(built, feeds), nets.run(proto, feeds)
    np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels", [8, 6])
@pytest.mark.parametrize("operator", ["Abs", "Exp", "Erf", "Ceil", "Sin"])
def test_functions_of_each_element(operator, channels):
    check(between([(operator, "a", "b")], channels))


@pytest.mark.parametrize("operator", ["Sub", "Div", "Pow"])
def test_functions_of_two_tensors(operator):
    check(between([("Exp", "a", "c"), (operator, "c c", "b")]))


@pytest.mark.parametrize("order", ["a n", "n a"])
def test_a_number_on_either_side(order):
    check(between([("Exp", "a", "c"), ("Pow", order.replace("a", "c"), "b")], n=np.float32(1.5)))


@pytest.mark.parametrize("operator", ["Div", "Pow"])
def test_nothing_that_may_be_infinite_where_blocks_are_filled_up(operator):
    check(between([("Exp", "a", "c"), (operator, "c c", "b")], 6), stays=False)


@pytest.mark.parametrize("channels", [8, 6])
@pytest.mark.parametrize("slopes", [1, None])
def test_slopes_of_each_channel(channels, slopes):
    check(between([("PRelu", "a s", "b")], channels, s=normal(slopes or channels, 1, 1)))


def test_slopes_along_another_axis_stay():
    check(between([("PRelu", "a s", "b")], s=normal(1, 1, 5)), stays=False)


@pytest.mark.parametrize("channels", [8, 6])
@pytest.mark.parametrize(
    "how",
    [
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        {"mode": "linear"},
    ],
)
def test_resizing(channels, how):
    check(between([("Resize", "a  scales", "b", how)], channels, scales=np.array([1, 1, 2, 3], np.float32)))


def test_kernels_of_the_importer_are_not_carried():
    module = prepared(
        between([("Max", "a n", "b")], n=np.float32([[[1]], [[2]], [[3]], [[4]], [[5]], [[6]], [[7]], [[8]]]))
    )
    block = values.read(module["main"].body.blocks[0], module)
    clip = prepared(between([("Clip", "a n", "b")], n=np.float32(1)))
    [limit] = [item for item in values.read(clip["main"].body.blocks[0], clip).operations if item.name == "maximum"]
    assert not blocked_ops.can_run_blocked(limit, LANES)
    assert not any(blocked_ops.can_run_blocked(item, LANES) for item in block.operations if item.name == "max")
