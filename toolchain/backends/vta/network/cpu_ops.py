"""Operations of the CPU on bytes in blocks, between two of the array's kernels, so that no layout changes there.

Maxima and concatenations of bytes on one grid (a scale and a zero point) are those of the numbers. Sums would suit the
array too, but it divides by powers of two alone and rounds halves up, where ONNX divides by any number and rounds
halves to even: means and averages are kernels of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import relax, tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.math import round_to_int
from toolchain.backends.graph.kernels import as_opaque, in_root_block
from toolchain.backends.graph.values import Operation, Value, four, pair
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.network.packing import packed_shape
from toolchain.backends.vta.network.requantize import ByteGrid, UnfitError, grid, is_dequantize, is_quantize

_MAX_POOL, _AVERAGE_POOL, _CONCAT = "nn.max_pool2d", "nn.avg_pool2d", "concat"
_RANK = 4
_CHANNELS, _PIXELS = 1, [2, 3]  # axes
_MOST_PIXELS = 2**16  # of bytes: their sums are exact as floats
_BYTE_MIN, _BYTE_MAX = -128, 127

Read = Callable[[Value], Any]
"""Returns the variable that holds a tensor of bytes in blocks."""
Bind = Callable[[Any, str, tuple[int, ...], Any], Any]
"""Gives an expression a variable like another one: that variable, a suffix for its name, the shape, the expression."""


@dataclass(frozen=True, eq=False)
class Move:
    """Bytes that are other bytes in another order, or the greatest of them.

    Attributes:
        out: The result, int8.
        source: The numbers that it is made of.
    """

    out: Value
    source: Value


def move(operation: Operation, block: int) -> Move | None:
    """Return the move that ends in a `quantize`; None if it ends no move.

    Args:
        operation: Any operation.
        block: Channels of a block.
    """
    if not is_quantize(operation):
        return None
    source = operation.inputs[0]
    target = _grid_or_none(operation)
    if target is None or source.maker is None or source.maker.name not in (_MAX_POOL, _CONCAT):
        return None
    return Move(operation.out, source) if _is_movable(source, target, block) else None


def _grid_or_none(operation: Operation) -> ByteGrid | None:
    try:
        return grid(operation, "it")
    except UnfitError:
        return None


def _is_movable(value: Value, target: ByteGrid, block: int) -> bool:
    """Whether numbers come from bytes on a grid by maxima and concatenations of whole blocks alone."""
    maker = value.maker
    if maker is None or len(value.shape or ()) != _RANK:
        return False
    if is_dequantize(maker):
        return maker.inputs[0].variable is not None and _grid_or_none(maker) == target
    if maker.name == _CONCAT:
        fills_blocks = all((tensor.shape or (0, 1))[_CHANNELS] % block == 0 for tensor in maker.inputs)
        if fills_blocks and int(maker.attributes.axis) in (_CHANNELS, _CHANNELS - _RANK):
            return all(_is_movable(tensor, target, block) for tensor in maker.inputs)
    if maker.name != _MAX_POOL:
        return False
    pool = maker.attributes
    is_nchw = (str(pool.layout), str(pool.out_layout)) == ("NCHW", "NCHW")
    return is_nchw and _is_movable(maker.inputs[0], target, block)


def emit_move(value: Value, config: VtaConfig, read: Read, bind: Bind) -> Any:
    """Write a move; return the variable that holds its bytes in blocks.

    Args:
        value: The numbers that the bytes stand for.
        config: The machine.
        read: Returns the bytes that the move starts from.
        bind: Binds the new expressions.
    """
    maker = value.maker
    if maker is None or is_dequantize(maker):
        return read(maker.inputs[0]) if maker is not None else None
    tensors = [emit_move(tensor, config, read, bind) for tensor in maker.inputs]
    shape = packed_shape(value.shape or (), config)
    if maker.name == _CONCAT:
        return bind(value.variable, "_packed", shape, relax.op.concat(tensors, axis=_CHANNELS))
    return bind(value.variable, "_packed", shape, _max_pool(maker, tensors[0], shape, config))


def _max_pool(pool: Operation, data: Any, shape: tuple[int, ...], config: VtaConfig) -> Any:
    """Return the maxima of images in blocks: each block is an image of its own, its rows' channels last."""
    batch, blocks, height, width, rows, block = packed_shape(pool.inputs[0].shape or (), config)
    images = relax.op.reshape(data, (batch * blocks, height, width, rows * block))
    attributes = pool.attributes
    maxima = relax.op.nn.max_pool2d(
        images,
        pool_size=pair(attributes.pool_size),
        strides=pair(attributes.strides),
        dilation=pair(attributes.dilation),
        padding=four(attributes.padding),
        ceil_mode=bool(attributes.ceil_mode),
        layout="NHWC",
        out_layout="NHWC",
    )
    return relax.op.reshape(maxima, shape)


