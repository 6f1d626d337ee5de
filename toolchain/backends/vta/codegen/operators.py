"""What a VTA kernel computes, as TensorIR without a schedule.

One block for each thing that the machine does: `window` is the input with its padding, `conv` the sums, `identity` and
`lift` the residual that the sums start from, `bias_add`, `pool_0_0` and so on, `shift_0` and so on, `low`, `high` are
ALU operations, and `y` is what is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, reduce
from itertools import product

from tvm import te, tirx

from toolchain.backends.vta.codegen.layers import FILLING, Conv2d, Pool
from toolchain.backends.vta.codegen.tilings import window_columns, window_rows, window_step
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig

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


def bounds(layer: Conv2d, config: VtaConfig = DEFAULT) -> tuple[bool, bool]:
    """Return whether the shifted sums can lie below the lower bound, and above the upper one."""
    most = layer.kernel[0] * layer.kernel[1] * layer.summed_channels(config) * _MOST_PRODUCT
    if layer.residual_shift is not None:
        most += 1 << (layer.residual_shift + 7)
    if layer.bias or most >= _INT32:
        most = _INT32
    return -most >> layer.shift < layer.low, min(most, _INT32 - 1) >> layer.shift > layer.high


@cache
def operator(layer: Conv2d, config: VtaConfig = DEFAULT) -> tirx.PrimFunc:
    """Return the kernel of a layer, its tensors in the order of a stream's buffers."""
    x, filling, weights, sums = _convolution(layer, config)
    arguments = [x, weights]
    vector = (layer.out_channels // config.block, config.batch, config.block)
    if layer.bias:
        bias = te.placeholder(vector, "int32", name="bias")
        arguments.append(bias)
    amounts = None
    if layer.channel_shifts:
        amounts = te.placeholder(vector, "int32", name="amounts")
        arguments.append(amounts)
    if layer.residual_shift is not None:
        residual, identity, start = _residual(layer.residual_shift, sums.shape)
        arguments += [residual, identity]
        sums = _elementwise("sum", sums, lambda value, at: value + start(*at))
    if layer.bias:
        sums = _elementwise("bias_add", sums, lambda value, at: value + bias(at[1], *at[-2:]))
    if layer.pool is not None:
        sums = _maxima(layer, layer.pool, sums)
    arguments += filling
    limited = _limited(_shifted(layer, sums, amounts), layer, bounds(layer, config))
    y = _elementwise("y", limited, lambda value, _: value.astype("int8"))
    return te.create_prim_func([*arguments, y])


def _convolution(layer: Conv2d, config: VtaConfig) -> tuple[te.Tensor, list[te.Tensor], te.Tensor, te.Tensor]:
    (data, _), (held, _), *_, (y, _) = layer.arguments(config)
    x, weights = te.placeholder(data, "int8", name="x"), te.placeholder(held, "int8", name="w")
    filling = [te.placeholder((FILLING, *data[-2:]), "int8", name="filling")] if layer.is_filled else []
    window = _window(layer, x, *filling)
    rows, columns = layer.stride[0] // window_step(layer), layer.stride[1]
    block, row, column, lane = (
        te.reduce_axis((0, extent), name)
        for extent, name in zip((*held[1:4], config.block), ("ci", "kh", "kw", "k"), strict=True)
    )

    def product(*at: tirx.Var) -> tirx.Expr:
        image, out, h, w, b, o = at
        read = out if layer.alone else block
        value = window[image, read, h * rows + row, w * columns + column, b, lane].astype("int32")
        return te.sum(value * weights[out, block, row, column, o, lane].astype("int32"), [block, row, column, lane])

    shape = (*y[:2], layer.sum_height, layer.sum_width, *y[-2:])
    return x, filling, weights, te.compute(shape, product, name="conv")


def _window(layer: Conv2d, x: te.Tensor, filling: te.Tensor | None = None) -> te.Tensor:
    step, (top, left, _, _) = window_step(layer), layer.padding

    def value(*at: tirx.Var) -> tirx.Expr:
        image, block, h, w, *element = at
        row, column = h * step - top, w - left
        inside = tirx.all(row >= 0, row < layer.height, column >= 0, column < layer.width)
        outside = tirx.const(0, "int8") if filling is None else filling[0, *element]
        return tirx.if_then_else(inside, x[image, block, row, column, *element], outside)

    rows, columns = window_rows(layer, layer.sum_height), window_columns(layer, layer.sum_width)
    return te.compute((*x.shape[:2], rows, columns, *x.shape[-2:]), value, name="window")


def _residual(shift: int, shape: tuple[int, ...]) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    residual = te.placeholder(shape, "int8", name="residual")
    block = shape[-1]
    identity = te.placeholder((block, block), "int8", name="residual_w")
    lane = te.reduce_axis((0, block), "k")

    def product(*at: tirx.Var) -> tirx.Expr:
        value = residual(*at[:-1], lane).astype("int32")
        return te.sum(value * identity[at[-1], lane].astype("int32"), [lane])

    start = te.compute(shape, product, name="identity")
    if shift > IDENTITY_SHIFT:
        start = _elementwise("lift", start, lambda value, _: value << (shift - IDENTITY_SHIFT))
    return residual, identity, start


def _maxima(layer: Conv2d, pool: Pool, sums: te.Tensor) -> te.Tensor:
    """Take the maximum of each window, one of its places after the other; the first is one that is never outside."""
    top, left, bottom, right = pool.outside
    rows, columns = range(top, layer.sum_height - bottom), range(left, layer.sum_width - right)
    shape = (*sums.shape[:2], layer.out_height, layer.out_width, *sums.shape[-2:])

    def of(place: tuple[int, int], found: te.Tensor | None) -> te.Tensor:
        def value(*at: tirx.Var) -> tirx.Expr:
            image, block, h, w, *element = at
            row, column = h * pool.stride[0] + place[0], w * pool.stride[1] + place[1]
            other = sums(image, block, row, column, *element)
            if found is None:
                return other
            inside = [row >= rows.start, row < rows.stop, column >= columns.start, column < columns.stop]
            return tirx.if_then_else(tirx.all(*inside), tirx.max(found(*at), other), found(*at))

        return te.compute(shape, value, name=f"pool_{place[0]}_{place[1]}")

    places = list(product(range(pool.window[0]), range(pool.window[1])))
    places.remove((top, left))
    return reduce(lambda found, place: of(place, found), places, of((top, left), None))


def _shifted(layer: Conv2d, sums: te.Tensor, amounts: te.Tensor | None) -> te.Tensor:
    """Shift by what is common to all channels, and then by what each has for itself."""
    for index, shift in enumerate(shifts(layer)):
        sums = _right(f"shift_{index}", sums, shift)
    if amounts is None:
        return sums
    return _elementwise("channel_shift", sums, lambda value, at: value >> amounts(at[1], *at[-2:]))


def _limited(sums: te.Tensor, layer: Conv2d, outside: tuple[bool, bool]) -> te.Tensor:
    below, above = outside
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
