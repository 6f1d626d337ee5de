"""What a block of a schedule does: how each of its axes moves through the buffers, and what it costs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from tvm import ir, s_tir, sym, tirx
from tvm.ir import prim

from toolchain.backends.cpu.expr import (
    Expr,
    UnsupportedError,
    Var,
    children,
    coefficient,
    conditions,
    constant,
    is_guard,
    loads,
    range_analyzer,
    variables,
    walk,
)
from toolchain.backends.cpu.machine import Machine

Buffer = Any
Loop = Any

WORTH_CORES = 16_384
"""Operations on vectors, which take about 4 us on a fast core: as long as waking the others and waiting for them."""

_PIECES = 4  # for each core, so that none waits long for the last
_CALL, _DIVISION = 20, 4  # what they cost; an addition or a load costs 1


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis of a block."""

    var: Var
    extent: int
    reduced: bool


@dataclass(frozen=True, eq=False)
class Block:
    """A nest of loops that fills one buffer, or several side by side.

    Attributes:
        rv: The block in its schedule.
        name: Its name there.
        axes: Its axes, one for each of its loops.
        stores: What it stores.
        values: What it computes.
    """

    rv: Any
    name: str
    axes: tuple[Axis, ...]
    stores: tuple[Any, ...]
    values: tuple[Expr, ...]

    @classmethod
    def of(cls, schedule: s_tir.Schedule, rv: Any) -> Block:
        """Read a block.

        Raises:
            UnsupportedError: An extent is open, or the block does more than store.
        """
        block = schedule.get(rv)
        steps = sequence(block.body)
        stores = tuple(step for step in steps if isinstance(step, tirx.BufferStore))
        extents = [constant(iterator.dom.extent) for iterator in block.iter_vars]
        if not stores or len(stores) + sum(isinstance(step, tirx.Bind) for step in steps) != len(steps):
            raise UnsupportedError("a block that does more than store")
        if None in extents or any(iterator.iter_type not in _KINDS for iterator in block.iter_vars):
            raise UnsupportedError("axes of an unknown kind or extent")
        axes = (
            Axis(iterator.var, extent or 0, iterator.iter_type == tirx.IterVar.CommReduce)
            for iterator, extent in zip(block.iter_vars, extents, strict=True)
        )
        return cls(rv, str(block.name_hint), tuple(axes), stores, tuple(step.value for step in steps))

    @property
    def spatial(self) -> list[Axis]:
        """The axes of its elements."""
        return [axis for axis in self.axes if not axis.reduced]

    @property
    def reduces(self) -> bool:
        return any(axis.reduced for axis in self.axes)

    @property
    def lead(self) -> int:
        """How many axes there are before the first one that is reduced over."""
        return next((index for index, axis in enumerate(self.axes) if axis.reduced), len(self.axes))

    @property
    def size(self) -> int:
        """How many elements it computes."""
        return prod(axis.extent for axis in self.spatial)

    @property
    def steps(self) -> int:
        """How often it computes something."""
        return prod(axis.extent for axis in self.axes)

    @cached_property
    def loads(self) -> list[Expr]:
        """The loads, but for those of accumulators."""
        outputs = {store.buffer for store in self.stores}
        return [load for value in self.values for load in loads(value) if load.source not in outputs]

    @cached_property
    def stored(self) -> Expr:
        """Place of an element in the buffer it is stored in, counted without dimensions."""
        return self._place(self.stores[0].buffer, self.stores[0].indices)

    @cached_property
    def places(self) -> list[Expr]:
        """Place of each load in its buffer."""
        return [self._place(load.source, load.indices) for load in self.loads]

    def _place(self, buffer: Buffer, indices: Sequence[Expr]) -> Expr:
        return self._analyzer.simplify(offset(buffer, indices))

    @cached_property
    def _analyzer(self) -> sym.Analyzer:
        return range_analyzer((axis.var, axis.extent) for axis in self.axes)

    @cached_property
    def guards(self) -> set[Var]:
        """Variables that a guard depends on."""
        return {var for value in self.values for condition in conditions(value) for var in variables(condition)}

    def strides(self, axis: Axis) -> list[int | None]:
        """By how much each load moves along an axis; None where it does not move evenly."""
        return [coefficient(element, axis.var) for element in self.places]

    def stride(self, axis: Axis) -> int | None:
        """By how much the store moves along an axis."""
        return coefficient(self.stored, axis.var)

    @property
    def work(self) -> int:
        """Its operations, estimated."""
        return self.steps * sum(max(1, cost(value)) for value in self.values)


