"""Means over all pixels of bytes in blocks, by the CPU: one kernel that adds up whole numbers, and divides once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.graph.kernels import called, rooted
from toolchain.backends.graph.values import Operation, Value
from toolchain.backends.vta.network.chains import UnfitError, exponent, is_dequantize
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
        bits: Exponent of the scale, 2^-bits.
        block: Channels of a block.
    """

    source: Value
    out: Value
    bits: int
    block: int

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the bytes in blocks."""
        return packed_shape(self.source.shape or (), self.block)

    def kernel(self) -> tirx.PrimFunc:
        """Return the kernel: of bytes in blocks, and the result."""
        arguments = [Argument("data", self.shape, "int8"), Argument("out", self.out.shape or ())]
        written = emit.kernel(arguments, self._write, {"tirx.is_scheduled": True})
        return called(written.with_body(rooted(written.body)), {})

    def _write(self, data: Any, out: Any) -> None:
        images, blocks = self.shape[:2]
        channels = (self.out.shape or ())[1]
        whole, rest = divmod(channels, self.block)
        with T.serial(0, images) as image:
            place = image * channels
            with T.serial(0, whole) as block:
                found = self._mean(data, image * blocks + block, self.block)
                T.buffer_store(out, found, [emit.ramp(place + block * self.block, self.block)])
            for lane in range(rest):
                found = self._mean(data, image * blocks + whole, 1, lane)
                T.buffer_store(out, found, [place + whole * self.block + lane])

    def _mean(self, data: Any, block: Any, lanes: int, lane: int = 0) -> Any:
        """Return the means of some channels of a block."""
        pixels, sums = prod(self.shape[2:4]), emit.Registers(1, lanes, "int32")
        base, kind = T.Bind(block * (pixels * self.block) + lane), emit.wide("int32", lanes)
        sums[0] = emit.splat(0, lanes, "int32")
        with T.serial(0, pixels) as pixel:
            sums[0] += data[emit.ramp(base + pixel * self.block, lanes)].astype(kind)
        return sums[0].astype(emit.wide("float32", lanes)) / emit.splat(pixels * 2.0**self.bits, lanes)


def mean(operation: Operation, block: int) -> Mean | None:
    """Return the mean of bytes that an operation makes; None if it makes something else.

    Args:
        operation: Any.
        block: Channels of a block.
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
        return Mean(source, operation.out, exponent(maker, "it"), block)
    except UnfitError:
        return None
