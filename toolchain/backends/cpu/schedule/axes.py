"""Kernels with the axes that their indices have: none of one step, none taken apart, neighbours made one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.ir import prim

from toolchain.backends.cpu.expr import (
    Expr,
    UnsupportedError,
    Var,
    coefficient,
    constant,
    loads,
    range_analyzer,
    rewrite,
    variables,
    walk,
)
from toolchain.backends.cpu.schedule.block import Axis, Buffer, as_numbers, offset, sequence

_MOST_SPLITS = 6


@dataclass(frozen=True)
class Nest:
    """Loops around one block that stores one value at a time."""

    axes: tuple[Axis, ...]
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    init: Expr | None
    name: str

    def substitute(self, values: Mapping[Var, Expr], axes: Sequence[Axis]) -> Nest:
        """Put values in the place of axes, and other axes in the place of all."""
        analyzer = range_analyzer((axis.var, axis.extent) for axis in axes)

        def placed(node: Expr) -> Expr | None:
            if type(node) is ir.Var:
                return values.get(node)
            if type(node) is not ir.TensorLoad:
                return None
            return tirx.BufferLoad(node.source, [analyzer.simplify(rewrite(index, placed)) for index in node.indices])

        indices = tuple(analyzer.simplify(rewrite(index, placed)) for index in self.indices)
        return replace(self, axes=tuple(axes), indices=indices, value=rewrite(self.value, placed))

    def loads(self) -> list[Expr]:
        """Return the loads, but for that of an accumulator."""
        return [load for load in loads(self.value) if not load.source.same_as(self.buffer)]

    def statement(self) -> Any:
        """Return the loops."""
        reads = [_element(load.source, load.indices) for load in self.loads()]
        kinds = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
        iterators = [tirx.IterVar(_range(0, axis.extent), axis.var, kinds[axis.reduced]) for axis in self.axes]
        init = None if self.init is None else tirx.BufferStore(self.buffer, self.init, list(self.indices))
        store = tirx.BufferStore(self.buffer, self.value, list(self.indices))
        block = s_tir.SBlock(iterators, reads, [_element(self.buffer, self.indices)], self.name, store, init)
        loops = [ir.Var(axis.var.name, axis.var.ty) for axis in self.axes]
        body: Any = s_tir.SBlockRealize(loops, True, block)  # noqa: FBT003 - its signature
        for var, axis in zip(reversed(loops), reversed(self.axes), strict=True):
            body = tirx.For(var, _number(0), _number(axis.extent), tirx.ForKind.SERIAL, body)
        return body


def normalise_axes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give a kernel the axes that its indices have.

    Args:
        function: Nests of loops around one block each.

    Raises:
        UnsupportedError: It is of another kind.
    """
    parameters = set(function.params)
    return map_nests(function, lambda nest: _merge_axes(_split_axes(nest), parameters))


def map_nests(function: tirx.PrimFunc, change: Callable[[Nest], Nest]) -> tirx.PrimFunc:
    """Change the nests of a kernel; those that store several values at a time stay as they are.

    Raises:
        UnsupportedError: It does not consist of such nests.
    """
    root = function.body.block

    def changed(statement: Any) -> Any:
        inner = statement
        while isinstance(inner, tirx.For):
            inner = inner.body
        if not isinstance(inner, s_tir.SBlockRealize) or constant(inner.predicate) != 1:
            raise UnsupportedError("loops without a block, or with a predicate")
        plain = isinstance(inner.block.body, tirx.BufferStore)
        return change(_read_nest(inner.block)).statement() if plain else statement

    body = [changed(nest) for nest in sequence(root.body)]
    statements = body[0] if len(body) == 1 else tirx.SeqStmt(body)
    block = s_tir.SBlock([], [], [], "root", statements, None, root.alloc_buffers)
    return function.with_body(s_tir.SBlockRealize([], True, block))  # noqa: FBT003 - its signature


