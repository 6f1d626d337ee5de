"""Walks over TIR expressions, and their rewriting, as far as scheduling needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tvm
from tvm import ir, sym, tirx
from tvm.ir import prim

Expr = Any
Var = Any

_TWO = (
    *(prim.Add, prim.Sub, prim.Mul, prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod, prim.Min, prim.Max),
    *(prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE, prim.And, prim.Or),
    *(prim.LShift, prim.RShift, prim.BitwiseAnd, prim.BitwiseOr, prim.BitwiseXor),
)
_FIELDS: dict[type, tuple[str, ...]] = {
    **dict.fromkeys(_TWO, ("a", "b")),
    **dict.fromkeys((prim.Not, prim.BitwiseNot), ("a",)),
    **dict.fromkeys((ir.Var, prim.IntImm, prim.FloatImm, ir.StringImm), ()),
    prim.Cast: ("value",),
    prim.Select: ("condition", "true_value", "false_value"),
}


_GUARD = ir.Op.get("prim.if_then_else")


class UnsupportedError(Exception):
    """A function cannot be rewritten; it has to be scheduled in a simpler way."""


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the operands of an expression.

    Raises:
        UnsupportedError: Its kind is not supported here.
    """
    kind = type(expr)
    fields = _FIELDS.get(kind)
    if fields is not None:
        return tuple(getattr(expr, field) for field in fields)
    if kind is ir.TensorLoad:
        return tuple(expr.indices)
    if kind is ir.Call and isinstance(expr.op, ir.Op):
        return tuple(expr.args)
    raise UnsupportedError(f"an expression of type {kind.__name__}")


def _with_children(expr: Expr, operands: list[Expr]) -> Expr:
    kind = type(expr)
    if kind is ir.TensorLoad:
        return tirx.BufferLoad(expr.source, operands)
    if kind is prim.Cast:
        return prim.Cast(expr.ty.dtype, operands[0])
    if kind is ir.Call:
        return ir.Call(expr.op, operands, expr.attrs, expr.ty_args, None, expr.ty)
    return kind(*operands)


def rewrite(expr: Expr, replace: Callable[[Expr], Expr | None]) -> Expr:
    """Return an expression in which `replace` has replaced nodes, the outermost first.

    Args:
        expr: The expression.
        replace: Returns a replacement for a node, or None to visit its operands.
    """
    replacement = replace(expr)
    if replacement is not None:
        return replacement
    operands = children(expr)
    if not operands:
        return expr
    new = [rewrite(child, replace) for child in operands]
    if all(before is after for before, after in zip(operands, new, strict=True)):
        return expr
    return _with_children(expr, new)


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Return an expression with values in the place of variables."""
    return rewrite(expr, lambda node: values.get(node) if type(node) is ir.Var else None) if values else expr


def walk(expr: Expr) -> list[Expr]:
    """Return an expression and everything inside it, what is outside before what is inside."""
    nodes = [expr]
    for node in nodes:  # grows on the way
        nodes += children(node)
    return nodes


def loads(expr: Expr) -> Iterator[Expr]:
    """Yield every load, those inside of indices too."""
    return (node for node in walk(expr) if type(node) is ir.TensorLoad)


def variables(expr: Expr) -> set[Var]:
    """Return the variables that an expression depends on."""
    return {node for node in walk(expr) if type(node) is ir.Var}


def conditions(expr: Expr) -> Iterator[Expr]:
    """Yield the conditions that guard a part of an expression, so that a load there stays inside its buffer."""
    for node in walk(expr):
        if is_guard(node):
            yield node.args[0]


def is_guard(expr: Expr) -> bool:
    """Whether an expression computes only one of two values."""
    return type(expr) is ir.Call and _GUARD.same_as(expr.op)


def range_analyzer(axes: Iterable[tuple[Var, int]]) -> sym.Analyzer:
    """Return an analyzer that knows the range of each axis."""
    analyzer = sym.Analyzer()
    for var, extent in axes:
        analyzer.bind(var, tvm.ir.Range(0, extent))
    return analyzer


def coefficient(expr: Expr, var: Var) -> int | None:
    """Return by how much an index grows with a variable; None if it does not grow evenly."""
    terms = sym.detect_linear_equation(expr, [var])
    if len(terms) != 2 or not isinstance(terms[0], prim.IntImm):  # noqa: PLR2004 - the coefficient and the rest
        return None
    return int(terms[0].value)


def constant(expr: Expr) -> int | None:
    """Return the value of an integer constant."""
    return int(expr.value) if isinstance(expr, prim.IntImm) else None
