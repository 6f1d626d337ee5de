"""Default schedules for Mali GPUs, in the form of DLight's rules, for kernels that were not tuned.

A work-item computes a tile of its own: four neighbouring channels of some pixels, accumulated in registers, so that
each vector that is loaded is used several times. Local memory is not used: on Mali it is ordinary memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.analysis import normalize_prim_func

from toolchain.backends.mali import gpu
from toolchain.backends.mali.half.blocks import sum_in_blocks, sums_halves_in_single, sums_in_half
from toolchain.backends.mali.layers import CHANNELS, LANES, Layer, UnsuitedError, divisor, extent_of, is_plain, layer_of
from toolchain.backends.mali.rewrite import contains, map_kernels, substitute, variables_of
from toolchain.backends.mali.tiles import Loading, Plan, plans
from toolchain.errors import InputError

_GROUP = (16, 64)  # least and most work-items of a work-group
_SUMMED = 1  # how many vectors of registers fewer there are where kernels sum up in half precision
_CONVERTED = 3  # and where they read half precision and multiply in single: factors are held as both


class Tiles(dlight.ScheduleRule):  # type: ignore[misc]
    """One reduction with what comes before and after it: convolutions, dense layers, pooling."""

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> s_tir.Schedule | None:  # noqa: ARG002, FBT001
        """Return the schedule; None for a kernel of another kind."""
        if has_booleans(func):
            return None
        try:
            return _cheapest(func, target)
        except (s_tir.ScheduleError, UnsuitedError):
            return None


class Vectors(dlight.ScheduleRule):  # type: ignore[misc]
    """Kernels without a reduction: each work-item computes four neighbours, if there are four."""

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> s_tir.Schedule | None:  # noqa: ARG002, FBT001
        """Return the schedule; None for a kernel of another kind."""
        schedule = s_tir.Schedule(func)
        blocks = normalize_prim_func(schedule)
        if not blocks or not all(is_plain(block) and block.is_injective() for block in blocks):
            return None
        try:
            for block in dlight.try_inline(schedule, blocks):
                loops = schedule.get_loops(block.block_rv)
                lanes = divisor(extent_of(schedule, loops[-1]), LANES if not has_booleans(func) else (1,))
                outer, inner = schedule.split(schedule.fuse(*loops), [None, lanes])
                bind(schedule, outer, target)
                if lanes > 1:
                    schedule.vectorize(inner)
        except (s_tir.ScheduleError, UnsuitedError):
            return None
        return schedule


def remove_single_steps(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module in which reductions of a single element are plain assignments.

    TVM's schedules take them for elementwise kernels, and inline what follows into their initial value too.
    """
    return map_kernels(
        module,
        lambda _name, function: function.with_body(tvm_ffi.structural_map(function.body, (s_tir.SBlock, _single_step))),
    )


def _single_step(block: Any) -> Any:
    reduced = [iterator for iterator in block.iter_vars if iterator.iter_type == tirx.IterVar.CommReduce]
    ones = all(isinstance(iterator.dom.extent, tirx.IntImm) and int(iterator.dom.extent) == 1 for iterator in reduced)
    first, store = block.init, block.body
    if not isinstance(first, tirx.BufferStore) or not isinstance(store, tirx.BufferStore) or not ones:
        return block

    def initial(load: Any) -> Any:
        return first.value if load.source.same_as(store.buffer) else load

    value = tvm_ffi.structural_map(store.value, (tvm.ir.expr.TensorLoad, initial))
    plain = [tirx.IterVar(iterator.dom, iterator.var, tirx.IterVar.DataPar) for iterator in block.iter_vars]
    reads = [read for read in block.reads if not read.source.same_as(store.buffer)]
    body = tirx.BufferStore(store.buffer, value, store.indices)
    return s_tir.SBlock(plain, reads, block.writes, block.name_hint, body)


def has_booleans(function: tirx.PrimFunc) -> bool:
    """Whether a kernel reads, writes or computes booleans: in vectors of OpenCL, true is -1."""
    buffers = [*function.params]
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, lambda block: buffers.extend(block.alloc_buffers)))
    return any(str(buffer.dtype) == "bool" for buffer in buffers)


def bind(schedule: s_tir.Schedule, loop: Any, target: tvm.target.Target) -> Any:
    """Spread a loop over work-items; returns the loop over those of a work-group."""
    total = extent_of(schedule, loop)
    groups, items = schedule.split(loop, [None, _group_size(total, max_threads(target), gpu.means(target).groups)])
    schedule.bind(groups, "blockIdx.x")
    schedule.bind(items, "threadIdx.x")
    return items


