"""Default schedules for Mali GPUs, in the form of DLight's rules: what a kernel gets that was not tuned.

A work-item computes a tile of its own: four neighbouring channels of some pixels, accumulated in registers, so that
each vector that is loaded is used several times. There is no local memory in it: on Mali it is ordinary memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func

_LANES = (4, 2, 1)
_CHANNELS = (4, 3, 2, 1)  # how many input channels are taken at once
_GROUP = (16, 64)  # least and most work-items of a work-group
_MOST_TILE = 6  # pixels
_MOST_STATEMENTS = 96  # vector operations of the innermost, unrolled part
_MOST_REGISTERS = 11  # vectors of four in all local buffers, of 16: the others are for weights and addresses
_WINDOW = 7  # the widest window that is unrolled
_TAIL = 1.15  # cost of a tile that reaches over the edge


class _UnsuitedError(Exception):
    """A loop has no constant extent."""


class Tiles(dlight.ScheduleRule):  # type: ignore[misc]
    """One reduction with what comes before and after it: convolutions, dense layers, pooling."""

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> s_tir.Schedule | None:  # noqa: ARG002, FBT001
        """Return the schedule; None for a kernel of another kind."""
        if has_truths(func):
            return None
        try:
            return _cheapest(func, target)
        except (s_tir.ScheduleError, _UnsuitedError):
            return None


class Vectors(dlight.ScheduleRule):  # type: ignore[misc]
    """Kernels without a reduction: each work-item computes four neighbours, if there are four."""

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> s_tir.Schedule | None:  # noqa: ARG002, FBT001
        """Return the schedule; None for a kernel of another kind."""
        schedule = s_tir.Schedule(func)
        blocks = normalize_prim_func(schedule)
        if not blocks or not all(_is_plain(one) and one.is_injective() for one in blocks):
            return None
        try:
            for block in dlight.try_inline(schedule, blocks):
                _vectors(schedule, block.block_rv, target, _LANES if not has_truths(func) else (1,))
        except (s_tir.ScheduleError, _UnsuitedError):
            return None
        return schedule


def without_single_steps(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module in which what sums one element only is no sum any more.

    TVM's schedules take it for one step of an elementwise kernel, and inline what follows into its first value too.
    """

    def changed(function: Any) -> Any:
        if not isinstance(function, tirx.PrimFunc):
            return function
        return function.with_body(tvm_ffi.structural_map(function.body, (s_tir.SBlock, _single_step)))

    functions = {name: changed(one) for name, one in module.functions_items()}
    return tvm.IRModule(functions, module.attrs, module.global_infos)


def _single_step(block: Any) -> Any:
    reduced = [one for one in block.iter_vars if one.iter_type == tirx.IterVar.CommReduce]
    ones = all(isinstance(one.dom.extent, tirx.IntImm) and int(one.dom.extent) == 1 for one in reduced)
    first, store = block.init, block.body
    if not isinstance(first, tirx.BufferStore) or not isinstance(store, tirx.BufferStore) or not ones:
        return block

    def started(load: Any) -> Any:
        return first.value if load.source.same_as(store.buffer) else load

    value = tvm_ffi.structural_map(store.value, (tvm.ir.expr.TensorLoad, started))
    plain = [tirx.IterVar(one.dom, one.var, tirx.IterVar.DataPar) for one in block.iter_vars]
    reads = [one for one in block.reads if not one.source.same_as(store.buffer)]
    body = tirx.BufferStore(store.buffer, value, store.indices)
    return s_tir.SBlock(plain, reads, block.writes, block.name_hint, body)


def _is_plain(block: SBlockInfo) -> bool:
    """Whether a block is a nest of loops of known extents."""
    return bool(block.iters) and all(one.kind in "SR" and isinstance(one.dom, int) for one in block.iters)


def has_truths(function: tirx.PrimFunc) -> bool:
    """Whether a kernel reads, writes or computes truth values: in vectors of OpenCL, true is -1."""
    found = [str(one.dtype) == "bool" for one in function.params]

    def visit(block: Any) -> None:
        found.extend(str(one.dtype) == "bool" for one in block.alloc_buffers)

    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, visit))
    return any(found)


def _vectors(schedule: s_tir.Schedule, block: Any, target: tvm.target.Target, choice: Sequence[int]) -> None:
    loops = schedule.get_loops(block)
    lanes = _divisor(_extent(schedule, loops[-1]), choice)
    outer, inner = schedule.split(schedule.fuse(*loops), [None, lanes])
    bind(schedule, outer, target)
    if lanes > 1:
        schedule.vectorize(inner)


