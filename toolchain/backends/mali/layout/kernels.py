"""Kernels that the importer wrote, such as those of Resize and ConvTranspose: they get images with their channels last.

What such a kernel computes stays; where its elements are in memory changes, and the order in which they are visited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import relax, s_tir, tirx

from toolchain.backends.graph.values import shape_of
from toolchain.backends.mali.layout.writer import RANKS, Replacement, Writer, order, transposed_shape


@dataclass(frozen=True)
class _Move:
    """Which dimension is at each place of a tensor now."""

    order: tuple[int, ...]

    def __call__(self, *indices: Any) -> list[Any]:
        """Return the indices of an element where it is now."""
        return [indices[axis] for axis in self.order]


def kernel(writer: Writer, variable: Any, call: Any) -> Replacement | None:
    """Give a kernel of one block those images that have their channels last already; None if it reads none."""
    rank = len(shape_of(variable.ty) or ())
    function = writer.function(call.args[0])
    if rank not in RANKS or not isinstance(function, tirx.PrimFunc) or not isinstance(call.args[-1], relax.Tuple):
        return None
    arguments, moves = list(call.args[1].fields), {}
    for number, argument in enumerate(arguments):
        dimensions, split = len(shape_of(argument.ty) or ()), writer.state.split.get(argument)
        twin = writer.twin(argument) if split is None else split.value
        if twin is not None:
            arguments[number] = twin
            moves[number] = _Move(tuple(order(dimensions, dimensions - 2 if split is None else split.spatial)))
    moved = _moved(function, moves, rank) if moves else None
    if moved is None:
        return None
    arguments = [writer.plain(argument) if isinstance(argument, relax.Var) else argument for argument in arguments]
    name = writer.builder.add_func(moved, call.args[0].name_hint)
    result_type = relax.TensorType(list(transposed_shape(shape_of(variable.ty) or ())), str(variable.ty.dtype))
    return Replacement(relax.Call(call.op, [name, relax.Tuple(arguments)], call.attrs, [result_type]))


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
        for index, read in enumerate(reads):
            if read.source.same_as(function.params[number]):
                schedule.transform_layout(block, ("read", index), move)
    schedule.transform_layout(block, ("write", 0), _Move(tuple(order(rank))))
    count = len(schedule.get_loops(block))
    visited = [*order(rank), *range(rank, count)]
    loops = schedule.get_loops(block)
    schedule.reorder(*(loops[number] for number in visited))
    schedule.reorder_block_iter_var(block, visited)
    transformed: tirx.PrimFunc = schedule.mod["main"]
    return transformed


def _is_by_element(schedule: s_tir.Schedule, block: Any, rank: int) -> bool:
    """Whether the first iterators of a block say which element it writes, each one a dimension, and others reduce."""
    body = schedule.get(block)
    kinds = [iterator.iter_type for iterator in body.iter_vars]
    if len(body.writes) != 1 or len(schedule.get_loops(block)) != len(kinds):
        return False
    region, iterators = body.writes[0].region, body.iter_vars[:rank]
    return (
        all(kind == tirx.IterVar.DataPar for kind in kinds[:rank])
        and all(kind == tirx.IterVar.CommReduce for kind in kinds[rank:])
        and len(region) == rank == len(iterators)
        and all(
            # A dimension of one element has a constant for its index.
            side.min.same_as(iterator.var)
            or (isinstance(iterator.dom.extent, tirx.IntImm) and int(iterator.dom.extent) == 1)
            for side, iterator in zip(region, iterators, strict=True)
        )
    )