def max_threads(target: tvm.target.Target) -> int:
    """Return how many work-items a work-group may have."""
    return int(target.attrs.get("max_threads_per_block", _GROUP[1]))


def _group_size(total: int, limit: int, groups: int) -> int:
    """Return how many work-items form a work-group: without a tail if possible, and with groups for all cores."""
    smallest, greatest = min(_GROUP[0], limit), min(_GROUP[1], limit)
    fitting = [size for size in range(smallest, greatest + 1) if total % size == 0]
    # Sizes that leave a group for each core come first.
    even = [size for size in fitting if total // size >= groups] or fitting[:1]
    if even:
        return max(even, key=lambda size: (size % 4 == 0, size))
    return min(total, greatest)


def require_thread_bindings(module: tvm.IRModule) -> None:
    """Refuse a module with a kernel that no rule has spread over work-items.

    The CPU would run it, on memory of the GPU.

    Args:
        module: Scheduled kernels.

    Raises:
        InputError: There is such a kernel, which the message names.
    """
    for name, function in module.functions_items():
        if not isinstance(function, tirx.PrimFunc):
            continue
        # Schedules bind loops; kernels that are written by hand have attributes instead.
        binds = contains(function.body, tirx.For, lambda loop: loop.thread_binding is not None)
        if not binds and not contains(function.body, tirx.AttrStmt, lambda node: node.attr_key == "thread_extent"):
            raise InputError(
                f"{name.name_hint} cannot be compiled for a GPU",
                details="its steps depend on each other, and the GPU compiler cannot keep their order",
                hint="deploy it on the CPU: a board of the same machine with the `cpu` backend",
            )


# --- tiles -----------------------------------------------------------------------------------------------------------


def _cheapest(func: tirx.PrimFunc, target: tvm.target.Target) -> s_tir.Schedule | None:
    """Return the cheapest schedule that a work-item has the registers for; None for a kernel of another kind."""
    layer = layer_of(func)
    if layer is None:
        return None
    impossible: set[Loading] = set()
    means = gpu.means(target)
    for plan in plans(layer, means):
        if plan.loading in impossible:
            continue
        try:
            candidate = _tiled(func, plan, target)
        except (s_tir.ScheduleError, UnsuitedError, tvm.error.InternalError):
            # Indices may depend on values that are read: no size of tile helps.
            impossible.add(plan.loading)
            continue
        rewritten = sum_in_blocks(candidate.mod)  # which adds accumulators in half precision
        # In two precisions, some vectors of registers hold a value twice.
        twice = _SUMMED if sums_in_half(rewritten["main"]) else 0
        twice = _CONVERTED if sums_halves_in_single(rewritten["main"]) else twice
        if registers(s_tir.Schedule(rewritten)) <= means.vectors - twice:
            return candidate
    return None


def _tiled(func: tirx.PrimFunc, plan: Plan, target: tvm.target.Target) -> s_tir.Schedule:
    layer = layer_of(func)
    if layer is None:
        raise UnsuitedError
    schedule, main = layer.schedule, layer.blocks.reduction.block_rv
    items = _spread(layer, plan, target)
    if layer.blocks.levels is not None:
        _join(layer)
    schedule.compute_at(main, items, preserve_unit_loops=True)
    schedule.set_scope(main, 0, "local")
    _accumulate(layer, plan, items)
    return s_tir.Schedule(_unguarded(schedule.mod))


def _spread(layer: Layer, plan: Plan, target: tvm.target.Target) -> Any:
    """Give each work-item a tile of the result; returns the loop over the work-items of a group."""
    schedule = layer.schedule
    loops = schedule.get_loops(layer.result)
    lanes = divisor(extent_of(schedule, loops[-1]), LANES) if layer.blocks.levels is None else 1
    outer, inner = [], []
    sizes = [1] * len(loops[:-3]) + [plan.rows, plan.columns, lanes][-len(loops) :]
    for loop, count in zip(loops, sizes, strict=True):
        first, second = schedule.split(loop, [None, count])
        outer.append(first)
        inner.append(second)
    items = _grid(schedule, outer, inner, target)
    for loop in inner[:-1]:
        schedule.unroll(loop)
    if lanes > 1:
        schedule.vectorize(inner[-1])
    return items


def _join(layer: Layer) -> None:
    """Compute the four values that an element of a result reads where it is written, as a vector."""
    assert layer.blocks.levels is not None  # noqa: S101 - the caller looked
    schedule, block = layer.schedule, layer.blocks.levels.block_rv
    schedule.compute_at(block, schedule.get_loops(layer.result)[-1], preserve_unit_loops=True)
    schedule.set_scope(block, 0, "local")
    schedule.vectorize(schedule.get_loops(block)[-1])


def _grid(schedule: s_tir.Schedule, outer: list[Any], inner: list[Any], target: tvm.target.Target) -> Any:
    """Spread loops over work-groups and work-items; returns the innermost loop over work-items.

    Each of the last three dimensions has its own index: one index for all, divided again, is beyond what TVM can prove.
    """
    total = math.prod(extent_of(schedule, loop) for loop in outer)
    enough = total >= gpu.means(target).groups * _GROUP[1]
    limit = min(_GROUP[1] if enough else _GROUP[0], max_threads(target))
    groups: list[Any] = []
    items: list[Any] = []
    # From the innermost dimension outwards, until the work-group is full.
    for loop in reversed(outer[-3:]):
        count = _share(extent_of(schedule, loop), limit, exact=bool(items))
        limit //= count
        first, second = schedule.split(loop, [None, count])
        groups.insert(0, first)
        items.insert(0, second)
    schedule.reorder(*outer[:-3], *groups, *items, *inner)
    rest = schedule.fuse(*outer[:-3], *groups[:-2]) if len(groups) > 2 else None  # noqa: PLR2004
    for axis, loop in zip("xyz", [*reversed(groups[-2:]), *([rest] if rest is not None else [])], strict=False):
        schedule.bind(loop, f"blockIdx.{axis}")
    for axis, loop in zip("xyz", reversed(items), strict=False):
        schedule.bind(loop, f"threadIdx.{axis}")
    return items[-1]


def _share(extent: int, limit: int, *, exact: bool) -> int:
    """Return how many work-items divide a dimension: without a tail, unless that leaves too few."""
    even = max(size for size in range(1, limit + 1) if extent % size == 0)
    return even if exact or 2 * even >= min(extent, _GROUP[0] // 2, limit) else limit


def _accumulate(layer: Layer, plan: Plan, items: Any) -> None:
    """Order the loops of a reduction within a work-item, and load into registers what its accumulators share."""
    schedule, main, reads = layer.schedule, layer.blocks.reduction.block_rv, layer.reads
    kinds = [iterator.kind for iterator in layer.blocks.reduction.iters]
    loops = schedule.get_loops(main)[-len(kinds) :]
    tile = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
    outer, inner = [loops[number] for number in reads.windows], []
    if reads.channel is not None:
        channel = loops[reads.channel]
        many, few = schedule.split(channel, [None, divisor(extent_of(schedule, channel), CHANNELS)])
        outer.append(many)
        inner.append(few)
    if plan.unrolls_window and reads.windows:
        window = loops[reads.windows[-1]]
        outer.remove(window)
        inner.insert(0, window)
    # Streamed, the pixels are the innermost loops but for the lanes, so that weights stay in registers.
    if plan.loading is Loading.STREAMED:
        schedule.reorder(*outer, *tile[:-1], *inner, tile[-1])
        _load(layer, tile[-2])
    else:
        schedule.reorder(*outer, *inner, *tile)
        _load(layer, outer[-1] if outer else items, staged=plan.loading is Loading.SHARED)
    for loop in [*inner, *tile[:-1]]:
        schedule.unroll(loop)
    if extent_of(schedule, tile[-1]) > 1:
        schedule.vectorize(tile[-1])
    schedule.decompose_reduction(main, (outer + inner)[0])


def _load(layer: Layer, loop: Any, *, staged: bool = True) -> None:
    """Load the staged arguments at a loop, and compute the others where they are used."""
    schedule, main, reads = layer.schedule, layer.blocks.reduction.block_rv, layer.reads
    padded = {schedule.get(source.block_rv).writes[0].source: source.block_rv for source in layer.blocks.sources}
    body = schedule.get(main)
    for number in reads.staged if staged else ():
        source = padded.pop(body.reads[number].source, None)
        block = source if source is not None else schedule.cache_read(main, number, "local")
        schedule.compute_at(block, loop, preserve_unit_loops=True)
        if source is not None:
            schedule.set_scope(block, 0, "local")
        _as_vectors(schedule, block, len(schedule.get_loops(main)) - _depth_below(schedule, main, loop))
    for source in padded.values():
        schedule.compute_inline(source)


def _as_vectors(schedule: s_tir.Schedule, block: Any, depth: int) -> None:
    """Unroll the loops of a block but for so many outer ones, and have the innermost load vectors."""
    loops = schedule.get_loops(block)[depth:]
    for loop in loops[:-1]:
        if extent_of(schedule, loop) > 1:
            schedule.unroll(loop)
    lanes = divisor(extent_of(schedule, loops[-1]), LANES)
    if lanes > 1:
        schedule.vectorize(schedule.split(loops[-1], [None, lanes])[-1])


def _depth_below(schedule: s_tir.Schedule, block: Any, loop: Any) -> int:
    """Count the loops of a block within one of them."""
    outer = schedule.get(loop)
    loops = [schedule.get(handle) for handle in schedule.get_loops(block)]
    (depth,) = [number for number, statement in enumerate(loops) if statement.loop_var.same_as(outer.loop_var)]
    return len(loops) - depth - 1


def _unguarded(module: tvm.IRModule) -> tvm.IRModule:
    """Let tiles that reach over an edge compute there too, instead of asking before each step; only stores ask.

    What is loaded from beyond the edge is 0.
    """
    function = module["main"]
    last: dict[Any, Any] = {}
    tvm_ffi.structural_walk(function.body, (tirx.For, lambda loop: last.update({loop.loop_var: loop.extent - 1})))
    body = tvm_ffi.structural_map(function.body, (s_tir.SBlockRealize, lambda realize: _without_guard(realize, last)))
    return tvm.IRModule({"main": function.with_body(body)})


def _without_guard(realize: Any, last: Mapping[Any, Any]) -> Any:
    block, guard = realize.block, realize.predicate
    is_local = {write.source.scope() for write in block.writes} == {"local"}
    if isinstance(guard, tirx.IntImm) or not is_local or not isinstance(block.body, tirx.BufferStore):
        return realize
    guarded = variables_of(guard)
    over = [
        iterator
        for iterator, value in zip(block.iter_vars, realize.iter_values, strict=True)
        if variables_of(value) & guarded
    ]
    reaching = {iterator.var for iterator in over}
    outside = [read for read in block.reads if read.source.scope() != "local"]
    risky = any(variables_of(side.min) & reaching for read in outside for side in read.region)
    store = block.body
    if risky and any(read.source.same_as(block.writes[0].source) for read in block.reads):
        return realize  # an accumulator that what is beyond the edge must not change
    if risky:
        inside = functools.reduce(tirx.all, [iterator.var < iterator.dom.extent for iterator in over])
        value = tirx.if_then_else(inside, store.value, tirx.const(0, str(store.value.ty.dtype)))
        store = tirx.BufferStore(store.buffer, value, store.indices)
    wider = [
        _widened(iterator, value, last) if iterator.var in reaching else iterator
        for iterator, value in zip(block.iter_vars, realize.iter_values, strict=True)
    ]
    free = s_tir.SBlock(wider, block.reads, block.writes, block.name_hint, store, annotations=block.annotations)
    return s_tir.SBlockRealize(realize.iter_values, tirx.const(1, "bool"), free)


def _widened(iterator: Any, value: Any, last: Mapping[Any, Any]) -> Any:
    """Return an iterator whose domain has all values that loops give it: TVM relies on the domain."""
    greatest = substitute(value, last)
    extent = sym.Analyzer().simplify(greatest + 1)
    return tirx.IterVar(tvm.ir.Range(0, extent), iterator.var, iterator.iter_type)


def registers(schedule: s_tir.Schedule) -> float:
    """Return how many vectors of four the local buffers of a kernel hold."""
    # A buffer is as large as the one that it was made from, until TVM compacts it to the part that is used.
    transform = s_tir.transform
    steps = [
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
        transform.CompactBufferAllocation(),
    ]
    compacted = tvm.transform.Sequential(steps)(schedule.mod)
    buffers: list[Any] = []
    tvm_ffi.structural_walk(compacted["main"].body, (s_tir.SBlock, lambda block: buffers.extend(block.alloc_buffers)))
    local = [buffer for buffer in buffers if buffer.scope() == "local"]
    return sum(math.prod(int(size) for size in buffer.shape) / LANES[0] for buffer in local)
