"""Which tile of a result a work-item computes: the one that loads the least, as loads are the limit of these GPUs.

Mesa's compiler counts the cycles of each unit of a Mali for a kernel: a vector of four is one cycle of the unit that
loads and stores, and 64 multiply-adds are 1.25 of those that compute. By its figures for Bifrost and Valhall,

- accumulators and the values staged for all pixels may fill 11 of the 16 vectors that a thread has registers for;
- where pixels are loaded one after the other, and meet weights that stay in registers, seven of them fit;
- where a window reaches over several pixels, its row is loaded once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import tvm
from tvm import sym, tirx

from toolchain.backends.mali.gpu import Means
from toolchain.backends.mali.layers import CHANNELS, LANES, Layer, divisor, extent_of
from toolchain.backends.mali.rewrite import contains, substitute

WINDOW = 7
"""The widest window that is unrolled."""

_MOST_STATEMENTS = 96  # vector operations of the innermost, unrolled part
_MOST_TILE = 7  # pixels: of eight that are loaded one after the other, Mesa's compiler loads some or all twice
_REACH = 3 << 14  # bytes that they may lie apart: beyond some such distance, it loads each number by itself
_MOST_TAILED = 5  # of those, where the tile reaches over the edge: pixels ask first whether they are within
_MOST_WINDOWED = 4  # where a window is walked through: its loops take registers
_MOST_WIDE = 3  # and where that is unrolled, too
_UNROLLED = 4  # turns of a loop that the compiler unrolls
_MOST_SHARED = 6  # pixels, where what they see is staged for all of them
_TAIL = {True: 1.25, False: 1.15}  # cost of a tile that reaches over the edge, by whether it may be streamed
_ASKED = 1.25  # cost of a load that asks first whether it is within the image


class Loading(Enum):
    """How the pixels of a tile get their inputs."""

    STREAMED = "one after the other, while the weights of a few channels stay"
    SHARED = "all at once, a row of the window for all of them"
    DIRECT = "from memory, wherever it is used"


@dataclass(frozen=True)
class Plan:
    """What one work-item computes, besides its lanes.

    Attributes:
        loading: How it loads.
        rows: Extent of the tile along the last dimension but two of the result.
        columns: Its extent along the last dimension but one.
        unrolls_window: Whether the innermost dimension of the window is unrolled.
    """

    loading: Loading
    rows: int
    columns: int
    unrolls_window: bool = False


def plans(layer: Layer, means: Means) -> list[Plan]:
    """List the tiles that a work-item may compute of a layer, the cheapest first and those loaded directly last.

    Args:
        means: The GPU: tiles are smaller where some of its cores would be idle.
    """
    spans = [extent_of(layer.schedule, loop) for loop in layer.schedule.get_loops(layer.result)]
    height, width = ([1, 1, *spans[:-1]])[-2:]
    loads = _Loads.of(layer)
    candidates = [
        loads.plan(loading, down, across)
        for loading in Loading
        for down in ((1,) if layer.reads.is_batched else (1, 2, 4))
        for across in range(1, _MOST_TILE + 1)
        if down <= height and across <= width
        if loads.suits(loading, down * across, reaches_over=bool(height % down or width % across))
    ]
    candidates = [plan for plan in candidates if plan.rows * plan.columns <= loads.near]
    lanes = math.prod(spans[:-3]) * spans[-1] / (4 if layer.blocks.levels is None else 1)

    def cost(plan: Plan) -> tuple[bool, float]:
        tiles = math.ceil(height / plan.rows) * math.ceil(width / plan.columns)
        over = height % plan.rows or width % plan.columns
        tail = _TAIL[loads.streams] if over else 1.0
        busy = min(1.0, tiles * lanes / means.items)  # the share of the GPU that has work
        return plan.loading is Loading.DIRECT, tiles * tail * loads.of_tile(plan) / busy

    return sorted(candidates, key=cost)


@dataclass(frozen=True)
class _Loads:
    """What a reduction loads, in vectors of four.

    Attributes:
        few: How many input channels a step reads at once.
        window: Extent of the innermost dimension of the window.
        total: Products that one element of the result is the sum of.
        strides: Down and across, how far its neighbour sees further on.
        staged: How many arguments the pixels of a tile have to themselves.
        streams: Whether pixels may be loaded one after the other.
        padded: Whether a load asks first whether it is within the image: streamed, that takes too many registers.
        windowed: Whether a window of several pixels is walked through.
        near: How many pixels beside each other are near enough to be loaded as vectors.
    """

    few: int
    window: int
    total: int
    strides: tuple[int, int]
    staged: int
    streams: bool
    padded: bool
    windowed: bool
    near: int = _MOST_TILE

    @staticmethod
    def of(layer: Layer) -> _Loads:
        """Look at the reduction of a layer."""
        iters, reads = layer.blocks.reduction.iters, layer.reads
        extents = [int(iterator.dom) for iterator in iters]
        few = divisor(extents[reads.channel], CHANNELS) if reads.channel is not None else 1
        window = extents[reads.windows[-1]] if reads.windows else 1
        total = math.prod(extent for extent, iterator in zip(extents, iters, strict=True) if iterator.kind == "R")
        pixels = sum(iterator.kind == "S" for iterator in iters) > 1
        shared = len(reads.staged) if len(iters) > 1 else 0
        blocks = [layer.schedule.get(source.block_rv).body for source in layer.blocks.sources]
        padded = any(contains(block, (tvm.ir.Call, tirx.Select), _is_condition) for block in blocks)
        streams = pixels and shared == 1 and few > 1 and total > few and not padded
        windowed = any(extents[axis] > 1 for axis in reads.windows)
        # Neighbours across that lie too far apart in memory are loaded number by number.
        strides, body = _strides(layer), layer.schedule.get(layer.blocks.reduction.block_rv)
        sources = [body.reads[number].source for number in reads.staged]
        sizes = [int(source.shape[-1]) * tvm.DataType(str(source.dtype)).bits // 8 for source in sources]
        near = 1 + (_REACH - 1) // max(1, max(sizes, default=1) * strides[1])
        return _Loads(few, window, total, strides, shared, streams, padded, windowed, near)

    def suits(self, loading: Loading, pixels: int, *, reaches_over: bool) -> bool:
        """Whether a tile of so many pixels, which may reach over an edge, may load that way."""
        if loading is not Loading.STREAMED:
            return pixels <= _MOST_SHARED if self.staged else pixels == 1
        limit = _MOST_TAILED if reaches_over else _MOST_TILE
        if self.windowed:
            limit = _MOST_WIDE if self.window >= _UNROLLED else _MOST_WINDOWED
        return self.streams and pixels <= limit

    def plan(self, loading: Loading, rows: int, columns: int) -> Plan:
        statements = self.window * self.few * rows * columns
        unrolls = self.window <= WINDOW and statements <= _MOST_STATEMENTS and loading is not Loading.STREAMED
        return Plan(loading, rows, columns, unrolls)

    def of_tile(self, plan: Plan) -> float:
        """Count the vectors that a tile loads and stores in all."""
        window = self.window if plan.unrolls_window else 1
        weights = self.few * window
        pixels = plan.rows * plan.columns
        if plan.loading is Loading.SHARED:
            down, across = self.strides
            pixels = ((plan.rows - 1) * down + 1) * ((plan.columns - 1) * across + window)
        loads = (self.few // divisor(self.few, LANES)) * (_ASKED if self.padded else 1.0)  # three are no vector
        # Each step loads weights once for all pixels; in the end, a tile is stored, and what follows it loaded.
        return self.total / weights * (weights + loads * pixels) + 2 * plan.rows * plan.columns


def _is_condition(node: Any) -> bool:
    return isinstance(node, tirx.Select) or str(getattr(node.op, "name", "")).endswith(".if_then_else")


def _strides(layer: Layer) -> tuple[int, int]:
    """Return how far apart neighbours of a result are in the staged arguments: down and across."""
    block = layer.schedule.get(layer.blocks.reduction.block_rv)
    spatial = [
        iterator.var
        for iterator, info in zip(block.iter_vars, layer.blocks.reduction.iters, strict=True)
        if info.kind == "S"
    ]
    staged = [side.min for number in layer.reads.staged for side in block.reads[number].region]
    return (_stride(staged, spatial[-3:-2]), _stride(staged, spatial[-2:-1]))


def _stride(indices: Sequence[Any], variables: Sequence[Any]) -> int:
    """Return how much indices grow where a variable grows by one; 1 if that is not a constant, or there is none."""
    analyzer, stride = sym.Analyzer(), 1
    for variable in variables:
        for index in indices:
            grown = substitute(index, {variable: variable + 1})
            difference = analyzer.simplify(grown - index)
            stride = max(stride, int(difference)) if isinstance(difference, tirx.IntImm) else stride
    return stride