def _split_axes(nest: Nest) -> Nest:
    """Drop axes of one step, and make two of each that an index takes apart."""
    nest = nest.substitute(
        {axis.var: _number(0) for axis in nest.axes if axis.extent == 1},
        [axis for axis in nest.axes if axis.extent > 1],
    )
    # Each split may reveal another division; the limit only guards against an endless loop.
    for _ in range(_MOST_SPLITS):
        division = _find_division(nest)
        if division is None:
            break
        axis, length = division
        outer = Axis(ir.Var(f"{axis.var.name}_o", axis.var.ty), axis.extent // length, axis.reduced)
        inner = Axis(ir.Var(f"{axis.var.name}_i", axis.var.ty), length, axis.reduced)
        index = nest.axes.index(axis)
        axes = [*nest.axes[:index], outer, inner, *nest.axes[index + 1 :]]
        nest = nest.substitute({axis.var: outer.var * length + inner.var}, axes)
    return nest


def _read_nest(block: Any) -> Nest:
    extents = [constant(iterator.dom.extent) for iterator in block.iter_vars]
    if not all(extents) or any(str(iterator.var.ty.dtype) != "int64" for iterator in block.iter_vars):
        raise UnsupportedError("axes without elements, or of open extent")
    axes = (
        Axis(iterator.var, extent or 0, iterator.iter_type == tirx.IterVar.CommReduce)
        for iterator, extent in zip(block.iter_vars, extents, strict=True)
    )
    store, init = block.body, block.init
    first = None if init is None else init.value
    return Nest(tuple(axes), store.buffer, tuple(store.indices), store.value, first, block.name_hint)


def _find_division(nest: Nest) -> tuple[Axis, int] | None:
    """Find an axis that is divided by a number, and that number; elements of a reduction keep their dimensions."""
    axes = {axis.var: axis for axis in nest.axes if axis.reduced == (nest.init is not None)}
    for expr in (*nest.indices, nest.value):
        for node in walk(expr):
            if isinstance(node, (prim.FloorDiv, prim.FloorMod, prim.Div, prim.Mod)) and isinstance(node.a, ir.Var):
                axis, number = axes.get(node.a), constant(node.b)
                if axis is not None and number and axis.extent % number == 0 and 1 < number < axis.extent:
                    return axis, number
    return None


def _merge_axes(nest: Nest, parameters: set[Buffer]) -> Nest:
    """Make one axis of two neighbours wherever every access runs through both without a gap.

    The one is the last index of both then, and runs beyond its dimension: there is no gap between the rows of a
    parameter. Of buffers that TVM makes as large as what is used of them, dimensions have to stay.
    """
    for index in range(len(nest.axes) - 1, 0, -1):
        if _lies_across(nest):
            break
        outer, inner = nest.axes[index - 1 : index + 1]
        if outer.reduced == inner.reduced == (nest.init is not None) and _mergeable(nest, outer, inner, parameters):
            joint = Axis(ir.Var(inner.var.name, inner.var.ty), outer.extent * inner.extent, inner.reduced)
            axes = [*nest.axes[: index - 1], joint, *nest.axes[index + 1 :]]
            nest = nest.substitute({outer.var: _number(0), inner.var: joint.var}, axes)
    return nest


def _lies_across(nest: Nest) -> bool:
    """Whether loads lie together along another axis than the store: what is copied for that keeps its dimensions."""
    last = nest.axes[-1]
    offsets = (offset(load.source, load.indices) for load in nest.loads())
    return not last.reduced and any((coefficient(element, last.var) or 0) > 1 for element in offsets)


def _mergeable(nest: Nest, outer: Axis, inner: Axis, parameters: set[Buffer]) -> bool:
    merged_vars = {outer.var, inner.var}
    if merged_vars & set(as_numbers(nest.value)):
        return False
    analyzer = range_analyzer((axis.var, axis.extent) for axis in nest.axes)
    for buffer, indices in [(nest.buffer, nest.indices), *((load.source, load.indices) for load in loads(nest.value))]:
        element = analyzer.simplify(offset(buffer, indices))
        if not merged_vars & variables(element):
            continue
        step = coefficient(element, inner.var)
        # One step of the outer axis has to be as far as all steps of the inner one.
        if buffer not in parameters or step is None or coefficient(element, outer.var) != step * inner.extent:
            return False
    return True


def _number(value: int) -> Expr:
    return tirx.const(value, "int64")


def _range(start: Any, extent: int) -> ir.Range:
    return ir.Range.from_min_extent(_number(start) if isinstance(start, int) else start, _number(extent))


def _element(buffer: Buffer, indices: Sequence[Expr]) -> Any:
    return tirx.BufferRegion(buffer, [_range(index, 1) for index in indices])
