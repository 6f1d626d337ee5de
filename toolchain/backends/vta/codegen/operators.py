"""What a VTA kernel computes, as TensorIR without a schedule.

One block for each thing that the machine does: `window` is the input with its padding, `conv` the sums, `identity` and
`lift` the residual that the sums start from, `bias_add`, `shift_0` and so on, `low` and `high` are ALU operations, and
`y` is what is stored. The unit axis of the packed layouts is left out: it does not change where an element lies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tvm import te, tirx

from toolchain.backends.vta.codegen.layers import FILLING, Conv2d
from toolchain.backends.vta.codegen.tilings import BLOCK, window_columns, window_rows, window_step

MOST_SHIFT = 15
"""Of one ALU instruction, to the right."""
IDENTITY_SHIFT = 6
"""The largest shift that a matrix of int8 does."""

_INT32 = 1 << 31
_MOST_PRODUCT = 1 << 14  # -128 times -128


def shifts(layer: Conv2d) -> tuple[int, ...]:
    """Return the right shifts, one for each ALU instruction that a large one takes."""
    whole, rest = divmod(layer.shift, MOST_SHIFT)
    return (MOST_SHIFT,) * whole + ((rest,) if rest else ())


def bounds(layer: Conv2d) -> tuple[bool, bool]:
    """Return whether the shifted sums can lie below the lower bound, and above the upper one."""
    most = layer.kernel[0] * layer.kernel[1] * layer.summed_channels * _MOST_PRODUCT
    if layer.residual_shift is not None:
        most += 1 << (layer.residual_shift + 7)
    if layer.bias or most >= _INT32:
        most = _INT32
    return -most >> layer.shift < layer.low, min(most, _INT32 - 1) >> layer.shift > layer.high


@cache
def operator(layer: Conv2d) -> tirx.PrimFunc:
    """Return the kernel of a layer, its tensors in the order of a stream's buffers."""
    x, filling, weights, sums = _convolution(layer)
    arguments = [x, weights]
    if layer.bias:
        bias = te.placeholder((layer.out_channels // BLOCK, BLOCK), "int32", name="bias")
        arguments.append(bias)
    amounts = None
    if layer.channel_shifts:
        amounts = te.placeholder((layer.out_channels // BLOCK, BLOCK), "int32", name="amounts")
        arguments.append(amounts)
    if layer.residual_shift is not None:
        residual, identity, start = _residual(layer.residual_shift, sums.shape)
        arguments += [residual, identity]
        sums = _elementwise("sum", sums, lambda value, at: value + start(*at))
    if layer.bias:
        sums = _elementwise("bias_add", sums, lambda value, at: value + bias(at[1], at[-1]))
    arguments += filling
    y = _elementwise("y", _limited(layer, _shifted(layer, sums, amounts)), lambda value, _: value.astype("int8"))
    return te.create_prim_func([*arguments, y])


def _convolution(layer: Conv2d) -> tuple[te.Tensor, list[te.Tensor], te.Tensor, te.Tensor]:
    blocks_in, blocks_out = layer.in_channels // BLOCK, layer.out_channels // BLOCK
    x = te.placeholder((layer.batch, blocks_in, layer.height, layer.width, BLOCK), "int8", name="x")
    summed = layer.summed_channels // BLOCK
    weights = te.placeholder((blocks_out, summed, *layer.kernel, BLOCK, BLOCK), "int8", name="w")
    filling = [te.placeholder((FILLING, BLOCK), "int8", name="filling")] if layer.is_filled else []
    window = _window(layer, x, *filling)
    rows, columns = layer.stride[0] // window_step(layer), layer.stride[1]
    block, row, column, lane = (
        te.reduce_axis((0, extent), name)
        for extent, name in zip((summed, *layer.kernel, BLOCK), ("ci", "kh", "kw", "k"), strict=True)
    )

    def product(*at: tirx.Var) -> tirx.Expr:
        image, out, h, w, o = at
        read = out if layer.alone else block
        value = window[image, read, h * rows + row, w * columns + column, lane].astype("int32")
        return te.sum(value * weights[out, block, row, column, o, lane].astype("int32"), [block, row, column, lane])

    shape = (layer.batch, blocks_out, layer.out_height, layer.out_width, BLOCK)
    return x, filling, weights, te.compute(shape, product, name="conv")


def _window(layer: Conv2d, x: te.Tensor, filling: te.Tensor | None = None) -> te.Tensor:
    step, (top, left, _, _) = window_step(layer), layer.padding

    def value(*at: tirx.Var) -> tirx.Expr:
        image, block, h, w, lane = at
        row, column = h * step - top, w - left
        inside = tirx.all(row >= 0, row < layer.height, column >= 0, column < layer.width)
        outside = tirx.const(0, "int8") if filling is None else filling[0, lane]
        return tirx.if_then_else(inside, x[image, block, row, column, lane], outside)

    rows, columns = window_rows(layer, layer.out_height), window_columns(layer, layer.out_width)
    return te.compute((*x.shape[:2], rows, columns, BLOCK), value, name="window")


def _residual(shift: int, shape: tuple[int, ...]) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    residual = te.placeholder(shape, "int8", name="residual")
    identity = te.placeholder((BLOCK, BLOCK), "int8", name="residual_w")
    lane = te.reduce_axis((0, BLOCK), "k")

    def product(*at: tirx.Var) -> tirx.Expr:
        value = residual(*at[:-1], lane).astype("int32")
        return te.sum(value * identity[at[-1], lane].astype("int32"), [lane])

    start = te.compute(shape, product, name="identity")
    if shift > IDENTITY_SHIFT:
        start = _elementwise("lift", start, lambda value, _: value << (shift - IDENTITY_SHIFT))
    return residual, identity, start


def _shifted(layer: Conv2d, sums: te.Tensor, amounts: te.Tensor | None) -> te.Tensor:
    """Shift by what is common to all channels, and then by what each has for itself."""
    for index, shift in enumerate(shifts(layer)):
        sums = _right(f"shift_{index}", sums, shift)
    if amounts is None:
        return sums
    return _elementwise("channel_shift", sums, lambda value, at: value >> amounts(at[1], at[-1]))


def _limited(layer: Conv2d, sums: te.Tensor) -> te.Tensor:
    below, above = bounds(layer)
    if below:
        sums = _elementwise("low", sums, lambda value, _: tirx.max(value, layer.low))
    if above:
        sums = _elementwise("high", sums, lambda value, _: tirx.min(value, layer.high))
    return sums


def _right(name: str, sums: te.Tensor, shift: int) -> te.Tensor:
    return _elementwise(name, sums, lambda value, _: value >> shift)


def _elementwise(
    name: str, source: te.Tensor, value: Callable[[tirx.Expr, tuple[tirx.Var, ...]], tirx.Expr]
) -> te.Tensor:
    return te.compute(source.shape, lambda *at: value(source(*at), at), name=name)