_KINDS = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)


def sequence(body: Any) -> list[Any]:
    """Return the statements that one statement consists of."""
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def offset(buffer: Buffer, indices: Sequence[Expr]) -> Expr:
    """Return the place of an element in a buffer without gaps."""
    element: Expr = tirx.const(0, "int64")
    for extent, index in zip(buffer.shape, indices, strict=True):
        element = element * extent + index
    return element


def as_numbers(expr: Expr) -> Iterator[Var]:
    """Yield the variables that are used outside of indices, as numbers or in guards."""
    if isinstance(expr, ir.Var):
        yield expr
    elif not isinstance(expr, ir.TensorLoad):
        for child in children(expr):
            yield from as_numbers(child)


def cost(value: Expr) -> int:
    """Estimate what it takes to compute an expression: 1 for each load and each operation on floats."""
    total = 0
    for node in walk(value):
        if type(node) is ir.TensorLoad:
            total += 1
        # A guard is a comparison and a selection; other calls are functions of the C library or their like.
        elif type(node) is ir.Call:
            total += 2 if is_guard(node) else _CALL
        elif isinstance(node, prim.Div) and _is_float(node):
            total += _DIVISION
        elif isinstance(node, (prim.BinaryOpExpr, prim.Cast, prim.Select)) and _is_float(node):
            total += 1
    return total


def _is_float(expr: Expr) -> bool:
    return "float" in str(expr.ty.dtype)


# --- cores -----------------------------------------------------------------------------------------------------


def worth_cores(blocks: Sequence[Block], machine: Machine) -> bool:
    """Whether blocks have enough work to share it."""
    return machine.cores > 1 and sum(block.work for block in blocks) >= WORTH_CORES * machine.lanes


def least_pieces(machine: Machine) -> int:
    """Return into how many pieces shared work is cut at least."""
    return machine.cores * _PIECES


def extent_of(schedule: s_tir.Schedule, loop: Loop) -> int:
    """Return how many steps a loop has."""
    return int(schedule.get(loop).extent)


def share(schedule: s_tir.Schedule, loops: Sequence[Loop], machine: Machine) -> list[Loop]:
    """Share the outermost loops among the cores, as many of them as it takes; returns the loops as they are then."""
    count, used = 1, 0
    # Only as many loops as are needed: inner ones stay contiguous for the caches.
    while used < len(loops) and count < least_pieces(machine):
        count *= extent_of(schedule, loops[used])
        used += 1
    if not used:
        return list(loops)
    outer = schedule.fuse(*loops[:used]) if used > 1 else loops[0]
    schedule.parallel(outer)
    return [outer, *loops[used:]]


# --- inlined blocks --------------------------------------------------------------------------------------------------

# What is cheap to compute where it is used needs no buffer and no loops of its own.

_CHEAP = 4  # operations that are sooner repeated than stored and loaded
_COPY = 1  # a load


def inline(schedule: s_tir.Schedule) -> None:
    """Put blocks without a reduction into those that use them, where that saves time.

    Args:
        schedule: Schedule of a kernel.
    """
    for rv in schedule.get_child_blocks(schedule.get_sblock("root")):
        users = [Block.of(schedule, user) for user in schedule.get_consumers(rv)]
        block = Block.of(schedule, rv)
        if not users or block.reduces:
            continue
        price, is_repeated = cost(block.values[0]), sum(user.steps for user in users) > block.size
        pays = price <= _CHEAP or not is_repeated
        if any(user.reduces for user in users):  # a reduction runs its value for each step: only copies are as cheap
            pays = not block.guards and (price <= _COPY or not is_repeated)
        if pays:
            with contextlib.suppress(
                RuntimeError, ValueError
            ):  # TVM refuses what cannot be inlined, and changes nothing
                schedule.compute_inline(rv)
