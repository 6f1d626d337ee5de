"""Blocks turned over in registers: where stores lie together along one axis, and loads along another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import prim

from toolchain.backends.cpu._fallback.expr import Expr, coefficient, conditions, rewritten, substituted, variables
from toolchain.backends.cpu._fallback.stages import Axis, Stage
from toolchain.backends.cpu._fallback.vector import MOST_APART, in_registers, vectorized

Stmt = Any


def loads_to_turn(stage: Stage, axis: Axis) -> list[Expr]:
    """Return the different loads whose elements lie far apart along an axis."""
    found: list[Expr] = []
    for load in stage.loads():
        step = coefficient(load.indices[0], axis.var)
        far = step is not None and abs(step) > MOST_APART
        if far and not any(tvm_ffi.structural_equal(load, other) for other in found):
            found.append(load)
    return found


def turning_axis(stage: Stage, axis: Axis, lanes: int) -> Axis | None:
    """Return the other axis of the blocks to turn; None if there is nothing to turn, or that is not possible.

    Args:
        stage: A stage without accumulators.
        axis: The axis along which it stores vectors.
        lanes: Length of both sides of a block.
    """
    far = loads_to_turn(stage, axis)
    if not far or axis.extent < lanes or coefficient(stage.indices[0], axis.var) != 1 or lanes & (lanes - 1):
        return None
    for other in stage.axes:
        guarded = any(other.var in variables(one) for value in stage.finals for one in conditions(value))
        fits = other is not axis and other.extent >= lanes and not guarded
        if fits and all(coefficient(load.indices[0], other.var) == 1 for load in far):
            return other
    return None


def turned(stage: Stage, axis: Axis, other: Axis, lanes: int) -> list[Stmt]:
    """Return the statements of one block.

    Args:
        stage: The stage at the block: both axes have as many steps as there are lanes.
        axis: The axis along which it stores vectors.
        other: The axis along which it loads them.
        lanes: Elements of a vector.
    """
    steps: list[Stmt] = []
    *others, last = loads_to_turn(stage, axis)
    kept: list[tuple[Expr, dict[int, Expr]]] = [(load, {}) for load in others]

    def rows(load: Expr) -> list[Expr]:
        starts = [{axis.var: _number(row), other.var: _number(0)} for row in range(lanes)]
        places = [prim.Ramp(substituted(load.indices[0], start), _number(1), lanes) for start in starts]
        return [tirx.BufferLoad(load.source, [place]) for place in places]

    def store(column: int, turned_last: Expr) -> None:
        columns = [*((load, held[column]) for load, held in kept), (last, turned_last)]
        one = _with_columns(stage, columns, axis).at({other.var: _number(column)})
        steps.extend(vectorized(lanes, lambda lane: _stored(one.at({axis.var: lane}))))

    for load, held in kept:
        _turn(rows(load), steps, held.__setitem__)
    _turn(rows(last), steps, store)
    return steps


def _number(value: int) -> Expr:
    return tirx.const(value, "int64")


def _with_columns(stage: Stage, columns: Sequence[tuple[Expr, Expr]], axis: Axis) -> Stage:
    """Put what was turned in the place of the loads."""

    def column(part: Expr) -> Expr | None:
        for load, held in columns:
            if tvm_ffi.structural_equal(part, load):
                return tirx.BufferLoad(held.source, [axis.var])
        return None

    return stage.mapped(lambda expr: rewritten(expr, column))


def _stored(stage: Stage) -> list[Stmt]:
    return [tirx.BufferStore(stage.outputs[0], stage.finals[0], [stage.indices[0]])]


def _turn(rows: Sequence[Expr], steps: list[Stmt], done: Callable[[int, Expr], None]) -> None:
    """Exchange halves between rows, then halves of halves, until rows are columns.

    Args:
        rows: As many vectors as each has lanes.
        steps: Gets the statements.
        done: Called with the number of each column and a load of it, as soon as it is known: the order is such that
            as few as possible wait in registers.
    """
    lanes = len(rows)

    def exchange(first: int, vectors: Sequence[Expr]) -> None:
        half = len(vectors) // 2
        if not half:
            done(first, vectors[0])
            return
        fresh: list[Expr] = [None] * len(vectors)
        for low in range(half):
            pair = [vectors[low], vectors[low + half]]
            for number, chosen in ((low, _lower(lanes, half)), (low + half, _upper(lanes, half))):
                fresh[number] = _kept(prim.Shuffle(pair, chosen), steps)
        exchange(first, fresh[:half])
        exchange(first + half, fresh[half:])

    exchange(0, [_kept(row, steps) for row in rows])


def _kept(vector: Expr, steps: list[Stmt]) -> Expr:
    """Keep a vector in a buffer of its own, which LLVM puts into a register."""
    element, lanes = str(vector.ty.dtype).split("x")
    part, room = in_registers(int(lanes), element, "part")
    place = prim.Ramp(_number(0), _number(1), int(lanes))
    steps += [room, tirx.BufferStore(part, vector, [place])]
    return tirx.BufferLoad(part, [place])


@cache
def _lower(lanes: int, half: int) -> list[Expr]:
    return [tirx.const(lanes + lane - half if lane & half else lane, "int32") for lane in range(lanes)]


@cache
def _upper(lanes: int, half: int) -> list[Expr]:
    return [tirx.const(lanes + lane if lane & half else lane + half, "int32") for lane in range(lanes)]
