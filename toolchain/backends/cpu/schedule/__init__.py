"""Kernels that no template covers: rules on TVM's schedules for whatever else a network consists of.

TVM's legalisation leaves serial loops over scalars. What is cheap is put into what uses it; then blocks that share
rows run row by row, reductions whose vectors lie across elements in tiles, and the rest one by one. Where a rule does
not fit, the cores share the blocks as they are; and where that fails too, a kernel stays as it is.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import tvm
from tvm import s_tir, tirx
from tvm.relax.analysis import has_reshape_pattern

from toolchain.backends.base import LAYER
from toolchain.backends.cpu.expr import UnsupportedError, constant
from toolchain.backends.cpu.machine import Machine, machine
from toolchain.backends.cpu.numerics import round_without_calls, start_at_infinity, with_nan
from toolchain.backends.cpu.schedule.axes import normalise_axes
from toolchain.backends.cpu.schedule.block import Block, inline
from toolchain.backends.cpu.schedule.elementwise import schedule_elementwise
from toolchain.backends.cpu.schedule.open_shapes import by_blocks
from toolchain.backends.cpu.schedule.rows import count_shared_rows, in_rows, with_lanes
from toolchain.backends.cpu.schedule.tails import expand_functions, without_edges
from toolchain.backends.cpu.schedule.tiles import in_tiles, vector_axis

_DONE = "tirx.is_scheduled"
_ONE_INPUT = 2  # buffers of a function with one input


def schedule(module: tvm.IRModule, target: tvm.target.Target, lanes: int) -> tvm.IRModule:
    """Schedule the kernels of a lowered Relax module that are not scheduled yet.

    Args:
        module: Relax module whose operators are calls of PrimFuncs.
        target: LLVM target.
        lanes: 32-bit floats in one vector register.
    """
    processor = replace(machine(target), lanes=lanes)
    changed: tvm.IRModule = module.clone()
    for name, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and _is_open(function):
            changed.update_func(name, schedule_kernel(function, processor))
    return changed


def _is_open(function: tirx.PrimFunc) -> bool:
    attributes = function.attrs or {}
    if LAYER in attributes or attributes.get(_DONE) or not isinstance(function.body, s_tir.SBlockRealize):
        return False
    if len(function.params) != _ONE_INPUT or not all(tirx.is_buffer_var(buffer) for buffer in function.params):
        return True
    # TVM replaces reshapes by views, but recognises only those that are not scheduled.
    shapes = [[constant(extent) for extent in buffer.shape] for buffer in function.params]
    sizes = {None if None in shape else prod(extent or 0 for extent in shape) for shape in shapes}
    return not ((len(sizes) == 1 or None in sizes) and has_reshape_pattern(function))


def schedule_kernel(function: tirx.PrimFunc, processor: Machine) -> tirx.PrimFunc:
    """Schedule one kernel.

    Args:
        function: Kernel of SBlocks.
        processor: What it is scheduled for.
    """
    try:
        result = _apply_rules(function, processor)
    except (UnsupportedError, RuntimeError, TypeError, ValueError):
        # TVM's own classes raise all of these: whatever a kernel is, it must not keep a network from being built.
        result = by_blocks(function, processor)
    if result is None:
        return start_at_infinity(function)
    result = round_without_calls(with_nan(start_at_infinity(result), processor), processor)
    return result.with_attr(_DONE, True)  # noqa: FBT003 - its signature


def _apply_rules(function: tirx.PrimFunc, processor: Machine) -> tirx.PrimFunc:
    """Schedule a kernel whose extents are known.

    Raises:
        UnsupportedError: It does more than fill buffers in loops; TVM's schedules raise their own errors then.
    """
    first = _schedule(function)
    inline(first)
    plain = normalise_axes(first.mod["main"])
    blocks = _blocks(_schedule(plain))
    reductions = [block for block in blocks if block.reduces]
    across = [block for block in reductions if vector_axis(block)]
    rows = count_shared_rows(blocks, processor)
    if rows is None and not across:  # rows for fewer cores
        rows = count_shared_rows(blocks, replace(processor, cores=1))
    if not reductions or rows is None or len(across) == len(reductions) == 1:
        ruled = _one_by_one(plain, blocks, processor)
    else:
        ruled = _schedule(with_lanes(plain, processor))
        in_rows(ruled, _blocks(ruled), rows, processor)
    return expand_functions(without_edges(ruled.mod["main"]))


def _one_by_one(function: tirx.PrimFunc, blocks: list[Block], processor: Machine) -> s_tir.Schedule:
    """Schedule each block of a kernel, together with what is computed from a reduction alone."""
    # Without an axis for vectors among its elements, a reduction has its vectors along what it sums.
    folded = [block.name for block in blocks if block.reduces and vector_axis(block) is None]
    ruled = _schedule(with_lanes(function, processor, folded))
    waiting = _blocks(ruled)
    while waiting:
        block = waiting.pop(0)
        if not block.reduces:
            schedule_elementwise(ruled, block, processor)
            continue
        epilogue = waiting.pop(0) if waiting and _is_epilogue(ruled, waiting[0], block) else None
        if block.name not in folded:
            in_tiles(ruled, block, epilogue, processor)
            continue
        in_rows(ruled, [block], block.lead, processor)
        if epilogue:
            schedule_elementwise(ruled, epilogue, processor)
    return ruled


def _is_epilogue(ruled: s_tir.Schedule, block: Block, reduction: Block) -> bool:
    """Whether a block computes one value of each that a reduction ends in."""
    is_only_use = len(ruled.get_consumers(reduction.rv)) == len(ruled.get_producers(block.rv)) == 1
    return is_only_use and not block.reduces and block.size == reduction.size


def _schedule(function: tirx.PrimFunc) -> s_tir.Schedule:
    return s_tir.Schedule(function, debug_mask="none", error_render_level="none")


def _blocks(ruled: s_tir.Schedule) -> list[Block]:
    return [Block.of(ruled, rv) for rv in ruled.get_child_blocks(ruled.get_sblock("root"))]
