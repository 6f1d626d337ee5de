"""Operators that choose: by a condition, by suppression, or by indices, among results and elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.models.tails.common import attribute, followed, other_axis, set_extent
from toolchain.models.tails.graph import PREFIX, Extent, Tail


def _places(tail: Tail, name: str, limit: str | None) -> str:
    """Return indices that can be read: 0 behind the results; those that count from the end, from its real end.

    Args:
        tail: The graph.
        name: The indices.
        limit: The tensor with the number of results that they choose from; None where these have a size that is known.
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


def gather(node: onnx.NodeProto, tail: Tail) -> None:
    """Gather: indices behind the results become 0, and those that count from the end count from the last result."""
    data, indices = node.input
    axis = attribute(node, "axis", 0) % tail.rank(data)
    own, chosen = tail.extents.get(data), tail.extents.get(indices)
    if chosen is None and own:
        tail.materialize(indices)
        if axis == own.axis:
            raise ValueError("one of the results is chosen, which may not be there")
        after = own.axis if own.axis < axis else own.axis - 1 + tail.rank(indices)
        names = tail.keep(node)
        tail.rename(node.output, names)
        set_extent(tail, names[0], own.along(after))
        return
    if chosen is None or (own and own.axis != axis):
        raise ValueError("two axes depend on the data")
    node.input[1] = _places(tail, indices, tail.count(own) if own else None)
    names = tail.keep(node)
    tail.rename(node.output, names)
    set_extent(tail, names[0], chosen.along(axis + chosen.axis))


def gather_nd(node: onnx.NodeProto, tail: Tail) -> None:
    """GatherND, as Gather."""
    data, indices = node.input
    own, chosen = tail.extents.get(data), tail.extents.get(indices)
    last, depth = tail.rank(indices) - 1, tail.shapes[indices][-1]
    if chosen is None or chosen.axis == last or attribute(node, "batch_dims", 0) or (own and own.axis >= depth):
        raise ValueError("two axes depend on the data")
    limit = None
    if own:
        ends = [tail.constant(np.array([size])) for size in tail.shapes[data][:depth]]
        ends[own.axis] = tail.count(own)
        limit = tail.emit("Concat", ends, axis=0)
    node.input[1] = _places(tail, indices, limit)
    names = tail.keep(node)
    tail.rename(node.output, names)
    set_extent(tail, names[0], chosen)


def gather_elements(node: onnx.NodeProto, tail: Tail) -> None:
    """GatherElements, along the axis of the results, or of the results each by itself."""
    data, indices = node.input
    axis = attribute(node, "axis", 0) % tail.rank(data)
    own, chosen = tail.extents.get(data), tail.extents.get(indices)
    if chosen is None or (own is None) != (chosen.axis == axis) or (own and not own.is_like(chosen)):
        raise ValueError("results are chosen among the results")
    node.input[1] = _places(tail, indices, None)
    names = tail.keep(node)
    tail.rename(node.output, names)
    set_extent(tail, names[0], chosen)


def concat(node: onnx.NodeProto, tail: Tail) -> None:
    """Side by side, or behind each other: then the results of each part move up to those of the part before."""
    axis = attribute(node, "axis", 0) % max(tail.rank(name) for name in node.input if name in tail.shapes)
    parts = [tail.extents.get(name) for name in node.input]
    if not any(extent is not None and extent.axis == axis for extent in parts):
        if not all(parts):
            raise ValueError("a tensor of another size meets the results")
        followed(_own_axis)(node, tail)
        return
    if any(extent is not None and extent.axis != axis for extent in parts):
        raise ValueError("two axes depend on the data")
    for name in node.input:
        tail.materialize(name)
    flags = [_flags(tail, extent, tail.shapes[name][axis]) for name, extent in zip(node.input, parts, strict=True)]
    places = _compressed(tail, tail.emit("Concat", flags, axis=0), [extent for extent in parts if extent])
    if all(name in tail.constants for name in node.input):
        whole = tail.constant(
            np.concatenate([numpy_helper.to_array(tail.constants[name]) for name in node.input], axis)
        )
    else:
        (whole,) = tail.keep(node)
    name = tail.emit("Gather", [whole, places], axis=axis)
    tail.rename(node.output, [name])
    set_extent(tail, name, tail.extents[places].along(axis))


