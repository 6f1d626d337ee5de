"""What a reduction does with two accumulators: needed where several take turns, and become one at the end."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir
from tvm.ir import prim

from toolchain.backends.cpu._fallback.expr import Expr, Var, rewritten, substituted, variables
from toolchain.backends.cpu._fallback.stages import Stage

_OPERATORS = (prim.Add, prim.Mul, prim.Max, prim.Min, prim.And, prim.Or, prim.BitwiseAnd, prim.BitwiseOr)


def combiner(stage: Stage) -> tuple[list[Expr], list[Var]] | None:
    """Find how two accumulators of a reduction become one.

    Args:
        stage: The reduction.

    Returns:
        The accumulators' next values, and the variables in those that stand for the other accumulators; None if the
        next value of an accumulator is not simply made of it and of one operand.
    """
    operands = [_operand(value, own, stage) for value, own in zip(stage.values, stage.accumulators, strict=True)]
    others = [ir.Var(f"{own.name}_other", own.ty) for own in stage.accumulators]
    if any(operand is None for operand in operands):
        return None

    def other(part: Expr) -> Expr | None:
        for operand, instead in zip(operands, others, strict=True):
            if tvm_ffi.structural_equal(part, operand):
                return instead
        return None

    values = [rewritten(value, other) for value in stage.values]
    known = {*stage.accumulators, *others}
    return (values, others) if all(variables(value) <= known for value in values) else None


def _operand(value: Expr, own: Var, stage: Stage) -> Expr | None:
    """Return what is combined with an accumulator."""
    if isinstance(value, _OPERATORS):
        pair = [value.a, value.b]
    elif isinstance(value, prim.Select):
        pair = [value.true_value, value.false_value]
    else:
        return None
    rest = [part for part in pair if not part.same_as(own)]
    if len(rest) != 1 or variables(rest[0]) & set(stage.accumulators):
        return None
    return rest[0]


def combined(stage: Stage, ones: Sequence[Expr], others: Sequence[Expr]) -> list[Expr]:
    """Return the accumulators that two sets of them become; vectors become vectors.

    Args:
        stage: A reduction that has a `combiner`.
        ones: One value for each accumulator.
        others: The same, of as many lanes.
    """
    found = combiner(stage)
    if found is None:
        raise ValueError("accumulators of this reduction cannot be combined")
    values, names = found
    place = dict(zip([*stage.accumulators, *names], [*ones, *others], strict=True))
    return [substituted(value, place) for value in values]
