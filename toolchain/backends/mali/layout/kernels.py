"""Kernels that the importer wrote, such as those of Resize and ConvTranspose: they get images with their channels last.

What such a kernel computes stays; where its elements are in memory changes, and the order in which they are visited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import relax, s_tir, tirx

from toolchain.backends.graph.values import shape_of
from toolchain.backends.mali.layout.axes import RANKS, order, transposed_shape
from toolchain.backends.mali.layout.writer import Made, Writer


@dataclass(frozen=True)
class _Move:
    """Which dimension is at each place of a tensor now."""

    order: tuple[int, ...]

    def __call__(self, *indices: Any) -> list[Any]:
        """Return the indices of an element where it is now."""
        return [indices[axis] for axis in self.order]


def kernel(writer: Writer, variable: Any, call: Any) -> Made | None:
    """Give a kernel of one block those images that have their channels last already; None if it reads none."""
    rank = len(shape_of(variable.ty) or ())
    function = writer.function(call.args[0])
    if rank not in RANKS or not isinstance(function, tirx.PrimFunc) or not isinstance(call.args[-1], relax.Tuple):
        return None
    arguments, moves = list(call.args[1].fields), {}
    for number, one in enumerate(arguments):
        dimensions, parted = len(shape_of(one.ty) or ()), writer.now.parted.get(one)
        twin = writer.twin(one) if parted is None else parted.value
        if twin is not None:
            arguments[number] = twin
            moves[number] = _Move(tuple(order(dimensions, dimensions - 2 if parted is None else parted.places)))
    moved = _moved(function, moves, rank) if moves else None
    if moved is None:
        return None
    arguments = [writer.plain(one) if isinstance(one, relax.Var) else one for one in arguments]
    name = writer.builder.add_func(moved, call.args[0].name_hint)
    made = relax.TensorType(list(transposed_shape(shape_of(variable.ty) or ())), str(variable.ty.dtype))
    return Made(relax.Call(call.op, [name, relax.Tuple(arguments)], call.attrs, [made]))


def _moved(function: tirx.PrimFunc, moves: Mapping[int, _Move], rank: int) -> tirx.PrimFunc | None:
    """Return a kernel whose result has its channels last, and some of its arguments; None for one of another kind.

    Args:
        function: The kernel.
        moves: By number of an argument, where its dimensions are.
        rank: How many dimensions the result has.
    """
    schedule = s_tir.Schedule(function)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    if len(blocks) != 1 or not _is_by_element(schedule, blocks[0], rank):
        return None
    (block,) = blocks
    reads = schedule.get(block).reads
    for number, move in moves.items():
        for place, read in enumerate(reads):
            if read.source.same_as(function.params[number]):
                schedule.transform_layout(block, ("read", place), move)
    schedule.transform_layout(block, ("write", 0), _Move(tuple(order(rank))))
    count = len(schedule.get_loops(block))
    visited = [*order(rank), *range(rank, count)]
    loops = schedule.get_loops(block)
    schedule.reorder(*(loops[number] for number in visited))
    schedule.reorder_block_iter_var(block, visited)
    done: tirx.PrimFunc = schedule.mod["main"]
    return done


def _is_by_element(schedule: s_tir.Schedule, block: Any, rank: int) -> bool:
    """Whether the first iterators of a block say which element it writes, each one a dimension, and others reduce."""
    body = schedule.get(block)
    kinds = [one.iter_type for one in body.iter_vars]
    if len(body.writes) != 1 or len(schedule.get_loops(block)) != len(kinds):
        return False
    region, own = body.writes[0].region, body.iter_vars[:rank]
    return (
        all(kind == tirx.IterVar.DataPar for kind in kinds[:rank])
        and all(kind == tirx.IterVar.CommReduce for kind in kinds[rank:])
        and len(region) == rank == len(own)
        and all(side.min.same_as(one.var) or _is_one(one) for side, one in zip(region, own, strict=True))
    )


def _is_one(iterator: Any) -> bool:
    """Whether a dimension has one element."""
    return isinstance(iterator.dom.extent, tirx.IntImm) and int(iterator.dom.extent) == 1
