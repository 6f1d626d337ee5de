"""Stages put into each other: what is cheap to compute where it is used needs no buffer and no loops of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import prim

from toolchain.backends.cpu._fallback.expr import (
    Expr,
    conditions,
    is_guard,
    parts,
    rewritten,
    substituted,
    variables,
)
from toolchain.backends.cpu._fallback.stages import Buffer, Stage

_CALL, _DIVISION = 20, 4  # what they cost; an addition or a load costs 1
_CHEAP = 4
_MOST_PARTS = 600  # of an expression: what grows beyond takes LLVM long
_MOST_UNROLLED = 8


def inlined(stages: Sequence[Stage], results: Iterable[Buffer]) -> list[Stage]:
    """Put stages into those that use them, where that saves time.

    Args:
        stages: All stages of a function, in order.
        results: The function's parameters; what is stored there is always kept.
    """
    kept = set(results)
    left = [_unrolled(stage) for stage in stages]
    for producer in stages:
        number = next(index for index, stage in enumerate(left) if stage.outputs == producer.outputs)
        producer = left[number]  # noqa: PLW2901 - as it became when others were put into it
        users = [stage for stage in left if producer.outputs[0] in stage.reads()]
        if producer.outputs[0] in kept or not users or not _fits(producer, users):
            continue
        left = [_with(stage, producer) if stage in users else stage for stage in left if stage is not producer]
    return [_unrolled(stage) for stage in left]


def _fits(producer: Stage, users: Sequence[Stage]) -> bool:
    if producer.accumulators or len(producer.outputs) > 1 or not _plain(producer):
        return False
    if _takes_apart(producer) and any(_turns(user, producer.outputs[0]) for user in users):
        return False
    uses = [_uses(stage, producer.outputs[0]) for stage in users]
    size = len(parts(producer.finals[0]))
    grown = [size * count + len(parts(user.computed[0])) for user, (count, _) in zip(users, uses, strict=True)]
    if max(grown) > _MOST_PARTS:
        return False
    return _pays(producer, users, sum(user.steps * distinct for user, (_, distinct) in zip(users, uses, strict=True)))


def _pays(producer: Stage, users: Sequence[Stage], computed: int) -> bool:
    """Whether computing a producer's elements so many times instead of once takes less than to keep them."""
    often = computed > producer.size
    reducing = any(user.accumulators for user in users)
    if reducing and often and not _keeps_vectors(producer):
        return False
    price = cost(producer.finals[0])
    if price <= 1 or not often:
        return True
    if reducing:
        return price <= _CHEAP and any(True for _ in conditions(producer.finals[0]))
    return price <= _CHEAP and computed <= 2 * producer.size


def _plain(producer: Stage) -> bool:
    """Whether each axis is one index of the buffer, so that an index tells the axis."""
    axes = {axis.var for axis in producer.axes}
    named = [index for index in producer.indices if isinstance(index, ir.Var)]
    others = [index for index in producer.indices if not isinstance(index, (ir.Var, prim.IntImm))]
    return not others and len(named) == len(axes) and set(named) == axes


def _uses(stage: Stage, buffer: Buffer) -> tuple[int, int]:
    """Count the loads of a buffer, and those of them that differ."""
    found = [load for load in stage.loads() if load.source.same_as(buffer)]
    different: list[Expr] = []
    for load in found:
        if not any(tvm_ffi.structural_equal(load, other) for other in different):
            different.append(load)
    return len(found), len(different)


def _takes_apart(producer: Stage) -> bool:
    """Whether an axis is divided."""
    divisions = (prim.FloorDiv, prim.FloorMod, prim.Div, prim.Mod)
    return any(isinstance(part, divisions) and not _is_float(part) for part in parts(producer.finals[0]))


def _turns(user: Stage, buffer: Buffer) -> bool:
    """Whether an axis runs backwards through a buffer: TVM 0.27 gets a division of `3 - i` wrong."""
    indices = [index for load in user.loads() if load.source.same_as(buffer) for index in load.indices]
    found = [part for index in indices for part in parts(index)]
    return any(isinstance(part, prim.Sub) and not isinstance(part.b, prim.IntImm) for part in found)


def _keeps_vectors(producer: Stage) -> bool:
    """Whether neighbours in the buffer are neighbours in what it is made of, without a guard between them."""
    last = producer.indices[-1]
    if not isinstance(last, ir.Var):
        return False
    value = producer.finals[0]
    if any(last in variables(condition) for condition in conditions(value)):
        return False
    sources = [part for part in parts(value) if type(part) is ir.TensorLoad]
    return all(len(load.indices) and last in variables(load.indices[-1]) for load in sources)


def _with(stage: Stage, producer: Stage) -> Stage:
    buffer = producer.outputs[0]

    def value(part: Expr) -> Expr | None:
        if type(part) is not ir.TensorLoad or not part.source.same_as(buffer):
            return None
        found = [rewritten(index, value) for index in part.indices]
        given = zip(producer.indices, found, strict=True)
        return substituted(producer.finals[0], {axis: index for axis, index in given if isinstance(axis, ir.Var)})

    return stage.mapped(lambda expr: rewritten(expr, value))


def cost(value: Expr) -> int:
    """Estimate what it takes to compute an expression: 1 for each load and each operation on floats."""
    total = 0
    for part in parts(value):
        if type(part) is ir.TensorLoad:
            total += 1
        elif type(part) is ir.Call:
            total += 2 if is_guard(part) else _CALL
        elif isinstance(part, prim.Div) and _is_float(part):
            total += _DIVISION
        elif isinstance(part, (prim.BinaryOpExpr, prim.Cast, prim.Select)) and _is_float(part):
            total += 1
    return total


def _is_float(expr: Expr) -> bool:
    return "float" in str(expr.ty.dtype)


def _unrolled(stage: Stage) -> Stage:
    """Write out a reduction of one step, or a short one whose steps differ in kind as that over a sum's operands."""
    if not stage.accumulators or (stage.depth > 1 and not _differ(stage)):
        return stage
    held = dict(zip(stage.accumulators, stage.inits, strict=True))
    for step in itertools.product(*(range(axis.extent) for axis in stage.reduced)):
        place = {axis.var: tirx.const(at, axis.var.ty.dtype) for axis, at in zip(stage.reduced, step, strict=True)}
        becomes = [substituted(value, {**place, **held}) for value in stage.values]
        held = dict(zip(stage.accumulators, becomes, strict=True))
    finals = tuple(substituted(value, held) for value in stage.finals)
    return replace(stage, reduced=(), finals=finals, accumulators=(), inits=(), values=())


def _differ(stage: Stage) -> bool:
    """Whether the steps of a short reduction differ in their guards, and in nothing else."""
    if stage.depth > _MOST_UNROLLED:
        return False
    inner = {axis.var for axis in stage.reduced}
    found = [variables(condition) for value in stage.values for condition in conditions(value)]
    found = [one for one in found if one & inner]
    return bool(found) and all(one <= inner for one in found)
