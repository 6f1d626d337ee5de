"""Convolutions in float16: as `direct`, but sums of up to `MOST_PRODUCTS` products are in float16.

Registers sum up a chain of `_MOST_IN_CHAIN` products at most. Where there are more, sums of chains are added up on the
stack, in float16 as well, and where there are more than `MOST_PRODUCTS`, those in float32. That is as exact as adding
each chain in float32, whose conversions take two cycles each. The first layer of a network reads plain float32, which
is rounded first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import direct, emit
from toolchain.backends.cpu.kernels.direct.plan import Config, DirectPlan, flatten
from toolchain.backends.cpu.kernels.direct.writer import DirectWriter, Reach, Tile
from toolchain.backends.cpu.kernels.emit import Argument, Buffer, Expr
from toolchain.backends.cpu.kernels.float16 import bounds
from toolchain.backends.cpu.kernels.float16.emit import keep, rounded, zeros_on_stack
from toolchain.backends.cpu.layers import FLOAT16, Conv, Layer
from toolchain.backends.cpu.machine import Machine, half_registers

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack", "variants"]

NAME = "float16"

_MOST_IN_CHAIN = 147  # products, few more than `bounds` has: 16 channels of 3x3, or all of a first layer of 7x7


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Conv) or layer.is_depthwise or layer.out.dtype != FLOAT16:
        return False
    data = layer.data
    if (data.dtype, data.lanes) not in {(FLOAT16, layer.out.lanes), ("float32", 1)}:
        return False
    flat = flatten(layer)
    # A sum that several groups of channels add to in turns would be rounded in between.
    is_split = DirectPlan(flat, Config(1, 1, 1, 1)).overlaps
    return not is_split and data.lanes * flat.kernel[1] <= bounds.MOST_OF_ROW


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    return direct.configs(layer, half_registers(machine))


def variants(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List candidates for the tuner: see `direct`."""
    return direct.variants(layer, half_registers(machine))


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[np.float16]:
    """Return weights [out, in, height, width] as the kernel reads them: those of `direct`, then factors of outputs."""
    plan = DirectPlan(flatten(layer), config)
    ordered = direct.pack(layer, machine, config, weights.astype(np.float32))
    # [units, blocks in, height, width, lanes in, blocks, lanes]
    of_source = np.abs(ordered).sum(axis=(2, 3, 4))
    sums = np.add.reduceat(of_source, range(0, plan.sources, _sources_of_sum(plan)), axis=1).max(axis=1)
    exponents = bounds.powers(sums).reshape(plan.units, 1, 1, 1, 1, *sums.shape[1:])
    return bounds.packed(ordered, exponents, layer.out.blocks * layer.out.lanes)


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    plan = DirectPlan(flatten(layer), config)
    factors = math.prod(plan.packed)

    def body(data: Buffer, *buffers: Buffer) -> None:
        numbers = rounded(data, machine.lanes) if layer.data.dtype != FLOAT16 else data
        _Writer(plan, half_registers(machine), (numbers, *buffers), factors).write()

    weights = Argument("weights", (factors + layer.out.blocks * layer.out.lanes,), FLOAT16)
    return emit.kernel(direct.arguments(layer, weights), body, {})


def _products(plan: DirectPlan) -> int:
    """Return the products of a block of input channels."""
    layer = plan.layer
    return layer.data.lanes * layer.kernel[0] * layer.kernel[1]


