"""Loops as TIR statements: how they are written, cut into tiles, and shared among the cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Any

from tvm import ir, tirx

from toolchain.backends.cpu._fallback.expr import Expr, Var, children, item_bytes
from toolchain.backends.cpu._fallback.inline import cost
from toolchain.backends.cpu._fallback.stages import Axis, Stage
from toolchain.backends.cpu._machine import Machine

Stmt = Any

Steps = Sequence[tuple[Axis, int]]
"""Axes to loop over, the outermost loop first, and how long a tile is on each."""

Tile = Mapping[Var, tuple[Expr, int]]
"""Where a tile starts on each axis, and how long it is there."""

_FLOAT_BYTES = 4
_PIECES = 4  # for each core, so that none waits long for the last

WORTH_CORES = 16_384
"""Operations on vectors, which take about 4 us on a fast core: as long as waking the others and waiting for them."""


# --- statements ------------------------------------------------------------------------------------------------


def sequence(steps: Sequence[Stmt]) -> Stmt:
    """Return statements as one."""
    return steps[0] if len(steps) == 1 else tirx.SeqStmt(list(steps))


def loop(var: Var, extent: int, body: Sequence[Stmt], kind: tirx.ForKind = tirx.ForKind.SERIAL) -> Stmt:
    """Return a loop from 0 on."""
    return tirx.For(var, number(0), number(extent), kind, sequence(body))


def repeated(
    extent: int, body: Callable[[Expr], Sequence[Stmt]], kind: tirx.ForKind = tirx.ForKind.SERIAL
) -> list[Stmt]:
    """Return a loop around the statements that `body` makes of the loop's number; one step needs no loop."""
    if extent == 1:
        return list(body(number(0)))
    step = index("step")
    return [loop(step, extent, body(step), kind)]


def number(value: int) -> Expr:
    """Return an integer of the type of indices."""
    return tirx.const(value, "int64")


def index(name: str) -> Var:
    """Return a new loop variable."""
    return ir.Var(name, "int64")


# --- how much there is to do -----------------------------------------------------------------------------------


def lanes_of(stage: Stage, machine: Machine) -> int:
    """Return how many elements of a stage one vector register holds: as many as of the widest type it computes in.

    Wide integers do not count: they are numbers of elements, beside which there is something else.
    """
    found = {str(part.ty.dtype) for value in stage.values + stage.finals for part in _computed(value)}
    widest = max(item_bytes(dtype) for dtype in (found - {"bool", "int64"} or {"float32"}))
    return max(1, machine.lanes * _FLOAT_BYTES // widest)


def _computed(value: Expr) -> Iterator[Expr]:
    """Yield the parts of an expression but for what is inside of indices."""
    yield value
    if not isinstance(value, ir.TensorLoad):
        for part in children(value):
            yield from _computed(part)


def work(stage: Stage) -> int:
    """Estimate the operations of a stage."""
    return stage.steps * sum(max(1, cost(value)) for value in stage.computed)


def worth_cores(stages: Sequence[Stage], machine: Machine) -> bool:
    """Whether stages have enough work to share it."""
    return machine.cores > 1 and sum(work(stage) for stage in stages) >= WORTH_CORES * machine.lanes


def pieces_wanted(machine: Machine) -> int:
    """Return into how many pieces shared work is cut at least."""
    return machine.cores * _PIECES


# --- tiles -----------------------------------------------------------------------------------------------------


def tiled(steps: Steps, shared: int, body: Callable[[Tile], list[Stmt]], tile: Tile | None = None) -> list[Stmt]:
    """Return the loops over tiles.

    Args:
        steps: Axes, the outermost loop first, and how long a tile is on each; the last tile may be shorter.
        shared: How many of the axes are made one loop whose steps the cores share.
        body: Makes the statements for one tile.
        tile: What is known of the tile from loops further out.
    """
    tile = dict(tile or {})
    if not steps:
        return body(tile)
    if shared:
        return _over_cores(steps, shared, body, tile)
    (axis, length), *inner = steps
    full, left = divmod(axis.extent, length)
    found: list[Stmt] = []
    if full:
        found += repeated(full, lambda at: tiled(inner, 0, body, {**tile, axis.var: (at * length, length)}))
    if left:
        found += tiled(inner, 0, body, {**tile, axis.var: (number(full * length), left)})
    return found


def _over_cores(steps: Steps, shared: int, body: Callable[[Tile], list[Stmt]], tile: Tile) -> list[Stmt]:
    counts = [ceil(axis.extent / length) for axis, length in steps[:shared]]
    fused = index("piece")
    rest: list[Stmt] = []
    places: list[Expr] = []
    for number_of_axis, count in enumerate(counts):
        behind = prod(counts[number_of_axis + 1 :])
        at = fused if behind == 1 else tirx.floordiv(fused, number(behind))
        places.append(index("at"))
        rest.append(tirx.Bind(places[-1], at if number_of_axis == 0 else tirx.floormod(at, number(count))))

    def inside(known: int, tile: Tile) -> list[Stmt]:
        if known == shared:
            return tiled(steps[shared:], 0, body, tile)
        axis, length = steps[known]
        full, left = divmod(axis.extent, length)
        whole = {**tile, axis.var: (places[known] * length, length)}
        last = {**tile, axis.var: (number(full * length), left)}
        if not left:
            return inside(known + 1, whole)
        if not full:
            return inside(known + 1, last)
        is_whole = places[known] < number(full)
        return [tirx.IfThenElse(is_whole, sequence(inside(known + 1, whole)), sequence(inside(known + 1, last)))]

    return [loop(fused, prod(counts), [*rest, *inside(0, tile)], tirx.ForKind.PARALLEL)]


def part_of(stage: Stage, tile: Tile) -> Stage:
    """Return the part of a stage that is one tile; axes on which the tile has length 1 are gone."""
    inner = {axis.var: ir.Var(axis.var.name, axis.var.ty) for axis in stage.axes if tile.get(axis.var, (0, 1))[1] > 1}
    place = {var: start + inner[var] if length > 1 else start for var, (start, length) in tile.items()}
    left = tuple(
        Axis(inner[axis.var], tile[axis.var][1]) if axis.var in inner else axis
        for axis in stage.axes
        if axis.var in inner or axis.var not in tile
    )
    return replace(stage.at(place), axes=left)
