"""Stages that share loops: what follows a reduction is done before it leaves the registers, rows before the cache."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import prod

from tvm import ir, tirx

from toolchain.backends.cpu._fallback.expr import Expr, Var, bound, coefficient, rewritten, substituted
from toolchain.backends.cpu._fallback.flat import accesses
from toolchain.backends.cpu._fallback.loops import worth_cores
from toolchain.backends.cpu._fallback.stages import Axis, Buffer, Stage
from toolchain.backends.cpu._machine import Machine

_SMALL = 4  # an access to so many times fewer elements than its stage has steps is no reason for or against anything
_ROWS_PER_CORE = 2


@dataclass(frozen=True)
class Group:
    """Stages that run row by row.

    Attributes:
        rows: The axes they share; none if there is one stage only.
        stages: The stages; the shared axes are no axes of theirs any more.
        local: Buffers that hold one row.
        shared: Whether the cores share the rows.
    """

    rows: tuple[Axis, ...]
    stages: tuple[Stage, ...]
    local: tuple[Buffer, ...] = ()
    shared: bool = False


# --- epilogues -------------------------------------------------------------------------------------------------


def with_epilogues(stages: Sequence[Stage], results: AbstractSet[Buffer]) -> list[Stage]:
    """Put each stage that only works on what one reduction ends in into that reduction.

    Args:
        stages: Stages on flat buffers, in order.
        results: Buffers that must be filled.
    """
    left = list(stages)
    for stage in stages:
        users = [one for one in left if set(stage.outputs) & one.reads()]
        if not stage.accumulators or len(users) != 1 or users[0].accumulators or set(stage.outputs) & results:
            continue
        place, end = left.index(stage), left.index(users[0])
        between = {buffer for one in left[place + 1 : end] for buffer in one.outputs}
        joined = None if between & users[0].reads() else _joined(stage, users[0])
        if joined is not None:
            left[place] = joined
            del left[end]
    return left


def _joined(stage: Stage, user: Stage) -> Stage | None:
    """Return a reduction with another stage's values, if that has the same elements, in whatever order."""
    found = next(load for load in user.loads() if load.source in stage.outputs)
    place = _same_elements(stage, user, found.indices[0])
    if place is None:
        return None
    analyzer = bound((axis.var, axis.extent) for axis in stage.axes)
    held = dict(zip(stage.outputs, stage.finals, strict=True))
    moved = user.at(place)

    def final(part: Expr) -> Expr | None:
        if type(part) is not ir.TensorLoad or part.source not in held:
            return None
        return held[part.source] if analyzer.can_prove_equal(part.indices[0], stage.indices[0]) else None

    finals = tuple(rewritten(value, final) for value in moved.finals)
    joined = replace(stage, outputs=user.outputs, indices=moved.indices, finals=finals)
    return None if joined.reads() & set(stage.outputs) else joined


def _same_elements(stage: Stage, user: Stage, place: Expr) -> dict[Var, Expr] | None:
    """Return for each axis of the user the variable of the reduction's axis that it is."""
    found: dict[Var, Expr] = {}
    for axis in stage.axes:
        step = coefficient(stage.indices[0], axis.var)
        for one in user.axes:
            if one.var not in found and one.extent == axis.extent and coefficient(place, one.var) == step is not None:
                found[one.var] = axis.var
                break
        else:
            return None
    return found if len(found) == len(user.axes) else None


# --- rows ------------------------------------------------------------------------------------------------------


def grouped(stages: Sequence[Stage], results: AbstractSet[Buffer], machine: Machine) -> list[Group]:
    """Let neighbours that use each other's rows run row by row.

    Args:
        stages: Stages on flat buffers, in order.
        results: Buffers that must be filled.
        machine: The processor.
    """
    groups: list[Group] = []
    left = list(stages)
    while left:
        count, rows = 1, 0
        while count < len(left) and (more := _shared_rows(left[: count + 1], machine)):
            count, rows = count + 1, more
        together, left = left[:count], left[count:]
        read_later = {buffer for one in left for buffer in one.reads()}
        groups.append(replace(_group(together, rows, results | read_later), shared=worth_cores(together, machine)))
    return groups


