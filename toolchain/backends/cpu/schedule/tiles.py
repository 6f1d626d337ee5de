"""Reductions whose vectors lie across elements, such as products of matrices: a tile of them stays in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

from tvm import s_tir

from toolchain.backends.cpu.expr import UnsupportedError
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.cpu.schedule.block import Axis, Block, Loop, share, worth_cores

_LATENCY = 4.0  # cycles until the result of an addition can be used
_UNIT = 0.5  # cycles of an operation or a load of a vector: there are two units for each
_SAME = 0.75  # loads of a vector that one element in all lanes takes
_START = 12.0  # cycles that a tile takes beside its steps
_SPARE_REGISTERS = 8  # for operands
_MOST_APART = 4  # up to this distance the lanes of a load are picked one by one
_LEAST_LANES = 4
_MOST_VECTORS = 8  # of a tile, side by side
_ROWS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14)


@dataclass(frozen=True)
class ReductionTile:
    """A tile of elements.

    Attributes:
        vector: The axis that vectors lie along.
        lanes: Elements of a vector.
        vectors: How many of them lie side by side.
        row: An axis on which a tile has more than one element; None if there is none.
        rows: How many.
    """

    vector: Axis
    lanes: int
    vectors: int
    row: Axis | None = None
    rows: int = 1


def vector_axis(block: Block) -> Axis | None:
    """Return the axis of elements along which a reduction loads and stores vectors; None if there is none."""
    for axis in reversed(block.spatial):
        steps = block.strides(axis)
        even = all(step is not None and 0 <= step <= _MOST_APART for step in steps)
        even = even and any(steps) and block.stride(axis) == 1
        if even and axis.var not in block.guards and axis.extent >= _LEAST_LANES:
            return axis
    return None


def in_tiles(schedule: s_tir.Schedule, block: Block, epilogue: Block | None, machine: Machine) -> None:
    """Compute a reduction tile by tile.

    Args:
        schedule: The schedule of its kernel.
        block: The reduction, which has a `vector_axis`.
        epilogue: What computes the results from its elements, one by one; None if it has the results.
        machine: The processor.
    """
    tile = min(_tiles(block, machine), key=lambda candidate: _cycles(block, candidate))
    # Sums of a tile need a buffer of their own, which LLVM keeps in registers.
    result = epilogue or Block.of(schedule, schedule.cache_write(block.rv, 0, "global"))
    around, inner = _cut(schedule, result, _numbers(block, result), tile)
    if worth_cores([block], machine):
        around = share(schedule, around, machine)
    for loop in inner[:-1]:
        schedule.unroll(loop)
    schedule.vectorize(inner[-1])
    schedule.compute_at(block.rv, around[-1], preserve_unit_loops=True)
    _accumulate(schedule, block, tile)


def _accumulate(schedule: s_tir.Schedule, block: Block, tile: ReductionTile) -> None:
    loops = dict(zip(block.axes, schedule.get_loops(block.rv)[-len(block.axes) :], strict=True))
    side, lanes = schedule.split(loops[tile.vector], [None, tile.lanes])
    reduced = [loops[axis] for axis in block.axes if axis.reduced]
    kept_loops = [*(loops[axis] for axis in block.spatial if axis is not tile.vector), side]
    schedule.reorder(*reduced, *kept_loops, lanes)
    for loop in kept_loops:
        schedule.unroll(loop)
    schedule.vectorize(lanes)
    schedule.decompose_reduction(block.rv, reduced[0])


def _cut(
    schedule: s_tir.Schedule, result: Block, numbers: dict[int, Axis], tile: ReductionTile
) -> tuple[list[Loop], list[Loop]]:
    """Cut the loops of the results into tiles; returns the loops over tiles, and those within one."""
    around: list[Loop] = []
    rows: list[Loop] = []
    vectors: list[Loop] = []
    for number, loop in enumerate(schedule.get_loops(result.rv)):
        axis = numbers.get(number)
        if axis is tile.vector:
            outer, *vectors = schedule.split(loop, [None, tile.vectors, tile.lanes])
        elif axis is not None and axis is tile.row:
            outer, *rows = schedule.split(loop, [None, tile.rows])
        else:
            outer = loop
        around.append(outer)
    schedule.reorder(*around, *rows, *vectors)
    return around, [*rows, *vectors]


def _numbers(block: Block, result: Block) -> dict[int, Axis]:
    """Map the number of each axis of the results to the same axis of the reduction.

    Raises:
        UnsupportedError: They do not have the same elements.
    """
    [element] = [
        element
        for load, element in zip(result.loads, result.places, strict=True)
        if any(load.source.same_as(store.buffer) for store in block.stores) or len(result.loads) == 1
    ][:1]
    steps = [result.strides(axis)[result.places.index(element)] for axis in result.axes]
    numbers: dict[int, Axis] = {}
    for axis in (candidate for candidate in block.spatial if candidate.extent > 1):
        same = (
            number
            for number, candidate in enumerate(result.axes)
            if number not in numbers and candidate.extent == axis.extent and steps[number] == block.stride(axis)
        )
        number = next(same, None)
        if number is None:
            raise UnsupportedError("results that are not the elements of the reduction")
        numbers[number] = axis
    return numbers


# --- which tile ------------------------------------------------------------------------------------------------


def _tiles(block: Block, machine: Machine) -> Iterator[ReductionTile]:
    vector = vector_axis(block)
    if vector is None:
        raise UnsupportedError("vectors that lie along the reduction")
    # All sums of a tile stay in registers, beside some for operands.
    lanes = min(vector.extent, machine.lanes)
    for vectors in range(1, _MOST_VECTORS + 1):
        if vectors * lanes <= vector.extent and vectors <= machine.registers - _SPARE_REGISTERS:
            yield ReductionTile(vector, lanes, vectors)
            for row in (axis for axis in block.spatial if axis is not vector):
                for rows in _ROWS:
                    if rows <= row.extent and rows * vectors <= machine.registers - _SPARE_REGISTERS:
                        yield ReductionTile(vector, lanes, vectors, row, rows)


def _cycles(block: Block, tile: ReductionTile) -> float:
    """Estimate what a reduction takes in such tiles."""
    loading = 0.0
    for across, along in zip(
        block.strides(tile.vector), block.strides(tile.row) if tile.row else [0] * len(block.loads), strict=True
    ):
        price = float(tile.lanes) if across and across > 1 else 1.0
        loading += (tile.vectors * price if across else _SAME) * (tile.rows if along else 1)
    depth = prod(axis.extent for axis in block.axes if axis.reduced)
    sums = tile.vectors * tile.rows
    # Latency limits small tiles, additions wide ones, and loads those of odd shapes.
    step = max(_LATENCY, sums * _UNIT, loading * _UNIT)
    tiles = ceil(tile.vector.extent / (tile.vectors * tile.lanes))
    tiles *= ceil(tile.row.extent / tile.rows) if tile.row else 1
    others = block.size // tile.vector.extent // (tile.row.extent if tile.row else 1)
    return others * tiles * (depth * step + _START + sums)
