"""The schedule of the kernel that transforms the products of a Winograd convolution, and does what follows it.

A work-item computes some rows of a tile of results, of four channels: so many that they stay in registers.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx

from toolchain.backends.mali import scripted
from toolchain.backends.mali.layers import extent_of
from toolchain.backends.mali.rewrite import contains
from toolchain.backends.mali.winograd.products import COLUMNS, RESULTS
from toolchain.backends.mali.winograd.tiling import LANES

_GROUP = 64  # most work-items of a work-group
_ROWS = {2: 2, 4: 1}
"""Rows of a tile that a work-item computes, by the size of tiles: two of four pixels each would be spilled."""


def schedule_outputs(module: tvm.IRModule) -> tvm.IRModule:
    """Return a lowered Relax module whose transforms of products are scheduled; there is nothing to search for."""
    changed = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and contains(
            function.body, s_tir.SBlock, lambda block: str(block.name_hint) == RESULTS
        ):
            changed.update_func(variable, _schedule(function).with_attrs({"tirx.is_scheduled": True}))
    return changed


def _schedule(function: tirx.PrimFunc) -> tirx.PrimFunc:
    schedule = s_tir.Schedule(function)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    names = {str(schedule.get(block).name_hint): block for block in blocks}
    columns, results = names.pop(COLUMNS), names.pop(RESULTS)
    *before, last = names.values()
    for block in before:
        schedule.compute_inline(block)
    size = extent_of(schedule, schedule.get_loops(results)[3])
    items = _spread(schedule, last, size)
    schedule.compute_at(results, items, preserve_unit_loops=True)
    *tile, component = schedule.get_loops(results)[-7:]
    schedule.reorder(component, *tile)
    schedule.compute_at(columns, component, preserve_unit_loops=True)
    for block in (columns, results):
        schedule.set_scope(block, 0, "local")
        *outer, lanes = schedule.get_loops(block)[-6:]
        for loop in outer:
            schedule.unroll(loop)
        schedule.vectorize(lanes)
    schedule.unroll(component)
    schedule.decompose_reduction(results, component)
    return schedule.mod["main"]


def _spread(schedule: s_tir.Schedule, block: Any, size: int) -> Any:
    """Give each work-item its part of a tile; returns the loop over the work-items of a group."""
    images, height, width, channels = schedule.get_loops(block)
    down, row_group, row = schedule.split(height, [None, size // _ROWS[size], _ROWS[size]])
    across, column = schedule.split(width, [None, size])
    blocks, lanes = schedule.split(channels, [None, LANES])
    deep = scripted.largest_divisor(extent_of(schedule, blocks), _GROUP // 4)
    wide = scripted.largest_divisor(extent_of(schedule, across), _GROUP // deep)
    across, tiles = schedule.split(across, [None, wide])
    blocks, items = schedule.split(blocks, [None, deep])
    schedule.reorder(images, down, row_group, across, blocks, tiles, items, row, column, lanes)
    schedule.bind(schedule.fuse(images, down, row_group), "blockIdx.z")
    for loop, axis in ((across, "blockIdx.y"), (blocks, "blockIdx.x"), (tiles, "threadIdx.y"), (items, "threadIdx.x")):
        schedule.bind(loop, axis)
    schedule.unroll(row)
    schedule.unroll(column)
    schedule.vectorize(lanes)
    return items
