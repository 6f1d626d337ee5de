"""Kernels that cannot be written anew, as their shapes are open or their blocks unusual: scheduled block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import s_tir, tirx

from toolchain.backends.cpu.expr import constant
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.cpu.schedule.block import WORTH_CORES

_PIECE = 1024  # steps of a single loop that one core does at a time


def by_blocks(function: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """Share the work of each block of a kernel among the cores; vectors are left to LLVM.

    Args:
        function: The kernel.
        machine: The processor.

    Returns:
        The kernel, or None if there is nothing that could be done.
    """
    steps = _LenientSchedule(s_tir.Schedule(function, debug_mask="none", error_render_level="none"))
    blocks = steps.attempt(lambda schedule: schedule.get_child_blocks(schedule.get_sblock("root")))
    for block in blocks or []:
        steps.inline(block)
    shared = [steps.share(block, machine) for block in blocks or []]
    return steps.schedule.mod["main"] if any(shared) else None


class _LenientSchedule:
    """A schedule that skips steps that TVM refuses."""

    def __init__(self, schedule: s_tir.Schedule) -> None:
        self.schedule = schedule

    def attempt(self, step: Callable[[s_tir.Schedule], Any]) -> Any:
        """Return the result of a step; None if TVM refuses it, and then nothing has changed."""
        try:
            return step(self.schedule)
        except (RuntimeError, ValueError):  # TVM's schedules raise the one, and the other for blocks that are gone
            return None

    def inline(self, block: Any) -> None:
        users = self.attempt(lambda schedule: schedule.get_consumers(block))
        if users and all(set(self._kinds(candidate)) == {tirx.IterVar.DataPar} for candidate in (block, *users)):
            self.attempt(lambda schedule: schedule.compute_inline(block))

    def share(self, block: Any, machine: Machine) -> bool:
        """Share the loops over a block's elements; whether that was done."""
        loops = self.attempt(lambda schedule: schedule.get_loops(block))
        if not loops:  # put into another block before
            return False
        kinds = self._kinds(block)
        extents = [constant(self.schedule.get(loop).extent) for loop in loops]
        worth = None in extents or prod(extent or 1 for extent in extents) >= WORTH_CORES
        if len(kinds) != len(loops) or kinds[0] != tirx.IterVar.DataPar or not worth or machine.cores == 1:
            return False
        lead = next((index for index, kind in enumerate(kinds) if kind != tirx.IterVar.DataPar), len(kinds))
        is_closed = None not in extents[:lead]
        if lead == len(loops):
            return bool(self.attempt(lambda schedule: _elements(schedule, loops, is_closed=is_closed)))
        is_shared = bool(self.attempt(lambda schedule: _rows(schedule, loops, lead, is_closed=is_closed)))
        self.attempt(lambda schedule: schedule.decompose_reduction(block, loops[lead]))
        return is_shared

    def _kinds(self, block: Any) -> list[int]:
        return [axis.iter_type for axis in self.schedule.get(block).iter_vars]


def _elements(schedule: s_tir.Schedule, loops: Sequence[Any], *, is_closed: bool) -> bool:
    """Share all loops over elements but the last, or pieces of the only one."""
    if len(loops) == 1:
        outer, _ = schedule.split(loops[0], [None, _PIECE])
        schedule.parallel(outer)
    else:
        schedule.parallel(_outer_loop(schedule, loops[:-1], is_closed=is_closed))
    return True


def _rows(schedule: s_tir.Schedule, loops: Sequence[Any], lead: int, *, is_closed: bool) -> bool:
    """Share the loops over elements; the last of them goes inside of the reduction, where LLVM makes vectors of it."""
    # The last axis of elements goes inside the reduction: its loads lie together.
    if lead > 1:
        schedule.reorder(*loops[lead:], loops[lead - 1])
    schedule.parallel(_outer_loop(schedule, loops[: max(1, lead - 1)], is_closed=is_closed))
    return True


def _outer_loop(schedule: s_tir.Schedule, loops: Sequence[Any], *, is_closed: bool) -> Any:
    """Fuse loops; with open extents return the first one, since TVM could not split the fused index again."""
    return schedule.fuse(*loops) if is_closed and len(loops) > 1 else loops[0]
