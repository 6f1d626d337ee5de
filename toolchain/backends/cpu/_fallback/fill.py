"""Loops that fill a buffer, as TIR statements: vectors along the axis that suits best, guards outside of them."""

from __future__ import annotations

import itertools
from math import ceil, floor, log2, prod
from typing import Any

import tvm_ffi
from tvm import sym, tirx
from tvm.ir import prim

from toolchain.backends.cpu._fallback.expr import (
    Expr,
    children,
    coefficient,
    conditions,
    constant,
    is_guard,
    parts,
    rewritten,
    variables,
)
from toolchain.backends.cpu._fallback.flat import cut, merged, simplified
from toolchain.backends.cpu._fallback.loops import (
    Tile,
    lanes_of,
    part_of,
    pieces_wanted,
    repeated,
    sequence,
    tiled,
    worth_cores,
)
from toolchain.backends.cpu._fallback.stages import Axis, Stage
from toolchain.backends.cpu._fallback.turn import turned, turning_axis
from toolchain.backends.cpu._fallback.vector import MOST_APART, vectorized
from toolchain.backends.cpu._machine import Machine

Stmt = Any

_MOST_BRANCHES = 64  # copies of the inner loops, one for each outcome of the guards
_SAME = 0.2  # cost of a value that is the same in all lanes; a vector load costs 1
_TURNED = 2.0  # of a vector in the other direction
_SCATTERED = 1.5  # of one lane of a store that is no vector store
_SCALAR = 5.0  # of one lane if a guard takes the vector apart


def filled(stage: Stage, machine: Machine, *, shared: bool) -> list[Stmt]:
    """Return the statements of a stage without accumulators.

    Args:
        stage: The stage, on flat buffers.
        machine: The processor.
        shared: Whether its work may be shared among the cores.
    """
    stage = merged(stage)
    if not (shared and stage.axes and worth_cores([stage], machine)):
        return _branched(stage, machine)
    return _over_cores_filled(stage, machine)


def _over_cores_filled(stage: Stage, machine: Machine) -> list[Stmt]:
    """Share the outer axes, in whole blocks where vectors lie along them, and a part of the last one if need be."""
    wanted = pieces_wanted(machine)
    axis, other = _vector_axes(stage, machine)
    grain: dict[Axis | None, int] = {axis: lanes_of(stage, machine), other: machine.lanes}
    steps: list[tuple[Axis, int]] = []
    count = 1
    for one in stage.axes[:-1]:
        if count >= wanted:
            break
        steps.append((one, min(one.extent, grain.get(one, 1))))
        count *= ceil(one.extent / steps[-1][1])
    if count < wanted:
        last, lanes = stage.axes[-1], max(grain.values())
        steps.append((last, ceil(last.extent / ceil(wanted / count) / lanes) * lanes))
    return tiled(steps, len(steps), lambda tile: _branched(part_of(stage, tile), machine))


def _branched(stage: Stage, machine: Machine) -> list[Stmt]:
    """Decide the guards outside of the innermost loops, as far as they can be."""
    atoms = _atoms(stage)
    if not atoms or sum(_branches(value) for value in stage.finals) > _MOST_BRANCHES:
        return _vectors(merged(stage), machine)
    inner = {axis.var for axis in stage.axes}
    for atom in atoms:
        if not variables(atom) & inner:
            cases = [_branched(_decided(stage, atom, truth=truth), machine) for truth in (True, False)]
            return [tirx.IfThenElse(atom, *(sequence(case) for case in cases))]
    if _is_one_vector(stage, machine):
        return _vectors(merged(stage), machine)
    return [step for piece in _pieces(stage) for step in _piece(piece, machine)]


def _piece(stage: Stage, machine: Machine) -> list[Stmt]:
    """Return the loops of a stage whose guards do not change along its first axis alone."""
    if len(stage.axes) == 1 or not _atoms(stage):
        return _vectors(merged(stage), machine)
    first = stage.axes[0]
    return repeated(first.extent, lambda at: _branched(stage.at({first.var: at}), machine))


def _is_one_vector(stage: Stage, machine: Machine) -> bool:
    """Whether only lanes of one vector differ in their guards: that is put together better than stored in parts."""
    last = stage.axes[-1]
    if last.extent > lanes_of(stage, machine) or coefficient(stage.indices[0], last.var) != 1:
        return False
    return all(variables(atom) == {last.var} for atom in _atoms(stage))


def _atoms(stage: Stage) -> list[Expr]:
    """Return the comparisons that the guards of a stage are made of, and those that its indices depend on."""
    found: list[Expr] = []
    open_ones = [condition for value in stage.finals for condition in conditions(value)]
    for load in stage.loads():
        open_ones += [part.condition for part in parts(load.indices[0]) if isinstance(part, prim.Select)]
    while open_ones:
        part = open_ones.pop(0)
        if isinstance(part, (prim.LogicalExpr, prim.Not)):
            open_ones += children(part)
        else:
            found.append(part)
    return found


def _branches(value: Expr) -> int:
    """Count the ways through the guards of an expression."""
    if is_guard(value):
        return _branches(value.args[1]) + _branches(value.args[2])
    return prod(_branches(part) for part in children(value))


