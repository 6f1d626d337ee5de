"""What is done to a kernel that is scheduled: no tile reaches over an edge, and functions are spelled out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.ir import prim

from toolchain.backends.cpu.expr import (
    Expr,
    UnsupportedError,
    Var,
    coefficient,
    constant,
    substitute,
    variables,
    walk,
)
from toolchain.backends.cpu.math import expand

_OF_VECTORS = {"tirx.reinterpret", "prim.if_then_else"}
"""What TVM vectorizes without an attribute that says so."""


def without_edges(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Move tiles that would reach over an edge back: they compute some elements again instead of guarding each.

    That changes nothing as long as what they are computed from is still the same then: `lowering` sees to it that no
    result is stored over its input. Blocks that read what they have stored go on asking.

    Args:
        function: The scheduled kernel, whose blocks have predicates for the edges.
    """
    extents: dict[Var, int] = {}

    def visit(loop: Any) -> None:
        if loop.kind in {tirx.ForKind.VECTORIZED, tirx.ForKind.UNROLLED}:
            extents[loop.loop_var] = constant(loop.extent) or 1

    tvm_ffi.structural_walk(function.body, (tirx.For, visit))
    body = tvm_ffi.structural_map(function.body, (s_tir.SBlockRealize, lambda realize: _move_inside(realize, extents)))
    return function.with_body(body)


def _move_inside(realize: Any, extents: Mapping[Var, int]) -> Any:
    values = list(realize.iter_values)
    open_questions: list[Expr] = []
    for question in _questions(realize.predicate):
        axis = None  # that the predicate limits
        if isinstance(question, prim.LT):
            analyzer = sym.Analyzer()
            equal = (number for number, value in enumerate(values) if analyzer.can_prove_equal(value, question.a))
            axis = next(equal, None)
        start = None if axis is None else _start(question, extents)
        if axis is not None and start is not None and _repeatable(realize.block, axis):
            values[axis] = start[1] + sym.Analyzer().simplify(values[axis] - start[0])
        else:
            open_questions.append(question)
    predicate: Expr = tirx.const(True, "bool")  # noqa: FBT003 - its signature
    for question in open_questions:
        predicate = tirx.And(predicate, question)
    return s_tir.SBlockRealize(values, predicate, realize.block)


def _repeatable(block: Any, number: int) -> bool:
    """Whether a block may compute the same elements along an axis a second time.

    A sum may not along what is summed up; along its elements it starts anew in each tile.
    """
    if block.iter_vars[number].iter_type != tirx.IterVar.DataPar:
        return False
    sums = any(axis.iter_type == tirx.IterVar.CommReduce for axis in block.iter_vars)
    stored, read = ({region.source for region in regions} for regions in (block.writes, block.reads))
    return sums or not stored & read


def _questions(predicate: Expr) -> Iterator[Expr]:
    if isinstance(predicate, prim.And):
        yield from _questions(predicate.a)
        yield from _questions(predicate.b)
    elif constant(predicate) != 1:
        yield predicate


def _start(question: Expr, extents: Mapping[Var, int]) -> tuple[Expr, Expr] | None:
    """Return where a tile starts, and where it has to start to end inside; None if it is longer than the axis."""
    tile = {var for var in variables(question.a) if var in extents}
    steps = {var: coefficient(question.a, var) for var in tile}
    extent = constant(question.b)
    if extent is None or None in steps.values():
        return None
    # Only vectorized and unrolled loops are of the tile; the others move it.
    length = 1 + sum((steps[var] or 0) * (extents[var] - 1) for var in tile)
    start = sym.Analyzer().simplify(substitute(question.a, {var: tirx.const(0, "int64") for var in tile}))
    return (start, tirx.min(start, tirx.const(extent - length, "int64"))) if extent >= length else None


def expand_functions(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Spell out the functions that LLVM would call the C library for, lane by lane.

    TVM takes a vector apart for a function that it has for single numbers alone, but only the store: what is bound
    before it stays a vector. Such stores are left as they are.

    Args:
        function: The scheduled kernel.
    """
    body = tvm_ffi.structural_map(function.body, (tirx.BufferStore, _expand_store))
    return function.with_body(body)


def _expand_store(store: Any) -> Any:
    steps: list[Any] = []

    def keep(value: Expr) -> Expr:
        steps.append(tirx.Bind(ir.Var("part", value.ty), value))
        return steps[-1].var

    try:
        value = expand(store.value, keep)
    except UnsupportedError:
        return store  # an expression of another kind has no such functions
    nodes = (node for expression in (value, *(step.value for step in steps)) for node in walk(expression))
    operators = {node.op for node in nodes if type(node) is ir.Call and isinstance(node.op, ir.Op)}
    if any(operator.name not in _OF_VECTORS and not operator.get_attr("TVectorizable") for operator in operators):
        return store
    stored = tirx.BufferStore(store.buffer, value, list(store.indices))
    return tirx.SeqStmt([*steps, stored]) if steps else stored
