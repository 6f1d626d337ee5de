"""What puts images together, pads them, or gives them other shapes."""

from __future__ import annotations

from typing import Any

from tvm import relax

from toolchain.backends.graph.values import shape_of
from toolchain.backends.mali.layout.axes import OP, RANKS, is_flat, numbers, order
from toolchain.backends.mali.layout.writer import Made, Writer


def concat(writer: Writer, variable: Any, call: Any) -> Made | None:
    """Join images, of which one at least has its channels last."""
    fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    rank = len(shape_of(variable.ty) or ())
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
    if twin is None or shape is None or not is_flat(shape):
        return None
    if data in writer.now.reduced and shape_of(variable.ty) == shape[:2]:
        return Made(writer.now.reduced[data], last=False)  # in one kernel
    return Made(OP.reshape(twin, list(shape_of(variable.ty) or ())), last=False)


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
