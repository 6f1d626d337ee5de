"""The kernel of a recurrence for any processor: correct, but not fast. Backends replace it where they can.

It has a loop over the time steps, so that neither it nor its compilation grows with them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.models.converters.sequence.recurrence import (
    RECURRENCE,
    Expr,
    Phase,
    Recurrence,
    StepLocation,
    Units,
    cell_outputs,
    locate,
)

_LANES = 16
_NOT_FUSED = 8  # TVM's kind of operation that no other is fused with

Buffer = Any


def generic_kernel(recurrence: Recurrence, threads: int = 0) -> tirx.PrimFunc:
    """Write the kernel of a recurrence.

    For a GPU, `threads` is the limit for a block, of which there is one for each direction and sequence; 0 is for a
    CPU.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        attributes = {RECURRENCE: recurrence.to_json(), "tirx.is_scheduled": True, "op_pattern": _NOT_FUSED}
        T.func_attr({"tirx.noalias": True, **attributes})
        shaped = {
            name: T.arg(name, T.buffer(shape, "int32" if name == "lengths" else recurrence.dtype))
            for name, shape in (recurrence.arguments | recurrence.results).items()
        }
        _RecurrenceWriter(recurrence, {name: _flatten(buffer) for name, buffer in shaped.items()}, threads).write()
    function: tirx.PrimFunc = builder.get()
    body = function.body
    for name in ("recurrence", "root"):  # passes over a whole module expect the body of each kernel to be in blocks
        block = s_tir.SBlock([], [], [], name, body)
        body = s_tir.SBlockRealize([], True, block)  # noqa: FBT003 - TVM has no name for it
    return function.with_body(body).without_attr("global_symbol")


def _flatten(buffer: Buffer) -> Buffer:
    size = math.prod(int(extent) for extent in buffer.shape)
    return T.decl_buffer((size,), buffer.dtype, data=buffer.data, scope=buffer.scope())


@dataclass(frozen=True)
class _Intrinsics:
    """Functions that TVM's code generators implement for vectors of any type."""

    dtype: str
    lanes: int

    def number(self, value: float) -> Expr:
        return _broadcast(tirx.const(value, self.dtype), self.lanes)

    def keep(self, value: Expr) -> Expr:
        return T.Bind(value)

    def clipped(self, x: Expr, least: float, greatest: float) -> Expr:
        return tirx.min(tirx.max(x, self.number(least)), self.number(greatest))

    def exp(self, x: Expr) -> Expr:
        return tirx.exp(x)

    def log(self, x: Expr) -> Expr:
        return tirx.log(x)

    def sigmoid(self, x: Expr) -> Expr:
        return self.number(1.0) / (self.number(1.0) + tirx.exp(self.number(0.0) - x))

    def tanh(self, x: Expr) -> Expr:
        return tirx.tanh(x)


def _broadcast(value: Expr, lanes: int) -> Expr:
    return tirx.Broadcast(value, lanes) if lanes > 1 else value


@dataclass(frozen=True)
class _Moment:
    """A time step of a direction of a sequence; `state` is the row of both in the states."""

    direction: Expr
    state: Expr
    step: Expr
    location: StepLocation


