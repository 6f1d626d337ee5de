"""Tensors that get one scale, as bytes are only moved between them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets, qdq_nets
from tests.support.nets import node, value
from toolchain.quantize import plan
from toolchain.quantize.graph import Graph
from toolchain.quantize.ranges import Grid, Range
from toolchain.quantize.scales import Exponents, coarsest, settled, tied

HELD = {"w": qdq_nets.weights(4, 4, 1, 1), "wide": qdq_nets.weights(4, 8, 1, 1)}
POOL = {"kernel_shape": [2, 2], "strides": [1, 1]}


def conv(source, output, weight="w"):
    return node("Conv", [source, weight], [output], output)


def tied_tensors(*nodes):
    graph = Graph(nets.model(list(nodes), [value("x", (1, 4, 6, 6))], [value("y", None)], HELD))
    return {tuple(sorted(group)) for group in tied(graph, plan.plan(graph, (), "net").tensors)}


def test_a_maximum_has_the_scale_of_what_it_is_of():
    assert tied_tensors(conv("x", "a"), node("MaxPool", ["a"], ["p"], **POOL), conv("p", "y")) == {("a", "p")}


@pytest.mark.parametrize("pooled", [False, True])
def test_what_is_put_together_has_one_scale(pooled):
    nodes = [conv("x", "a"), conv("x", "b"), node("Concat", ["a", "b"], ["c"], axis=1)]
    nodes += [node("MaxPool", ["c"], ["p"], **POOL)] if pooled else []
    end = "p" if pooled else "c"
    assert tied_tensors(*nodes, conv(end, "y", "wide")) == {("a", "b", end)}


def test_what_follows_each_other_is_one_set():
    pools = [node("MaxPool", ["a"], ["p"], **POOL), node("MaxPool", ["p"], ["q"], **POOL)]
    ends = [conv("p", "b"), conv("q", "c"), node("GlobalAveragePool", ["b"], ["d"]), node("Add", ["c", "d"], ["y"])]
    assert tied_tensors(conv("x", "a"), *pools, *ends) == {("a", "p", "q")}


@pytest.mark.parametrize("kind", ["Relu", "Sigmoid", "GlobalAveragePool"])
def test_what_is_computed_has_its_own(kind):
    assert (
        tied_tensors(conv("x", "a"), node("Mul", ["a", "a"], ["m"]), node(kind, ["m"], ["r"]), conv("r", "y")) == set()
    )


def test_floats_among_what_is_put_together():
    nodes = [conv("x", "a"), node("Sigmoid", ["a"], ["s"]), node("Concat", ["a", "s"], ["c"], axis=1)]
    assert tied_tensors(*nodes, conv("c", "y", "wide")) == set()


def test_the_coarsest_scale_is_the_one_of_all():
    groups = [frozenset({"a", "b"}), frozenset({"c"})]
    grids = {name: Grid.about(exponent) for name, exponent in {"a": -5, "b": -3, "c": -7, "d": -9}.items()}
    assert coarsest(grids, groups) == {**grids, "a": grids["b"]}


def test_a_zero_point_is_the_one_of_all():
    """It holds all that any of them did; what lies on both sides of 0 makes it coarser."""
    group, positive = [frozenset({"a", "b"})], Range(0, 15.9).on(-4)
    assert positive.zero == -128
    small = coarsest({"a": positive, "b": Range(-0.25, 9).on(-5)}, group)
    assert small["a"] == small["b"] == Range(-0.25, 15.75).on(-4)
    assert small["a"].zero == -124
    symmetric = coarsest({"a": positive, "b": Grid.about(-4)}, group)
    assert (symmetric["a"].exponent, symmetric["a"].zero) == (-3, 0)


def test_scales_that_are_raised_for_the_hardware_stay_the_same():
    graph = Graph(
        nets.model(
            [conv("x", "a"), node("MaxPool", ["a"], ["p"], **POOL), conv("p", "y")],
            [value("x", (1, 4, 6, 6))],
            [value("y", None)],
            HELD,
        )
    )
    planned = plan.plan(graph, (), "net")
    grids = {name: Grid.about(exponent) for name, exponent in {"x": -2, "a": -9, "p": -9, "y": -4}.items()}
    exponents = Exponents(grids, {"w": (-3,)})  # sums of 2^-5, and no finer results
    result = settled(planned.layers, exponents, tied(graph, planned.tensors))
    assert {name: grid.exponent for name, grid in result.activations.items()} == {"x": -2, "a": -5, "p": -5, "y": -4}
    assert np.all([0 <= result.shifts(layer)[0] <= 30 for layer in planned.layers])
