"""What puts images together, pads them, or gives them other shapes."""

from __future__ import annotations

from typing import Any

from tvm import relax

from toolchain.backends.graph.values import shape_of
from toolchain.backends.mali.layout.axes import OP, RANKS, is_flat, numbers, order
from toolchain.backends.mali.layout.writer import Made, Parted, Writer


def concat(writer: Writer, variable: Any, call: Any) -> Made | None:
    """Join images, of which one at least has its channels last."""
    fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    rank = len(shape_of(variable.ty) or ())
    if fields and call.attrs.axis is not None:
        _joined_parts(writer, variable, fields, int(call.attrs.axis) % rank)
    if rank not in RANKS or call.attrs.axis is None or all(writer.twin(one) is None for one in fields):
        return None
    axis = order(rank).index(int(call.attrs.axis) % rank)
    return Made(OP.concat([writer.last(one) for one in fields], axis=axis))


def stack(writer: Writer, variable: Any, call: Any) -> None:
    """Know what a stack is made of."""
    fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    if int(call.attrs.axis or 0) == 0 and fields:
        writer.now.stacked[variable] = fields


def reshape(writer: Writer, variable: Any, call: Any) -> Made | None:
    """Reshape an image of one pixel or one channel."""
    data = call.args[0]
    twin, shape = writer.twin(data), shape_of(data.ty)
    parted = _parted(writer, variable, data)
    if parted is not None:
        return parted
    if twin is None or shape is None or not is_flat(shape):
        return None
    if data in writer.now.reduced and shape_of(variable.ty) == shape[:2]:
        return Made(writer.now.reduced[data], last=False)  # in one kernel
    return Made(OP.reshape(twin, list(shape_of(variable.ty) or ())), last=False)


def _parted(writer: Writer, variable: Any, data: Any) -> Made | None:
    """Part the channels of an image into several dimensions, or make them one again; None for another view."""
    twin, shape, made = writer.twin(data), shape_of(data.ty) or (), shape_of(variable.ty) or ()
    known = writer.now.parted.get(data) or (Parted(twin, len(shape) - 2, twin) if twin is not None else None)
    if known is None or not known.places or len(made) < known.places + 2:
        return None
    count = known.places
    if (made[0], *made[-count:]) != (shape[0], *shape[-count:]):
        return None
    sizes = [made[axis] for axis in order(len(made), count)]
    if len(made) == count + 2:
        if known.whole is not None and list(shape_of(known.whole.ty) or ()) == sizes:
            return Made(known.whole)
        return Made(OP.reshape(known.value, sizes))
    value = writer.like(variable, sizes, OP.reshape(known.value, sizes))
    writer.now.parted[variable] = Parted(value, count, known.whole)
    return None


def permute(writer: Writer, variable: Any, call: Any) -> None:
    """Permute what the channels of an image are parted into."""
    known, shape = writer.now.parted.get(call.args[0]), shape_of(variable.ty) or ()
    if known is None or call.attrs.axes is None:
        return
    rank, axes = len(shape), numbers(call.attrs.axes)
    if axes == [*range(rank)]:
        writer.now.parted[variable] = known
        return
    kept = [0, *range(rank - known.places, rank)]
    if [axes[axis] for axis in kept] == kept:
        before = order(rank, known.places)
        places = [before.index(axes[axis]) for axis in before]
        value = OP.permute_dims(known.value, places)
        sizes = [shape[axis] for axis in before]
        writer.now.parted[variable] = Parted(writer.like(variable, sizes, value), known.places)


def _joined_parts(writer: Writer, variable: Any, fields: list[Any], axis: int) -> None:
    """Join images along one of the dimensions that their channels are parted into."""
    known, shape = [writer.now.parted.get(one) for one in fields], shape_of(variable.ty) or ()
    values = [one.value for one in known if one is not None]
    places = {one.places for one in known if one is not None}
    if len(values) == len(fields) and len(places) == 1 and 1 <= axis < len(shape) - min(places):
        before = order(len(shape), min(places))
        value = OP.concat(values, axis=before.index(axis))
        writer.now.parted[variable] = Parted(writer.like(variable, [shape[one] for one in before], value), min(places))


def expand(writer: Writer, variable: Any, call: Any) -> None:
    """Know a view with one more dimension before the channels."""
    if writer.twin(call.args[0]) is not None and numbers(call.attrs.axis) == [1]:
        writer.now.stretched[variable] = call.args[0]


def squeeze(writer: Writer, variable: Any, call: Any) -> Made | None:  # noqa: ARG001 - as rules are called
    """Take away that dimension of an average across channels."""
    axes = None if call.attrs.axis is None else numbers(call.attrs.axis)
    found = writer.now.pooled.get(call.args[0]) if axes == [1] else None
    return None if found is None else Made(found)


def pad(writer: Writer, variable: Any, call: Any) -> Made | None:
    """Pad an image whose channels are last already."""
    twin, attributes = writer.twin(call.args[0]), call.attrs
    if twin is None or str(attributes.pad_mode) != "constant":
        return None
    widths = numbers(attributes.pad_width)
    places = order(len(shape_of(variable.ty) or ()))
    transposed = [widths[2 * axis + side] for axis in places for side in (0, 1)]
    return Made(OP.nn.pad(twin, transposed, "constant", float(attributes.pad_value)))
