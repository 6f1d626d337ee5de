"""What puts images together, pads them, or gives them other shapes."""

from __future__ import annotations

from typing import Any

from tvm import relax

from toolchain.backends.graph.values import shape_of
from toolchain.backends.mali.layout.writer import OP, RANKS, Replacement, SplitChannels, Writer, is_flat, numbers, order


def concat(writer: Writer, variable: Any, call: Any) -> Replacement | None:
    """Join images, of which one at least has its channels last."""
    fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    rank = len(shape_of(variable.ty) or ())
    if fields and call.attrs.axis is not None:
        _join_split(writer, variable, fields, int(call.attrs.axis) % rank)
    if rank not in RANKS or call.attrs.axis is None or all(writer.twin(field) is None for field in fields):
        return None
    axis = order(rank).index(int(call.attrs.axis) % rank)
    return Replacement(OP.concat([writer.last(field) for field in fields], axis=axis))


def stack(writer: Writer, variable: Any, call: Any) -> None:
    """Know what a stack is made of."""
    fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    if int(call.attrs.axis or 0) == 0 and fields:
        writer.state.stacked[variable] = fields


def reshape(writer: Writer, variable: Any, call: Any) -> Replacement | None:
    """Reshape an image of one pixel or one channel."""
    data = call.args[0]
    twin, shape = writer.twin(data), shape_of(data.ty)
    view = _split_channels(writer, variable, data)
    if view is not None:
        return view
    if twin is None or shape is None or not is_flat(shape):
        return None
    if data in writer.state.reduced and shape_of(variable.ty) == shape[:2]:
        return Replacement(writer.state.reduced[data], last=False)  # in one kernel
    return Replacement(OP.reshape(twin, list(shape_of(variable.ty) or ())), last=False)


def _split_channels(writer: Writer, variable: Any, data: Any) -> Replacement | None:
    """Part the channels of an image into several dimensions, or make them one again; None for another view."""
    twin, shape, target = writer.twin(data), shape_of(data.ty) or (), shape_of(variable.ty) or ()
    split = writer.state.split.get(data) or (SplitChannels(twin, len(shape) - 2, twin) if twin is not None else None)
    if split is None or not split.spatial or len(target) < split.spatial + 2:
        return None
    count = split.spatial
    if (target[0], *target[-count:]) != (shape[0], *shape[-count:]):
        return None
    sizes = [target[axis] for axis in order(len(target), count)]
    if len(target) == count + 2:
        if split.original is not None and list(shape_of(split.original.ty) or ()) == sizes:
            return Replacement(split.original)
        return Replacement(OP.reshape(split.value, sizes))
    value = writer.like(variable, sizes, OP.reshape(split.value, sizes))
    writer.state.split[variable] = SplitChannels(value, count, split.original)
    return None


def permute(writer: Writer, variable: Any, call: Any) -> None:
    """Permute what the channels of an image are parted into."""
    split, shape = writer.state.split.get(call.args[0]), shape_of(variable.ty) or ()
    if split is None or call.attrs.axes is None:
        return
    rank, axes = len(shape), numbers(call.attrs.axes)
    if axes == [*range(rank)]:
        writer.state.split[variable] = split
        return
    spatial = [0, *range(rank - split.spatial, rank)]
    if [axes[axis] for axis in spatial] == spatial:
        before = order(rank, split.spatial)
        new_axes = [before.index(axes[axis]) for axis in before]
        value = OP.permute_dims(split.value, new_axes)
        sizes = [shape[axis] for axis in before]
        writer.state.split[variable] = SplitChannels(writer.like(variable, sizes, value), split.spatial)


def _join_split(writer: Writer, variable: Any, fields: list[Any], axis: int) -> None:
    """Join images along one of the dimensions that their channels are parted into."""
    splits, shape = [writer.state.split.get(field) for field in fields], shape_of(variable.ty) or ()
    values = [split.value for split in splits if split is not None]
    spatial = {split.spatial for split in splits if split is not None}
    if len(values) == len(fields) and len(spatial) == 1 and 1 <= axis < len(shape) - min(spatial):
        before = order(len(shape), min(spatial))
        value = OP.concat(values, axis=before.index(axis))
        writer.state.split[variable] = SplitChannels(
            writer.like(variable, [shape[axis] for axis in before], value), min(spatial)
        )


def expand(writer: Writer, variable: Any, call: Any) -> None:
    """Know a view with one more dimension before the channels."""
    if writer.twin(call.args[0]) is not None and numbers(call.attrs.axis) == [1]:
        writer.state.stretched[variable] = call.args[0]


def squeeze(writer: Writer, variable: Any, call: Any) -> Replacement | None:  # noqa: ARG001 - as rules are called
    """Take away that dimension of an average across channels."""
    axes = None if call.attrs.axis is None else numbers(call.attrs.axis)
    value = writer.state.pooled.get(call.args[0]) if axes == [1] else None
    return None if value is None else Replacement(value)


def pad(writer: Writer, variable: Any, call: Any) -> Replacement | None:
    """Pad an image whose channels are last already."""
    twin, attributes = writer.twin(call.args[0]), call.attrs
    if twin is None or str(attributes.pad_mode) != "constant":
        return None
    widths = numbers(attributes.pad_width)
    axes = order(len(shape_of(variable.ty) or ()))
    transposed = [widths[2 * axis + side] for axis in axes for side in (0, 1)]
    return Replacement(OP.nn.pad(twin, transposed, "constant", float(attributes.pad_value)))
