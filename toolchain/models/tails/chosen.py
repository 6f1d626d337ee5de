"""Operators that choose: by a condition, by suppression, or by indices, among results and elsewhere."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.models.protos import get_attribute
from toolchain.models.tails.graph import PREFIX, Extent, Tail, keep_each, other_axis, set_extent


def _readable_indices(tail: Tail, name: str, limit: str | None) -> str:
    """Return indices that can be read: 0 behind the results; negative ones count from the end of the results.

    `limit` is the tensor with the number of results that they choose from; None if that is constant.
    """
    name, extent = tail.filled(name, 0), tail.extents.get(name)
    if limit is not None:
        kind = helper.tensor_dtype_to_np_dtype(tail.kinds[name])
        end = tail.emit("Cast", [limit], to=tail.kinds[name])
        below = tail.emit("Less", [name, tail.constant(np.array(0, kind))])
        name = tail.emit("Where", [below, tail.emit("Add", [name, end]), name])
    if extent:
        tail.extents[name] = extent
    return name


# Indices behind the results become 0, and negative ones count from the last result.
def gather(node: onnx.NodeProto, tail: Tail) -> None:
    data, indices = node.input
    axis = get_attribute(node, "axis", 0) % tail.rank(data)
    data_extent, index_extent = tail.extents.get(data), tail.extents.get(indices)
    if index_extent is None and data_extent:
        tail.materialize(indices)
        if axis == data_extent.axis:
            raise ValueError("one of the results is chosen, which may not be there")
        # The axes of the indices replace one axis before it.
        after = data_extent.axis if data_extent.axis < axis else data_extent.axis - 1 + tail.rank(indices)
        names = tail.rewrite(node)
        set_extent(tail, names[0], data_extent.along(after))
        return
    if index_extent is None or (data_extent and data_extent.axis != axis):
        raise ValueError("two axes depend on the data")
    node.input[1] = _readable_indices(tail, indices, tail.count(data_extent) if data_extent else None)
    names = tail.rewrite(node)
    set_extent(tail, names[0], index_extent.along(axis + index_extent.axis))


def gather_nd(node: onnx.NodeProto, tail: Tail) -> None:
    data, indices = node.input
    data_extent, index_extent = tail.extents.get(data), tail.extents.get(indices)
    last, depth = tail.rank(indices) - 1, tail.shapes[indices][-1]
    is_simple = not get_attribute(node, "batch_dims", 0) and (data_extent is None or data_extent.axis < depth)
    if index_extent is None or index_extent.axis == last or not is_simple:
        raise ValueError("two axes depend on the data")
    limit = None
    if data_extent:
        ends = [tail.constant(np.array([size])) for size in tail.shapes[data][:depth]]
        ends[data_extent.axis] = tail.count(data_extent)
        limit = tail.emit("Concat", ends, axis=0)
    node.input[1] = _readable_indices(tail, indices, limit)
    names = tail.rewrite(node)
    set_extent(tail, names[0], index_extent)


# Along the axis of the results, or of each result by itself.
def gather_elements(node: onnx.NodeProto, tail: Tail) -> None:
    data, indices = node.input
    axis = get_attribute(node, "axis", 0) % tail.rank(data)
    data_extent, index_extent = tail.extents.get(data), tail.extents.get(indices)
    if (
        index_extent is None
        or (data_extent is None) != (index_extent.axis == axis)
        or (data_extent and not data_extent.is_like(index_extent))
    ):
        raise ValueError("results are chosen among the results")
    node.input[1] = _readable_indices(tail, indices, None)
    names = tail.rewrite(node)
    set_extent(tail, names[0], index_extent)


# Behind each other, the results of each part move up to those of the part before.
def concat(node: onnx.NodeProto, tail: Tail) -> None:
    axis = get_attribute(node, "axis", 0) % max(tail.rank(name) for name in node.input if name in tail.shapes)
    extents = [tail.extents.get(name) for name in node.input]
    if not any(extent is not None and extent.axis == axis for extent in extents):
        if not all(extents):
            raise ValueError("a tensor of another size meets the results")
        keep_each(lambda node, tail: tail.extents[node.input[0]].axis)(node, tail)
        return
    if any(extent is not None and extent.axis != axis for extent in extents):
        raise ValueError("two axes depend on the data")
    for name in node.input:
        tail.materialize(name)
    flags = []
    for name, extent in zip(node.input, extents, strict=True):
        size = tail.shapes[name][axis]
        flags.append(tail.counts(extent.along(0), 1) if extent else tail.constant(np.ones(size, bool)))
    # The positions of all valid elements; where there is nothing to choose from, none of them is valid.
    all_flags = tail.emit("Concat", flags, axis=0)
    (total,) = tail.shapes[all_flags]
    open_extents = [extent for extent in extents if extent]
    parent = open_extents[0] if len(open_extents) == 1 else None
    selection = helper.make_node("Compress", [tail.constant(np.arange(total)), all_flags], ["places"], axis=0)
    positions = _emit_counted(tail, selection, (total,), 0, parent)
    # Constants are joined now, since nothing folds them later.
    if all(name in tail.constants for name in node.input):
        arrays = [numpy_helper.to_array(tail.constants[name]) for name in node.input]
        joined = tail.constant(np.concatenate(arrays, axis))
    else:
        (joined,) = tail.keep(node)
    name = tail.emit("Gather", [joined, positions], axis=axis)
    tail.rename(node.output, [name])
    set_extent(tail, name, tail.extents[positions].along(axis))


def _emit_counted(tail: Tail, node: onnx.NodeProto, shape: tuple[int, ...], axis: int, parent: Extent | None) -> str:
    """Add an operator that selects, with its count, and return its result."""
    name = node.output[0] if node.output[0] in tail.kinds else tail.name_for(node.output[0])
    count = f"{name}.count"
    counted = helper.make_node(PREFIX + node.op_type, node.input, [name, count], name=node.name or name)
    counted.attribute.extend(node.attribute)
    if shape[axis] == 0:
        raise ValueError("there is nothing to choose from")
    tail.shapes[name] = shape
    tail.kinds[name] = tail.kinds[node.input[0]] if node.op_type == "Compress" else onnx.TensorProto.INT64
    result = tail.keep(counted)[0]
    if result == name:
        tail.extents[name] = Extent(axis, count, tail.new_root(count, shape[axis], [parent]))
    return result


# No index lies behind the results.
def non_zero(node: onnx.NodeProto, tail: Tail) -> None:
    data = node.input[0]
    extent, shape = tail.extents.get(data), tail.shapes[data]
    node.input[0] = tail.filled(data, 0)
    tail.rename(node.output, [_emit_counted(tail, node, (len(shape), math.prod(shape)), 1, extent)])


# No slice lies behind the results.
def compress(node: onnx.NodeProto, tail: Tail) -> None:
    data, flags = node.input
    if flags in tail.constants:
        if data in tail.extents and get_attribute(node, "axis", None) is None:
            raise ValueError("the results are cut into others")
        keep_each(other_axis(0))(node, tail)
        return
    shape, axis = tail.shapes[data], get_attribute(node, "axis", None)
    if axis is None:
        shape, axis = (math.prod(shape),), 0
    axis %= len(shape)
    data_extent = tail.extents.get(data)
    flag_extent = tail.extents.get(flags)
    if data_extent:
        is_along_axis = data_extent.axis == axis and len(shape) == tail.rank(data)
        if not is_along_axis or not flag_extent or not data_extent.is_like(flag_extent):
            raise ValueError("it needs two selections of the same size")
    node.input[1] = tail.filled(flags, 0)
    bound = tail.shapes[flags][0]
    tail.rename(node.output, [_emit_counted(tail, node, (*shape[:axis], bound, *shape[axis + 1 :]), axis, flag_extent)])


# It looks at the valid boxes only.
def suppress(node: onnx.NodeProto, tail: Tail) -> None:
    boxes, scores = (tail.extents.get(name) for name in node.input[:2])
    images, classes, count = tail.shapes[node.input[1]]
    max_boxes = tail.tables[node.input[2]].list()[0] if len(node.input) > 2 and node.input[2] else 0  # noqa: PLR2004 - its place
    for index in range(3, len(node.input)):
        if node.input[index] and node.input[index] not in tail.constants:
            raise ValueError(f"its input {index} must be known at compile time")
    extent = boxes or scores
    if extent:
        if not boxes or not scores or not boxes.is_like(scores) or (boxes.axis, scores.axis) != (1, 2):
            raise ValueError("boxes and scores must be of the same results")
        node.input.extend([""] * (5 - len(node.input)))
        node.input.append(tail.count(extent))
        node.input[1] = tail.filled(node.input[1], -np.inf)  # NaN has no place in an order
    bound = images * classes * min(max(max_boxes, 0), count)
    tail.rename(node.output, [_emit_counted(tail, node, (bound, 3), 0, extent)])
