"""Means over all pixels of bytes in blocks, by the CPU: one kernel that adds up whole numbers, and divides once."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.graph.kernels import as_opaque, in_root_block
from toolchain.backends.graph.values import Operation, Value
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.network.chains import Grid, UnfitError, grid, is_dequantize
from toolchain.backends.vta.network.packing import packed_shape

_RANK = 4
_PIXELS = [2, 3]  # axes
_MOST_PIXELS = 2**16  # of bytes: their sums are exact as floats


@dataclass(frozen=True, eq=False)
class Mean:
    """A mean over all pixels.

    Attributes:
        source: The bytes.
        out: The means, float32 (N, C, 1, 1).
        grid: What the bytes stand for.
        shape: Shape of the bytes in blocks.
    """

    source: Value
    out: Value
    grid: Grid
    shape: tuple[int, ...]

    def kernel(self) -> tirx.PrimFunc:
        """Return the kernel: of bytes in blocks, and the result."""
        arguments = [Argument("data", self.shape, "int8"), Argument("out", self.out.shape or ())]
        written = emit.kernel(arguments, self._write, {"tirx.is_scheduled": True})
        return as_opaque(written.with_body(in_root_block(written.body)), {})

    def _write(self, data: Any, out: Any) -> None:
        images, channels = (self.out.shape or ())[:2]
        lanes = self.shape[-1]
        whole, rest = divmod(channels, lanes)
        with T.serial(0, images) as image:
            place = image * channels
            with T.serial(0, whole) as block:
                found = self._mean(data, image, block, lanes)
                T.buffer_store(out, found, [emit.ramp(place + block * lanes, lanes)])
            for lane in range(rest):
                found = self._mean(data, image, whole, 1, lane)
                T.buffer_store(out, found, [place + whole * lanes + lane])

    def _mean(self, data: Any, image: Any, block: Any, lanes: int, lane: int = 0) -> Any:
        """Return the means of some channels of a block."""
        _, blocks, height, width, rows, size = self.shape
        pixels, sums, kind = height * width, emit.Registers(1, lanes, "int32"), emit.wide("int32", lanes)
        base = T.Bind(((image // rows * blocks + block) * pixels * rows + image % rows) * size + lane)
        sums[0] = emit.splat(0, lanes, "int32")
        with T.serial(0, pixels) as pixel:
            sums[0] += data[emit.ramp(base + pixel * (rows * size), lanes)].astype(kind)
        found = (sums[0] - emit.splat(pixels * self.grid.zero, lanes, "int32")).astype(emit.wide("float32", lanes))
        return found / emit.splat(pixels * 2.0**self.grid.exponent, lanes)


def mean(operation: Operation, config: VtaConfig) -> Mean | None:
    """Return the mean of bytes that an operation makes; None if it makes something else.

    Args:
        operation: Any.
        config: The machine.
    """
    if operation.name != "mean" or len(operation.inputs[0].shape or ()) != _RANK:
        return None
    how, maker = operation.attributes, operation.inputs[0].maker
    axes = sorted(int(axis) % _RANK for axis in how.axis or ())
    if axes != _PIXELS or not bool(how.keepdims) or maker is None or not is_dequantize(maker):
        return None
    source = maker.inputs[0]
    if prod((source.shape or ())[2:]) > _MOST_PIXELS:
        return None
    try:
        return Mean(source, operation.out, grid(maker, "it"), packed_shape(source.shape or (), config))
    except UnfitError:
        return None
