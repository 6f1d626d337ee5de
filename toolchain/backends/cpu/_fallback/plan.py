"""How a reduction is cut into tiles: an estimate of the cycles that each way takes, and the least of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2, prod

import tvm_ffi
from tvm.ir import prim

from toolchain.backends.cpu._fallback.combine import combiner
from toolchain.backends.cpu._fallback.expr import Expr, coefficient, item_bytes, loads
from toolchain.backends.cpu._fallback.inline import cost
from toolchain.backends.cpu._fallback.loops import lanes_of
from toolchain.backends.cpu._fallback.stages import Axis, Stage
from toolchain.backends.cpu._fallback.vector import MOST_APART, STACK_BYTES
from toolchain.backends.cpu._machine import Machine

_LATENCY = 4.0  # cycles until the result of an addition can be used
_UNIT = 0.5  # cycles of an operation or a load of a vector: there are two units for each
_SECOND_CACHE = 3.0  # times as long takes a load from there
_START = 12.0  # cycles that a tile takes beside its steps
_SPARE_REGISTERS = 6  # for operands
_GATHERED = 1.5  # loads of vectors that take as long as that of one lane elsewhere
_FAR = 35.0  # cycles until a row starts to arrive from beyond the second cache
_MOST_VECTORS = 4  # of a tile, side by side
_MOST_STREAMED = 16  # of a tile of one row: a long piece of each row comes faster than a short one
_ROWS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
_ROWS_ALONG = (2, 4)
_ROWS_BOTH = ((2, 2), (3, 3), (4, 3), (4, 4))
_MOST_ORDERED = 4  # axes of which every order of loops is looked at

Rows = tuple[tuple[Axis, int], ...]


@dataclass(frozen=True)
class Plan:
    """How a reduction is cut into tiles.

    Attributes:
        vector: Axis that the vectors lie along, of the elements or of the reduction; None if there are no vectors.
        lanes: Elements of a vector.
        vectors: How many vectors of a tile lie side by side on that axis.
        rows: Axes on which a tile has more than one element, and how many.
        cycles: Estimated time.
    """

    vector: Axis | None
    lanes: int
    vectors: int
    rows: Rows
    cycles: float

    @property
    def lengths(self) -> dict[Axis, int]:
        """Elements of a tile on each axis on which there is more than one."""
        return {**({} if self.vector is None else {self.vector: self.vectors * self.lanes}), **dict(self.rows)}


class _Load:
    """One of the different loads of a reduction, and how it moves with each axis."""

    def __init__(self, load: Expr, stage: Stage) -> None:
        axes = stage.axes + stage.reduced
        self.steps = {axis: coefficient(load.indices[0], axis.var) for axis in axes}
        self.reduced = [(axis, axis.extent) for axis in stage.reduced]
        self.bytes = item_bytes(str(load.ty.dtype))
        self.depth = prod(axis.extent for axis in stage.reduced if self.moves(axis))
        self.spread = self.bytes * prod(axis.extent for axis in axes if self.moves(axis))

    def moves(self, axis: Axis) -> bool:
        return self.steps[axis] != 0

    def touched(self, lengths: Sequence[tuple[Axis, int]]) -> int:
        """Return how many bytes are loaded for a tile of such lengths; steps of windows overlap."""
        along: dict[int | None, int] = {}
        for axis, length in [*lengths, *self.reduced]:
            if self.moves(axis):
                step = self.steps[axis]
                along[step] = along.get(step, 1) * length if step is None else along.get(step, 1) + length - 1
        return self.bytes * prod(along.values())


def planned(stage: Stage, machine: Machine, cores: int) -> Plan:
    """Return the way to cut a reduction that is likely the fastest.

    Args:
        stage: The reduction, on flat buffers.
        machine: The processor.
        cores: How many of them share the work.
    """
    return min(_Estimate(stage, machine, cores).plans(), key=lambda plan: plan.cycles)


class _Estimate:
    """What the ways to cut one reduction cost."""

    def __init__(self, stage: Stage, machine: Machine, cores: int) -> None:
        self.stage = stage
        self.machine = machine
        self.cores = cores
        self.lanes = lanes_of(stage, machine)
        self.accumulators = (machine.registers - _SPARE_REGISTERS) // len(stage.accumulators)
        self.item_bytes = max(item_bytes(str(own.ty.dtype)) for own in stage.accumulators)
        self.loads = [_Load(load, stage) for load in different_loads(stage)]
        operations = sum(cost(value) for value in stage.values) - len(self.loads)
        self.operations = max(1, operations - sum(_is_fused(value) for value in stage.values))

    def plans(self) -> Iterator[Plan]:
        for axis in self.stage.axes:
            yield from self._across(axis)
        if combiner(self.stage):
            for axis in self.stage.reduced:
                yield from self._along(axis)
        yield Plan(None, 1, 1, (), self.stage.steps * max(_LATENCY, self.operations))

    def _fits(self, vectors: int, lanes: int, rows: Rows) -> bool:
        """Whether the accumulators of a tile can stay in registers."""
        high = prod(count for _, count in rows)
        return vectors * high <= self.accumulators and high * lanes * self.item_bytes < STACK_BYTES

    def _across(self, vector: Axis) -> Iterator[Plan]:
        total = ceil(vector.extent / self.lanes)
        others = [axis for axis in self.stage.axes if axis is not vector]
        for vectors in range(1, min(_MOST_STREAMED, total, self.accumulators) + 1):
            high = [((axis, count),) for axis in others for count in _ROWS if count <= axis.extent]
            for rows in [(), *(high if vectors <= _MOST_VECTORS else ())]:
                if self._fits(vectors, self.lanes, rows):
                    yield Plan(vector, self.lanes, vectors, rows, self._cycles_across(vector, vectors, rows))

    def _cycles_across(self, vector: Axis, vectors: int, rows: Rows) -> float:
        stores = 1.0 if coefficient(self.stage.indices[0], vector.var) == 1 else float(self.lanes)
        total = ceil(vector.extent / self.lanes)
        extent, high = (rows[0][0].extent, rows[0][1]) if rows else (1, 1)
        cycles = 0.0
        for wide, times in ((vectors, total // vectors), (total % vectors, 1)):
            for tall, count in ((high, extent // high), (extent % high, 1)):
                if wide and tall and times and count:
                    step = self._step(vector, wide, tuple((axis, tall) for axis, _ in rows))
                    cycles += times * count * (self.stage.depth * step + _START + wide * tall * stores)
        others = self.stage.size // vector.extent // extent
        cycles += self._far_rows(vector) * extent * ceil(total / vectors)
        return cycles * others * self._share(others * ceil(extent / high) * ceil(total / vectors))

    def _far_rows(self, vector: Axis) -> float:
        """Return the cycles that a tile waits for the first parts of rows, which tiles beside it may have fetched."""
        cycles = 0.0
        for load in self.loads:
            steps = [abs(load.steps[axis] or 0) for axis in self.stage.reduced if load.moves(axis)]
            far = load.spread > self.machine.l2_bytes and load.steps[vector] == 1
            if far and steps and min(steps) > self.lanes:
                cycles += _FAR * load.depth / prod(axis.extent for axis in self.stage.axes if not load.moves(axis))
        return cycles

    def _step(self, vector: Axis, vectors: int, rows: Rows) -> float:
        """Return the cycles of one step of a tile."""
        loading = 0.0
        for load in self.loads:
            step = load.steps[vector]
            price = max(1.0, 2.0 * abs(step or 0) - 1.0)
            if step is None or abs(step) > MOST_APART:
                price = _GATHERED * self.lanes
            far = load.touched([(vector, vectors * self.lanes), *rows]) > self.machine.l1_bytes
            if far and load.moves(vector):  # of others, one line of the cache serves many steps
                price *= _SECOND_CACHE
            times = prod(count for axis, count in rows if load.moves(axis))
            loading += price * times * (vectors if load.moves(vector) else 1)
        operations = self.operations * vectors * prod(count for _, count in rows)
        return max(_LATENCY, operations * _UNIT, loading * _UNIT)

    def _along(self, vector: Axis) -> Iterator[Plan]:
        lanes = min(self.lanes, vector.extent)
        for rows in self._rows_along():
            for vectors in range(1, min(_MOST_VECTORS, vector.extent // lanes) + 1):
                if self._fits(vectors, lanes, rows):
                    yield Plan(vector, lanes, vectors, rows, self._cycles_along(vector, lanes, vectors, rows))

    def _rows_along(self) -> Iterator[Rows]:
        yield ()
        for axis in self.stage.axes:
            yield from (((axis, count),) for count in _ROWS_ALONG if count <= axis.extent)
        for one, other in itertools.combinations(self.stage.axes, 2):
            for high, wide in _ROWS_BOTH:
                if high <= one.extent and wide <= other.extent:
                    yield ((one, high), (other, wide))

    def _cycles_along(self, vector: Axis, lanes: int, vectors: int, rows: Rows) -> float:
        high = prod(count for _, count in rows)
        steps = self.stage.depth // vector.extent * ceil(vector.extent / lanes / vectors)
        finish = high * len(self.stage.accumulators) * 3.0 * (log2(lanes) + vectors)
        tiles = tile_count(self.stage.axes, dict(rows))
        return tiles * (steps * self._step(vector, vectors, rows) + finish + _START) * self._share(tiles)

    def _share(self, tiles: int) -> float:
        """Return what part of the time is left if the cores share the tiles."""
        return ceil(tiles / self.cores) / tiles


def different_loads(stage: Stage) -> list[Expr]:
    """Return the loads at each step of a reduction, each once."""
    found: list[Expr] = []
    for load in (load for value in stage.values for load in loads(value)):
        if not any(tvm_ffi.structural_equal(load, other) for other in found):
            found.append(load)
    return found


def _is_fused(value: Expr) -> bool:
    """Whether the last two operations are one instruction."""
    return isinstance(value, prim.Add) and any(isinstance(part, prim.Mul) for part in (value.a, value.b))


def tile_count(axes: Sequence[Axis], lengths: Mapping[Axis, int]) -> int:
    """Return how many tiles there are on some axes; `lengths` has the tiles' lengths by axis, or they are 1."""
    return prod(ceil(axis.extent / lengths.get(axis, 1)) for axis in axes)


