"""Operators that treat each result by itself, and those that add up or compare all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from toolchain.models.protos import get_attribute
from toolchain.models.tails import sizes
from toolchain.models.tails.common import axes_of_node, first_axis, keep_each, other_axis, set_extent
from toolchain.models.tails.graph import Extent, Tail
from toolchain.models.tails.sizes import Table


def _each(node: onnx.NodeProto, tail: Tail) -> int:
    """Element by element, of tensors with the same trailing axes."""
    rank = max(tail.rank(name) if name in tail.shapes else len(tail.tables[name].shape) for name in node.input)
    ends = {tail.extents[name].axis - tail.rank(name) for name in node.input if name in tail.extents}
    if len(ends) > 1:
        raise ValueError("the results lie along different axes")
    (end,) = ends
    for name in node.input:
        shape = tail.shapes[name] if name in tail.shapes else tail.tables[name].shape
        if name not in tail.extents and len(shape) >= -end and shape[end] != 1:
            raise ValueError("a tensor of another size meets the results")
    return rank + end


EACH = keep_each(_each)
"""The rule of what is computed element by element."""


# What lies behind the results may be 0, which integers cannot be divided by.
def quotient(node: onnx.NodeProto, tail: Tail) -> None:
    node.input[1] = tail.filled(node.input[1], 1)
    EACH(node, tail)


def unsqueeze(node: onnx.NodeProto, tail: Tail) -> int:
    """Return the axis of results after new axes of size 1 are inserted."""
    result_axis, axes = first_axis(node, tail), axes_of_node(node, tail, 1)
    rank = tail.rank(node.input[0]) + len(axes)
    new = {axis % rank for axis in axes}
    return [axis for axis in range(rank) if axis not in new][result_axis]


def squeeze(node: onnx.NodeProto, tail: Tail) -> int:
    """Return the axis of results after axes of size 1 are removed, which are made explicit."""
    result_axis, shape = first_axis(node, tail), tail.shapes[node.input[0]]
    axes = {axis % len(shape) for axis in axes_of_node(node, tail, 1)}
    removed = axes or {axis for axis, size in enumerate(shape) if size == 1 and axis != result_axis}
    if result_axis in removed:
        raise ValueError("it needs exactly one result")
    if not axes:
        node.input[:] = [node.input[0], tail.constant(np.array(sorted(removed), np.int64))]
    return result_axis - sum(axis < result_axis for axis in removed)


def transpose(node: onnx.NodeProto, tail: Tail) -> int:
    usual = reversed(range(tail.rank(node.input[0])))
    return list(get_attribute(node, "perm", usual)).index(first_axis(node, tail))


# Each row of the left matrix by itself.
def product(node: onnx.NodeProto, tail: Tail) -> int:
    result_axis, rank = first_axis(node, tail), tail.rank(node.input[0])
    if result_axis == rank - 1 or tail.rank(node.input[1]) != 2 or get_attribute(node, "transA", 0):  # noqa: PLR2004 - a matrix
        raise ValueError("the results are added up")
    if node.op_type == "Gemm" and len(node.input) > 2 and tail.rank(node.input[2]) > 1:  # noqa: PLR2004 - an offset
        raise ValueError("each result has an offset of its own")
    return result_axis


def _extreme_value(kind: int, sign: int) -> Any:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    if dtype.kind == "f":
        return -sign * np.inf
    return np.iinfo(dtype).min if sign > 0 else np.iinfo(dtype).max


# There must be enough results; what lies behind them comes last.
def top_k(node: onnx.NodeProto, tail: Tail) -> None:
    data, extent = node.input[0], tail.extents.get(node.input[0])
    number = tail.tables[node.input[1]]
    axis = get_attribute(node, "axis", -1) % tail.rank(data)
    if extent is None or extent.axis != axis:
        if not number.is_constant:
            raise ValueError("the number of results decides on a part of other data")
        keep_each(other_axis(-1))(node, tail)
        return
    _, (size, counts) = sizes.align([Table(extent.root, extent.sizes), number])
    counts = counts.reshape(-1)
    if (counts > size).any():
        raise ValueError("it needs more results than there may be")
    sign = 1 if get_attribute(node, "largest", 1) else -1
    filled = tail.filled(data, _extreme_value(tail.kinds[data], sign))
    # Compiled for the largest number; the extent of the results says how many of them are valid.
    node.input[:] = [filled, tail.constant(counts.max(keepdims=True))]
    names = tail.rewrite(node)
    for name in filter(None, names):
        set_extent(tail, name, Extent(axis, extent.root, counts))


def arg_extreme(node: onnx.NodeProto, tail: Tail) -> None:
    data = node.input[0]
    extent, axis = tail.extents[data], get_attribute(node, "axis", 0) % tail.rank(data)
    if extent.axis == axis:
        if get_attribute(node, "select_last_index", 0):
            raise ValueError("the last one of the results depends on their number")
        node.input[0] = tail.filled(data, _extreme_value(tail.kinds[data], 1 if node.op_type == "ArgMax" else -1))
        tail.rewrite(node)
        return
    keeps = get_attribute(node, "keepdims", 1)
    keep_each(lambda *_: extent.axis if keeps or extent.axis < axis else extent.axis - 1)(node, tail)


# Along the axis of the results, what lies behind them becomes a neutral value.
def reduce(node: onnx.NodeProto, tail: Tail) -> None:
    data = node.input[0]
    if data not in tail.extents or any(name in tail.extents for name in node.input[1:]):
        raise ValueError("the results decide on how it is computed")
    extent, rank = tail.extents[data], tail.rank(data)
    axes = {axis % rank for axis in axes_of_node(node, tail, 1)}
    if not axes and get_attribute(node, "noop_with_empty_axes", 0):
        raise ValueError("it reduces nothing")
    reduced_axes = axes or set(range(rank))
    if extent.axis not in reduced_axes:
        removed = 0 if get_attribute(node, "keepdims", 1) else sum(axis < extent.axis for axis in reduced_axes)
        keep_each(lambda *_: extent.axis - removed)(node, tail)
        return
    neutral = {"ReduceSum": 0, "ReduceProd": 1, "ReduceL1": 0, "ReduceL2": 0, "ReduceSumSquare": 0}
    if node.op_type in {"ReduceMax", "ReduceMin"}:
        value = _extreme_value(tail.kinds[data], 1 if node.op_type == "ReduceMax" else -1)
    else:
        value = neutral[node.op_type]
    node.input[0] = tail.filled(data, value)
    tail.rewrite(node)
