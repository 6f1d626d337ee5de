"""Blocks without a reduction: vectors along the last axis, blocks transposed in registers where loads lie across it."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

from tvm import s_tir

from toolchain.backends.cpu.expr import variables
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.cpu.schedule.block import (
    Axis,
    Block,
    Loop,
    extent_of,
    least_pieces,
    share,
    worth_cores,
)

_SHORT = 4  # a last axis that is no vector
_NEAR = 4  # what lies farther apart is a row of its own
_UNROLLED = 4  # vectors of a piece


def schedule_elementwise(schedule: s_tir.Schedule, block: Block, machine: Machine) -> None:
    """Schedule a block without a reduction.

    Args:
        schedule: The schedule of its kernel.
        block: The block, outside of other blocks' loops.
        machine: The processor.
    """
    loops = schedule.get_loops(block.rv)
    if not loops:
        return
    across = _load_axis(block, machine)
    if across is not None:
        _transpose_tiles(schedule, block, across, machine)
        return
    inner = loops[-1]
    if worth_cores([block], machine):
        *loops, inner = _in_pieces(schedule, loops, machine)
        share(schedule, loops, machine)
    vectors_along(schedule, block, inner, machine)


def _in_pieces(schedule: s_tir.Schedule, loops: list[Loop], machine: Machine) -> list[Loop]:
    """Cut the last loop where those around it have too few steps for the cores."""
    *outer, inner = loops
    count = prod(extent_of(schedule, loop) for loop in outer)
    # Pieces of whole groups of vectors, so that only the last one has a rest.
    grain = machine.lanes * _UNROLLED
    pieces = min(ceil(least_pieces(machine) / count), extent_of(schedule, inner) // grain)
    if pieces < 2:  # noqa: PLR2004 - nothing to cut
        return loops
    length = ceil(extent_of(schedule, inner) / pieces / grain) * grain
    return [*outer, *schedule.split(inner, [None, length])]


def vectors_along(schedule: s_tir.Schedule, block: Block, loop: Loop, machine: Machine) -> None:
    """Make vectors of the innermost loop of a block without a reduction.

    Where its lanes do not lie together, or are guarded one by one, LLVM finds the better of scalars and gathers.
    """
    axis = block.axes[-1]
    even = all(step in {0, 1} for step in [*block.strides(axis), block.stride(axis)])
    extent = extent_of(schedule, loop)
    if extent == axis.extent <= _SHORT and len(block.axes) > 1:
        schedule.unroll(loop)
    elif even and axis.var not in block.guards:
        schedule.vectorize(schedule.split(loop, [None, machine.lanes])[1] if extent > machine.lanes else loop)


# --- blocks transposed -----------------------------------------------------------------------------------------


def _load_axis(block: Block, machine: Machine) -> Axis | None:
    """Return the axis along which the only load of a block lies together, if the store lies along another one."""
    if len(block.loads) != 1 or block.guards or block.stride(block.axes[-1]) != 1:
        return None
    step = block.strides(block.axes[-1])[0]
    if step is None or abs(step) <= _NEAR or block.axes[-1].extent < machine.lanes:
        return None
    across = next(
        (
            candidate
            for candidate in block.axes
            if block.strides(candidate)[0] == 1 and candidate.extent >= _rows(machine)
        ),
        None,
    )
    if across is None:
        return None
    tiles = ((across, _rows(machine)), (block.axes[-1], _UNROLLED))
    return across if all(_ends_alike(block, axis, tile) for axis, tile in tiles) else None


def _ends_alike(block: Block, axis: Axis, tile: int) -> bool:
    """Whether the last tile along an axis reaches over the edge where the rows that are loaded for it do, or nowhere.

    Each tile is moved back to the edge of its own axis; in an index that sums several axes those edges differ.
    """
    indices = [index for index in block.loads[0].indices if axis.var in variables(index)]
    return axis.extent % tile == 0 or all(index.same_as(axis.var) for index in indices)


def _rows(machine: Machine) -> int:
    """Return how many rows are transposed at once: with more, they are more than the shuffles that LLVM finds."""
    return max(4, machine.lanes // 2)


def _transpose_tiles(schedule: s_tir.Schedule, block: Block, across: Axis, machine: Machine) -> None:
    """Load rows of vectors along one axis, and store columns along the other."""
    loops = schedule.get_loops(block.rv)
    index = block.axes.index(across)
    outer, inner = schedule.split(loops[index], [None, _rows(machine)])
    far, columns = schedule.split(loops[-1], [None, _UNROLLED])
    around = [*loops[:index], outer, *loops[index + 1 : -1], far]
    schedule.reorder(*around, inner, columns)
    # The copy is what is loaded in vectors; LLVM keeps it in registers and finds the shuffles.
    rows: Any = schedule.cache_read(block.rv, 0, "global")
    if worth_cores([block], machine):
        far = share(schedule, around, machine)[-1]
    schedule.compute_at(rows, far, preserve_unit_loops=True)
    *rows_of_tile, lanes = schedule.get_loops(rows)[-len(schedule.get(rows).iter_vars) :]
    for loop in [*rows_of_tile, inner]:
        schedule.unroll(loop)
    schedule.vectorize(lanes)
    schedule.vectorize(columns)
