"""Kernels with one reduction, and how that reads: what a schedule by tiles of the result needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func

from toolchain.backends.mali.rewrite import contains

LANES = (4, 2, 1)
_GUARD = tvm.ir.Op.get("prim.if_then_else")
CHANNELS = (4, 3, 2, 1)
"""How many input channels a step reads at once."""


class UnsuitedError(Exception):
    """A loop has no constant extent."""


@dataclass(frozen=True)
class KernelBlocks:
    """The blocks of a kernel.

    Attributes:
        reduction: What accumulates.
        sources: Blocks before it, such as padding, in order.
        result: The block after it, which writes the kernel's result; None if the reduction does.
        levels: The block before that, if each element of the result reads four neighbours of it.
    """

    reduction: SBlockInfo
    sources: tuple[SBlockInfo, ...]
    result: SBlockInfo | None
    levels: SBlockInfo | None = None


@dataclass(frozen=True)
class Reads:
    """How a reduction reads its arguments.

    Attributes:
        channel: The reduced iterator along which an argument is contiguous, such as the input channels; None if there
            is none.
        windows: The other ones, the innermost last.
        staged: Numbers of the arguments that several accumulators use, or that are contiguous along `channel`.
        is_batched: Whether the last dimension but two of what it returns numbers products that share nothing.
    """

    channel: int | None
    windows: tuple[int, ...]
    staged: tuple[int, ...]
    is_batched: bool = False


@dataclass(frozen=True)
class Layer:
    """A kernel with one reduction, prepared for its tiles.

    Attributes:
        schedule: Its schedule so far.
        blocks: Its blocks.
        reads: How the reduction reads.
        result: The block whose loops are spread over work-items.
    """

    schedule: s_tir.Schedule
    blocks: KernelBlocks
    reads: Reads
    result: Any


def layer_of(func: tirx.PrimFunc) -> Layer | None:
    """Look at a kernel; None for one of another kind."""
    schedule = s_tir.Schedule(func)
    blocks = _blocks_of(schedule)
    reads = _reads(schedule, blocks.reduction) if blocks else None
    if blocks is None or reads is None:
        return None
    main = blocks.reduction.block_rv
    result = blocks.result.block_rv if blocks.result else schedule.cache_write(main, 0, "local")
    return Layer(schedule, blocks, reads, result)


def _blocks_of(schedule: s_tir.Schedule) -> KernelBlocks | None:
    """Find the only reduction of a kernel, and inline what goes before and after; None for another kind of kernel."""
    blocks = normalize_prim_func(schedule)
    if not blocks or not all(is_plain(block) for block in blocks):
        return None
    reductions = [number for number, block in enumerate(blocks) if not block.is_injective()]
    if len(reductions) != 1 or len(schedule.get(blocks[reductions[0]].block_rv).writes) != 1:
        return None
    index = reductions[0]
    if _is_guarded(schedule.get(blocks[index].block_rv)):
        return None
    before, after = blocks[:index], blocks[index + 1 :]
    levels = after[-2] if len(after) > 1 and _joins(schedule.get(after[-1].block_rv)) else None
    for block in before[:-1] + after[:-1]:
        if block is not levels:
            schedule.compute_inline(block.block_rv)
    return KernelBlocks(blocks[index], tuple(before[-1:]), after[-1] if after else None, levels)


def _joins(block: Any) -> bool:
    """Whether each element of a result reads four neighbours: kernels on bytes put them into an int32."""
    last = [list(read.region)[-1].extent for read in block.reads if len(read.region)]
    return len(last) == 1 and isinstance(last[0], tirx.IntImm) and int(last[0]) == LANES[0]


def _is_guarded(block: Any) -> bool:
    """Whether a block reads under a condition: staged, it would read without, even beyond a tensor's ends."""
    return contains(block.body, tvm.ir.Call, lambda call: isinstance(call.op, tvm.ir.Op) and call.op.same_as(_GUARD))


def _reads(schedule: s_tir.Schedule, block: SBlockInfo) -> Reads | None:
    """Say how a reduction reads; None if none of its arguments is contiguous along its result."""
    body = schedule.get(block.block_rv)
    variables = [iterator.var for iterator in body.iter_vars]
    spatial = [number for number, iterator in enumerate(block.iters) if iterator.kind == "S"]
    reduced = [number for number, iterator in enumerate(block.iters) if iterator.kind == "R"]
    if not spatial:
        return None
    vector, channel, staged, contiguous = spatial[-1], None, [], False
    regions = [[used_by(side.min, variables) for side in read.region] for read in body.reads]
    # Matrices that are multiplied in pairs: each index but the last two chooses a pair.
    pairs = {
        axis
        for axis in spatial[:-2]
        if len(regions) > 1 and all(axis in set.union(*region) for region in regions if region)
    }
    for number, used in enumerate(regions):
        along = used[-1] if used else set()
        contiguous = contiguous or vector in along
        if along & set(reduced) and vector not in along:
            channel = max(along & set(reduced))
        if set.union(set(), *used) & (set(spatial[:-1]) - pairs) or vector not in along:
            staged.append(number)
    if not contiguous:
        return None
    windows = tuple(axis for axis in reduced if axis != channel)
    return Reads(channel, windows, tuple(staged), bool(pairs & set(spatial[-3:])))


def used_by(expression: Any, variables: Sequence[Any]) -> set[int]:
    """Number the variables that an index depends on."""
    numbers: set[int] = set()

    def visit(node: Any) -> None:
        numbers.update(number for number, variable in enumerate(variables) if variable.same_as(node))

    tvm_ffi.structural_walk(expression, (tirx.Var, visit))
    return numbers


def is_plain(block: SBlockInfo) -> bool:
    """Whether a block is a nest of loops of known extents."""
    return bool(block.iters) and all(
        iterator.kind in "SR" and isinstance(iterator.dom, int) for iterator in block.iters
    )


def extent_of(schedule: s_tir.Schedule, loop: Any) -> int:
    """Return how often a loop runs.

    Raises:
        UnsuitedError: That is not constant.
    """
    extent = schedule.get(loop).extent
    if not isinstance(extent, tirx.IntImm):
        raise UnsuitedError
    return int(extent)


def divisor(extent: int, candidates: Sequence[int]) -> int:
    """Return the first of some candidates that divides a number; the last has to."""
    return next(candidate for candidate in candidates if extent % candidate == 0)
