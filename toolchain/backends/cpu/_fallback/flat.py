"""Stages on flat buffers: each index is one number, in most cases a sum of axes times constants.

Axes that an index takes apart (`c // 16`, `c % 16`) become two axes, so that the index is such a sum again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tvm import ir, sym, tirx
from tvm.ir import prim

from toolchain.backends.cpu._fallback.expr import (
    Expr,
    Var,
    bound,
    children,
    coefficient,
    constant,
    is_guard,
    parts,
    rewritten,
)
from toolchain.backends.cpu._fallback.stages import Axis, Buffer, Stage

_MOST_SPLITS = 6


def flattened(stage: Stage, flat: Mapping[Buffer, Buffer]) -> Stage:
    """Rewrite a stage to flat buffers.

    Args:
        stage: The stage, with an index for each dimension.
        flat: The flat buffer for each buffer.
    """

    def load(part: Expr) -> Expr | None:
        if type(part) is not ir.TensorLoad:
            return None
        indices = [rewritten(index, load) for index in part.indices]
        return tirx.BufferLoad(flat[part.source], [_offset(part.source, indices)])

    stored = _offset(stage.outputs[0], list(stage.indices))
    done = replace(
        stage.mapped(lambda expr: rewritten(expr, load)),
        outputs=tuple(flat[buffer] for buffer in stage.outputs),
        indices=(stored,),
    )
    done = simplified(done)
    for _ in range(_MOST_SPLITS):
        found = _divided(done)
        if found is None:
            break
        done = split(done, *found)
    return done


def _offset(buffer: Buffer, indices: Sequence[Expr]) -> Expr:
    """Return the place of an element in a buffer without gaps."""
    offset: Expr = tirx.const(0, "int64")
    for extent, index in zip(buffer.shape, indices, strict=True):
        offset = offset * extent + index
    return offset


def simplified(stage: Stage) -> Stage:
    """Simplify the indices and guards of a stage of flat buffers."""
    analyzer = bound((axis.var, axis.extent) for axis in stage.axes + stage.reduced)
    stored = analyzer.simplify(stage.indices[0])
    return replace(stage.mapped(lambda expr: _simplified(expr, analyzer)), indices=(stored,))


def _simplified(value: Expr, analyzer: sym.Analyzer) -> Expr:
    """Simplify indices, and drop guards that are decided together with what is never used."""

    def simpler(part: Expr) -> Expr | None:
        if type(part) is ir.TensorLoad:
            return tirx.BufferLoad(part.source, [analyzer.simplify(rewritten(part.indices[0], simpler))])
        if not is_guard(part):
            return None
        condition = analyzer.simplify(rewritten(part.args[0], simpler))
        decided = constant(condition)
        if decided is not None:
            return rewritten(part.args[1] if decided else part.args[2], simpler)
        chosen = [rewritten(one, simpler) for one in part.args[1:]]
        return ir.Call(part.op, [condition, *chosen], part.attrs, part.ty_args, None, part.ty)

    return rewritten(value, simpler)


def _divided(stage: Stage) -> tuple[Axis, int] | None:
    """Find an axis that is divided by a number, and that number."""
    axes = {axis.var: axis for axis in stage.axes + stage.reduced}
    for expr in (*stage.indices, *stage.finals, *stage.values):
        for part in parts(expr):
            if isinstance(part, (prim.FloorDiv, prim.FloorMod, prim.Div)) and isinstance(part.a, ir.Var):
                axis, number = axes.get(part.a), constant(part.b)
                if axis is not None and number and axis.extent % number == 0 and 1 < number < axis.extent:
                    return axis, number
    return None


def split(stage: Stage, axis: Axis, inner: int) -> Stage:
    """Make two axes of one.

    Args:
        stage: The stage.
        axis: One of its axes.
        inner: Extent of the inner of the two; a divisor of the axis' extent.
    """
    outer_axis = Axis(ir.Var(f"{axis.var.name}_o", axis.var.ty), axis.extent // inner)
    inner_axis = Axis(ir.Var(f"{axis.var.name}_i", axis.var.ty), inner)
    return in_place_of(stage, [axis], [outer_axis, inner_axis], {axis.var: outer_axis.var * inner + inner_axis.var})


def in_place_of(stage: Stage, old: Sequence[Axis], new: Sequence[Axis], place: Mapping[Var, Expr]) -> Stage:
    """Put axes in the place of others.

    Args:
        stage: The stage.
        old: Neighbours among its axes.
        new: What comes in their place.
        place: Value of each old axis.
    """

    def changed(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        if old[0] not in axes:
            return axes
        at = axes.index(old[0])
        return (*axes[:at], *new, *axes[at + len(old) :])

    return simplified(replace(stage.at(place), axes=changed(stage.axes), reduced=changed(stage.reduced)))


def cut(stage: Stage, axis: Axis, start: int, stop: int) -> Stage:
    """Return that part of a stage for which an axis is between two numbers."""
    if (start, stop) == (0, axis.extent):
        return stage
    piece = Axis(ir.Var(axis.var.name, axis.var.ty), stop - start)
    return in_place_of(stage, [axis], [piece], {axis.var: piece.var + start})


def accesses(stage: Stage) -> list[Expr]:
    """Return the index of every load, and that of the store as the last."""
    return [load.indices[0] for load in stage.loads()] + [stage.indices[0]]


def merged(stage: Stage) -> Stage:
    """Make one axis of two neighbours wherever every access runs through both without a gap."""
    for axes in (stage.axes, stage.reduced):
        place = len(axes) - 1
        held = list(axes)
        while place > 0:
            outer, inner = held[place - 1 : place + 1]
            if _mergeable(stage, outer, inner):
                both = Axis(ir.Var(inner.var.name, inner.var.ty), outer.extent * inner.extent)
                gone = {outer.var: tirx.const(0, outer.var.ty.dtype), inner.var: both.var}
                stage = in_place_of(stage, [outer, inner], [both], gone)
                held[place - 1 : place + 1] = [both]
            place -= 1
    return stage


def _mergeable(stage: Stage, outer: Axis, inner: Axis) -> bool:
    both = {outer.var, inner.var}
    for index in accesses(stage):
        steps = coefficient(index, outer.var), coefficient(index, inner.var)
        if steps[0] is None or steps[1] is None or steps[0] != steps[1] * inner.extent:
            return False
    return not any(both & set(_as_values(expr)) for expr in stage.finals + stage.values)


def _as_values(expr: Expr) -> Iterator[Var]:
    """Yield the variables that are used outside of indices, as numbers or in guards."""
    if isinstance(expr, ir.Var):
        yield expr
    elif not isinstance(expr, ir.TensorLoad):
        for part in children(expr):
            yield from _as_values(part)
