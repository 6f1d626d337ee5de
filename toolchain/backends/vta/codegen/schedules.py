"""Where a VTA kernel computes what: tiles, the SRAM that each tensor passes, and the order of tiles."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule

from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.codegen.operators import operator
from toolchain.backends.vta.codegen.tilings import Choice, Tiling
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import Memory

SCOPES = {"local.inp_buffer": Memory.INP, "local.wgt_buffer": Memory.WGT, "local.acc_buffer": Memory.ACC}
"""The SRAM behind each storage scope."""

_INP, _WGT, _ACC = SCOPES
_TILE_AXES = 4  # image, channels, row, column
_AXES = _TILE_AXES + 2  # and those of an element


def schedule_kernel(layer: Conv2d, choice: Choice, config: VtaConfig = DEFAULT) -> Schedule:
    """Return the schedule of a layer's kernel.

    The accumulators, whatever they are called on their way through the ALU, are computed within one tile of y.
    """
    schedule = Schedule(operator(layer, config), debug_mask="none", enable_check=False)
    if layer.residual_shift is not None:
        schedule.fuse_reduction_epilogue("conv", "sum")
    caches = _caches(schedule, layer)
    tile_loop = _tile_output(schedule, Tiling(layer, choice, config))
    # From the inside out: each block of the accumulators comes after those that read it.
    names = [name for name in _computed(schedule) if name not in ("window", "conv") and "local." not in name]
    start = [name for name in ("lift", "identity") if name in names]
    for name in [*(name for name in reversed(names) if name not in start), "conv", *start]:
        schedule.compute_at(name, tile_loop, preserve_unit_loops=True)
    for cached in caches:
        schedule.compute_at(cached, tile_loop, preserve_unit_loops=True)
    _reduce(schedule, choice)
    if layer.residual_shift is not None:
        schedule.decompose_reduction("identity", schedule.get_loops("identity")[_TILE_AXES])
    return schedule


def _caches(schedule: Schedule, layer: Conv2d) -> list[Any]:
    """Put all tensors into their SRAM; return the loads that belong to a tile of y."""
    for name in _computed(schedule):
        schedule.set_scope(name, 0, _INP if name == "window" else _ACC)
    caches = []
    if layer.bias:
        caches.append(schedule.cache_read("bias_add", 1, _ACC))
    if layer.channel_shifts:
        caches.append(schedule.cache_read("channel_shift", 1, _ACC))
    if layer.residual_shift is not None:
        caches.append(schedule.cache_read("identity", 0, _INP))
        schedule.cache_read("identity", 1, _WGT)
    return caches


def _computed(schedule: Schedule) -> list[str]:
    """Return the names of the blocks before the last, in the order of the computation."""
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    return [schedule.get(block).name_hint for block in blocks][:-1]


def _tile_output(schedule: Schedule, tiling: Tiling) -> Any:
    """Cut y into tiles; return the innermost loop over them."""
    choice = tiling.choice
    extents = (choice.tile_b, choice.tile_co, choice.tile_h, choice.tile_w)
    loops = schedule.get_loops("y")[:_TILE_AXES]
    pairs = [schedule.split(loop, [None, extent]) for loop, extent in zip(loops, extents, strict=True)]
    image, channels, row, column = (outer for outer, _ in pairs)
    # The outermost loop decides which tiles stay in SRAM the longest.
    order = (channels, image, row, column) if tiling.weights_first else (image, row, column, channels)
    schedule.reorder(*order, *(inner for _, inner in pairs))
    return order[-1]


def _reduce(schedule: Schedule, choice: Choice) -> None:
    """Cut the sums along the channels of x, and load inputs and weights for each part."""
    loops = schedule.get_loops("conv")[_TILE_AXES:]
    tile, blocks, rest = loops[:_AXES], loops[_AXES], loops[_AXES + 1 :]
    outer, inner = schedule.split(blocks, [None, choice.tile_ci])
    schedule.reorder(outer, *tile, inner, *rest)
    # cache_read takes the index of a tensor among those that the block reads.
    reads = schedule.get(schedule.get_sblock("conv")).reads
    index = next(index for index, region in enumerate(reads) if region.source.name == "w")
    weights = schedule.cache_read("conv", index, _WGT)
    schedule.compute_at("window", outer, preserve_unit_loops=True)
    schedule.compute_at(weights, outer, preserve_unit_loops=True)
    # The reset of the sums comes before the first load of weights.
    schedule.decompose_reduction("conv", outer)
