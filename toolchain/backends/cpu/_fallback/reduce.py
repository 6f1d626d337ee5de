"""Loops that reduce, as TIR statements: a tile of accumulators stays in registers while the reduction runs.

Vectors lie either across elements, or along the reduction; then each accumulator is a vector whose lanes are
reduced at the end. Accumulators are local buffers that are indexed by constants once loops are unrolled: LLVM keeps
those in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, prod
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.ir import prim

from toolchain.backends.cpu._fallback.combine import combined
from toolchain.backends.cpu._fallback.expr import Expr, Var
from toolchain.backends.cpu._fallback.flat import merged
from toolchain.backends.cpu._fallback.loops import Steps, Tile, number, pieces_wanted, repeated, tiled, worth_cores
from toolchain.backends.cpu._fallback.pack import panel, with_panel
from toolchain.backends.cpu._fallback.plan import Plan, ordered, planned
from toolchain.backends.cpu._fallback.stages import Axis, Stage
from toolchain.backends.cpu._fallback.vector import in_registers, vectorized
from toolchain.backends.cpu._machine import Machine

Stmt = Any
Buffer = Any

_UNROLLED = tirx.ForKind.UNROLLED


def reduction(stage: Stage, machine: Machine, *, shared: bool) -> list[Stmt]:
    """Return the statements of a stage with accumulators.

    Args:
        stage: The stage, on flat buffers.
        machine: The processor.
        shared: Whether its work may be shared among the cores.
    """
    stage = merged(stage)
    shared = shared and bool(stage.axes) and worth_cores([stage], machine)
    plan = planned(stage, machine, machine.cores if shared else 1)
    steps = [(axis, plan.lengths.get(axis, 1)) for axis in ordered(stage, plan.lengths, machine.l2_bytes)]
    outer = 0
    while shared and outer < len(steps) and _count(steps[:outer]) < pieces_wanted(machine):
        outer += 1
    if plan.vector in stage.reduced:
        return tiled(steps, outer, lambda tile: _along(stage, plan, tile))
    return _with_panel(stage, plan, steps, outer, machine) or tiled(
        steps, outer, lambda tile: _across(stage, plan, tile)
    )


def _with_panel(stage: Stage, plan: Plan, steps: Steps, outer: int, machine: Machine) -> list[Stmt] | None:
    """Return the statements with a panel that is copied together for many tiles; None if that does not pay."""
    vector = plan.vector
    if vector is None:
        return None
    place = [axis for axis, _ in steps].index(vector) + 1
    load = panel(stage, vector, steps)
    if load is None or _count(steps[:place]) < machine.cores:
        return None

    def tiles(tile: Tile) -> list[Stmt]:
        other, fill = with_panel(stage, load, vector, tile, plan.lanes)
        return fill + tiled(steps[place:], 0, lambda inner: _across(other, plan, inner), tile)

    return tiled(steps[:place], min(outer, place), tiles)


def _count(steps: Steps) -> int:
    """Return the number of tiles."""
    return prod(ceil(axis.extent / length) for axis, length in steps)


def _placed(stage: Stage, plan: Plan, tile: Tile) -> tuple[Stage, list[tuple[Var, int]]]:
    """Return a stage at a tile, and the variables that are left: those of the tile's rows, with their extents."""
    rows = {axis.var: (ir.Var("row", axis.var.ty), tile[axis.var][1]) for axis, _ in plan.rows}
    vector = None if plan.vector is None else plan.vector.var
    place = {var: start + rows[var][0] if var in rows else start for var, (start, _) in tile.items() if var != vector}
    return stage.at(place), list(rows.values())


def _each_row(
    stage: Stage,
    rows: Sequence[tuple[Var, int]],
    body: Callable[[Stage, Expr], list[Stmt]],
    at: Expr | None = None,
) -> list[Stmt]:
    """Return the statements for each row of a tile; `body` is told the row's number."""
    at = number(0) if at is None else at
    if not rows:
        return body(stage, at)
    (var, height), *inner = rows
    return repeated(height, lambda step: _each_row(stage.at({var: step}), inner, body, at * height + step), _UNROLLED)


@dataclass(frozen=True)
class _Held:
    """Where the accumulators of one element are."""

    buffers: Sequence[Buffer]
    at: Expr

    def loads(self) -> list[Expr]:
        return [tirx.BufferLoad(buffer, [self.at]) for buffer in self.buffers]

    def stores(self, values: Sequence[Expr]) -> list[Stmt]:
        pairs = zip(self.buffers, values, strict=True)
        return [tirx.BufferStore(buffer, value, [self.at]) for buffer, value in pairs]


