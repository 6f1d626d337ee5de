"""Blocks that run row by row, such as those of a softmax: what one row needs stays in the cache, sums in registers.

Vectors lie along the reductions: each of their lanes reduces a part, and the lanes are reduced at the end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import ceil, prod
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import prim

from toolchain.backends.cpu.expr import Expr, UnsupportedError, coefficient, variables
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.cpu.numerics import with_infinity
from toolchain.backends.cpu.schedule.axes import Nest, map_nests
from toolchain.backends.cpu.schedule.block import Axis, Block, Loop, extent_of, offset, worth_cores
from toolchain.backends.cpu.schedule.elementwise import vectors_along

_ROWS_PER_CORE = 2  # at least, so that a slow core holds up less
_SMALL = 8  # blocks with so many times fewer steps than the largest are no reason for or against anything
_SIDE_BY_SIDE = 4  # vectors: each waits for the one before it
_WASTE = 1.25  # times the vectors that are needed
_UNROLLED = 16  # steps of a last reduction
_KINDS = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
_REDUCTIONS = (prim.Add, prim.Mul, prim.Max, prim.Min)


# --- lanes -----------------------------------------------------------------------------------------------------


def with_lanes(function: tirx.PrimFunc, machine: Machine, names: Collection[str] | None = None) -> tirx.PrimFunc:
    """Make the reductions of a kernel such that their last axis is that of the lanes.

    Args:
        function: The kernel.
        machine: The processor.
        names: Names of the blocks; all by default.
    """

    def change(nest: Nest) -> Nest:
        axis = next((axis for axis in reversed(nest.axes) if axis.reduced and _is_vector(nest, axis)), None)
        operand = _operand(nest)
        is_chosen = names is None or nest.name in names
        if not is_chosen or axis is None or operand is None or nest.init is None:
            return nest
        lanes = min(axis.extent, machine.lanes)
        width = lanes * _side_by_side(axis.extent, lanes)
        steps = Axis(ir.Var(f"{axis.var.name}_o", "int64"), ceil(axis.extent / width), reduced=True)
        inner = Axis(ir.Var(f"{axis.var.name}_i", "int64"), width, reduced=True)
        start = steps.var * width if steps.extent > 1 else tirx.const(0, "int64")
        if axis.extent % width:
            # The last step is moved back to end with the axis: what lies in both was reduced before.
            first = tirx.min(start, tirx.const(axis.extent - width, "int64"))
            fresh = prim.Select(first + inner.var >= start, operand, with_infinity(nest.init))
            accumulator = tirx.BufferLoad(nest.buffer, list(nest.indices))
            nest, start = replace(nest, value=type(nest.value)(accumulator, fresh)), first
        others = [other for other in nest.axes if other is not axis]
        return nest.substitute({axis.var: start + inner.var}, [*others, *([steps] if steps.extent > 1 else []), inner])

    return map_nests(function, change)


def _is_vector(nest: Nest, axis: Axis) -> bool:
    strides = [coefficient(offset(load.source, load.indices), axis.var) for load in nest.loads()]
    return 1 in strides and all(step in {0, 1} for step in strides)


def _operand(nest: Nest) -> Expr | None:
    if not isinstance(nest.value, _REDUCTIONS):
        return None
    pair = [nest.value.a, nest.value.b]
    rest = [operand for operand in pair if not (type(operand) is ir.TensorLoad and operand.source.same_as(nest.buffer))]
    return rest[0] if len(rest) == 1 else None


def _side_by_side(extent: int, lanes: int) -> int:
    """Return how many vectors lie side by side: several, unless that computes too many lanes for nothing."""
    needed = ceil(extent / lanes)
    for count in range(_SIDE_BY_SIDE, 1, -1):
        if count * lanes <= extent and ceil(extent / lanes / count) * count <= _WASTE * needed:
            return count
    return 1


# --- rows ------------------------------------------------------------------------------------------------------


def count_shared_rows(blocks: list[Block], machine: Machine) -> int | None:
    """Return how many leading axes blocks can share.

    Args:
        blocks: All blocks of a kernel, in order.
        machine: The processor.

    Returns:
        The number of axes; 0 if there is nothing to share among the cores; None if there is, but no axes for it.
    """
    fewest = machine.cores * _ROWS_PER_CORE if worth_cores(blocks, machine) else 1
    # The most axes that all blocks can share: larger rows keep more in the cache.
    largest = max(block.steps for block in blocks)
    for rows in range(min(block.lead for block in blocks), 0, -1):
        extents = {tuple(axis.extent for axis in block.axes[:rows]) for block in blocks}
        if len(extents) > 1 or prod(next(iter(extents))) < fewest:
            continue
        if all(block.steps * _SMALL < largest or _has_rows(block, rows) for block in blocks):
            return rows
    return 0 if fewest == 1 else None


def _has_rows(block: Block, rows: int) -> bool:
    """Whether rows lie one after the other, and no vectors lie along them."""
    size = block.size
    for axis in block.axes[:rows]:
        size //= axis.extent
        if block.stride(axis) != size:
            return False
        for step, element in zip(block.strides(axis), block.places, strict=True):
            touched = prod(other.extent for other in block.axes if coefficient(element, other.var) != 0)
            if step == 1 and touched * _SMALL >= block.steps * 2:
                return False
    return True


def in_rows(schedule: s_tir.Schedule, blocks: list[Block], rows: int, machine: Machine) -> None:
    """Let blocks run row by row.

    Args:
        schedule: Their schedule.
        blocks: The blocks, in order; the last one has the results.
        rows: How many leading axes they share.
        machine: The processor.
    """
    factored = {block.rv: _fold_lanes(schedule, block, machine) for block in blocks if block.reduces}
    order = [rv for block in blocks for rv in (*factored.get(block.rv, []), block.rv)]
    if rows:
        loops = schedule.get_loops(order[-1])[:rows]
        row = schedule.fuse(*loops) if rows > 1 else loops[0]
        if worth_cores(blocks, machine):
            schedule.parallel(row)
        # Consumers first: a block can only move to where its readers are.
        for rv in reversed(order[:-1]):
            schedule.compute_at(rv, row, preserve_unit_loops=True)
    for block in blocks:
        for rv in factored.get(block.rv, []):
            _lanes_of_part(schedule, rv, machine)
        if block.reduces:
            _last_steps(schedule, block.rv)
        elif len(block.axes) > rows:
            vectors_along(schedule, block, schedule.get_loops(block.rv)[-1], machine)


def _fold_lanes(schedule: s_tir.Schedule, block: Block, machine: Machine) -> list[Any]:
    """Cut a reduction into one for each lane, and those of the lanes, ever fewer; returns the new blocks."""
    *others, loop = schedule.get_loops(block.rv)[block.lead :]
    del others
    blocks: list[Any] = []
    width = extent_of(schedule, loop)
    if len(block.stores) > 1:  # not cut by `with_lanes`
        width = _divisor(width, machine.lanes)
        loop = schedule.split(loop, [None, width])[1]
    elif not all(step in {0, 1} for step in block.strides(block.axes[-1])):
        return blocks
    if width == prod(axis.extent for axis in block.axes if axis.reduced):  # there is nothing else to reduce over
        width = _narrower(width, machine)
        loop = schedule.split(loop, [None, width])[1] if width > 1 else loop
    # rfactor makes one partial reduction for each lane; then a tree of ever fewer lanes is left.
    while width > 1:
        blocks.append(schedule.rfactor(loop, len(block.stores[0].indices)))
        narrower = _narrower(width, machine)
        loop = schedule.get_loops(block.rv)[-1]
        loop = schedule.split(loop, [None, narrower])[1] if narrower > 1 else loop
        width = narrower
    return blocks


def _narrower(width: int, machine: Machine) -> int:
    """Return the next smaller number of lanes to fold into."""
    if width > machine.lanes:
        return machine.lanes if width % machine.lanes == 0 else width // _divisor(width, _SIDE_BY_SIDE)
    return width // 4 if width % 4 == 0 else 1


def _divisor(extent: int, limit: int) -> int:
    return max(number for number in range(1, limit + 1) if extent % number == 0)


def _lanes_of_part(schedule: s_tir.Schedule, rv: Any, machine: Machine) -> None:
    """Make vectors of the lanes of a part of a reduction, and unroll those that lie side by side."""
    spatial, reduced = _own_loops(schedule, rv)
    lanes = max(spatial, key=lambda loop: extent_of(schedule, loop))
    schedule.reorder(*(loop for loop in spatial if loop is not lanes), *reduced, lanes)
    vector = lanes
    if extent_of(schedule, lanes) > machine.lanes:
        side, vector = schedule.split(lanes, [None, _divisor(extent_of(schedule, lanes), machine.lanes)])
        schedule.unroll(side)
    schedule.vectorize(vector)
    if extent_of(schedule, reduced[-1]) <= _SIDE_BY_SIDE:
        schedule.unroll(reduced[-1])
    schedule.decompose_reduction(rv, reduced[0])


def _last_steps(schedule: s_tir.Schedule, rv: Any) -> None:
    """Unroll what is left of a reduction."""
    spatial, reduced = _own_loops(schedule, rv)
    schedule.reorder(*spatial, *reduced)
    if extent_of(schedule, reduced[-1]) <= _UNROLLED:
        schedule.unroll(reduced[-1])
    schedule.decompose_reduction(rv, reduced[0])


def _own_loops(schedule: s_tir.Schedule, rv: Any) -> tuple[list[Loop], list[Loop]]:
    """Return the innermost loops of a block that no other block shares, apart for elements and reduction."""
    block = schedule.get(rv)
    bound: dict[Any, int] = {}

    def visit(realize: Any) -> None:
        if realize.block.same_as(block):
            for axis, value in zip(block.iter_vars, realize.iter_values, strict=True):
                bound.update(dict.fromkeys(variables(value), axis.iter_type))

    tvm_ffi.structural_walk(schedule.mod["main"].body, (s_tir.SBlockRealize, visit))
    loops = schedule.get_loops(rv)
    first_own = len(loops)
    while first_own and not isinstance(schedule.get(loops[first_own - 1]).body, tirx.SeqStmt):
        first_own -= 1
    owned = [(loop, bound.get(schedule.get(loop).loop_var, tirx.IterVar.DataPar)) for loop in loops[first_own:]]
    spatial, reduced = ([loop for loop, kind in owned if kind == kind_] for kind_ in _KINDS)
    if not reduced:
        raise UnsupportedError("a part that does not reduce")
    return spatial, reduced
