"""Operators that compute with shapes: sizes become tables, and what is computed from them stays exact."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from toolchain.models.protos import get_attribute
from toolchain.models.tails import sizes
from toolchain.models.tails.graph import Extent, Tail, attribute_values, axes_of_node, set_extent, set_sizes, sizes_of
from toolchain.models.tails.sizes import Table


# Both become tables, so that no node computes them.
def shape_or_size(node: onnx.NodeProto, tail: Tail) -> None:
    if node.input[0] in tail.shapes or node.input[0] in tail.tables:
        name = node.input[0]
        table = sizes_of(tail, name)
        start, end = get_attribute(node, "start", 0), get_attribute(node, "end", None)
        values = table.values[:, start:end] if node.op_type == "Shape" else table.values.prod(1)
        tail.set_table(node.output[0], Table(table.root, values))
    else:
        tail.rewrite(node)


def expand(node: onnx.NodeProto, tail: Tail) -> None:
    root, (data_sizes, target) = sizes.align([sizes_of(tail, node.input[0]), tail.tables[node.input[1]]])
    rank = max(data_sizes.shape[1], target.shape[1])
    data_sizes, target = (
        np.pad(values, ((0, 0), (rank - values.shape[1], 0)), constant_values=1) for values in (data_sizes, target)
    )
    result_sizes = np.where(target == 1, data_sizes, target)
    if ((data_sizes != 1) & (data_sizes != result_sizes)).any():
        raise ValueError("a tensor of another size meets the results")
    table = Table(root, result_sizes)
    data = node.input[0]
    name = tail.emit("Expand", [data, tail.constant(result_sizes.max(axis=0))])
    if extent := tail.extents.get(data):
        after = result_sizes[:, extent.axis + rank - tail.rank(data)]
        if not (after == extent.sizes[: len(after)]).all():
            raise ValueError("a single result is repeated")
    tail.rename(node.output, [name])
    set_sizes(tail, name, table)


def constant_of_shape(node: onnx.NodeProto, tail: Tail) -> None:
    table = tail.tables[node.input[0]]
    value = attribute_values(node).get("value", np.zeros(1, np.float32)).reshape(())
    name = tail.own_constant(np.full(table.values.max(axis=0), value))
    tail.rename(node.output, [name])
    set_sizes(tail, name, table)


def range_of(node: onnx.NodeProto, tail: Tail) -> None:
    start, limit, step = (tail.tables[name] for name in node.input)
    first, by = int(start.constant()), int(step.constant())
    if by == 0:
        raise ValueError("its step is 0")
    counts = np.maximum(-(-(limit.values - first) // by), 0)
    name = tail.own_constant(first + by * np.arange(int(counts.max())))
    tail.rename(node.output, [name])
    set_sizes(tail, name, Table(limit.root, counts.reshape(-1, 1)))


# The elements of the results stay first, with as many blocks before their axis as before.
def reshape(node: onnx.NodeProto, tail: Tail) -> None:
    _reshape_to(node, tail, tail.tables[node.input[1]], keeps=not get_attribute(node, "allowzero", 0))


def flatten(node: onnx.NodeProto, tail: Tail) -> None:
    data_sizes, rank = sizes_of(tail, node.input[0]), tail.rank(node.input[0])
    axis = get_attribute(node, "axis", 1)
    axis = axis % rank if axis < rank else rank
    products = [data_sizes.values[:, :axis].prod(axis=1), data_sizes.values[:, axis:].prod(axis=1)]
    _reshape_to(node, tail, Table(data_sizes.root, np.stack(products, axis=1)), keeps=False)


def _reshape_to(node: onnx.NodeProto, tail: Tail, shape: Table, *, keeps: bool) -> None:
    data, extent = node.input[0], tail.extents.get(node.input[0])
    root, (data_sizes, new_sizes) = sizes.align([sizes_of(tail, data), shape])
    target = new_sizes.copy()
    if keeps:
        for axis in range(min(data_sizes.shape[1], target.shape[1])):
            target[:, axis] = np.where(target[:, axis] == 0, data_sizes[:, axis], target[:, axis])
    rest = np.where(target == -1, 1, target).prod(axis=1)
    open_sizes = data_sizes.prod(axis=1) // np.maximum(rest, 1)
    target = np.where(target == -1, open_sizes[:, None], target)
    if (target.prod(axis=1) != data_sizes.prod(axis=1)).any():
        raise ValueError("a new shape does not fit the results")
    name = tail.emit("Reshape", [data, tail.constant(target.max(axis=0))])
    tail.rename(node.output, [name])
    set_sizes(tail, name, Table(root, target))
    after = tail.extents.get(name)
    if extent and (after is None or target[0, : after.axis].prod() != data_sizes[0, : extent.axis].prod()):
        raise ValueError("the results are cut into others")


# Along the axis of the results, the slice must start at a constant; what is cut off is behind its end.
def slice_of(node: onnx.NodeProto, tail: Tail) -> None:
    data, extent = node.input[0], tail.extents.get(node.input[0])
    starts, ends = (tail.tables[name] for name in node.input[1:3])
    count = starts.shape[0]
    axes = axes_of_node(node, tail, 3) or list(range(count))
    steps = tail.tables[node.input[4]].list() if len(node.input) > 4 else [1] * count  # noqa: PLR2004 - data to steps
    axes = [axis % tail.rank(data) for axis in axes]
    if extent is None:
        raise ValueError("the number of results decides on a part of other data")
    if extent.axis not in axes:
        names = tail.rewrite(node)
        set_extent(tail, names[0], extent)
        return
    index = axes.index(extent.axis)
    if steps[index] != 1:
        raise ValueError("every few of the results are chosen")
    bounds = [_column(bound, index) for bound in (starts, ends)]
    _, (size, first, last) = sizes.align([Table(extent.root, extent.sizes), *bounds])
    first, last = (np.clip(np.where(bound < 0, bound + size, bound), 0, size) for bound in (first, last))
    lengths = np.maximum(last - first, 0)
    # Where the slice is empty, its start does not matter.
    first = first[lengths > 0]
    if not first.size:
        raise ValueError("no result is left")
    if (first != first[0]).any():
        raise ValueError("its start depends on the number of results")
    new_starts, new_ends = _others(starts, index), _others(ends, index)
    new_starts[index], new_ends[index] = int(first[0]), int(first[0] + lengths.max())
    constants = [tail.constant(np.array(values, np.int64)) for values in (new_starts, new_ends, axes, steps)]
    name = tail.emit("Slice", [data, *constants])
    tail.rename(node.output, [name])
    set_extent(tail, name, Extent(extent.axis, extent.root, lengths))


def _column(table: Table, index: int) -> Table:
    return Table(table.root, table.values[:, index])


def _others(table: Table, index: int) -> list[int]:
    """Return the values of all positions but one, which must not depend on a count."""
    return [0 if position == index else int(_column(table, position).constant()) for position in range(table.shape[0])]


# Padding behind the results starts at their end, which is how exporters get a fixed number of them.
def pad(node: onnx.NodeProto, tail: Tail) -> None:
    data, extent = node.input[0], tail.extents.get(node.input[0])
    if extent is None or get_attribute(node, "mode", b"constant") != b"constant":
        raise ValueError("the number of results decides on a part of other data")
    rank = tail.rank(data)
    axes = [axis % rank for axis in (axes_of_node(node, tail, 3) or range(rank))]
    pads = tail.tables[node.input[1]]
    value = node.input[2] if len(node.input) > 2 else ""  # noqa: PLR2004 - data, pads, value
    if value and value not in tail.constants:
        raise ValueError("it pads with a computed value")
    fill = numpy_helper.to_array(tail.constants[value]).reshape(()) if value else 0
    root, (data_sizes, pad_values) = sizes.align([sizes_of(tail, data), pads])
    begins, ends = np.zeros_like(data_sizes), np.zeros_like(data_sizes)
    for index, axis in enumerate(axes):
        begins[:, axis], ends[:, axis] = pad_values[:, index], pad_values[:, index + len(axes)]
    result_sizes = begins + data_sizes + ends
    if (begins != begins[:1]).any() or begins[:, extent.axis].min() < 0 or (result_sizes < 0).any():
        raise ValueError("padding before the results depends on their number")
    end_pads = result_sizes.max(axis=0) - begins[0] - np.array(tail.shapes[data])
    all_pads = tail.constant(np.concatenate([begins[0], end_pads]))
    name = tail.emit("Pad", [tail.filled(data, fill), all_pads, *([value] if value else [])], mode="constant")
    tail.rename(node.output, [name])
    set_sizes(tail, name, Table(root, result_sizes))
