"""How operators treat tensors whose size depends on the data: valid elements must not depend on what lies behind them.

An operator that computes each result by itself stays as it is. Otherwise what lies behind the results is replaced by
something neutral: the lowest number for a maximum, 0 for a sum, an index of 0. Other operators are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.models import protos
from toolchain.models.protos import get_attribute
from toolchain.models.tails import sizes
from toolchain.models.tails.chosen import compress, concat, gather, gather_elements, gather_nd, non_zero, suppress
from toolchain.models.tails.graph import (
    Extent,
    Rule,
    Tail,
    attribute_values,
    axes_of_node,
    first_axis,
    keep_each,
    other_axis,
    set_extent,
)
from toolchain.models.tails.shapes import (
    constant_of_shape,
    expand,
    flatten,
    pad,
    range_of,
    reshape,
    shape_or_size,
    slice_of,
)
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


# torchvision writes a branch for the case without results; the other branch has none in that case either.
def _inline_branch(node: onnx.NodeProto, tail: Tail) -> None:
    condition = tail.tables[node.input[0]]
    truths = condition.values.reshape(-1)
    # The branch of the largest count; for other counts it must have the same results, or none.
    is_true = bool(truths[-1])
    other = protos.branch_body(node, condition=not is_true)
    branch = protos.prefixed_branch(protos.branch_body(node, condition=is_true), tail.name_for("branch"))
    tail.hold(branch.constants)
    tail.walk(branch.nodes, RULES)
    for index, output in enumerate(branch.outputs):
        result = tail.resolved(output)
        for count in np.flatnonzero(truths != is_true):
            extent = tail.extents.get(result)
            if extent is None or condition.root is None or not tail.is_empty(extent, condition.root, int(count)):
                raise ValueError("its branches have results of different kinds")
        if not _is_empty_output(other, index) and (truths != is_true).any():
            raise ValueError("its other branch has results of its own")
        tail.rename([node.output[index]], [result])


def _is_empty_output(body: onnx.GraphProto, index: int) -> bool:
    """Whether an output of a branch is a constant without elements."""
    tables = {tensor.name: sizes.fixed(numpy_helper.to_array(tensor)) for tensor in body.initializer}
    for node in body.node:
        values = attribute_values(node)
        try:
            if node.op_type == "Constant":
                tables[node.output[0]] = sizes.fixed(values["value"])
            else:
                tables[node.output[0]] = sizes.compute(node.op_type, values, [tables[name] for name in node.input])
        except (LookupError, ValueError):
            continue
    table = tables.get(body.output[index].name)
    return table is not None and table.values.size == 0


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            *("Cast", "Identity", "Clip", "LeakyRelu", "Elu", "HardSigmoid", "Abs", "Neg", "Not", "Sign", "Exp", "Log"),
            *("Sqrt", "Relu", "Sigmoid", "Tanh", "Floor", "Ceil", "Round", "Reciprocal", "Sin", "Cos", "Atan", "IsNaN"),
        ),
        keep_each(first_axis),
    ),
    **dict.fromkeys(
        (
            *("Add", "Sub", "Mul", "Pow", "Min", "Max", "Where", "And", "Or", "Xor"),
            *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
        ),
        EACH,
    ),
    **dict.fromkeys(("Div", "Mod"), quotient),
    **dict.fromkeys(
        ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
        reduce,
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax"), keep_each(other_axis(-1))),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg_extreme),
    **dict.fromkeys(("MatMul", "Gemm"), keep_each(product)),
    **dict.fromkeys(("Shape", "Size"), shape_or_size),
    "Compress": compress,
    "Concat": concat,
    "ConstantOfShape": constant_of_shape,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "If": _inline_branch,
    "NonMaxSuppression": suppress,
    "NonZero": non_zero,
    "Pad": pad,
    "Range": range_of,
    "Reshape": reshape,
    "Slice": slice_of,
    "Split": keep_each(other_axis(0)),
    "Squeeze": keep_each(squeeze),
    "TopK": top_k,
    "Transpose": keep_each(transpose),
    "Unsqueeze": keep_each(unsqueeze),
}