class _RecurrenceWriter:
    def __init__(self, recurrence: Recurrence, buffers: dict[str, Buffer], threads: int) -> None:
        self._recurrence, self._buffers, self._gpu = recurrence, buffers, threads > 0
        self._lanes = 1 if self._gpu else _LANES
        divisors = [number for number in range(1, threads + 1) if recurrence.held % number == 0]
        self._threads = max(divisors, default=1)
        self._thread: Expr = 0
        self._functions = _Intrinsics(recurrence.dtype, self._lanes)
        # Rows of one buffer: of several buffers, StorageRewrite merges two that are in use at the same time.
        self._kept_rows = {name: row for row, name in enumerate(recurrence.kept, 2)}

    def write(self) -> None:
        recurrence = self._recurrence
        with contextlib.ExitStack() as loops:
            if self._gpu:  # a block for each direction and sequence
                blocks = len(recurrence.directions) * recurrence.batch
                stream = loops.enter_context(T.launch_thread("blockIdx.x", blocks))
                self._thread = loops.enter_context(T.launch_thread("threadIdx.x", self._threads))
                direction, sequence = T.Bind(stream // recurrence.batch), T.Bind(stream % recurrence.batch)
            else:
                direction = loops.enter_context(T.serial(0, len(recurrence.directions)))
                sequence = loops.enter_context(T.serial(0, recurrence.batch))
            size = (len(self._kept_rows) + 2) * recurrence.held
            scope = "shared" if self._gpu else "global"
            self._buffers["kept"] = _flatten(T.alloc_buffer((size,), recurrence.dtype, scope=scope))
            state = T.Bind(direction * recurrence.batch + sequence)
            with self._units() as unit:
                self._store("kept", 0, unit, self._load("hidden", state, unit))
                if recurrence.has_memory:
                    self._store("memory_last", state, unit, self._load("memory", state, unit))
            with T.serial(0, recurrence.steps) as step:
                # A step behind the end of a sequence writes zeros and keeps the state.
                length = T.Bind(self._buffers["lengths"][sequence]) if recurrence.lengths else None
                moment = _Moment(direction, state, step, locate(recurrence, direction, sequence, step, length))
                for phase in recurrence.phases:
                    with self._units() as unit:
                        self._phase(phase, moment, unit)
            with self._units() as unit:
                self._store("last", state, unit, self._load("kept", recurrence.steps % 2, unit))

    @contextlib.contextmanager
    def _units(self) -> Iterator[Expr]:
        """Open the loop over the units, and wait at its end until all are done."""
        step = self._threads if self._gpu else self._lanes
        with T.serial(0, self._recurrence.held // step) as group:
            yield T.Bind(group * step + self._thread)
        if self._gpu:
            T.evaluate(T.tvm_storage_sync("shared"))

    def _load(self, name: str, row: Expr, unit: Expr) -> Expr:
        return self._buffers[name][self._vector(row * self._recurrence.held + unit)]

    def _store(self, name: str, row: Expr, unit: Expr, value: Expr) -> None:
        T.buffer_store(self._buffers[name], value, [self._vector(row * self._recurrence.held + unit)])

    def _vector(self, base: Expr) -> Expr:
        return tirx.Ramp(base, 1, self._lanes) if self._lanes > 1 else base

    def _phase(self, phase: Phase, moment: _Moment, unit: Expr) -> None:
        """Write a phase of a step for some units."""
        recurrence, location = self._recurrence, moment.location
        direction, state = moment.direction, moment.state
        before = T.Bind(moment.step % 2)
        sums = self._products(phase, direction, before, unit)
        gates = T.Bind((location.row * len(recurrence.directions) + direction) * recurrence.gates)
        kept_rows = {**self._kept_rows, "hidden": before}
        units = Units(lambda name, row: self._load(name, row, unit), gates, sums, phase, state, direction, kept_rows)
        for name, value in cell_outputs(recurrence, phase, self._functions, units).items():
            new = T.Bind(value)
            if name == "memory":
                self._store("memory_last", state, unit, self._inside(location, new, units.held("memory")))
            elif name == "hidden":
                self._store("every", location.every, unit, self._inside(location, new, self._functions.number(0.0)))
                self._store("kept", 1 - before, unit, self._inside(location, new, units.held("hidden")))
            else:
                self._store("kept", self._kept_rows[name], unit, new)

    # A Select, not a branch: threads that wait for each other must not do so within a condition.
    def _inside(self, location: StepLocation, value: Expr, behind: Expr) -> Expr:
        if location.inside is None:
            return value
        return tirx.Select(_broadcast(location.inside, self._lanes), value, behind)

    def _products(self, phase: Phase, direction: Expr, before: Expr, unit: Expr) -> Callable[[int], Expr]:
        """Write the products of the state with the weights of some gates; return a function that reads them."""
        recurrence, count, lanes = self._recurrence, len(phase.gates), self._lanes
        sums = _flatten(T.alloc_buffer((count * lanes,), recurrence.dtype, scope="local" if self._gpu else "global"))

        def position(number: int) -> Expr:
            return self._vector(tirx.const(number * lanes, "int32"))

        for number in range(count):
            T.buffer_store(sums, self._functions.number(0.0), [position(number)])
        first = (before if phase.source == "hidden" else self._kept_rows[phase.source]) * recurrence.held
        with T.serial(0, recurrence.units) as source:
            factor = T.Bind(_broadcast(self._buffers["kept"][first + source], lanes))
            gate_row = T.Bind((direction * recurrence.units + source) * recurrence.gates)
            for number, gate in enumerate(phase.gates):
                weight = self._load("weights", gate_row + gate, unit)
                T.buffer_store(sums, sums[position(number)] + weight * factor, [position(number)])
        return lambda number: sums[position(number)]
