"""What is computed element by element of images, and sums and other reductions of them."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax

from toolchain.backends.graph.values import name_of, shape_of
from toolchain.backends.mali.layout.axes import OP, RANKS, constant, numbers, order, transposed_shape
from toolchain.backends.mali.layout.writer import Replacement, Writer


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
