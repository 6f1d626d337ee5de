"""Default schedules for few results of many products each, such as dense layers of one row: work-items share a result.

A work-item for each four results would leave most of a GPU idle, and walk through all products alone. So the work-items
of a group divide the products of the same results into slices, leave their sums in local memory, and add those up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight

from toolchain.backends.mali import gpu, schedules
from toolchain.backends.mali.layers import CHANNELS, LANES, Layer, UnsuitedError, divisor, extent_of, layer_of, used_by

_GROUP = 64
_LEAST = 16  # products of a slice
_OVERHEAD = 12.0  # cycles of a work-item besides its products: the barrier, indices, storing


class Split(dlight.ScheduleRule):  # type: ignore[misc]
    """Layers with so few results that it pays to divide their sums."""

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> s_tir.Schedule | None:  # noqa: ARG002, FBT001
        """Return the schedule; None for a kernel of another kind, or of enough results."""
        if schedules.has_booleans(func):
            return None
        try:
            layer = layer_of(func)
            division = _division(layer, target) if layer else None
            if layer is None or division is None:
                return None
            _schedule(layer, division)
        except (s_tir.ScheduleError, UnsuitedError):
            return None
        return layer.schedule


@dataclass(frozen=True)
class _Division:
    """How the work of a kernel is divided.

    Attributes:
        lanes: Neighbouring results whose slices a work-item sums up.
        across: Work-items of a group beside each other.
        count: Slices: work-items that share results.
    """

    lanes: int
    across: int
    count: int


def _division(layer: Layer, target: tvm.target.Target) -> _Division | None:
    """Return the division that takes the least time; None if that is a work-item for each result."""
    means = gpu.means(target)
    spans = [extent_of(layer.schedule, loop) for loop in layer.schedule.get_loops(layer.result)]
    other = layer.blocks.levels is not None or layer.blocks.sources  # bytes, or padding
    if other or len(_vector_arguments(layer)) != 1 or _products(layer) < 2 * _LEAST:
        return None
    lanes = divisor(spans[-1], LANES)
    if math.prod(spans) // lanes >= means.items:
        return None
    limit, step = min(_GROUP, schedules.max_threads(target)), int(target.attrs.get("thread_warp_size", 1))
    best = min(
        _choices(_products(layer), spans[-1] // lanes, lanes, limit),
        key=lambda choice: _cycles(choice, _products(layer), math.prod(spans) // lanes, means.cores, step),
    )
    return best if best.count > 1 else None


def _vector_arguments(layer: Layer) -> list[int]:
    """Return the numbers of the arguments that are contiguous along the products, and not along the results."""
    body, kinds = (
        layer.schedule.get(layer.blocks.reduction.block_rv),
        [iterator.kind for iterator in layer.blocks.reduction.iters],
    )
    used = [used_by(list(read.region)[-1].min, [iterator.var for iterator in body.iter_vars]) for read in body.reads]
    return [number for number, each in enumerate(used) if each and {kinds[index] for index in each} == {"R"}]


def _products(layer: Layer) -> int:
    return math.prod(int(iterator.dom) for iterator in layer.blocks.reduction.iters if iterator.kind == "R")


def _choices(products: int, results: int, lanes: int, limit: int) -> Iterator[_Division]:
    """List the divisions of products and results without a tail; results are counted in vectors."""
    counts = [count for count in range(1, limit + 1) if products % count == 0 and products // count >= _LEAST]
    for count in counts:
        fitting = (across for across in range(1, limit // count + 1) if results % across == 0)
        yield from (_Division(lanes, across, count) for across in fitting)


def _cycles(division: _Division, products: int, results: int, cores: int, step: int) -> float:
    """Estimate what the busiest core takes, in accesses of memory; `step` work-items of a group run in step."""
    share = products // division.count
    few = divisor(share, CHANNELS)
    loads = 1 if few in {1, LANES[0]} else few  # two or three are no vector
    item = share / few * (few + loads) + (division.count if division.count > 1 else 0) + _OVERHEAD
    # Work-items run in step: a group takes as long as one that is filled up to whole steps.
    groups = math.ceil(results / division.across / cores)
    items = math.ceil(division.across * division.count / step) * step
    return max(groups * items, gpu.ITEMS_A_CORE) * item


def _schedule(layer: Layer, division: _Division) -> None:
    schedule, main = layer.schedule, layer.blocks.reduction.block_rv
    (number,) = _vector_arguments(layer)
    kinds = [iterator.kind for iterator in layer.blocks.reduction.iters]
    loops = schedule.get_loops(main)
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    schedule.reorder(*(loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"), *reduced)
    slice_loop = schedule.split(schedule.fuse(*reduced), [division.count, None])[0]
    partial = schedule.rfactor(slice_loop, 0)
    stored = schedule.cache_write(partial, 0, "local")
    schedule.set_scope(stored, 0, "shared")
    group, item = _spread_results(layer, division)
    _add_slices(schedule, main, item)
    _sum_slice(schedule, partial, _spread_slices(schedule, stored, group, division))
    _in_vectors(schedule, partial, number)
    schedule.decompose_reduction(partial, schedule.get_loops(partial)[_STEPS])


def _spread_results(layer: Layer, division: _Division) -> tuple[Any, Any]:
    """Give the results of a group to the work-items with the first slices; returns the loops over both.

    A loop of one turn is bound to the other slices, so that they do nothing: no block reads its variable, and so no
    more is computed for the results than they need.
    """
    schedule = layer.schedule
    *rest, last = schedule.get_loops(layer.result)
    many, across, lanes = schedule.split(last, [None, division.across, division.lanes])
    group = schedule.fuse(*rest, many)
    only = schedule.split(schedule.add_unit_loop(across), [None, division.count])[1]
    schedule.bind(group, "blockIdx.x")
    schedule.bind(only, "threadIdx.y")
    schedule.bind(across, "threadIdx.x")
    schedule.vectorize(lanes)
    return group, across


def _add_slices(schedule: s_tir.Schedule, block: Any, item: Any) -> None:
    """Add up the slices of neighbouring results."""
    schedule.compute_at(block, item, preserve_unit_loops=True)
    schedule.set_scope(block, 0, "local")
    slice_loop, *results = schedule.get_loops(block)[-len(schedule.get(block).iter_vars) :]
    schedule.reorder(slice_loop, *results)
    schedule.vectorize(results[-1])
    schedule.decompose_reduction(block, slice_loop)


def _spread_slices(schedule: s_tir.Schedule, block: Any, group: Any, division: _Division) -> Any:
    """Spread the slices over a group, which leaves their sums in local memory; returns the loop over work-items."""
    schedule.compute_at(block, group, preserve_unit_loops=True)
    slice_loop, *rest = schedule.get_loops(block)[1:]
    across, lanes = schedule.split(schedule.fuse(*rest), [None, division.lanes])
    schedule.bind(slice_loop, "threadIdx.y")
    schedule.bind(across, "threadIdx.x")
    schedule.vectorize(lanes)
    return across


_STEPS = 4  # the number of the loop over the steps of a slice: after groups, slices, work-items and the single slice


def _sum_slice(schedule: s_tir.Schedule, block: Any, item: Any) -> None:
    """Sum up a slice in registers, for neighbouring results at once."""
    schedule.compute_at(block, item, preserve_unit_loops=True)
    schedule.set_scope(block, 0, "local")
    unit, *results, products = schedule.get_loops(block)[_STEPS - 1 :]
    lanes = schedule.fuse(*results)
    steps, few = schedule.split(products, [None, divisor(extent_of(schedule, products), CHANNELS)])
    schedule.reorder(unit, steps, few, lanes)
    schedule.unroll(few)
    schedule.vectorize(lanes)


def _in_vectors(schedule: s_tir.Schedule, block: Any, number: int) -> None:
    """Load at once the factors that all of the neighbouring results share."""
    loaded = schedule.cache_read(block, number, "local")
    schedule.compute_at(loaded, schedule.get_loops(block)[_STEPS], preserve_unit_loops=True)
    fused = schedule.fuse(*schedule.get_loops(loaded)[_STEPS + 1 :])
    lanes = divisor(extent_of(schedule, fused), LANES)
    schedule.vectorize(schedule.split(fused, [None, lanes])[-1])