@dataclass(frozen=True, eq=False)
class Mean:
    """A mean over all pixels: one kernel that adds up whole numbers, and divides once.

    Attributes:
        source: The bytes.
        out: The means, float32 (N, C, 1, 1).
        grid: The grid of the bytes.
        shape: Shape of the bytes in blocks.
    """

    source: Value
    out: Value
    grid: ByteGrid
    shape: tuple[int, ...]

    def kernel(self) -> tirx.PrimFunc:
        return _kernel(self._write, self.shape, Argument("out", self.out.shape or ()))

    def _write(self, data: Any, out: Any) -> None:
        images, channels = (self.out.shape or ())[:2]
        lanes = self.shape[-1]
        full_blocks, rest = divmod(channels, lanes)
        with T.serial(0, images) as image:
            base = image * channels
            with T.serial(0, full_blocks) as block:
                means = self._mean(data, image, block, lanes)
                T.buffer_store(out, means, [emit.ramp(base + block * lanes, lanes)])
            for lane in range(rest):
                mean_of_lane = self._mean(data, image, full_blocks, 1, lane)
                T.buffer_store(out, mean_of_lane, [base + full_blocks * lanes + lane])

    def _mean(self, data: Any, image: Any, block: Any, lanes: int, lane: int = 0) -> Any:
        """Return the means of some channels of a block."""
        _, blocks, height, width, rows, size = self.shape
        pixels, sums, kind = height * width, emit.Registers(1, lanes, "int32"), emit.wide("int32", lanes)
        base = T.Bind(((image // rows * blocks + block) * pixels * rows + image % rows) * size + lane)
        sums[0] = emit.splat(0, lanes, "int32")
        with T.serial(0, pixels) as pixel:
            sums[0] += data[emit.ramp(base + pixel * (rows * size), lanes)].astype(kind)
        units = (sums[0] - emit.splat(pixels * self.grid.zero, lanes, "int32")).astype(emit.wide("float32", lanes))
        return units / emit.splat(pixels * 2.0**self.grid.exponent, lanes)


def mean(operation: Operation, config: VtaConfig) -> Mean | None:
    """Return the mean of bytes that an operation computes; None if it computes something else."""
    if operation.name != "mean" or len(operation.inputs[0].shape or ()) != _RANK:
        return None
    attributes, maker = operation.attributes, operation.inputs[0].maker
    axes = sorted(int(axis) % _RANK for axis in attributes.axis or ())
    if axes != _PIXELS or not bool(attributes.keepdims) or maker is None or not is_dequantize(maker):
        return None
    source = maker.inputs[0]
    if prod((source.shape or ())[2:]) > _MOST_PIXELS:
        return None
    try:
        return Mean(source, operation.out, grid(maker, "it"), packed_shape(source.shape or (), config))
    except UnfitError:
        return None


@dataclass(frozen=True, eq=False)
class Average:
    """Averages of windows of bytes, as bytes.

    Attributes:
        source: The bytes that are read.
        out: The bytes that are written.
        grids: The grids of the bytes that are read, and of those that are written.
        shape: Shape in blocks of the bytes that are read.
        out_shape: Shape in blocks of those that are written.
        window: Rows and columns of a window.
        stride: Rows and columns between two windows.
        before: Rows and columns of padding above and left.
        counts_padding: Whether padding is counted, as zeros.
    """

    source: Value
    out: Value
    grids: tuple[ByteGrid, ByteGrid]
    shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    window: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]
    counts_padding: bool

    def kernel(self) -> tirx.PrimFunc:
        return _kernel(self._write, self.shape, Argument("out", self.out_shape, "int8"))

    def _write(self, data: Any, out: Any) -> None:
        images, blocks, height, width, rows, lanes = self.out_shape
        window = self.window[0] * self.window[1]
        operations = images * blocks * height * width * rows * window
        with (
            emit.shared(images * blocks, operations) as plane,
            T.serial(0, height) as row,
            T.serial(0, width) as column,
        ):
            tops, lefts = (self._clip(axis, index) for axis, index in enumerate((row, column)))
            with T.serial(0, rows) as image:
                averages = self._average(data, plane, tops, lefts, image)
                base = (((plane * height + row) * width + column) * rows + image) * lanes
                T.buffer_store(out, averages, [emit.ramp(base, lanes)])

    def _clip(self, axis: int, index: Any) -> tuple[Any, Any]:
        """Return the first row or column of a window that is not padding, and how many there are."""
        start = index * self.stride[axis] - self.before[axis]
        first = T.Bind(tirx.max(start, 0))
        return first, T.Bind(tirx.min(start + self.window[axis], self.shape[2 + axis]) - first)

    def _average(self, data: Any, plane: Any, tops: tuple[Any, Any], lefts: tuple[Any, Any], image: Any) -> Any:
        """Return the average of one window, of all channels of a block."""
        _, _, height, width, rows, lanes = self.shape
        sums, kind = emit.Registers(1, lanes, "int32"), emit.wide("int32", lanes)
        sums[0] = emit.splat(0, lanes, "int32")
        with T.serial(0, tops[1]) as row, T.serial(0, lefts[1]) as column:
            pixel = (plane * height + tops[0] + row) * width + lefts[0] + column
            sums[0] += data[emit.ramp((pixel * rows + image) * lanes, lanes)].astype(kind)
        inside = T.Bind(tops[1] * lefts[1])
        count = tirx.const(self.window[0] * self.window[1], "int32") if self.counts_padding else inside
        source, target = self.grids
        # Each pixel inside brings `zero` into the sum; padding is the number 0.
        units = sums[0] - emit.splat(inside * source.zero, lanes)
        numbers = units.astype(emit.wide("float32", lanes)) / emit.splat(count.astype("float32"), lanes)
        scaled = numbers * emit.splat(2.0 ** (target.exponent - source.exponent), lanes)
        low, high = (emit.splat(float(end - target.zero), lanes) for end in (_BYTE_MIN, _BYTE_MAX))
        rounded = round_to_int(tirx.max(tirx.min(scaled, high), low), lanes)
        return (rounded + emit.splat(target.zero, lanes, "int32")).astype(emit.wide("int8", lanes))


def average(operation: Operation, config: VtaConfig) -> Average | None:
    """Return the averages of bytes that an operation makes bytes of; None if it computes something else."""
    pool = operation.inputs[0].maker if is_quantize(operation) else None
    numbers = pool.inputs[0].maker if pool is not None and pool.name == _AVERAGE_POOL else None
    if pool is None or numbers is None or not is_dequantize(numbers):
        return None
    attributes = pool.attributes
    is_nchw = (str(attributes.layout), str(attributes.out_layout)) == ("NCHW", "NCHW")
    # With ceil_mode, windows may reach beyond the padding.
    if not is_nchw or bool(attributes.ceil_mode) or pair(attributes.dilation) != (1, 1):
        return None
    try:
        grids = grid(numbers, "it"), grid(operation, "it")
    except UnfitError:
        return None
    return Average(
        source=numbers.inputs[0],
        out=operation.out,
        grids=grids,
        shape=packed_shape(numbers.out.shape or (), config),
        out_shape=packed_shape(operation.out.shape or (), config),
        window=pair(attributes.pool_size),
        stride=pair(attributes.strides),
        before=four(attributes.padding)[:2],
        counts_padding=bool(attributes.count_include_pad),
    )


def _kernel(write: Callable[[Any, Any], None], shape: tuple[int, ...], out: Argument) -> tirx.PrimFunc:
    function = emit.kernel([Argument("data", shape, "int8"), out], write, {"tirx.is_scheduled": True})
    return as_opaque(function.with_body(in_root_block(function.body)), {})