def bind(schedule: s_tir.Schedule, loop: Any, target: tvm.target.Target) -> Any:
    """Spread a loop over work-items; returns the loop over those of a work-group."""
    total = _extent(schedule, loop)
    groups, items = schedule.split(loop, [None, _group_size(total, most_threads(target))])
    schedule.bind(groups, "blockIdx.x")
    schedule.bind(items, "threadIdx.x")
    return items


def most_threads(target: tvm.target.Target) -> int:
    """Return how many work-items a work-group may have."""
    return int(target.attrs.get("max_threads_per_block", _GROUP[1]))


def _group_size(total: int, most: int) -> int:
    """Return how many work-items form a work-group: without a tail if possible, and with groups for all cores."""
    least, greatest = min(_GROUP[0], most), min(_GROUP[1], most)
    fitting = [size for size in range(least, greatest + 1) if total % size == 0]
    whole = [size for size in fitting if total // size >= _GROUP[0]] or fitting[:1]
    if whole:
        return max(whole, key=lambda size: (size % 4 == 0, size))
    return min(total, greatest)


# --- tiles -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """The blocks of a kernel.

    Attributes:
        reduction: What accumulates.
        sources: Blocks before it, such as padding, in order.
        result: The block after it, which writes what the kernel returns; None if the reduction does.
    """

    reduction: SBlockInfo
    sources: tuple[SBlockInfo, ...]
    result: SBlockInfo | None


@dataclass(frozen=True)
class _Reads:
    """How a reduction reads its arguments.

    Attributes:
        channel: The reduced iterator along which an argument is contiguous, such as the input channels; None if there
            is none.
        windows: The other ones, the innermost last.
        staged: Numbers of the arguments that several accumulators use, or that are contiguous along `channel`.
    """

    channel: int | None
    windows: tuple[int, ...]
    staged: tuple[int, ...]


@dataclass(frozen=True)
class _Layer:
    """A kernel with one reduction, prepared for its tiles.

    Attributes:
        schedule: Its schedule so far.
        parts: The blocks.
        reads: How the reduction reads.
        result: The block whose loops are spread over work-items.
    """

    schedule: s_tir.Schedule
    parts: _Part
    reads: _Reads
    result: Any


def _cheapest(func: tirx.PrimFunc, target: tvm.target.Target) -> s_tir.Schedule | None:
    """Return the cheapest schedule that a work-item has the registers for; None for a kernel of another kind."""
    layer = _layer(func)
    if layer is None:
        return None
    sizes = _sizes(layer)
    for staged in (True, False):
        for size in sizes:
            try:
                found = _tiled(func, size, target, staged=staged)
            except (s_tir.ScheduleError, _UnsuitedError, tvm.error.InternalError):
                break  # what is staged cannot be, whatever the size: where it is read may depend on what is read
            if registers(found) <= _MOST_REGISTERS:
                return found
    return None


def _layer(func: tirx.PrimFunc) -> _Layer | None:
    schedule = s_tir.Schedule(func)
    parts = _parts(schedule)
    reads = _reads(schedule, parts.reduction) if parts else None
    if parts is None or reads is None:
        return None
    main = parts.reduction.block_rv
    result = parts.result.block_rv if parts.result else schedule.cache_write(main, 0, "local")
    return _Layer(schedule, parts, reads, result)


def _tiled(func: tirx.PrimFunc, size: tuple[int, int], target: tvm.target.Target, *, staged: bool) -> s_tir.Schedule:
    layer = _layer(func)
    if layer is None:
        raise _UnsuitedError
    schedule, main = layer.schedule, layer.parts.reduction.block_rv
    items = _spread(layer, size, target)
    schedule.compute_at(main, items, preserve_unit_loops=True)
    schedule.set_scope(main, 0, "local")
    _accumulate(schedule, main, layer.parts, layer.reads, items, staged=staged)
    return s_tir.Schedule(_unguarded(schedule.mod))


def _parts(schedule: s_tir.Schedule) -> _Part | None:
    """Find the only reduction of a kernel, and inline what goes before and after; None if it is not so made."""
    blocks = normalize_prim_func(schedule)
    if not blocks or not all(_is_plain(one) for one in blocks):
        return None
    reductions = [number for number, one in enumerate(blocks) if not one.is_injective()]
    if len(reductions) != 1 or len(schedule.get(blocks[reductions[0]].block_rv).writes) != 1:
        return None
    place = reductions[0]
    before, after = blocks[:place], blocks[place + 1 :]
    for block in before[:-1] + after[:-1]:
        schedule.compute_inline(block.block_rv)
    return _Part(blocks[place], tuple(before[-1:]), after[-1] if after else None)


def _reads(schedule: s_tir.Schedule, block: SBlockInfo) -> _Reads | None:
    """Say how a reduction reads; None if nothing it reads is contiguous along what it returns."""
    body = schedule.get(block.block_rv)
    variables = [one.var for one in body.iter_vars]
    spatial = [number for number, one in enumerate(block.iters) if one.kind == "S"]
    reduced = [number for number, one in enumerate(block.iters) if one.kind == "R"]
    if not spatial:
        return None
    vector, channel, staged, contiguous = spatial[-1], None, [], False
    for number, read in enumerate(body.reads):
        used = [_used(one.min, variables) for one in read.region]
        along = used[-1] if used else set()
        contiguous = contiguous or vector in along
        if along & set(reduced) and vector not in along:
            channel = max(along & set(reduced))
        if set.union(set(), *used) & set(spatial[:-1]) or vector not in along:
            staged.append(number)
    if not contiguous:
        return None
    windows = tuple(one for one in reduced if one != channel)
    return _Reads(channel, windows, tuple(staged))


def _used(expression: Any, variables: Sequence[Any]) -> set[int]:
    """Number the variables that an index depends on."""
    found: set[int] = set()

    def visit(node: Any) -> None:
        found.update(number for number, one in enumerate(variables) if one.same_as(node))

    tvm_ffi.structural_walk(expression, (tirx.Var, visit))
    return found


def _sizes(layer: _Layer) -> list[tuple[int, int]]:
    """Return how many rows and columns a work-item may compute, the cheapest first."""
    extents = [_extent(layer.schedule, one) for one in layer.schedule.get_loops(layer.result)]
    height, width = ([1, 1, *extents[:-1]])[-2:]
    kinds = layer.parts.reduction.iters
    if not layer.reads.staged or len(kinds) < 2:  # noqa: PLR2004 - nothing to share
        return [(1, 1)]
    sizes = [(down, across) for down in (1, 2, 4) for across in range(1, _MOST_TILE + 1) if down * across <= _MOST_TILE]
    loads = _Loads.of(layer)

    def cost(size: tuple[int, int]) -> float:
        down, across = size
        tiles = math.ceil(height / down) * math.ceil(width / across)
        tail = _TAIL if height % down or width % across else 1.0
        return tiles * tail * loads.of_tile(down, across)

    return sorted(((down, across) for down, across in sizes if down <= height and across <= width), key=cost)


@dataclass(frozen=True)
class _Loads:
    """How many vectors one step of a reduction loads: what costs the most on these GPUs.

    Attributes:
        weights: Vectors of weights, or of whatever the pixels of a tile share.
        windows: Down and across, how far a pixel sees in one step.
        strides: Down and across, how far its neighbour sees further on.
        steps: How many steps there are.
    """

    weights: int
    windows: tuple[int, int]
    strides: tuple[int, int]
    steps: int

    @staticmethod
    def of(layer: _Layer) -> _Loads:
        """Look at the reduction of a layer."""
        iters, reads = layer.parts.reduction.iters, layer.reads
        extents = [int(one.dom) for one in iters]
        few = _divisor(extents[reads.channel], _CHANNELS) if reads.channel is not None else 1
        across = extents[reads.windows[-1]] if reads.windows else 1
        unrolled = across if across <= _WINDOW else 1
        total = math.prod(extent for extent, one in zip(extents, iters, strict=True) if one.kind == "R")
        return _Loads(few * unrolled, (1, unrolled), _strides(layer), max(total // (few * unrolled), 1))

    def of_tile(self, down: int, across: int) -> float:
        """Count the vectors that a tile loads and stores in all."""
        seen = [
            (count - 1) * stride + window
            for count, stride, window in zip((down, across), self.strides, self.windows, strict=True)
        ]
        return self.steps * (self.weights + math.prod(seen)) + 2 * down * across


def _strides(layer: _Layer) -> tuple[int, int]:
    """Return how far apart neighbours of a result are in what is staged: down and across."""
    block = layer.schedule.get(layer.parts.reduction.block_rv)
    spatial = [
        one.var for one, known in zip(block.iter_vars, layer.parts.reduction.iters, strict=True) if known.kind == "S"
    ]
    staged = [side.min for number in layer.reads.staged for side in block.reads[number].region]
    return (_stride(staged, spatial[-3:-2]), _stride(staged, spatial[-2:-1]))


def _stride(places: Sequence[Any], variable: Sequence[Any]) -> int:
    """Return how much the places grow where a variable grows by one; 1 if that is not a constant."""
    analyzer, found = sym.Analyzer(), 1
    for one in variable:
        for place in places:
            grown = tvm_ffi.structural_map(
                place, (tirx.Var, lambda known, one=one: one + 1 if known.same_as(one) else known)
            )
            difference = analyzer.simplify(grown - place)
            found = max(found, int(difference)) if isinstance(difference, tirx.IntImm) else found
    return found


def _spread(layer: _Layer, size: tuple[int, int], target: tvm.target.Target) -> Any:
    """Give each work-item a tile of the result; returns the loop over the work-items of a group."""
    schedule = layer.schedule
    loops = schedule.get_loops(layer.result)
    lanes = _divisor(_extent(schedule, loops[-1]), _LANES)
    outer, inner = [], []
    sizes = [1] * len(loops[:-3]) + [*size, lanes][-len(loops) :]
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


def _grid(schedule: s_tir.Schedule, outer: list[Any], inner: list[Any], target: tvm.target.Target) -> Any:
    """Spread loops over work-groups and work-items; returns the innermost loop over work-items.

    Each of the last three dimensions has its own index: one index for all, divided again, is beyond what TVM can prove.
    """
    total = math.prod(_extent(schedule, one) for one in outer)
    most = min(_GROUP[1] if total >= _GROUP[0] * _GROUP[1] else _GROUP[0], most_threads(target))
    groups: list[Any] = []
    items: list[Any] = []
    for loop in reversed(outer[-3:]):
        count = _share(_extent(schedule, loop), most, exact=bool(items))
        most //= count
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


def _share(extent: int, most: int, *, exact: bool) -> int:
    """Return how many work-items take turns along a dimension: without a tail, unless that leaves too few."""
    whole = max(size for size in range(1, most + 1) if extent % size == 0)
    return whole if exact or 2 * whole >= min(extent, _GROUP[0] // 2, most) else most


def _accumulate(  # noqa: PLR0913 - the schedule, and what is known of the kernel
    schedule: s_tir.Schedule, main: Any, parts: _Part, reads: _Reads, items: Any, *, staged: bool
) -> None:
    """Order the loops of a reduction within a work-item, and load what its accumulators share into registers."""
    kinds = [one.kind for one in parts.reduction.iters]
    loops = schedule.get_loops(main)[-len(kinds) :]
    tile = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
    outer, inner = [loops[number] for number in reads.windows], []
    size = math.prod(_extent(schedule, one) for one in tile[:-1])
    if reads.channel is not None:
        channel = loops[reads.channel]
        many, few = schedule.split(channel, [None, _divisor(_extent(schedule, channel), _CHANNELS)])
        outer.append(many)
        inner.append(few)
        size *= _extent(schedule, few)
    if reads.windows:
        window = loops[reads.windows[-1]]
        extent = _extent(schedule, window)
        if extent <= _WINDOW and extent * size <= _MOST_STATEMENTS:
            outer.remove(window)
            inner.insert(0, window)
    schedule.reorder(*outer, *inner, *tile)
    place = outer[-1] if outer else items
    _load(schedule, main, parts, reads, place, staged=staged)
    for loop in [*inner, *tile[:-1]]:
        schedule.unroll(loop)
    if _extent(schedule, tile[-1]) > 1:
        schedule.vectorize(tile[-1])
    schedule.decompose_reduction(main, (outer + inner)[0])


def _load(  # noqa: PLR0913 - the schedule, and what is known of the kernel
    schedule: s_tir.Schedule, main: Any, parts: _Part, reads: _Reads, place: Any, *, staged: bool
) -> None:
    sources = [one.block_rv for one in parts.sources]
    if not staged:
        for source in sources:
            schedule.compute_inline(source)
        return
    padded = {_written(schedule, one): one for one in sources}
    body = schedule.get(main)
    for number in reads.staged:
        source = padded.pop(body.reads[number].source, None)
        block = source if source is not None else schedule.cache_read(main, number, "local")
        schedule.compute_at(block, place, preserve_unit_loops=True)
        if source is not None:
            schedule.set_scope(block, 0, "local")
        loops = schedule.get_loops(block)
        own = loops[len(schedule.get_loops(main)) - _depth_below(schedule, main, place) :]
        for loop in own[:-1]:
            if _extent(schedule, loop) > 1:
                schedule.unroll(loop)
        lanes = _divisor(_extent(schedule, own[-1]), _LANES)
        if lanes > 1:
            schedule.vectorize(schedule.split(own[-1], [None, lanes])[-1])
    for source in padded.values():
        schedule.compute_inline(source)


def _written(schedule: s_tir.Schedule, block: Any) -> Any:
    return schedule.get(block).writes[0].source


def _depth_below(schedule: s_tir.Schedule, block: Any, place: Any) -> int:
    """Count the loops of a block within one of them."""
    known = schedule.get(place)
    loops = [schedule.get(one) for one in schedule.get_loops(block)]
    (depth,) = [number for number, one in enumerate(loops) if one.loop_var.same_as(known.loop_var)]
    return len(loops) - depth - 1


def _unguarded(module: tvm.IRModule) -> tvm.IRModule:
    """Let tiles that reach over an edge compute there too, instead of asking before each step; only stores ask.

    What is loaded from beyond the edge is 0.
    """
    function = module["main"]
    last: dict[Any, Any] = {}
    tvm_ffi.structural_walk(function.body, (tirx.For, lambda loop: last.update({loop.loop_var: loop.extent - 1})))
    body = tvm_ffi.structural_map(function.body, (s_tir.SBlockRealize, lambda one: _without_guard(one, last)))
    return tvm.IRModule({"main": function.with_body(body)})


def _without_guard(realize: Any, last: Mapping[Any, Any]) -> Any:
    block, guard = realize.block, realize.predicate
    is_local = {one.source.scope() for one in block.writes} == {"local"}
    if isinstance(guard, tirx.IntImm) or not is_local or not isinstance(block.body, tirx.BufferStore):
        return realize
    asked = _variables(guard)
    over = [
        iterator
        for iterator, value in zip(block.iter_vars, realize.iter_values, strict=True)
        if _variables(value) & asked
    ]
    places = {one.var for one in over}
    outside = [one for one in block.reads if one.source.scope() != "local"]
    risky = any(_variables(side.min) & places for one in outside for side in one.region)
    store = block.body
    if risky and any(one.source.same_as(block.writes[0].source) for one in block.reads):
        return realize  # an accumulator that what is beyond the edge must not change
    if risky:
        inside = functools.reduce(tirx.all, [one.var < one.dom.extent for one in over])
        value = tirx.if_then_else(inside, store.value, tirx.const(0, str(store.value.ty.dtype)))
        store = tirx.BufferStore(store.buffer, value, store.indices)
    wider = [
        _widened(iterator, value, last) if iterator.var in places else iterator
        for iterator, value in zip(block.iter_vars, realize.iter_values, strict=True)
    ]
    free = s_tir.SBlock(wider, block.reads, block.writes, block.name_hint, store, annotations=block.annotations)
    return s_tir.SBlockRealize(realize.iter_values, tirx.const(1, "bool"), free)


def _widened(iterator: Any, value: Any, last: Mapping[Any, Any]) -> Any:
    """Return an iterator whose domain has all values that it is given: lest it be taken for granted that it has not."""
    greatest = tvm_ffi.structural_map(value, (tirx.Var, lambda one: last.get(one, one)))
    extent = sym.Analyzer().simplify(greatest + 1)
    return tirx.IterVar(tvm.ir.Range(0, extent), iterator.var, iterator.iter_type)


def _variables(expression: Any) -> set[Any]:
    found: set[Any] = set()
    tvm_ffi.structural_walk(expression, (tirx.Var, lambda one: found.add(one)))  # noqa: PLW0108 - None, not a result
    return found


def registers(schedule: s_tir.Schedule) -> float:
    """Return how many vectors of four the local buffers of a kernel hold."""
    found: list[float] = []

    def visit(node: Any) -> None:
        local = [one for one in node.alloc_buffers if one.scope() == "local"]
        found.extend(math.prod(int(size) for size in one.shape) / _LANES[0] for one in local)

    # Buffers are as large as those that they were made for, until it is known what is used of them.
    transform = s_tir.transform
    steps = [
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
        transform.CompactBufferAllocation(),
    ]
    compacted = tvm.transform.Sequential(steps)(schedule.mod)
    tvm_ffi.structural_walk(compacted["main"].body, (s_tir.SBlock, visit))
    return sum(found)


def _extent(schedule: s_tir.Schedule, loop: Any) -> int:
    extent = schedule.get(loop).extent
    if not isinstance(extent, tirx.IntImm):
        raise _UnsuitedError
    return int(extent)


def _divisor(extent: int, candidates: Sequence[int]) -> int:
    return next(one for one in candidates if extent % one == 0)
