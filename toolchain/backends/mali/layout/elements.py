"""What is computed element by element of images, what reduces and pools them, and resizes them."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax

from toolchain.backends.graph.values import name_of, shape_of
from toolchain.backends.mali.layout.writer import (
    OP,
    RANKS,
    Replacement,
    Writer,
    constant,
    numbers,
    order,
    transposed_shape,
)


def elementwise(writer: Writer, variable: Any, call: Any) -> Replacement | None:
    """Compute element by element what reads an image whose channels are last."""
    rank = len(shape_of(variable.ty) or ())
    if rank not in RANKS or all(writer.twin(argument) is None for argument in call.args):
        return None
    operands = [_operand(writer, argument, rank) for argument in call.args]
    if any(operand is None for operand in operands):
        return None
    if name_of(call) == "multiply" and call.args[0].same_as(call.args[1]):
        writer.state.squared[variable] = call.args[0]
    return Replacement(relax.Call(call.op, operands, call.attrs, call.ty_args))


def _operand(writer: Writer, expression: Any, rank: int) -> Any:
    """Return an operand that is broadcast to an image, for one whose channels are last; None if that is not known."""
    if not isinstance(expression.ty, relax.TensorType):
        return expression  # a number
    shape = shape_of(expression.ty)
    if shape is None:
        return None
    if len(shape) == rank:
        return writer.last(expression)
    if math.prod(shape) == 1:
        return expression if isinstance(expression, tvm.ir.GenericConst) else writer.plain(expression)
    if not isinstance(expression, tvm.ir.GenericConst):
        return None
    array = expression.value.numpy()
    array = array.reshape((1,) * (rank - array.ndim) + array.shape)
    return constant(array.transpose(order(rank)), expression)


def reduction(writer: Writer, variable: Any, call: Any) -> Replacement | None:
    """Reduce an image whose channels are last."""
    data, attributes = call.args[0], call.attrs
    axes = None if attributes.axis is None else numbers(attributes.axis)
    if data in writer.state.stacked and name_of(call) == "sum" and axes == [0] and not attributes.keepdims:
        return _sum_of(writer, variable, writer.state.stacked[data])
    twin, rank = writer.twin(data), len(shape_of(data.ty) or ())
    if twin is None or axes is None:
        return None
    gone = sorted(axis % rank for axis in axes)
    function, moved_axes = getattr(OP, name_of(call)), [order(rank).index(axis) for axis in gone]
    value = function(twin, moved_axes, bool(attributes.keepdims))
    if attributes.keepdims:
        if gone == list(range(2, rank)):
            writer.state.reduced[variable] = function(twin, moved_axes)
        return Replacement(value)
    remaining = [axis for axis in order(rank) if axis not in gone]
    return Replacement(value, last=False) if remaining == sorted(remaining) else None


def _sum_of(writer: Writer, variable: Any, fields: list[Any]) -> Replacement:
    """ONNX's Sum is imported as a stack that is reduced: additions need no such copy."""
    rank = len(shape_of(variable.ty) or ())
    last = rank in RANKS and any(writer.twin(field) is not None for field in fields)
    first, *others = [writer.last(field) if last else writer.plain(field) for field in fields]
    shape = shape_of(variable.ty) or ()
    for other in others[:-1]:
        first = writer.like(variable, transposed_shape(shape) if last else shape, OP.add(first, other), is_step=True)
    return Replacement(OP.add(first, others[-1]) if others else first, last)


def softmax(writer: Writer, variable: Any, call: Any) -> Replacement | None:
    """Compute a softmax of an image whose channels are last."""
    rank, twin = len(shape_of(variable.ty) or ()), writer.twin(call.args[0])
    return None if twin is None else Replacement(OP.nn.softmax(twin, order(rank).index(int(call.attrs.axis) % rank)))


# --- pooling ---------------------------------------------------------------------------------------------------------

# Pooling, and averages over neighbouring channels, which local response normalisation has.


