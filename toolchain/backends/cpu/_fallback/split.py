"""Long reductions to few elements, made two: the cores reduce a part each, and then the parts are reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import ir, tirx

from toolchain.backends.cpu._fallback.combine import combiner
from toolchain.backends.cpu._fallback.expr import Expr, substituted
from toolchain.backends.cpu._fallback.flat import merged, simplified, split
from toolchain.backends.cpu._fallback.loops import pieces_wanted, worth_cores
from toolchain.backends.cpu._fallback.plan import planned, tile_count
from toolchain.backends.cpu._fallback.stages import Axis, Stage
from toolchain.backends.cpu._machine import Machine

_FEW = 2  # tiles for each core: with fewer, some core may be idle


def split_for_cores(stages: Sequence[Stage], machine: Machine) -> list[Stage]:
    """Split the reductions that have too few elements to share them among the cores.

    Args:
        stages: Stages on flat buffers.
        machine: The processor.
    """
    found: list[Stage] = []
    for stage in stages:
        parts = _split(merged(stage), machine) if _has_few_tiles(stage, machine) else None
        found += parts or [stage]
    return found


def _has_few_tiles(stage: Stage, machine: Machine) -> bool:
    if not stage.accumulators or not worth_cores([stage], machine):
        return False
    if stage.size >= machine.cores * _FEW * machine.lanes:  # so many that the plan, which takes time, does not matter
        return False
    whole = merged(stage)
    return tile_count(whole.axes, planned(whole, machine, machine.cores).lengths) < machine.cores * _FEW


def _split(stage: Stage, machine: Machine) -> list[Stage] | None:
    axis = max(stage.reduced, key=lambda one: one.extent)
    count = _parts(axis.extent, machine)
    combined = combiner(stage)
    if count is None or combined is None:
        return None
    apart = split(stage, axis, axis.extent // count)
    part = apart.reduced[stage.reduced.index(axis)]
    buffers = [
        tirx.decl_buffer((count * stage.size,), str(own.ty.dtype), f"{own.name}_parts") for own in stage.accumulators
    ]
    first = replace(
        apart,
        axes=(part, *apart.axes),
        reduced=tuple(one for one in apart.reduced if one is not part),
        outputs=tuple(buffers),
        indices=(_place(part.var, apart.axes, stage.size),),
        finals=apart.accumulators,
    )
    again = Axis(ir.Var("part", "int64"), count)
    values, others = combined
    loads = [tirx.BufferLoad(buffer, [_place(again.var, stage.axes, stage.size)]) for buffer in buffers]
    place = dict(zip(others, loads, strict=True))
    second = replace(stage, reduced=(again,), values=tuple(substituted(value, place) for value in values))
    return [simplified(first), simplified(second)]


def _place(part: Expr, axes: Sequence[Axis], size: int) -> Expr:
    place: Expr = tirx.const(0, "int64")
    for axis in axes:
        place = place * axis.extent + axis.var
    return part * size + place


def _parts(extent: int, machine: Machine) -> int | None:
    """Return into how many equal parts to cut: as few as keep all cores busy."""
    return next((count for count in range(pieces_wanted(machine), extent // 2) if extent % count == 0), None)
