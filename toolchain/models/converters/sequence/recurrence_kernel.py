"""The kernel of a recurrence for any processor: right, not fast. A backend that knows better puts its own in its place.

One kernel has a loop over the time steps, so that neither it nor the time to compile it grows with them.
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

from toolchain.models.converters.sequence.recurrence import RECURRENCE, Phase, Recurrence
from toolchain.models.converters.sequence.recurrence_cell import Expr, Place, Units, finished, placed

_LANES = 16
_OPAQUE = 8  # TVM's kind of operation that no other is fused with

Buffer = Any


def plain(recurrence: Recurrence, threads: int = 0) -> tirx.PrimFunc:
    """Write the kernel of a recurrence.

    Args:
        recurrence: The recurrence.
        threads: For a GPU, the most threads of a block, of which there is one for each direction and sequence; 0 for a
            processor that does it all in one thread.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        attributes = {RECURRENCE: recurrence.to_json(), "tirx.is_scheduled": True, "op_pattern": _OPAQUE}
        T.func_attr({"tirx.noalias": True, **attributes})
        shaped = {
            name: T.arg(name, T.buffer(shape, "int32" if name == "lengths" else recurrence.dtype))
            for name, shape in (recurrence.arguments | recurrence.results).items()
        }
        _Writer(recurrence, {name: _flat(one) for name, one in shaped.items()}, threads).write()
    function: tirx.PrimFunc = builder.get()
    return function.with_body(_rooted(function.body)).without_attr("global_symbol")


def _rooted(body: tirx.Stmt) -> tirx.Stmt:
    """Return statements as passes over a whole module expect the body of any kernel: blocks."""
    for name in ("recurrence", "root"):
        block = s_tir.SBlock([], [], [], name, body)
        body = s_tir.SBlockRealize([], True, block)  # noqa: FBT003 - TVM has no name for it
    return body


def _flat(buffer: Buffer) -> Buffer:
    size = math.prod(int(extent) for extent in buffer.shape)
    return T.decl_buffer((size,), buffer.dtype, data=buffer.data, scope=buffer.scope())


@dataclass(frozen=True)
class _Intrinsics:
    """Functions that TVM's code generators know, of vectors of any type."""

    dtype: str
    lanes: int

    def number(self, value: float) -> Expr:
        return _splat(tirx.const(value, self.dtype), self.lanes)

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


def _splat(value: Expr, lanes: int) -> Expr:
    return tirx.Broadcast(value, lanes) if lanes > 1 else value


