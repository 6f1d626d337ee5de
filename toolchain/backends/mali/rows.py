"""Default schedules for reductions of rows: softmax, normalisations, means, sums, and products of few elements.

If there are enough rows for all cores, a work-item computes a whole row: reduced values stay in its registers, and what
comes before a reduction is computed anew in each step instead of being stored. Otherwise several work-items share one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func

from toolchain.backends.mali import gpu, schedules
from toolchain.backends.mali.layers import used_by

_ROUNDS = 4  # of work-items that busy cores compute, at least: some rows wait longer than others
_SHARE = 4  # the least elements of a row for each work-item that shares it
_FEWEST = 8  # work-items that share a row: for fewer, waiting for each other costs what they gain
_GROUP = 64
_LONG = 256  # elements
_LANES = 4


class Rows(dlight.ScheduleRule):  # type: ignore[misc]
    """Reductions over the same rows, each of which may read the results of those before, and one result of all."""

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> s_tir.Schedule | None:  # noqa: ARG002, FBT001
        """Return the schedule; None for a kernel of another kind."""
        schedule = s_tir.Schedule(func)
        blocks = normalize_prim_func(schedule)
        if not blocks or not all(
            iterator.kind in "SR" and isinstance(iterator.dom, int) for block in blocks for iterator in block.iters
        ):
            return None
        try:
            kernel = _row_kernel(schedule, blocks)
            if kernel is None or not self.suits(schedule, kernel, _busy(target)):
                return None
            limit = min(_GROUP, schedules.max_threads(target))
            sharing = kernel.sharing(limit, _busy(target))
            if sharing > 1:
                _share_rows(schedule, kernel, sharing, limit // sharing)
            else:
                _one_item_a_row(schedule, kernel, target, vectors=not schedules.has_booleans(func))
        except s_tir.ScheduleError:
            return None
        return schedule

    def suits(self, schedule: s_tir.Schedule, kernel: _RowKernel, busy: int) -> bool:  # noqa: ARG002 - for rules that are more particular
        """Whether the rule is for a kernel, on a GPU that `busy` work-items keep at work."""
        return True


class LongRows(Rows):
    """The mean or the largest number of a whole image for each channel: few results of many numbers each."""

    def suits(self, schedule: s_tir.Schedule, kernel: _RowKernel, busy: int) -> bool:
        """Whether there are too few results for all cores, and nothing is read twice."""
        reads_once = all(len(schedule.get(reduction).reads) == 1 for reduction in kernel.reductions)
        return reads_once and kernel.rows < busy and kernel.length >= _LONG


def _busy(target: tvm.target.Target) -> int:
    return _ROUNDS * gpu.means(target).items


@dataclass(frozen=True)
class _RowKernel:
    """A kernel whose other blocks have been inlined.

    Attributes:
        reductions: Its reductions, in order.
        result: The block that is computed from them.
        row: The loop over all rows.
        across: The other loops of the result.
        rows: How many rows there are.
        length: How many elements are reduced to one, at most.
        beside: Whether rows lie beside each other in memory, and not behind each other.
    """

    reductions: tuple[Any, ...]
    result: Any
    row: Any
    across: tuple[Any, ...]
    rows: int
    length: int
    beside: bool

    def sharing(self, limit: int, busy: int) -> int:
        """Return how many work-items share a row, if `busy` of them keep all cores at work."""
        limit = min(limit, self.length // _SHARE)
        count = 1
        # Powers of two, which divide the sizes of most work-groups.
        while self.rows * count < busy and 2 * count <= limit:
            count *= 2
        return count if count >= _FEWEST else 1


def _row_kernel(schedule: s_tir.Schedule, blocks: Sequence[SBlockInfo]) -> _RowKernel | None:
    """Inline what is not a reduction, and order the loops of the result; None if the reductions have other rows."""
    reductions = [block for block in blocks if not block.is_injective()]
    if not reductions:
        return None
    for block in blocks[:-1]:
        if block.is_injective():
            schedule.compute_inline(block.block_rv)
    last = blocks[-1]
    result = last.block_rv if last.is_injective() else schedule.cache_write(last.block_rv, 0, "local")
    read = {index for each in reductions for index in _indices(schedule, each.block_rv, result)}
    loops = schedule.get_loops(result) or [schedule.add_unit_loop(result)]
    along = [loop for number, loop in enumerate(loops) if number in read]
    across = [loop for number, loop in enumerate(loops) if number not in read]
    rows = math.prod(_extent(schedule, loop) for loop in along)
    if any(_size(reduction, "S") != rows for reduction in reductions):
        return None
    row = schedule.add_unit_loop(loops[0]) if not along else along[0]
    schedule.reorder(*(along or [row]), *across)
    for each in reductions:
        ordered = list(zip(schedule.get_loops(each.block_rv), each.iters, strict=True))
        schedule.reorder(*(loop for kind in "SR" for loop, iterator in ordered if iterator.kind == kind))
    row = schedule.fuse(*along) if len(along) > 1 else row
    block_rvs = tuple(reduction.block_rv for reduction in reductions)
    length = max(_size(reduction, "R") for reduction in reductions)
    # Rows lie beside each other where the first reduction reads contiguously along its results.
    body = schedule.get(block_rvs[0])
    spatial = [iterator.var for iterator in body.iter_vars if iterator.iter_type == tirx.IterVar.DataPar]
    beside = not across and any(used_by(read.region[-1].min, spatial) for read in body.reads)
    return _RowKernel(block_rvs, result, row, tuple(across), rows, length, beside)


def _indices(schedule: s_tir.Schedule, reduction: Any, result: Any) -> set[int]:
    """Return the numbers of the loops of a result that choose the reduced element it reads."""
    buffers = [write.source for write in schedule.get(reduction).writes]
    body = schedule.get(result)
    numbers: set[int] = set()
    for read in body.reads:
        if any(read.source.same_as(buffer) for buffer in buffers):
            numbers.update(
                number for side in read.region for number in used_by(side.min, [each.var for each in body.iter_vars])
            )
    return numbers


def _size(block: SBlockInfo, kind: str) -> int:
    return math.prod(int(iterator.dom) for iterator in block.iters if iterator.kind == kind)


def _one_item_a_row(schedule: s_tir.Schedule, kernel: _RowKernel, target: tvm.target.Target, *, vectors: bool) -> None:
    """Give each row to a work-item."""
    items = schedules.bind(schedule, kernel.row, target)
    for block in reversed(kernel.reductions):
        _compute_at(schedule, block, items, "local")
        reduced = _reduction_loops(schedule, block)
        schedule.decompose_reduction(block, reduced[0])
    if vectors and kernel.across and _extent(schedule, kernel.across[-1]) % _LANES == 0:
        schedule.vectorize(schedule.split(kernel.across[-1], [None, _LANES])[-1])


def _share_rows(schedule: s_tir.Schedule, kernel: _RowKernel, count: int, most_rows: int) -> None:
    """Give each row to some work-items of a group, which take turns; a group has at most `most_rows` rows.

    No group reaches beyond the last row, as all of its work-items have to arrive at a barrier. Where work-items read
    what another one has written, a group has one row: with more, TVM does not have them wait for it.
    """
    single = bool(kernel.across) or len(kernel.reductions) > 1
    together = 1 if single else max(size for size in range(1, most_rows + 1) if kernel.rows % size == 0)
    groups, row = schedule.split(kernel.row, [None, together])
    of_rows, of_steps = ("threadIdx.x", "threadIdx.y") if kernel.beside else ("threadIdx.y", "threadIdx.x")
    schedule.bind(groups, "blockIdx.x")
    schedule.bind(row, of_rows)
    across = schedule.fuse(*kernel.across) if kernel.across else schedule.add_unit_loop(kernel.result)
    _take_turns(schedule, across, count, of_steps)
    for block in reversed(kernel.reductions):
        _compute_at(schedule, block, row, "shared")
        _take_turns(schedule, schedule.fuse(*_reduction_loops(schedule, block)), count, of_steps)


def _take_turns(schedule: s_tir.Schedule, loop: Any, count: int, axis: str) -> None:
    steps, item = schedule.split(loop, [None, count])
    schedule.reorder(item, steps)
    schedule.bind(item, axis)


def _compute_at(schedule: s_tir.Schedule, block: Any, loop: Any, scope: str) -> None:
    schedule.compute_at(block, loop, preserve_unit_loops=True)
    for number in range(len(schedule.get(block).writes)):
        schedule.set_scope(block, number, scope)


def _reduction_loops(schedule: s_tir.Schedule, block: Any) -> list[Any]:
    count = sum(iterator.iter_type == tirx.IterVar.CommReduce for iterator in schedule.get(block).iter_vars)
    return list(schedule.get_loops(block)[-count:])


def _extent(schedule: s_tir.Schedule, loop: Any) -> int:
    return int(schedule.get(loop).extent)