def ordered(stage: Stage, lengths: Mapping[Axis, int], cache_bytes: int) -> list[Axis]:
    """Order the loops over tiles such that little is read again after it left the cache.

    Args:
        stage: The reduction.
        lengths: Elements of a tile on each axis.
        cache_bytes: Size of a core's cache.
    """
    if len(stage.axes) > _MOST_ORDERED:
        return list(stage.axes)
    found = [_Load(load, stage) for load in different_loads(stage)]

    def read(load: _Load, inner: Sequence[Axis]) -> int:
        """Bytes that a load reads while the inner loops run once."""
        return load.touched([(axis, axis.extent if axis in inner else lengths.get(axis, 1)) for axis in stage.axes])

    def traffic(order: tuple[Axis, ...]) -> float:
        inside = len(order)
        while inside and sum(read(load, order[inside - 1 :]) for load in found) <= cache_bytes:
            inside -= 1
        total = 0
        for load in found:
            outside = list(order[:inside])
            while outside and not load.moves(outside[-1]):
                outside.pop()
            total += tile_count(outside, lengths) * read(load, order[inside:])
        return total

    orders: list[tuple[Axis, ...]] = list(itertools.permutations(stage.axes))
    best: tuple[Axis, ...] = min(orders, key=traffic)
    return list(best)