def pool(writer: Writer, variable: Any, call: Any) -> Replacement | None:
    """Pool an image whose channels are last already."""
    (data,), attributes = call.args, call.attrs
    if data in writer.state.stretched:
        _across_channels(writer, variable, call)
        return None
    spatial = RANKS[len(shape_of(variable.ty) or ())]
    if writer.twin(data) is None or {str(attributes.layout), str(attributes.out_layout)} != {f"NC{spatial}"}:
        return None
    function = getattr(OP.nn, name_of(call).removeprefix("nn."))
    value = function(
        writer.twin(data),
        numbers(attributes.pool_size),
        strides=numbers(attributes.strides),
        padding=numbers(attributes.padding),
        dilation=numbers(attributes.dilation),
        ceil_mode=bool(attributes.ceil_mode),
        count_include_pad=bool(attributes.count_include_pad),
        layout=f"N{spatial}C",
        out_layout=f"N{spatial}C",
    )
    return Replacement(value)


def _across_channels(writer: Writer, variable: Any, call: Any) -> None:
    """Know an average over neighbouring channels, as local response normalisation has it: NHWC pooled as if NCHW."""
    attributes, source = call.attrs, writer.state.stretched[call.args[0]]
    size, *others = numbers(attributes.pool_size)
    before, *rest = numbers(attributes.padding)
    after = rest.pop(len(others))
    plain = {*others, *numbers(attributes.strides), *numbers(attributes.dilation)} == {1} and not any(rest)
    if not plain or len(others) != 2 or str(attributes.layout) != "NCDHW":  # noqa: PLR2004 - height and width
        return
    padded = bool(attributes.count_include_pad)
    value, padding = writer.twin(source), (0, before, 0, after)
    if writer.half and padded and source in writer.state.squared:
        # Half precision ends at the square of 255: TVM's pass keeps what comes after padding in single.
        wide = writer.twin(writer.state.squared[source])
        shape = [*transposed_shape(shape_of(source.ty) or ())[:-1], int(wide.ty.shape.values[-1]) + before + after]
        wide = writer.like(source, shape, OP.nn.pad(wide, [0] * 6 + [before, after], "constant", 0.0))
        value, padding = writer.like(source, shape, OP.multiply(wide, wide)), (0, 0, 0, 0)
    value = OP.nn.avg_pool2d(value, (1, size), padding=padding, count_include_pad=padded, layout="NCHW")
    # A squeeze reads this; other operations read the original binding.
    writer.state.pooled[variable] = writer.twin_of(source, value)


def adaptive_pool(writer: Writer, variable: Any, call: Any) -> Replacement | None:
    """Pool an image whose channels are last already into so many pixels."""
    (data,), attributes = call.args, call.attrs
    spatial = RANKS[len(shape_of(variable.ty) or ())]
    if writer.twin(data) is None or {str(attributes.layout), str(attributes.out_layout)} != {f"NC{spatial}"}:
        return None
    function = getattr(OP.nn, name_of(call).removeprefix("nn."))
    size = (shape_of(variable.ty) or ())[2:]
    return Replacement(function(writer.twin(data), output_size=size, layout=f"N{spatial}C", out_layout=f"N{spatial}C"))


# --- resizing --------------------------------------------------------------------------------------------------------

# Resized images, by Relax's own operator.

_KEPT = (
    "method",
    "coordinate_transformation_mode",
    "rounding_method",
    "cubic_alpha",
    "cubic_exclude",
    "extrapolation_value",
)


def resize(writer: Writer, variable: Any, call: Any) -> Replacement | None:  # noqa: ARG001 - as rules are called
    """Resize an image whose channels are last already."""
    data, size = call.args
    twin = writer.twin(data)
    if twin is None or str(call.attrs.layout) != "NCHW":
        return None
    settings = {name: getattr(call.attrs, name) for name in _KEPT}
    roi = [float(value) for value in call.attrs.roi]
    return Replacement(OP.image.resize2d(twin, size, roi, layout="NHWC", **settings))