class _Writer:
    """Writes one kernel."""

    def __init__(self, recurrence: Recurrence, buffers: dict[str, Buffer], threads: int) -> None:
        self._about, self._buffers, self._gpu = recurrence, buffers, threads > 0
        self._lanes = 1 if self._gpu else _LANES
        self._threads = _divisor(recurrence.held, threads) if self._gpu else 1
        self._thread: Expr = 0
        self._functions = _Intrinsics(recurrence.dtype, self._lanes)
        # Rows of one buffer: of several, StorageRewrite puts two into the same place that are both in use.
        self._kept = {name: row for row, name in enumerate(recurrence.kept, 2)}

    def write(self) -> None:
        """Write all that is done."""
        about = self._about
        with contextlib.ExitStack() as loops:
            direction, sequence = self._streams(loops)
            size = (len(self._kept) + 2) * about.held
            scope = "shared" if self._gpu else "global"
            self._buffers["kept"] = _flat(T.alloc_buffer((size,), about.dtype, scope=scope))
            state = T.Bind(direction * about.batch + sequence)
            self._start(state)
            with T.serial(0, about.steps) as step:
                self._step(direction, sequence, state, step)
            with self._units() as unit:
                self._store("last", state, unit, self._load("kept", about.steps % 2, unit))

    def _streams(self, loops: contextlib.ExitStack) -> tuple[Expr, Expr]:
        """Open the loops over directions and sequences."""
        about = self._about
        if not self._gpu:
            direction = loops.enter_context(T.serial(0, len(about.directions)))
            return direction, loops.enter_context(T.serial(0, about.batch))
        stream = loops.enter_context(T.launch_thread("blockIdx.x", len(about.directions) * about.batch))
        self._thread = loops.enter_context(T.launch_thread("threadIdx.x", self._threads))
        return T.Bind(stream // about.batch), T.Bind(stream % about.batch)

    @contextlib.contextmanager
    def _units(self) -> Iterator[Expr]:
        """Open the loop over the units, and wait at its end until all are done."""
        each = self._threads if self._gpu else self._lanes
        with T.serial(0, self._about.held // each) as part:
            yield T.Bind(part * each + self._thread)
        if self._gpu:
            T.evaluate(T.tvm_storage_sync("shared"))

    def _load(self, name: str, row: Expr, unit: Expr) -> Expr:
        return self._buffers[name][self._vector(row * self._about.held + unit)]

    def _store(self, name: str, row: Expr, unit: Expr, value: Expr) -> None:
        T.buffer_store(self._buffers[name], value, [self._vector(row * self._about.held + unit)])

    def _vector(self, base: Expr) -> Expr:
        return tirx.Ramp(base, 1, self._lanes) if self._lanes > 1 else base

    def _start(self, state: Expr) -> None:
        with self._units() as unit:
            self._store("kept", 0, unit, self._load("hidden", state, unit))
            if self._about.has_memory:
                self._store("memory_last", state, unit, self._load("memory", state, unit))

    def _step(self, direction: Expr, sequence: Expr, state: Expr, step: Expr) -> None:
        """Write one time step; one behind the end of a sequence makes zeros and keeps the state."""
        about = self._about
        length = T.Bind(self._buffers["lengths"][sequence]) if about.lengths else None
        place = placed(about, direction, sequence, step, length)
        for phase in about.phases:
            with self._units() as unit:
                self._phase(phase, direction, state, place, step, unit)

    def _phase(  # noqa: PLR0913, PLR0917 - a place has that many coordinates
        self, phase: Phase, direction: Expr, state: Expr, place: Place, step: Expr, unit: Expr
    ) -> None:
        """Write a phase of a step for some units."""
        about = self._about
        before = T.Bind(step % 2)
        sums = self._products(phase, direction, before, unit)
        gates = T.Bind((place.row * len(about.directions) + direction) * about.gates)
        kept = {**self._kept, "hidden": before}
        units = Units(lambda name, at: self._load(name, at, unit), gates, sums, phase, state, direction, kept)
        for name, value in finished(about, phase, self._functions, units).items():
            new = T.Bind(value)
            if name == "memory":
                self._store("memory_last", state, unit, self._inside(place, new, units.held("memory")))
            elif name == "hidden":
                self._store("every", place.every, unit, self._inside(place, new, self._functions.number(0.0)))
                self._store("kept", 1 - before, unit, self._inside(place, new, units.held("hidden")))
            else:
                self._store("kept", self._kept[name], unit, new)

    def _inside(self, place: Place, value: Expr, behind: Expr) -> Expr:
        """Return one of two values; threads that wait for each other must not do so within a condition."""
        if place.inside is None:
            return value
        return tirx.Select(_splat(place.inside, self._lanes), value, behind)

    def _products(self, phase: Phase, direction: Expr, before: Expr, unit: Expr) -> Callable[[int], Expr]:
        """Write the products of the state with the weights of some gates; returns what reads them."""
        about, count, lanes = self._about, len(phase.gates), self._lanes
        sums = _flat(T.alloc_buffer((count * lanes,), about.dtype, scope="local" if self._gpu else "global"))

        def place(number: int) -> Expr:
            return self._vector(tirx.const(number * lanes, "int32"))

        for number in range(count):
            T.buffer_store(sums, self._functions.number(0.0), [place(number)])
        first = (before if phase.source == "hidden" else self._kept[phase.source]) * about.held
        with T.serial(0, about.units) as one:
            factor = T.Bind(_splat(self._buffers["kept"][first + one], lanes))
            line = T.Bind((direction * about.units + one) * about.gates)
            for number, gate in enumerate(phase.gates):
                weight = self._load("weights", line + gate, unit)
                T.buffer_store(sums, sums[place(number)] + weight * factor, [place(number)])
        return lambda number: sums[place(number)]


def _divisor(extent: int, most: int) -> int:
    return max(number for number in range(1, most + 1) if extent % number == 0)