def _accumulators(
    stage: Stage, rows: Sequence[tuple[Var, int]], columns: Sequence[int]
) -> tuple[list[list[Buffer]], list[Stmt]]:
    """Return for each column of vectors a buffer for each accumulator, and the statements that make room."""
    high = prod(height for _, height in rows)
    found = [
        [in_registers(high * lanes, str(own.ty.dtype), own.name) for own in stage.accumulators] for lanes in columns
    ]
    rooms = [room for column in found for _, room in column]
    return [[buffer for buffer, _ in column] for column in found], rooms


def _started(stage: Stage, held: _Held) -> list[Stmt]:
    return held.stores(stage.inits)


def _stepped(stage: Stage, held: _Held, only: Expr | None = None) -> list[Stmt]:
    """Return one step of a reduction; of lanes for which `only` does not hold the accumulators stay as they are."""
    now = held.loads()
    values: Sequence[Expr] = stage.at(dict(zip(stage.accumulators, now, strict=True))).values
    if only is not None:
        values = [prim.Select(only, value, old) for value, old in zip(values, now, strict=True)]
    if len(values) == 1:
        return held.stores(values)
    fresh = [ir.Var(f"{own.name}_next", own.ty) for own in stage.accumulators]
    return [*(tirx.Bind(var, value) for var, value in zip(fresh, values, strict=True)), *held.stores(fresh)]


def _finished(stage: Stage, values: Sequence[Expr]) -> list[Stmt]:
    """Return the stores of what a reduction ends in."""
    done = stage.at(dict(zip(stage.accumulators, values, strict=True)))
    return [
        tirx.BufferStore(out, value, [done.indices[0]]) for out, value in zip(done.outputs, done.finals, strict=True)
    ]


def _reduced(axes: Sequence[Axis], body: Callable[[dict[Var, Expr]], list[Stmt]]) -> list[Stmt]:
    """Return the loops over axes; `body` is told the value of each."""
    if not axes:
        return body({})
    return repeated(axes[0].extent, lambda at: _reduced(axes[1:], lambda inner: body({axes[0].var: at, **inner})))


def _across(stage: Stage, plan: Plan, tile: Tile) -> list[Stmt]:
    """Return the statements of a tile whose vectors lie across elements."""
    stage, rows = _placed(stage, plan, tile)
    start, width = (number(0), 1) if plan.vector is None else tile[plan.vector.var]
    columns = [min(plan.lanes, width - first) for first in range(0, width, plan.lanes)]
    held, rooms = _accumulators(stage, rows, columns)

    def each(stage: Stage, body: Callable[[Stage, _Held], list[Stmt]]) -> list[Stmt]:
        def column(stage: Stage, row: Expr, at: int) -> list[Stmt]:
            def element(lane: Expr) -> list[Stmt]:
                place = {} if plan.vector is None else {plan.vector.var: start + number(at * plan.lanes) + lane}
                return body(stage.at(place), _Held(held[at], row * columns[at] + lane))

            return vectorized(columns[at], element)

        def row(stage: Stage, row: Expr) -> list[Stmt]:
            return [step for at in range(len(columns)) for step in column(stage, row, at)]

        return _each_row(stage, rows, row)

    return [
        *rooms,
        *each(stage, _started),
        *_reduced(stage.reduced, lambda place: each(stage.at(place), _stepped)),
        *each(stage, lambda one, held: _finished(one, held.loads())),
    ]


def _along(stage: Stage, plan: Plan, tile: Tile) -> list[Stmt]:
    """Return the statements of a tile whose vectors lie along the reduction."""
    stage, rows = _placed(stage, plan, tile)
    axis = next(one for one in stage.reduced if one is plan.vector)
    held, rooms = _accumulators(stage, rows, [plan.lanes] * plan.vectors)
    tile_along = _Along(axis, plan.lanes, rows, held)
    return [
        *rooms,
        *tile_along.started(stage),
        *_reduced([one for one in stage.reduced if one is not axis], lambda place: tile_along.steps(stage.at(place))),
        *_each_row(stage, rows, lambda one, row: _folded(one, held, row * plan.lanes, plan.lanes)),
    ]


