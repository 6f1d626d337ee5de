"""What the rules share: where the results lie in what an operator computes from them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from toolchain.models.protos import get_attribute
from toolchain.models.tails import sizes
from toolchain.models.tails.graph import Extent, Rule, Tail
from toolchain.models.tails.sizes import Table

AxisRule = Callable[[onnx.NodeProto, Tail], int]
"""Returns along which axis a node's outputs have the results; LookupError or ValueError if they do not have them so."""


def keep_each(axis_rule: AxisRule) -> Rule:
    """Return the rule of nodes that treat each result by itself, and stay as they are."""

    def rule(node: onnx.NodeProto, tail: Tail) -> None:
        extents = [tail.extents[name] for name in node.input if name in tail.extents]
        if not extents:
            tail.rewrite(node)
            return
        extent = extents[0]
        if not all(other.is_like(extent) for other in extents):
            raise ValueError("it needs two selections of the same size")
        axis = axis_rule(node, tail)
        names = tail.rewrite(node)
        for name in filter(None, names):
            set_extent(tail, name, extent.along(axis))

    return rule


def set_extent(tail: Tail, name: str, extent: Extent) -> None:
    """Note that a tensor has results along an axis, unless their number is constant."""
    if tail.shapes[name][extent.axis] != extent.bound:
        raise ValueError("its size does not follow from the number of results")
    # A constant number of results needs no care: all of the tensor is valid.
    if (extent.sizes != extent.bound).any():
        tail.extents[name] = extent


def set_sizes(tail: Tail, name: str, table: Table) -> None:
    """Note the sizes of a tensor, of which at most one may depend on the data."""
    varying = np.flatnonzero((table.values != table.values[:1]).any(axis=0))
    if len(varying) > 1:
        raise ValueError("two axes depend on the data")
    if tuple(int(size) for size in table.values.max(axis=0)) != tail.shapes[name]:
        raise ValueError("its size does not follow from the number of results")
    if len(varying) and table.root is not None:
        tail.extents[name] = Extent(int(varying[0]), table.root, table.values[:, varying[0]])


def axes_of_node(node: onnx.NodeProto, tail: Tail, index: int) -> list[int]:
    """Return the axes that a node names, in an attribute or in an input."""
    axes = get_attribute(node, "axes", None)
    if axes is not None:
        return list(axes)
    return tail.tables[node.input[index]].list() if len(node.input) > index and node.input[index] else []


def first_axis(node: onnx.NodeProto, tail: Tail) -> int:
    """Return the axis of results in the first input; the results must not influence the other inputs."""
    if tail.extents.keys() & set(node.input[1:]):
        raise ValueError("the results decide on how it is computed")
    return tail.extents[node.input[0]].axis


def other_axis(default: int) -> AxisRule:
    """Return the rule of nodes that act along one axis, which must not be that of the results."""

    def rule(node: onnx.NodeProto, tail: Tail) -> int:
        result_axis, rank = first_axis(node, tail), tail.rank(node.input[0])
        if get_attribute(node, "axis", default) % rank == result_axis:
            raise ValueError("the results are not treated by themselves")
        return result_axis

    return rule


def sizes_of(tail: Tail, name: str) -> Table:
    """Return the sizes of a tensor for each value of its count."""
    if name in tail.tables:
        return sizes.fixed(np.array(tail.tables[name].shape, np.int64))
    extent = tail.extents.get(name)
    if extent is None:
        return sizes.fixed(np.array(tail.shapes[name], np.int64))
    values = np.tile(np.array(tail.shapes[name], np.int64), (len(extent.sizes), 1))
    values[:, extent.axis] = extent.sizes
    return Table(extent.root, values)