def _own_axis(node: onnx.NodeProto, tail: Tail) -> int:
    return tail.extents[node.input[0]].axis


def _flags(tail: Tail, extent: Extent | None, size: int) -> str:
    return tail.counts(extent.along(0), 1) if extent else tail.constant(np.ones(size, bool))


def _compressed(tail: Tail, flags: str, parts: Sequence[Extent]) -> str:
    """Return the places of what is true, and remember that none is there where nothing is there to choose from."""
    (size,) = tail.shapes[flags]
    places = tail.constant(np.arange(size))
    parent = parts[0] if len(parts) == 1 else None
    return _counted(tail, helper.make_node("Compress", [places, flags], ["places"], axis=0), (size,), 0, parent)


def _counted(tail: Tail, node: onnx.NodeProto, shape: tuple[int, ...], axis: int, parent: Extent | None) -> str:
    """Add an operator that selects, with its count, and return its result."""
    name = node.output[0] if node.output[0] in tail.kinds else tail.name_for(node.output[0])
    count = f"{name}.count"
    made = helper.make_node(PREFIX + node.op_type, node.input, [name, count], name=node.name or name)
    made.attribute.extend(node.attribute)
    if shape[axis] == 0:
        raise ValueError("there is nothing to choose from")
    tail.shapes[name] = shape
    tail.kinds[name] = tail.kinds[node.input[0]] if node.op_type == "Compress" else onnx.TensorProto.INT64
    kept = tail.keep(made)[0]
    if kept == name:
        tail.extents[name] = Extent(axis, count, tail.new_root(count, shape[axis], [parent]))
    return kept


def non_zero(node: onnx.NodeProto, tail: Tail) -> None:
    """NonZero: the number of places depends on the data; none is behind the results."""
    data = node.input[0]
    extent, shape = tail.extents.get(data), tail.shapes[data]
    node.input[0] = tail.filled(data, 0)
    tail.rename(node.output, [_counted(tail, node, (len(shape), math.prod(shape)), 1, extent)])


def compress(node: onnx.NodeProto, tail: Tail) -> None:
    """Compress: the number of slices depends on the data; none is behind the results."""
    data, flags = node.input
    if flags in tail.constants:
        if data in tail.extents and attribute(node, "axis", None) is None:
            raise ValueError("the results are cut into others")
        followed(other_axis(0))(node, tail)
        return
    shape, axis = tail.shapes[data], attribute(node, "axis", None)
    if axis is None:
        shape, axis = (math.prod(shape),), 0
    axis %= len(shape)
    own = tail.extents.get(data)
    chosen = tail.extents.get(flags)
    if own and (own.axis != axis or len(shape) != tail.rank(data) or not chosen or not own.is_like(chosen)):
        raise ValueError("it needs two selections of the same size")
    node.input[1] = tail.filled(flags, 0)
    bound = tail.shapes[flags][0]
    tail.rename(node.output, [_counted(tail, node, (*shape[:axis], bound, *shape[axis + 1 :]), axis, chosen)])


def suppression(node: onnx.NodeProto, tail: Tail) -> None:
    """NonMaxSuppression among results: it looks at so many boxes as count."""
    boxes, scores = (tail.extents.get(name) for name in node.input[:2])
    images, classes, count = tail.shapes[node.input[1]]
    most = tail.tables[node.input[2]].list()[0] if len(node.input) > 2 and node.input[2] else 0  # noqa: PLR2004 - its place
    for at in range(3, len(node.input)):
        if node.input[at] and node.input[at] not in tail.constants:
            raise ValueError(f"its input {at} must be known at compile time")
    extent = boxes or scores
    if extent:
        if not boxes or not scores or not boxes.is_like(scores) or (boxes.axis, scores.axis) != (1, 2):
            raise ValueError("boxes and scores must be of the same results")
        node.input.extend([""] * (5 - len(node.input)))
        node.input.append(tail.count(extent))
        node.input[1] = tail.filled(node.input[1], -np.inf)  # no NaN, which no order has a place for
    bound = images * classes * min(max(most, 0), count)
    tail.rename(node.output, [_counted(tail, node, (bound, 3), 0, extent)])
