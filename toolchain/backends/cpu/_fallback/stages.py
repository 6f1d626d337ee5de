"""A PrimFunc as TVM's legalisation writes it, read as a list of stages: each fills one buffer, element by element.

Loops of TE have no order that matters, and so they are dropped here: what is left is, for each buffer, where an
element is stored, how it is computed, and over which axes. Loops are written afresh from that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from toolchain.backends.cpu._fallback.expr import (
    Expr,
    UnsupportedError,
    Var,
    constant,
    loads,
    rewritten,
    substituted,
)

Buffer = Any

INDEX = "int64"
"""The type of indices, as legalisation makes them."""


@dataclass(frozen=True, eq=False)  # two are equal only if they are one: comparing expressions makes expressions
class Axis:
    """A variable and how many values it takes, from 0 on."""

    var: Var
    extent: int


@dataclass(frozen=True, eq=False)
class Stage:
    """One buffer, or several that are filled together, and how their elements are computed.

    For each point of `axes`, `outputs[i][indices]` becomes `finals[i]`. Those of a reduction depend on accumulators,
    which start from `inits` and become `values` once for each point of `reduced`.

    Attributes:
        axes: Axes of the elements.
        reduced: Axes that are reduced over.
        outputs: The buffers.
        indices: Where an element is stored, the same in each of `outputs`.
        finals: What is stored there.
        accumulators: Variables that stand for the accumulators; none if nothing is reduced.
        inits: What they start from.
        values: What they become.
    """

    axes: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    outputs: tuple[Buffer, ...]
    indices: tuple[Expr, ...]
    finals: tuple[Expr, ...]
    accumulators: tuple[Var, ...] = ()
    inits: tuple[Expr, ...] = ()
    values: tuple[Expr, ...] = ()

    @property
    def size(self) -> int:
        """How many elements each output gets."""
        return prod(axis.extent for axis in self.axes)

    @property
    def depth(self) -> int:
        """How many steps the reduction of one element takes."""
        return prod(axis.extent for axis in self.reduced)

    @property
    def steps(self) -> int:
        """How often a value is computed."""
        return self.size * self.depth

    @property
    def computed(self) -> tuple[Expr, ...]:
        """What is computed at each step."""
        return self.values if self.accumulators else self.finals

    def loads(self) -> Iterator[Expr]:
        """Yield every load from a buffer."""
        for value in self.values + self.finals:
            yield from loads(value)

    def reads(self) -> set[Buffer]:
        """Return the buffers that are read."""
        return {load.source for load in self.loads()}

    def mapped(self, change: Callable[[Expr], Expr]) -> Stage:
        """Return the stage with another index to store at, and other values, but for `inits`."""
        return replace(
            self,
            indices=tuple(change(index) for index in self.indices),
            finals=tuple(change(value) for value in self.finals),
            values=tuple(change(value) for value in self.values),
        )

    def at(self, place: Mapping[Var, Expr]) -> Stage:
        """Return the stage with values in the place of axes, which are no axes any more."""
        return replace(
            self.mapped(lambda expr: substituted(expr, place)),
            axes=tuple(axis for axis in self.axes if axis.var not in place),
            reduced=tuple(axis for axis in self.reduced if axis.var not in place),
        )


def stages_of(function: tirx.PrimFunc) -> list[Stage]:
    """Read a PrimFunc of SBlocks.

    Raises:
        UnsupportedError: It holds something else than nests of loops around one block each that fills a buffer.
    """
    for buffer in function.params:
        _check(buffer)
    root = function.body
    if not isinstance(root, s_tir.SBlockRealize) or len(root.block.iter_vars):
        raise UnsupportedError("no root block")
    return [_stage(nest) for nest in _sequence(root.block.body)]


def _check(buffer: Buffer) -> None:
    if not tirx.is_buffer_var(buffer):
        raise UnsupportedError("a parameter that is no buffer")
    known = all(constant(extent) is not None for extent in buffer.shape)
    if len(buffer.strides) or constant(buffer.elem_offset) != 0 or not known:
        raise UnsupportedError("a buffer whose place or shape is known only when it runs")


def _sequence(body: Any) -> list[Any]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _stage(nest: Any) -> Stage:
    extents: dict[Var, int] = {}
    while isinstance(nest, tirx.For):
        extent = constant(nest.extent)
        if extent is None or constant(nest.min) != 0 or nest.kind != tirx.ForKind.SERIAL or len(nest.annotations):
            raise UnsupportedError("a loop that is no plain one")
        extents[nest.loop_var] = extent
        nest = nest.body
    if not isinstance(nest, s_tir.SBlockRealize) or constant(nest.predicate) != 1:
        raise UnsupportedError("loops without a block, or with a predicate")
    block = nest.block
    if len(block.match_buffers) or len(block.alloc_buffers):
        raise UnsupportedError("a block with buffers of its own")
    spatial, reduced = _axes(block, list(nest.iter_values), extents)
    stage = _read(block, tuple(spatial), tuple(reduced))
    zero = {axis.var: tirx.const(0, axis.var.ty.dtype) for axis in stage.axes + stage.reduced if axis.extent == 1}
    return stage.at(zero)


def _axes(block: Any, values: list[Expr], extents: dict[Var, int]) -> tuple[list[Axis], list[Axis]]:
    spatial: list[Axis] = []
    reduced: list[Axis] = []
    kinds = {tirx.IterVar.DataPar: spatial, tirx.IterVar.CommReduce: reduced}
    for axis, value in zip(block.iter_vars, values, strict=True):
        extent = constant(axis.dom.extent)
        same = extents.pop(value, None) if isinstance(value, ir.Var) else 1 if constant(value) == 0 else None
        if extent is None or extent != same or axis.iter_type not in kinds or str(axis.var.ty.dtype) != INDEX:
            raise UnsupportedError("an axis that is not the loop's")
        kinds[axis.iter_type].append(Axis(axis.var, extent))
    if any(extent != 1 for extent in extents.values()):
        raise UnsupportedError("a loop that is no axis")
    return spatial, reduced


def _read(block: Any, axes: tuple[Axis, ...], reduced: tuple[Axis, ...]) -> Stage:
    bound: dict[Var, Expr] = {}
    stores = []
    for step in _sequence(block.body):
        if isinstance(step, tirx.Bind):
            bound[step.var] = substituted(step.value, bound)
        elif isinstance(step, tirx.BufferStore):
            stores.append((step.buffer, tuple(step.indices), substituted(step.value, bound)))
        else:
            raise UnsupportedError("a block that does more than store")
    if not stores or any(not _same(stores[0][1], other) for _, other, _ in stores):
        raise UnsupportedError("stores to different places")
    if len(stores) > 1 and len(bound) < len(stores):  # the first store may change what the second reads
        raise UnsupportedError("stores that follow each other")
    outputs = tuple(buffer for buffer, _, _ in stores)
    stage = Stage(axes, reduced, outputs, stores[0][1], tuple(value for _, _, value in stores))
    if block.init is not None:
        return _as_reduction(stage, block.init)
    if reduced or set(outputs) & stage.reads():
        raise UnsupportedError("a block that reads what it writes")
    return stage


def _same(one: tuple[Expr, ...], other: tuple[Expr, ...]) -> bool:
    return len(one) == len(other) and all(tvm_ffi.structural_equal(a, b) for a, b in zip(one, other, strict=True))


def _as_reduction(stage: Stage, init: Any) -> Stage:
    """Put a variable in the place of each load of what is reduced into."""
    inits = {step.buffer: step.value for step in _sequence(init) if isinstance(step, tirx.BufferStore)}
    if set(inits) != set(stage.outputs):
        raise UnsupportedError("a reduction that starts from elsewhere")
    accumulators = {buffer: ir.Var(f"{buffer.name}_acc", str(buffer.dtype)) for buffer in stage.outputs}

    def accumulator(part: Expr) -> Expr | None:
        if type(part) is not ir.TensorLoad or part.source not in accumulators:
            return None
        if not _same(tuple(part.indices), stage.indices):
            raise UnsupportedError("a reduction that reads its neighbours")
        return accumulators[part.source]

    held = tuple(accumulators[buffer] for buffer in stage.outputs)
    return replace(
        stage,
        finals=held,
        accumulators=held,
        inits=tuple(inits[buffer] for buffer in stage.outputs),
        values=tuple(rewritten(value, accumulator) for value in stage.finals),
    )