def _shared_rows(stages: Sequence[Stage], machine: Machine) -> int:
    """Return how many leading axes stages can share; 0 if none."""
    if not stages[-1].reads() & {buffer for one in stages[:-1] for buffer in one.outputs}:
        return 0
    least = machine.cores * _ROWS_PER_CORE if worth_cores(stages, machine) else 1
    for rows in range(min(len(one.axes) for one in stages), 0, -1):
        extents = [tuple(axis.extent for axis in one.axes[:rows]) for one in stages]
        if len(set(extents)) == 1 and prod(extents[0]) >= least and _separate(stages, rows):
            return rows
    return 0


def _separate(stages: Sequence[Stage], rows: int) -> bool:
    """Whether each row needs only its own elements of the buffers, and no vectors lie along rows."""
    if any(_along_rows(stage, rows) for stage in stages):
        return False
    sizes: dict[Buffer, int] = {}
    for stage in stages:
        size = _row_size(stage, rows, stage.indices[0])
        if size is None:
            return False
        sizes.update(dict.fromkeys(stage.outputs, size))
    return all(
        _row_size(stage, rows, load.indices[0]) == sizes[load.source]
        for stage in stages
        for load in stage.loads()
        if load.source in sizes
    )


def _along_rows(stage: Stage, rows: int) -> bool:
    axes = stage.axes + stage.reduced
    for place in accesses(stage):
        steps = {axis: coefficient(place, axis.var) for axis in axes}
        touched = prod(axis.extent for axis in axes if steps[axis] != 0)
        if touched * _SMALL >= stage.steps and any(steps[axis] == 1 for axis in stage.axes[:rows]):
            return True
    return False


def _row_size(stage: Stage, rows: int, place: Expr) -> int | None:
    """Return how many elements of a buffer belong to each row; None if rows do not lie one after the other."""
    lead, size = stage.axes[:rows], coefficient(place, stage.axes[rows - 1].var)
    wanted = size
    for axis in reversed(lead):
        if not wanted or coefficient(place, axis.var) != wanted:
            return None
        wanted *= axis.extent
    rest = bound((axis.var, axis.extent) for axis in stage.axes[rows:] + stage.reduced).const_int_bound(
        substituted(place, _first_row(lead))
    )
    return size if size and rest.min_value >= 0 and rest.max_value < size else None


def _first_row(axes: Sequence[Axis]) -> dict[Var, Expr]:
    return {axis.var: tirx.const(0, axis.var.ty.dtype) for axis in axes}


def _group(stages: Sequence[Stage], rows: int, needed: AbstractSet[Buffer]) -> Group:
    """Put stages together; a buffer that nothing else needs becomes as large as one row."""
    if len(stages) == 1:
        return Group((), tuple(stages))
    shared = stages[0].axes[:rows]
    local: dict[Buffer, Buffer] = {}
    for stage in stages:
        size = _row_size(stage, rows, stage.indices[0])
        for buffer in stage.outputs:
            if buffer not in needed:
                local[buffer] = tirx.decl_buffer((size,), str(buffer.dtype), f"{buffer.name}_row")
    return Group(shared, tuple(_in_rows(stage, shared, local) for stage in stages), tuple(local.values()))


def _in_rows(stage: Stage, shared: Sequence[Axis], local: dict[Buffer, Buffer]) -> Stage:
    own = stage.axes[: len(shared)]
    first = _first_row(own)

    def load(part: Expr) -> Expr | None:
        if type(part) is not ir.TensorLoad:
            return None
        place = rewritten(part.indices[0], load)
        if part.source in local:
            return tirx.BufferLoad(local[part.source], [substituted(place, first)])
        return tirx.BufferLoad(part.source, [place])

    place = stage.indices[0]
    if stage.outputs[0] in local:
        place = substituted(place, first)
    moved = replace(
        stage.mapped(lambda expr: rewritten(expr, load)),
        outputs=tuple(local.get(buffer, buffer) for buffer in stage.outputs),
        indices=(place,),
    )
    return moved.at({axis.var: row.var for axis, row in zip(own, shared, strict=True)})