def _sources_of_chain(plan: DirectPlan) -> int:
    """Return how many blocks of input channels are summed one after the other; 0 if a row of the filter is alone."""
    return min(plan.sources, _MOST_IN_CHAIN // _products(plan))


def _sources_of_sum(plan: DirectPlan) -> int:
    """Return how many blocks of input channels are summed in float16: some chains."""
    return min(plan.sources, max(1, bounds.MOST_PRODUCTS // _products(plan)))


class _Writer(DirectWriter):
    sum_dtype = FLOAT16

    def __init__(self, plan: DirectPlan, machine: Machine, buffers: Sequence[Any], factors: int) -> None:
        """Take the processor, the flat buffers of the arguments, and where factors begin behind the weights."""
        super().__init__(plan, machine, buffers)
        self._factors = factors

    def compute(self, tile: Tile) -> None:
        plan, reach = self._plan, self.reach_of(tile)
        count = plan.config.blocks * tile.tiles.columns
        if plan.sources <= _sources_of_chain(plan):
            self._add_chain(tile, reach, 0, reach.sources)
            self._store_all(tile, tile.sums, FLOAT16)
            return
        halves, together = emit.on_stack(count, self._lanes, FLOAT16), _sources_of_sum(plan)
        if plan.sources <= together:
            self._add_chains(tile, reach, 0, reach.sources, halves)
            self._store_all(tile, halves, FLOAT16)
            return
        totals = zeros_on_stack(count, self._lanes, "float32")
        with T.serial(0, T.Bind((reach.sources + together - 1) // together)) as number:
            first = T.Bind(number * together)
            self._add_chains(tile, reach, first, T.Bind(tirx.min(first + together, reach.sources)), halves)
            with T.serial(0, count) as index:
                block = emit.in_type(halves[index], "float32", self._lanes)
                T.buffer_store(totals, totals[index] + block, [index])
        self._store_all(tile, totals, "float32")

    def _add_chains(self, tile: Tile, reach: Reach, first: Expr, end: Expr, halves: Buffer) -> None:
        """Sum up what some blocks of input channels give, chain by chain."""
        together, count = _sources_of_chain(self._plan), self._plan.config.blocks * tile.tiles.columns
        if together:
            with T.serial(0, T.Bind((end - first + together - 1) // together)) as number:
                begin = T.Bind(first + number * together)
                self._add_chain(tile, reach, begin, T.Bind(tirx.min(begin + together, end)))
                keep(halves, [tile.sums[index] for index in range(count)], number)
            return
        # A row of the filter may be outside the image, and so may all of them.
        with T.serial(0, count) as number:
            T.buffer_store(halves, emit.splat(0.0, self._lanes, FLOAT16), [number])
        with T.serial(first, end) as source, T.serial(reach.begin, reach.end) as tap:
            self._clear(tile)
            self.add_row(tile, reach, T.Bind(source), tap)
            self._add_to(halves, tile)

    def _add_chain(self, tile: Tile, reach: Reach, first: Expr, end: Expr) -> None:
        self._clear(tile)
        with T.serial(first, end) as source, T.serial(reach.begin, reach.end) as tap:
            self.add_row(tile, reach, T.Bind(source), tap)

    def _clear(self, tile: Tile) -> None:
        for number in range(self._plan.config.blocks * tile.tiles.columns):
            tile.sums[number] = emit.splat(0.0, self._lanes, FLOAT16)

    def _add_to(self, halves: Buffer, tile: Tile) -> None:
        for number in range(self._plan.config.blocks * tile.tiles.columns):
            T.buffer_store(halves, halves[number] + tile.sums[number], [number])

    def _pixels(self, tile: Tile, pixel: Any, packed: Any) -> None:
        """Add what one row of the filter gives on plain data: pixels are elements of vectors, as weights pass by."""
        layer, blocks, lanes = self._layer, self._plan.config.blocks, self._lanes
        (_, width), (_, stride), (_, dilation) = layer.kernel, layer.strides, layer.dilation
        users = {
            tap: [(t, t * stride + tap * dilation) for t in itertools.compress(range(tile.tiles.columns), inside)]
            for tap, inside in enumerate(tile.tiles.inside)
        }
        offsets = [offset for uses in users.values() for _, offset in uses]
        begin = min(offsets)
        vectors = [
            T.Bind(self._data[emit.ramp(pixel + start, lanes)]) for start in range(begin, max(offsets) + 1, lanes)
        ]
        first = T.Bind(packed * (blocks * lanes))
        for tap in range(width):
            starts = [first + (tap * blocks + block) * lanes for block in range(blocks)]
            weights = [T.Bind(self._weights[emit.ramp(start, lanes)]) for start in starts]
            # Neighbouring products are added to different sums.
            for t, offset in users[tap]:
                vector, element = divmod(offset - begin, lanes)
                self._multiply(tile, t, vectors[vector], weights, element)

    # --- results ---------------------------------------------------------------------------------------------------

    def _store_all(self, tile: Tile, totals: Any, dtype: str) -> None:
        plan = self._plan
        self._store_blocks(tile, totals, dtype, range(plan.of_last))
        if plan.of_last < plan.config.blocks:
            with T.If(tile.band.unit < plan.units - 1), T.Then():
                self._store_blocks(tile, totals, dtype, range(plan.of_last, plan.config.blocks))

    def _store_blocks(self, tile: Tile, totals: Any, dtype: str, blocks: Sequence[int]) -> None:
        columns, lanes = tile.tiles.columns, self._lanes
        if isinstance(totals, emit.Registers) and emit.is_long(self._layer.epilogue):
            stored = emit.on_stack(self._plan.config.blocks * columns, lanes, FLOAT16)
            for number in range(self._plan.config.blocks * columns):
                T.buffer_store(stored, totals[number], [number])
            totals = stored
        for block in blocks:
            first = (tile.band.block + block) * lanes
            index, behind = emit.ramp(first, lanes), emit.ramp(self._factors + first, lanes)
            factor = T.Bind(emit.in_type(self._weights[behind], dtype, lanes))
            bias = None if self._bias is None else T.Bind(emit.in_type(self._bias[index], dtype, lanes))

            def pixel(t: Any, block: int = block, factor: Any = factor, bias: Any = bias) -> None:
                value = totals[block * columns + t] * factor
                value = T.Bind(emit.in_type(value if bias is None else value + bias, FLOAT16, lanes))
                self._store(value, (tile.band.image, tile.band.block + block, tile.row, tile.start + t))

            if isinstance(totals, emit.Registers):
                for t in range(columns):
                    pixel(t)
            else:
                with T.serial(0, columns) as t:
                    pixel(t)
