"""Pooling of bytes: the largest of a window as it is, the mean through whole numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.int8 import emit as int8
from toolchain.backends.cpu.layers import Layer, Pool
from toolchain.backends.cpu.machine import Machine

NAME = "int8_pool"

_MOST_SUMMED = (2**24 - 1) // 255  # elements of a window whose sum float32 can hold
_PER_ELEMENT = 1.0  # cost of one element of a window: a load and an operation


@dataclass(frozen=True)
class Config:
    """There is one way to do it."""


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Pool) or not layer.data.is_bytes or layer.data.lanes == 1 or layer.dilation != (1, 1):
        return False
    if layer.reduce == "max":
        return layer.data.dtype == layer.out.dtype and not layer.epilogue
    return layer.kernel[0] * layer.kernel[1] <= _MOST_SUMMED


def configs(layer: Pool, machine: Machine) -> list[tuple[Config, float]]:
    """Return the only candidate with its cost as `kernels.Candidate` defines it."""
    vectors = layer.flops / layer.out.channels * layer.out.blocks
    return [(Config(), vectors * _PER_ELEMENT / machine.cores)]


def kernel(layer: Pool, machine: Machine, config: Config) -> tirx.PrimFunc:  # noqa: ARG001 - as all templates

    def body(*buffers: Any) -> None:
        _BytePoolWriter(layer, machine, buffers).write()

    return emit.kernel(int8.arguments(layer), body, {})


class _BytePoolWriter:
    def __init__(self, layer: Pool, machine: Machine, buffers: Sequence[Any]) -> None:
        self._layer, self._lanes = layer, layer.data.lanes
        self._data, *rest, self._out = buffers
        self._finish = (
            int8.ByteEpilogue(layer, machine, rest[0], rest[1:], self._out) if layer.reduce == "mean" else None
        )

    def write(self) -> None:
        out = self._layer.out
        layer, stride, padding = self._layer, self._layer.strides[1], self._layer.padding[1]
        # Columns whose windows are inside the image need no limits: they lie between those at the edges.
        first = min(-(-padding // stride), out.width)
        end = max(first, min((layer.data.width - layer.kernel[1] + padding) // stride + 1, out.width))
        pieces = ((0, first, False), (first, end - first, True), (end, out.width - end, False))
        extent = out.batch * out.blocks * out.height
        with emit.shared(extent, extent * out.width * self._layer.kernel[0] * self._layer.kernel[1]) as work:
            row = T.Bind(work % out.height)
            block, image = T.Bind(work // out.height % out.blocks), T.Bind(work // (out.height * out.blocks))
            for start, count, inside in (piece for piece in pieces if piece[1]):
                with T.serial(0, count) as number:
                    coordinates = (image, block, row, T.Bind(start + number))
                    if self._finish is None:
                        self._largest(coordinates, inside=inside)
                    else:
                        self._mean(self._finish, coordinates, inside=inside)

    def _largest(self, coordinates: emit.Coordinates, *, inside: bool) -> None:
        """Write a maximum. A tap outside the image takes the nearest inside, which is in the same window."""
        layer, data = self._layer, self._layer.data
        (image, block, row, column), (top, before, *_) = coordinates, layer.padding
        height, width = layer.kernel
        down, across = T.Bind(row * layer.strides[0] - top), T.Bind(column * layer.strides[1] - before)
        rows = [T.Bind(_within(down + tap, data.height) if any(layer.padding) else down + tap) for tap in range(height)]
        columns = [across + tap if inside else T.Bind(_within(across + tap, data.width)) for tap in range(width)]
        # Straight-line code: windows of pools are small.
        best = None
        for source, side in itertools.product(rows, columns):
            value = T.Bind(self._data[emit.ramp(emit.offset(data, image, block, source, side), self._lanes)])
            best = value if best is None else T.Bind(tirx.max(best, value))
        T.buffer_store(self._out, best, [emit.ramp(emit.offset(layer.out, *coordinates), self._lanes)])

    def _mean(self, finish: int8.ByteEpilogue, coordinates: emit.Coordinates, *, inside: bool) -> None:
        layer, dtype, (image, block, row, column) = self._layer, emit.wide("int32", self._lanes), coordinates
        rows, counted_rows = self._span(0, row, inside=not any(layer.padding))
        columns, counted_columns = self._span(1, column, inside=inside)
        total = emit.Registers(1, self._lanes, "int32")
        total[0] = emit.splat(0, self._lanes, "int32")
        with T.serial(*rows) as source, T.serial(*columns) as side:
            offset = emit.offset(layer.data, image, block, source, side)
            total[0] = total[0] + tirx.Cast(dtype, self._data[emit.ramp(offset, self._lanes)])
        counted = (rows[1] - rows[0]) * (columns[1] - columns[0])
        divisor = counted_rows * counted_columns if layer.counts_padding else counted
        finish.store(finish.mean(total[0], counted, divisor, self._lanes), coordinates, self._lanes)

    def _span(self, axis: int, position: Any, *, inside: bool) -> tuple[tuple[Any, Any], Any]:
        """Return the first and last pixel (plus one) of a window along an axis, and how many the padding makes them."""
        layer = self._layer
        size, before, after = (layer.data.height, layer.data.width)[axis], layer.padding[axis], layer.padding[axis + 2]
        first, taps = T.Bind(position * layer.strides[axis] - before), layer.kernel[axis]
        if inside:
            return (first, first + taps), taps
        end = T.Bind(tirx.min(first + taps, size))
        return (T.Bind(tirx.max(first, 0)), end), T.Bind(tirx.min(taps, size + after - first))


def _within(index: Any, extent: int) -> Any:
    return tirx.min(tirx.max(index, 0), extent - 1)