def _decided(stage: Stage, atom: Expr, *, truth: bool) -> Stage:
    """Return a stage for the case that a comparison holds, or does not."""

    def known(part: Expr) -> Expr | None:
        return tirx.const(truth, "bool") if tvm_ffi.structural_equal(part, atom) else None

    return simplified(stage.mapped(lambda expr: rewritten(expr, known)))


def _pieces(stage: Stage) -> list[Stage]:
    """Cut the first axis of a stage where a comparison changes."""
    axis = stage.axes[0]
    cuts = {0, axis.extent}
    for atom in _atoms(stage):
        if isinstance(atom, prim.CmpExpr) and variables(atom) == {axis.var}:
            cuts |= {at for at in _changes(atom, axis) if 0 < at < axis.extent}
    if len(cuts) == 2:  # noqa: PLR2004 - both ends
        return [stage]
    found = [cut(stage, axis, start, stop) for start, stop in itertools.pairwise(sorted(cuts))]
    return [piece for whole in found for piece in _pieces(whole)]


def _changes(atom: Expr, axis: Axis) -> set[int]:
    """Return the first numbers for which a comparison of a multiple of an axis comes out differently."""
    found = sym.detect_linear_equation(sym.Analyzer().simplify(atom.a - atom.b), [axis.var])
    step, rest = (constant(part) for part in found) if len(found) else (None, None)
    if not step or rest is None:
        return set()
    root = -rest / step
    if isinstance(atom, (prim.EQ, prim.NE)):
        return {ceil(root), floor(root) + 1}
    from_root_on = isinstance(atom, (prim.LT, prim.GE)) == (step > 0)
    return {ceil(root) if from_root_on else floor(root) + 1}


# --- vectors ---------------------------------------------------------------------------------------------------


def _vectors(stage: Stage, machine: Machine) -> list[Stmt]:
    """Return plain loops around vectors along the axis that suits them best."""
    if not stage.axes:
        return _one_vector(stage)
    lanes = lanes_of(stage, machine)
    side = min(lanes, machine.lanes)
    axis, other = _vector_axes(stage, machine)
    if any(coefficient(load.indices[0], axis.var) is None for load in stage.loads()):
        lanes = 1  # LLVM finds the better of scalars and gathers
    inner = [(axis, lanes)] if other is None else [(other, side), (axis, side)]
    steps = [(one, 1) for one in stage.axes if one not in {axis, other}]

    def body(tile: Tile) -> list[Stmt]:
        part = part_of(stage, tile)
        if other is None:
            return _one_vector(part)
        if tile[axis.var][1] == tile[other.var][1] == side:
            stores, loads = part.axes if stage.axes.index(axis) < stage.axes.index(other) else part.axes[::-1]
            return turned(part, stores, loads, side)
        return _vectors(part, machine)

    return tiled([*steps, *inner], 0, body)


def _vector_axes(stage: Stage, machine: Machine) -> tuple[Axis, Axis | None]:
    """Return the axis along which vectors lie, and the other one of blocks to turn over, if that is done."""
    lanes = lanes_of(stage, machine)
    side = min(lanes, machine.lanes)
    axis = min(stage.axes, key=lambda one: _vector_price(stage, one, lanes, side))
    return axis, turning_axis(stage, axis, side)


def _one_vector(stage: Stage) -> list[Stmt]:
    if not stage.axes:
        return vectorized(1, lambda _: _stored(stage))
    [axis] = stage.axes
    return vectorized(axis.extent, lambda lane: _stored(stage.at({axis.var: lane})))


def _stored(stage: Stage) -> list[Stmt]:
    """Return the stores of one element."""
    pairs = zip(stage.outputs, stage.finals, strict=True)
    return [tirx.BufferStore(buffer, value, [stage.indices[0]]) for buffer, value in pairs]


def _vector_price(stage: Stage, axis: Axis, lanes: int, side: int) -> float:
    """Estimate what the loads and stores of an element cost if vectors lie along an axis.

    Args:
        stage: A stage without accumulators.
        axis: The axis.
        lanes: Elements of a vector.
        side: Elements on a side of a block that can be turned over.
    """
    used = min(lanes, axis.extent)
    price = sum(_access_price(load.indices[0], axis, used) for load in stage.loads())
    if turning_axis(stage, axis, side):
        price = min(price, len(list(stage.loads())) * (1.0 + log2(side)))
    step = coefficient(stage.indices[0], axis.var)
    price += 1.0 if step == 1 else _SCATTERED * used
    guards = (condition for value in stage.finals for condition in conditions(value))
    price += sum(_SCALAR * used for condition in guards if axis.var in variables(condition))
    return price * ceil(axis.extent / lanes) / axis.extent


def _access_price(place: Expr, axis: Axis, lanes: int) -> float:
    """Estimate what the load of one vector costs, in loads of vectors that lie together."""
    step = coefficient(place, axis.var)
    if step is None or abs(step) > MOST_APART:
        return float(lanes)
    if abs(step) > 1:
        return 2.0 * abs(step)
    return {0: _SAME, 1: 1.0, -1: _TURNED}[step]