@dataclass(frozen=True)
class _Along:
    """A tile whose vectors lie along the reduction.

    Attributes:
        axis: The axis that they lie along.
        lanes: Elements of a vector.
        rows: The tile's rows.
        held: For each of the vectors that take turns, the buffers of its accumulators.
    """

    axis: Axis
    lanes: int
    rows: Sequence[tuple[Var, int]]
    held: Sequence[Sequence[Buffer]]

    def started(self, stage: Stage) -> list[Stmt]:
        """Return the statements that start all accumulators."""

        def vector(one: Stage, row: Expr, at: int) -> list[Stmt]:
            return vectorized(self.lanes, lambda lane: _started(one, self._held(at, row, lane)))

        return self._side_by_side(stage, len(self.held), vector)

    def steps(self, stage: Stage) -> list[Stmt]:
        """Return the statements for all of the axis."""
        whole, left = divmod(self.axis.extent, self.lanes)
        count = len(self.held)
        full, last = divmod(whole, count)
        found = repeated(full, lambda step: self._vectors(stage, step * count, count)) if full else []
        found += self._vectors(stage, number(full * count), last) if last else []
        return found + (_each_row(stage, self.rows, partial(self._last_lanes, left)) if left else [])

    def _held(self, at: int, row: Expr, lane: Expr) -> _Held:
        return _Held(self.held[at], row * self.lanes + lane)

    def _side_by_side(self, stage: Stage, vectors: int, body: Callable[[Stage, Expr, int], list[Stmt]]) -> list[Stmt]:
        def row(one: Stage, row: Expr) -> list[Stmt]:
            return [step for at in range(vectors) for step in body(one, row, at)]

        return _each_row(stage, self.rows, row)

    def _vectors(self, stage: Stage, first: Expr, vectors: int) -> list[Stmt]:
        """Return one step of several vectors, from the one numbered `first` on."""

        def vector(one: Stage, row: Expr, at: int) -> list[Stmt]:
            def step(lane: Expr) -> list[Stmt]:
                place = {self.axis.var: (first + number(at)) * self.lanes + lane}
                return _stepped(one.at(place), self._held(at, row, lane))

            return vectorized(self.lanes, step)

        return self._side_by_side(stage, vectors, vector)

    def _last_lanes(self, left: int, stage: Stage, row: Expr) -> list[Stmt]:
        """Return the step of the last lanes: a vector that ends with them, of which those in front are done before."""

        def step(lane: Expr) -> list[Stmt]:
            place = {self.axis.var: lane + number(self.axis.extent - self.lanes)}
            return _stepped(stage.at(place), self._held(-1, row, lane), lane >= number(self.lanes - left))

        return vectorized(self.lanes, step)


def _folded(stage: Stage, held: Sequence[Sequence[Buffer]], start: Expr, lanes: int) -> list[Stmt]:
    """Return the statements that make one value of the vectors of a row, and store it."""
    steps: list[Stmt] = []

    def bound(values: Sequence[Expr]) -> list[Expr]:
        """Keep values in buffers of their own: variables would be put into each other, and grow beyond measure."""
        found = []
        for value, buffer in zip(values, held[0], strict=True):
            wide = tvm.DataType(str(value.ty.dtype)).lanes
            part, room = in_registers(wide, str(buffer.dtype), "part")
            place = prim.Ramp(number(0), number(1), wide) if wide > 1 else number(0)
            steps.extend([room, tirx.BufferStore(part, value, [place])])
            found.append(tirx.BufferLoad(part, [place]))
        return found

    def lanes_from(values: Sequence[Expr], first: int, count: int) -> list[Expr]:
        return [prim.Shuffle([value], [tirx.const(first + lane, "int32") for lane in range(count)]) for value in values]

    def column(buffers: Sequence[Buffer]) -> list[Expr]:
        place = prim.Ramp(start, number(1), lanes) if lanes > 1 else start
        return bound([tirx.BufferLoad(buffer, [place]) for buffer in buffers])

    whole = column(held[0])
    for buffers in held[1:]:
        whole = bound(combined(stage, whole, column(buffers)))
    spare: list[list[Expr]] = []
    while lanes > 1:
        half = lanes // 2
        if lanes % 2:
            spare.append(bound(lanes_from(whole, half, 1)))
        whole = bound(combined(stage, lanes_from(whole, 0, half), lanes_from(whole, lanes - half, half)))
        lanes = half
    for one in spare:
        whole = bound(combined(stage, whole, one))
    return [*steps, *vectorized(1, lambda _lane: _finished(stage, whole))]
