"""Operators that follow a shape: sizes become tables, and what is computed with them stays exact."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from toolchain.models.tails import sizes
from toolchain.models.tails.common import attribute, named_axes, set_extent, set_sizes, sizes_of
from toolchain.models.tails.graph import Extent, Tail, attributes
from toolchain.models.tails.sizes import Table


def _set_shape(node: onnx.NodeProto, tail: Tail) -> None:
    """Sizes are a table from here on."""
    name = node.input[0]
    table = sizes_of(tail, name)
    start, end = attribute(node, "start", 0), attribute(node, "end", None)
    values = table.values[:, start:end] if node.op_type == "Shape" else table.values.prod(1)
    tail.set_table(node.output[0], Table(table.root, values))


def shape(node: onnx.NodeProto, tail: Tail) -> None:
    """Shape and Size become tables, so that no node computes them."""
    if node.input[0] in tail.shapes or node.input[0] in tail.tables:
        _set_shape(node, tail)
    else:
        tail.rename(node.output, tail.keep(node))


def expand(node: onnx.NodeProto, tail: Tail) -> None:
    """Expand to sizes that follow from a count."""
    root, (own, target) = sizes.aligned([sizes_of(tail, node.input[0]), tail.tables[node.input[1]]])
    rank = max(own.shape[1], target.shape[1])
    own, target = (np.pad(part, ((0, 0), (rank - part.shape[1], 0)), constant_values=1) for part in (own, target))
    found = np.where(target == 1, own, target)
    if ((own != 1) & (own != found)).any():
        raise ValueError("a tensor of another size meets the results")
    table = Table(root, found)
    data = node.input[0]
    (name,) = (tail.emit("Expand", [data, tail.constant(found.max(axis=0))]),)
    own_extent = tail.extents.get(data)
    if own_extent and not (found[:, own_extent.axis + rank - tail.rank(data)] == own_extent.sizes[: len(found)]).all():
        raise ValueError("a single result is repeated")
    tail.rename(node.output, [name])
    set_sizes(tail, name, table)


def constant_of_shape(node: onnx.NodeProto, tail: Tail) -> None:
    """Repeat a value as often as there are results."""
    table = tail.tables[node.input[0]]
    value = attributes(node).get("value", np.zeros(1, np.float32)).reshape(())
    name = tail.own_constant(np.full(table.values.max(axis=0), value))
    tail.rename(node.output, [name])
    set_sizes(tail, name, table)


def range_of(node: onnx.NodeProto, tail: Tail) -> None:
    """Count up to a number of results."""
    start, limit, step = (tail.tables[name] for name in node.input)
    first, by = int(start.constant()), int(step.constant())
    if by == 0:
        raise ValueError("its step is 0")
    counts = np.maximum(-(-(limit.values - first) // by), 0)
    name = tail.own_constant(first + by * np.arange(int(counts.max())))
    tail.rename(node.output, [name])
    set_sizes(tail, name, Table(limit.root, counts.reshape(-1, 1)))


def reshape(node: onnx.NodeProto, tail: Tail) -> None:
    """The elements of the results stay the first ones, with as many parts before their axis as there were."""
    _reshape_to(node, tail, tail.tables[node.input[1]], keeps=not attribute(node, "allowzero", 0))


def flatten(node: onnx.NodeProto, tail: Tail) -> None:
    """Flatten, as a new shape."""
    own, rank = sizes_of(tail, node.input[0]), tail.rank(node.input[0])
    axis = attribute(node, "axis", 1)
    axis = axis % rank if axis < rank else rank
    both = [own.values[:, :axis].prod(axis=1), own.values[:, axis:].prod(axis=1)]
    _reshape_to(node, tail, Table(own.root, np.stack(both, axis=1)), keeps=False)


def _reshape_to(node: onnx.NodeProto, tail: Tail, shape: Table, *, keeps: bool) -> None:
    data, extent = node.input[0], tail.extents.get(node.input[0])
    root, (own, given) = sizes.aligned([sizes_of(tail, data), shape])
    target = given.copy()
    if keeps:
        for at in range(min(own.shape[1], target.shape[1])):
            target[:, at] = np.where(target[:, at] == 0, own[:, at], target[:, at])
    rest = np.where(target == -1, 1, target).prod(axis=1)
    open_sizes = own.prod(axis=1) // np.maximum(rest, 1)
    target = np.where(target == -1, open_sizes[:, None], target)
    if (target.prod(axis=1) != own.prod(axis=1)).any():
        raise ValueError("a new shape does not fit the results")
    name = tail.emit("Reshape", [data, tail.constant(target.max(axis=0))])
    tail.rename(node.output, [name])
    set_sizes(tail, name, Table(root, target))
    after = tail.extents.get(name)
    if extent and (after is None or target[0, : after.axis].prod() != own[0, : extent.axis].prod()):
        raise ValueError("the results are cut into others")


def slice_of(node: onnx.NodeProto, tail: Tail) -> None:
    """Along the axis of the results, a slice from a place that is known: those that are cut away are behind the end."""
    data, extent = node.input[0], tail.extents.get(node.input[0])
    starts, ends = (tail.tables[name] for name in node.input[1:3])
    count = starts.shape[0]
    axes = named_axes(node, tail, 3) or list(range(count))
    steps = tail.tables[node.input[4]].list() if len(node.input) > 4 else [1] * count  # noqa: PLR2004 - data to steps
    axes = [axis % tail.rank(data) for axis in axes]
    if extent is None:
        raise ValueError("the number of results decides on a part of other data")
    if extent.axis not in axes:
        tail.rename(node.output, names := tail.keep(node))
        set_extent(tail, names[0], extent)
        return
    at = axes.index(extent.axis)
    if steps[at] != 1:
        raise ValueError("every few of the results are chosen")
    bounds = [_column(one, at) for one in (starts, ends)]
    _, (own, first, last) = sizes.aligned([Table(extent.root, extent.sizes), *bounds])
    first, last = (np.clip(np.where(one < 0, one + own, one), 0, own) for one in (first, last))
    found = np.maximum(last - first, 0)
    kept = first[found > 0]
    if not kept.size:
        raise ValueError("no result is left")
    if (kept != kept[0]).any():
        raise ValueError("its start depends on the number of results")
    from_places, to_places = _others(starts, at), _others(ends, at)
    from_places[at], to_places[at] = int(kept[0]), int(kept[0] + found.max())
    parts = [tail.constant(np.array(part, np.int64)) for part in (from_places, to_places, axes, steps)]
    name = tail.emit("Slice", [data, *parts])
    tail.rename(node.output, [name])
    set_extent(tail, name, Extent(extent.axis, extent.root, found))


def _column(table: Table, at: int) -> Table:
    return Table(table.root, table.values[:, at])


def _others(table: Table, at: int) -> list[int]:
    """Return the values of all places but one, which must not depend on a count."""
    return [0 if place == at else int(_column(table, place).constant()) for place in range(table.shape[0])]


def padded(node: onnx.NodeProto, tail: Tail) -> None:
    """Padding behind the results starts where they end, which is how exporters make a fixed number of them."""
    data, extent = node.input[0], tail.extents.get(node.input[0])
    if extent is None or attribute(node, "mode", b"constant") != b"constant":
        raise ValueError("the number of results decides on a part of other data")
    rank = tail.rank(data)
    axes = [axis % rank for axis in (named_axes(node, tail, 3) or range(rank))]
    pads = tail.tables[node.input[1]]
    value = node.input[2] if len(node.input) > 2 else ""  # noqa: PLR2004 - data, pads, value
    if value and value not in tail.constants:
        raise ValueError("it pads with a computed value")
    fill = numpy_helper.to_array(tail.constants[value]).reshape(()) if value else 0
    root, (own, given) = sizes.aligned([sizes_of(tail, data), pads])
    begins, ends = np.zeros_like(own), np.zeros_like(own)
    for at, axis in enumerate(axes):
        begins[:, axis], ends[:, axis] = given[:, at], given[:, at + len(axes)]
    found = begins + own + ends
    if (begins != begins[:1]).any() or begins[:, extent.axis].min() < 0 or (found < 0).any():
        raise ValueError("padding before the results depends on their number")
    more = found.max(axis=0) - begins[0] - np.array(tail.shapes[data])
    both = tail.constant(np.concatenate([begins[0], more]))
    name = tail.emit("Pad", [tail.filled(data, fill), both, *([value] if value else [])], mode="constant")
    tail.rename(node.output, [name])
    set_sizes(tail, name, Table(root, found))
