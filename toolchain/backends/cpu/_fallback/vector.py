"""Statements for one lane turned into statements for a vector: loads that lie together, or nearly so, stay loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from tvm import ir, tirx
from tvm.ir import prim

from toolchain.backends.cpu._fallback.expr import (
    Expr,
    UnsupportedError,
    Var,
    children,
    coefficient,
    decided,
    is_guard,
    substituted,
    variables,
)
from toolchain.backends.cpu._fallback.functions import spelled_out

Stmt = Any

MOST_APART = 4
"""Up to this distance the lanes of a load are picked out of vectors that lie together."""

STACK_BYTES = 1024
"""A buffer as large as this is taken from the heap whenever a loop comes to it."""

# What LLVM has for vectors; others become a call for each lane.
_WIDE = frozenset(
    f"tirx.{name}"
    for name in (
        *("exp", "exp2", "log", "log2", "pow", "sqrt", "rsqrt", "sigmoid", "tanh", "sin", "cos"),
        *("floor", "ceil", "trunc", "round", "nearbyint", "fabs", "reinterpret"),
    )
)


def in_registers(size: int, dtype: str, name: str) -> tuple[Any, Stmt]:
    """Return a small buffer that is indexed by constants only, and the statement that makes room for it.

    LLVM puts what it holds into registers, if it is on the stack. There TVM puts buffers of the scope "global" with
    less than `STACK_BYTES`, and no others.
    """
    buffer = tirx.decl_buffer((size,), dtype, name)
    return buffer, tirx.AllocBuffer(buffer)


def vectorized(lanes: int, body: Callable[[Expr], Sequence[Stmt]]) -> list[Stmt]:
    """Return the statements for several lanes.

    Args:
        lanes: How many.
        body: Makes the statements for one lane, stores and bindings of variables, from its number.
    """
    lane = ir.Var("lane", "int64") if lanes > 1 else tirx.const(0, "int64")
    rooms, steps = _with_spelled_functions(body(lane), lane, lanes)
    if lanes == 1:
        return [*rooms, *steps]
    try:
        return [*rooms, *_Widening(lane, lanes).statements(steps)]
    except UnsupportedError:  # TVM takes such statements apart, and LLVM puts some together again
        inner = steps[0] if len(steps) == 1 else tirx.SeqStmt(steps)
        zero, extent = tirx.const(0, "int64"), tirx.const(lanes, "int64")
        return [*rooms, tirx.For(lane, zero, extent, tirx.ForKind.VECTORIZED, inner)]


def _with_spelled_functions(steps: Sequence[Stmt], lane: Expr, lanes: int) -> tuple[list[Stmt], list[Stmt]]:
    """Spell out functions; what is used several times is kept in buffers, for which room is made first."""
    rooms: list[Stmt] = []
    found: list[Stmt] = []

    def keep(value: Expr) -> Expr:
        same = lanes == 1 or lane not in variables(value)
        buffer, room = in_registers(1 if same else lanes, str(value.ty.dtype), "part")
        place = tirx.const(0, "int64") if same else lane
        rooms.append(room)
        found.append(tirx.BufferStore(buffer, value, [place]))
        return tirx.BufferLoad(buffer, [place])

    for step in steps:
        value = spelled_out(step.value, keep)
        if isinstance(step, tirx.BufferStore):
            found.append(tirx.BufferStore(step.buffer, value, list(step.indices)))
        else:
            found.append(tirx.Bind(step.var, value))
    return rooms, found


class _Widening:
    def __init__(self, lane: Var, lanes: int) -> None:
        self.lane = lane
        self.lanes = lanes
        self.wide: dict[Var, Var] = {}

    def statements(self, steps: Sequence[Stmt]) -> list[Stmt]:
        return [self._statement(step) for step in steps]

    def _statement(self, step: Stmt) -> Stmt:
        if isinstance(step, tirx.BufferStore):
            value = self.expr(step.value)
            if self.lane not in variables(step.indices[0]):  # the same for all lanes
                return tirx.BufferStore(step.buffer, value, list(step.indices))
            value = self._vector(value)
            return tirx.BufferStore(step.buffer, value, [self._place(step.indices[0])])
        if isinstance(step, tirx.Bind):
            value = self.expr(step.value)
            self.wide[step.var] = ir.Var(step.var.name, value.ty)
            return tirx.Bind(self.wide[step.var], value)
        raise UnsupportedError("a statement that is no vector")

    def _place(self, index: Expr) -> Expr:
        """Return the places of all lanes: evenly apart, as passes before TVM's own widening know no others."""
        step = coefficient(index, self.lane)
        if step is None:
            raise UnsupportedError("places that are not evenly apart")
        return prim.Ramp(self._at(index, 0), tirx.const(step, "int64"), self.lanes)

    def _at(self, index: Expr, lane: int) -> Expr:
        return substituted(index, {self.lane: tirx.const(lane, "int64")})

    def _is_wide(self, expr: Expr) -> bool:
        return bool(getattr(expr.ty.dtype, "lanes", 1) > 1)

    def _vector(self, expr: Expr) -> Expr:
        return expr if self._is_wide(expr) else prim.Broadcast(expr, self.lanes)

    def expr(self, expr: Expr) -> Expr:
        """Return the vector of an expression's values, or the expression itself if it is the same for all lanes."""
        found = variables(expr)
        if self.lane not in found and not found & self.wide.keys():
            return expr
        if isinstance(expr, ir.Var):
            one = tirx.const(1, "int64")
            return prim.Ramp(tirx.const(0, "int64"), one, self.lanes) if expr.same_as(self.lane) else self.wide[expr]
        if isinstance(expr, ir.TensorLoad):
            return self._load(expr)
        if isinstance(expr, ir.Call):
            return self._call(expr)
        parts = [self._vector(self.expr(part)) for part in children(expr)]
        if isinstance(expr, prim.Cast):
            return prim.Cast(self._type(expr), parts[0])
        return type(expr)(*parts)

    def _type(self, expr: Expr) -> str:
        return f"{expr.ty.dtype}x{self.lanes}"

    def _call(self, expr: Expr) -> Expr:
        args = [self.expr(arg) for arg in expr.args]
        if is_guard(expr):
            if self._is_wide(args[0]):
                return self._lane_by_lane(expr)
            args[1:] = [self._vector(arg) for arg in args[1:]]
        elif isinstance(expr.op, ir.Op) and expr.op.name in _WIDE:
            args = [self._vector(arg) for arg in args]
        else:
            raise UnsupportedError("a function of one number")
        return ir.Call(expr.op, args, expr.attrs, expr.ty_args, None, ir.PrimType(self._type(expr)))

    def _lane_by_lane(self, guard: Expr) -> Expr:
        """Put a vector together from lanes whose guards are decided."""
        found = [decided(self._at(guard, lane)) for lane in range(self.lanes)]
        if any(is_guard(one) for one in found):
            raise UnsupportedError("a guard that differs between lanes")
        return prim.Shuffle(found, [tirx.const(lane, "int32") for lane in range(self.lanes)])

    def _load(self, load: Expr) -> Expr:
        index = load.indices[0]
        step = coefficient(index, self.lane)
        if step in {1, -1}:
            return self._row(load, 0, turned=step < 0)
        if step is not None and 1 < abs(step) <= MOST_APART:
            return self._picked(load, step)
        return tirx.BufferLoad(load.source, [self._place(index)])

    def _row(self, load: Expr, first: int, *, turned: bool) -> Expr:
        start = self._at(load.indices[0], self.lanes - 1 if turned else 0) + first
        one = tirx.const(1, "int64")
        row = tirx.BufferLoad(load.source, [prim.Ramp(start, one, self.lanes)])
        return (
            prim.Shuffle([row], [tirx.const(self.lanes - 1 - lane, "int32") for lane in range(self.lanes)])
            if turned
            else row
        )

    def _picked(self, load: Expr, step: int) -> Expr:
        """Load the vectors that hold all lanes, none beyond the last one needed, and pick the lanes out of them."""
        apart, lanes = abs(step), self.lanes
        last = apart * (lanes - 1)
        count = ceil((last + 1) / lanes)
        starts = [min(number * lanes, last + 1 - lanes) for number in range(count)]
        base = self._at(load.indices[0], 0 if step > 0 else lanes - 1)
        one = tirx.const(1, "int64")
        rows = [tirx.BufferLoad(load.source, [prim.Ramp(base + start, one, lanes)]) for start in starts]
        wanted = [apart * lane if step > 0 else apart * (lanes - 1 - lane) for lane in range(lanes)]
        return _gathered(rows, starts, wanted, lanes)


def _gathered(rows: Sequence[Expr], starts: Sequence[int], wanted: Sequence[int], lanes: int) -> Expr:
    """Pick lanes out of vectors, two vectors at a time, as processors can."""

    def source(at: int) -> int:
        return max(number for number, start in enumerate(starts) if start <= at)

    held = rows[0]
    for number in range(1, len(rows)):
        chosen = []
        for lane, at in enumerate(wanted):
            if source(at) == number:
                chosen.append(lanes + at - starts[number])
            elif number == 1 and source(at) == 0:
                chosen.append(at)
            else:
                chosen.append(lane)
        held = prim.Shuffle([held, rows[number]], [tirx.const(one, "int32") for one in chosen])
    return held
