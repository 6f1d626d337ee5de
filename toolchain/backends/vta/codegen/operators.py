"""The computation of a VTA kernel as TensorIR, and its schedule.

One block for each thing that the machine does: `window` is the input with its padding, `conv` the sums, `identity` and
`lift` the residual that the sums start from, `bias_add`, `pool_0_0` and so on, `shift_0` and so on, `low`, `high` are
ALU operations, and `y` is the result that is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, reduce
from itertools import product
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule

from toolchain.backends.vta.codegen.layers import FILLING, Conv2d, Pool
from toolchain.backends.vta.codegen.tilings import Choice, Tiling, window_columns, window_rows, window_step
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import Memory

MOST_SHIFT = 15
"""Of one ALU instruction, to the right."""
IDENTITY_SHIFT = 6
"""The largest shift that a matrix of int8 does."""

_INT32 = 1 << 31
_MOST_PRODUCT = 1 << 14  # -128 times -128


def shifts(layer: Conv2d) -> tuple[int, ...]:
    """Return the right shifts, one for each ALU instruction that a large one takes."""
    full, rest = divmod(layer.shift, MOST_SHIFT)
    return (MOST_SHIFT,) * full + ((rest,) if rest else ())


def bounds(layer: Conv2d, config: VtaConfig = DEFAULT) -> tuple[bool, bool]:
    """Return whether the shifted sums can lie below the lower bound, and above the upper one."""
    largest = layer.kernel[0] * layer.kernel[1] * layer.summed_channels(config) * _MOST_PRODUCT
    if layer.residual_shift is not None:
        largest += 1 << (layer.residual_shift + 7)
    # A bias may be any int32, so nothing is known of sums with one.
    if layer.bias or largest >= _INT32:
        largest = _INT32
    return -largest >> layer.shift < layer.low, min(largest, _INT32 - 1) >> layer.shift > layer.high


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
        sums = _elementwise("sum", sums, lambda value, indices: value + start(*indices))
    if layer.bias:
        sums = _elementwise("bias_add", sums, lambda value, indices: value + bias(indices[1], *indices[-2:]))
    if layer.pool is not None:
        sums = _maxima(layer, layer.pool, sums)
    arguments += filling
    # The common shift of all channels comes first, then the shift of each channel.
    for number, shift in enumerate(shifts(layer)):
        sums = _shift_right(f"shift_{number}", sums, shift)
    if amounts is not None:
        sums = _elementwise("channel_shift", sums, lambda value, indices: value >> amounts(indices[1], *indices[-2:]))
    # A bound that no sum can reach costs an instruction for nothing.
    below, above = bounds(layer, config)
    if below:
        sums = _elementwise("low", sums, lambda value, _: tirx.max(value, layer.low))
    if above:
        sums = _elementwise("high", sums, lambda value, _: tirx.min(value, layer.high))
    y = _elementwise("y", sums, lambda value, _: value.astype("int8"))
    return te.create_prim_func([*arguments, y])


def _convolution(layer: Conv2d, config: VtaConfig) -> tuple[te.Tensor, list[te.Tensor], te.Tensor, te.Tensor]:
    (data, _), (kernel, _), *_, (y, _) = layer.arguments(config)
    x, weights = te.placeholder(data, "int8", name="x"), te.placeholder(kernel, "int8", name="w")
    filling = [te.placeholder((FILLING, *data[-2:]), "int8", name="filling")] if layer.is_filled else []
    window = _window(layer, x, *filling)
    # Where rows are skipped, the window has only those that some output needs.
    rows, columns = layer.stride[0] // window_step(layer), layer.stride[1]
    block, row, column, lane = (
        te.reduce_axis((0, extent), name)
        for extent, name in zip((*kernel[1:4], config.block), ("ci", "kh", "kw", "k"), strict=True)
    )

    def product(*indices: tirx.Var) -> tirx.Expr:
        image, out, h, w, b, o = indices
        # Blocks that stand alone read the block in their own position.
        source = out if layer.alone else block
        value = window[image, source, h * rows + row, w * columns + column, b, lane].astype("int32")
        return te.sum(value * weights[out, block, row, column, o, lane].astype("int32"), [block, row, column, lane])

    shape = (*y[:2], layer.sum_height, layer.sum_width, *y[-2:])
    return x, filling, weights, te.compute(shape, product, name="conv")


def _window(layer: Conv2d, x: te.Tensor, filling: te.Tensor | None = None) -> te.Tensor:
    step, (top, left, _, _) = window_step(layer), layer.padding

    def value(*indices: tirx.Var) -> tirx.Expr:
        image, block, h, w, *element = indices
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

    def product(*indices: tirx.Var) -> tirx.Expr:
        value = residual(*indices[:-1], lane).astype("int32")
        return te.sum(value * identity[indices[-1], lane].astype("int32"), [lane])

    # The array has no copy from INP to ACC: a product with the identity moves the residual there.
    start = te.compute(shape, product, name="identity")
    if shift > IDENTITY_SHIFT:
        start = _elementwise("lift", start, lambda value, _: value << (shift - IDENTITY_SHIFT))
    return residual, identity, start


def _maxima(layer: Conv2d, pool: Pool, sums: te.Tensor) -> te.Tensor:
    """Take the maximum of each window, position by position; the first position is never outside of the image."""
    top, left, bottom, right = pool.outside
    rows, columns = range(top, layer.sum_height - bottom), range(left, layer.sum_width - right)
    shape = (*sums.shape[:2], layer.out_height, layer.out_width, *sums.shape[-2:])

    def step(maxima: te.Tensor | None, position: tuple[int, int]) -> te.Tensor:
        def value(*indices: tirx.Var) -> tirx.Expr:
            image, block, h, w, *element = indices
            row, column = h * pool.stride[0] + position[0], w * pool.stride[1] + position[1]
            other = sums(image, block, row, column, *element)
            if maxima is None:
                return other
            inside = [row >= rows.start, row < rows.stop, column >= columns.start, column < columns.stop]
            return tirx.if_then_else(tirx.all(*inside), tirx.max(maxima(*indices), other), maxima(*indices))

        return te.compute(shape, value, name=f"pool_{position[0]}_{position[1]}")

    positions = list(product(range(pool.window[0]), range(pool.window[1])))
    positions.remove((top, left))
    return reduce(step, positions, step(None, (top, left)))


def _shift_right(name: str, sums: te.Tensor, amount: int) -> te.Tensor:
    return _elementwise(name, sums, lambda value, _: value >> amount)


def _elementwise(
    name: str, source: te.Tensor, value: Callable[[tirx.Expr, tuple[tirx.Var, ...]], tirx.Expr]
) -> te.Tensor:
    return te.compute(source.shape, lambda *indices: value(source(*indices), indices), name=name)


# --- schedules -------------------------------------------------------------------------------------------------------

# Where a VTA kernel computes what: tiles, the SRAM that each tensor passes, and the order of tiles.

SCOPES = {"local.inp_buffer": Memory.INP, "local.wgt_buffer": Memory.WGT, "local.acc_buffer": Memory.ACC}
"""The SRAM behind each storage scope."""

_INP, _WGT, _ACC = SCOPES
_TILE_AXES = 4  # image, channels, row, column
_AXES = _TILE_AXES + 2  # and those of an element


def schedule_kernel(layer: Conv2d, choice: Choice, config: VtaConfig = DEFAULT) -> Schedule:
    """Return the schedule of a layer's kernel.

    The accumulators, whatever they are called on their way through the ALU, are computed within one tile of y.
    """
    schedule = Schedule(operator(layer, config), debug_mask="none", enable_check=False)
    if layer.residual_shift is not None:
        schedule.fuse_reduction_epilogue("conv", "sum")
    caches = _caches(schedule, layer)
    tile_loop = _tile_output(schedule, Tiling(layer, choice, config))
    # From the inside out: each block of the accumulators comes after those that read it.
    names = [name for name in _computed(schedule) if name not in ("window", "conv") and "local." not in name]
    start = [name for name in ("lift", "identity") if name in names]
    for name in [*(name for name in reversed(names) if name not in start), "conv", *start]:
        schedule.compute_at(name, tile_loop, preserve_unit_loops=True)
    for cached in caches:
        schedule.compute_at(cached, tile_loop, preserve_unit_loops=True)
    _reduce(schedule, choice)
    if layer.residual_shift is not None:
        schedule.decompose_reduction("identity", schedule.get_loops("identity")[_TILE_AXES])
    return schedule


def _caches(schedule: Schedule, layer: Conv2d) -> list[Any]:
    """Put all tensors into their SRAM; return the loads that belong to a tile of y."""
    for name in _computed(schedule):
        schedule.set_scope(name, 0, _INP if name == "window" else _ACC)
    caches = []
    if layer.bias:
        caches.append(schedule.cache_read("bias_add", 1, _ACC))
    if layer.channel_shifts:
        caches.append(schedule.cache_read("channel_shift", 1, _ACC))
    if layer.residual_shift is not None:
        caches.append(schedule.cache_read("identity", 0, _INP))
        schedule.cache_read("identity", 1, _WGT)
    return caches


def _computed(schedule: Schedule) -> list[str]:
    """Return the names of the blocks before the last, in the order of the computation."""
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    return [schedule.get(block).name_hint for block in blocks][:-1]


def _tile_output(schedule: Schedule, tiling: Tiling) -> Any:
    """Cut y into tiles; return the innermost loop over them."""
    choice = tiling.choice
    extents = (choice.tile_b, choice.tile_co, choice.tile_h, choice.tile_w)
    loops = schedule.get_loops("y")[:_TILE_AXES]
    pairs = [schedule.split(loop, [None, extent]) for loop, extent in zip(loops, extents, strict=True)]
    image, channels, row, column = (outer for outer, _ in pairs)
    # The outermost loop decides which tiles stay in SRAM the longest.
    order = (channels, image, row, column) if tiling.weights_first else (image, row, column, channels)
    schedule.reorder(*order, *(inner for _, inner in pairs))
    return order[-1]


def _reduce(schedule: Schedule, choice: Choice) -> None:
    """Cut the sums along the channels of x, and load inputs and weights for each part."""
    loops = schedule.get_loops("conv")[_TILE_AXES:]
    tile, blocks, rest = loops[:_AXES], loops[_AXES], loops[_AXES + 1 :]
    outer, inner = schedule.split(blocks, [None, choice.tile_ci])
    schedule.reorder(outer, *tile, inner, *rest)
    # cache_read takes the index of a tensor among those that the block reads.
    reads = schedule.get(schedule.get_sblock("conv")).reads
    index = next(index for index, region in enumerate(reads) if region.source.name == "w")
    weights = schedule.cache_read("conv", index, _WGT)
    schedule.compute_at("window", outer, preserve_unit_loops=True)
    schedule.compute_at(weights, outer, preserve_unit_loops=True)
    # The reset of the sums comes before the first load of weights.
    schedule.decompose_reduction("conv", outer)
