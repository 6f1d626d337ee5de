"""Recurrences: all time steps in one kernel, with the gates' activation functions in the pass that sums them.

A tile of some sequences and vectors of units is accumulated in registers, all gates at once. Weights lie in the order
in which they are read, and each core reads the same ones at each step, so that they stay in its cache. Either each core
has directions and sequences of its own, and never waits; or the cores share the units of each step.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument, multiply_add, with_definitions
from toolchain.backends.cpu.layers import Layer
from toolchain.backends.cpu.machine import Machine
from toolchain.models.converters.sequence.recurrence import Phase, Recurrence, Units, cell_outputs, locate

NAME = "recurrent"

_FLOAT_BYTES = 4
_NEAR, _FAR = (
    2.0,
    5.0,
)  # times longer than a product takes to fetch a vector of weights from the second cache, or beyond
_WAITING = 1500.0  # products that could be done while cores wait for each other
_STARTING = 16000.0  # and while they begin
_ACTIVATION = 25.0  # products that an activation function takes as long as

Expr = Any


@dataclass(frozen=True)
class Config:
    """How the work is cut.

    Attributes:
        rows: Sequences of a tile.
        blocks: Vectors of units of a tile.
        inputs: Units of the state that are taken at a time, with sums of their own.
        together: Whether the cores share each step: 1, or 0.
    """

    rows: int
    blocks: int
    inputs: int
    together: int


@dataclass(frozen=True)
class _Work:
    """One group of units in one phase of a time step, as expressions.

    Attributes:
        phase: The phase.
        stream: Direction and sequences.
        slot: Where the state of the stream is stored.
        step: The time step.
        group: The group of units.
    """

    phase: Phase
    stream: Expr
    slot: Expr
    step: Expr
    group: Expr


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return isinstance(layer, Recurrence) and layer.dtype == "float32"


def configs(layer: Recurrence, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    gates, vectors = max(len(phase.gates) for phase in layer.phases), layer.held // machine.lanes
    candidates = []
    for rows, blocks, inputs, together in itertools.product(
        (1, 2, 3, 4, 5, 6, 8), (1, 2, 3, 4, 6, 8), (1, 2, 4), (0, 1)
    ):
        registers = rows * blocks * gates * inputs + (blocks * gates if rows > 1 else 1) + 1
        if layer.batch % rows or vectors % blocks or registers > machine.registers:
            continue
        if (inputs > 1 and rows > 1) or inputs > layer.units or (together and machine.cores == 1):
            continue
        config = Config(rows, blocks, inputs, together)
        candidates.append((config, _estimate(layer, config, machine)))
    return sorted(candidates, key=lambda candidate: candidate[1])


def _estimate(layer: Recurrence, config: Config, machine: Machine) -> float:
    """Estimate the cost as `kernels.Candidate` defines it."""
    streams, groups = _streams(layer, config), _groups(layer, config, machine)
    pieces = streams * groups if config.together else streams
    cores = min(pieces, machine.cores)
    fetch = _fetching(layer, machine, cores)
    total = _WAITING * len(layer.phases) * config.together
    for phase in layer.phases:
        vectors = config.blocks * len(phase.gates)
        products, loads = config.rows * vectors, vectors * fetch + config.rows
        tile = layer.units * max(products, loads, 8 / config.inputs)
        tile += config.rows * config.blocks * (len(phase.gates) + 1) * _ACTIVATION
        total += tile * -(-pieces // cores) * (1 if config.together else groups)
    return layer.steps * total + _STARTING * config.together


def _fetching(layer: Recurrence, machine: Machine, cores: int) -> float:
    """Return the cost of a vector of weights, by the cache that holds the weights of one core."""
    bytes_per_core = len(layer.directions) * layer.gates * layer.held * layer.units * _FLOAT_BYTES / cores
    if bytes_per_core <= machine.l1_bytes // 2:
        return 1.0
    return _NEAR if bytes_per_core <= machine.l2_bytes * 3 // 4 else _FAR


def pack(layer: Recurrence, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:
    """Return weights [directions, units, gates * held] as the kernel reads them.

    Returns:
        For each direction: for each phase [groups, units, gates of the phase, vectors, lanes].
    """
    directions, groups = len(layer.directions), _groups(layer, config, machine)
    split = weights.reshape(directions, layer.units, layer.gates, groups, config.blocks * machine.lanes)
    phases = [split[:, :, list(phase.gates)].transpose(0, 3, 1, 2, 4) for phase in layer.phases]
    return np.ascontiguousarray(np.concatenate([phase_weights.reshape(directions, -1) for phase_weights in phases], 1))


def kernel(layer: Recurrence, machine: Machine, config: Config) -> tirx.PrimFunc:
    def body(*buffers: Any) -> None:
        RecurrentWriter(layer, machine, config, buffers).write()

    return with_definitions(emit.kernel(kernel_arguments(layer), body, {}), machine)


def kernel_arguments(layer: Recurrence) -> list[Argument]:
    """Return the arguments and the results of a kernel, with packed weights."""
    shapes = layer.arguments | {"weights": (len(layer.directions), layer.units * layer.gates * layer.held)}
    return [
        Argument(name, shape, "int32" if name == "lengths" else layer.dtype)
        for name, shape in (shapes | layer.results).items()
    ]


def _streams(layer: Recurrence, config: Config) -> int:
    """Return how many tiles of sequences and directions are independent of each other."""
    return len(layer.directions) * layer.batch // config.rows


def _groups(layer: Recurrence, config: Config, machine: Machine) -> int:
    return layer.held // (config.blocks * machine.lanes)


class RecurrentWriter:
    """Writes the statements of a kernel.

    Args:
        layer: The recurrence; its number of steps may be an expression.
        machine: The processor.
        config: How the work is cut.
        buffers: The arguments and the results.
        steps: A number of steps, by which it is decided whether cores share the work.
    """

    def __init__(
        self, layer: Recurrence, machine: Machine, config: Config, buffers: Sequence[Any], steps: int = 0
    ) -> None:
        self._layer, self._machine, self._config = layer, machine, config
        self._buffers = dict(zip(layer.arguments | layer.results, buffers, strict=True))
        self._flops = replace(layer, steps=steps or layer.steps).flops
        self._lanes, self._functions = machine.lanes, emit.functions(machine.lanes)
        self._streams, self._groups = _streams(layer, config), _groups(layer, config, machine)
        # All of a stream's state is one buffer: of several, StorageRewrite puts two into the same place.
        self._kept = {name: row for row, name in enumerate(layer.kept, 2)}

    def write(self) -> None:
        if self._config.together:
            self._share_steps()
        else:
            self._run_streams()

    # --- loops ---------------------------------------------------------------------------------------------

    def _run_streams(self) -> None:
        """Let each core do whole streams."""
        operations = self._flops / 2 / self._lanes
        with emit.shared(self._streams, operations) as stream:
            # Inside the parallel loop: each core has the state of its stream for itself.
            self._allocate(1)
            slot_of_stream = T.Bind(stream), 0
            self._start(*slot_of_stream)
            with T.serial(0, self._layer.steps) as step:
                for phase in self._layer.phases:
                    with T.serial(0, self._groups) as number:
                        # There and back: of weights that are more than a cache holds, it still has the last ones.
                        group = T.Bind(tirx.Select(step % 2 == 0, number, self._groups - 1 - number))
                        self._phase(_Work(phase, *slot_of_stream, step, group))
            self._end(*slot_of_stream)

    def _share_steps(self) -> None:
        """Let the cores share the groups of each phase."""
        # Outside the parallel loops: all cores read the state of all streams.
        self._allocate(self._streams)
        with T.serial(0, self._streams) as stream:
            self._start(T.Bind(stream), T.Bind(stream))
        with T.serial(0, self._layer.steps) as step:
            for phase in self._layer.phases:
                with T.parallel(0, self._streams * self._groups) as number:
                    work = T.Bind(number)
                    stream = T.Bind(work // self._groups)
                    self._phase(_Work(phase, stream, stream, step, T.Bind(work % self._groups)))
        with T.serial(0, self._streams) as stream:
            self._end(T.Bind(stream), T.Bind(stream))

    # --- places --------------------------------------------------------------------------------------------

    def _allocate(self, streams: int) -> None:
        rows = streams * (len(self._kept) + 2) * self._config.rows
        self._buffers["kept"] = emit.flat(T.alloc_buffer((rows * self._layer.held,), "float32"))

    def _row(self, slot: int, name: Expr, row: Expr) -> Expr:
        """Return a row of the state; a name is a number from `_kept`, or 0 or 1 for the units themselves."""
        return (slot * (len(self._kept) + 2) + name) * self._config.rows + row

    def _load(self, name: str, row: Expr, unit: Expr) -> Expr:
        return self._buffers[name][emit.ramp(row * self._layer.held + unit, self._lanes)]

    def _store(self, name: str, row: Expr, unit: Expr, value: Expr) -> None:
        T.buffer_store(self._buffers[name], value, [emit.ramp(row * self._layer.held + unit, self._lanes)])

    def _direction_and_sequence(self, stream: Expr, row: Expr) -> tuple[Expr, Expr]:
        """Return direction and sequence of a row of a tile."""
        tiles = self._layer.batch // self._config.rows
        return T.Bind(stream // tiles), T.Bind(stream % tiles * self._config.rows + row)

    @contextlib.contextmanager
    def _states(self, stream: Expr) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Open loops over all units of a stream: row of the tile, row of the states, and unit."""
        with T.serial(0, self._config.rows) as row, T.serial(0, self._layer.held // self._lanes) as vector:
            direction, sequence = self._direction_and_sequence(stream, row)
            yield row, T.Bind(direction * self._layer.batch + sequence), T.Bind(vector * self._lanes)

    # --- statements ----------------------------------------------------------------------------------------

    def _start(self, stream: Expr, slot: Expr) -> None:
        with self._states(stream) as (row, state, unit):
            self._store("kept", self._row(slot, 0, row), unit, self._load("hidden", state, unit))
            if self._layer.has_memory:
                self._store("memory_last", state, unit, self._load("memory", state, unit))

    def _end(self, stream: Expr, slot: Expr) -> None:
        with self._states(stream) as (row, state, unit):
            self._store("last", state, unit, self._load("kept", self._row(slot, self._layer.steps % 2, row), unit))

    def _phase(self, work: _Work) -> None:
        before = T.Bind(work.step % 2)
        sums = self._sums(work, before)
        rows, blocks, count = self._config.rows, self._config.blocks, len(work.phase.gates)
        if rows * blocks == 1:
            self._finish(work, before, 0, 0, sums)
            return
        # A loop, since many copies of such code take seconds to compile.
        stored = [emit.on_stack(rows * blocks, self._lanes) for _ in range(count)]
        for index, total in enumerate(sums):
            row, gate, block = index // (count * blocks), index // blocks % count, index % blocks
            T.buffer_store(stored[gate], total, [row * blocks + block])
        with T.serial(0, rows) as row, T.serial(0, blocks) as block:
            of_unit = [of_gate[row * blocks + block] for of_gate in stored]
            self._finish(work, before, row, block, of_unit)

    def _sums(self, work: _Work, before: Expr) -> list[Expr]:
        """Write the products of a tile; return its sums, by row, gate and vector."""
        layer, config, lanes, phase = self._layer, self._config, self._lanes, work.phase
        vectors = len(phase.gates) * config.blocks
        count = config.rows * vectors
        sums = emit.Registers(count * config.inputs, lanes)
        for index in range(count * config.inputs):
            sums[index] = emit.splat(0.0, lanes)
        direction, _ = self._direction_and_sequence(work.stream, 0)
        first = layer.units * layer.held * (direction * layer.gates + phase.gates[0])
        base = T.Bind(first + work.group * (layer.units * vectors * lanes))
        # Hidden units alternate between two rows, so that a step does not read what it writes.
        source = before if phase.source == "hidden" else self._kept[phase.source]

        def add(unit: Expr, inputs: int) -> None:
            for number in range(inputs):
                line = T.Bind(base + (unit + number) * (vectors * lanes))
                weights = [
                    T.Bind(self._buffers["weights"][emit.ramp(line + vector * lanes, lanes)])
                    for vector in range(vectors)
                ]
                for row in range(config.rows):
                    offset = self._row(work.slot, source, row) * layer.held + unit + number
                    factor = T.Bind(emit.splat(self._buffers["kept"][offset], lanes))
                    for vector, weight in enumerate(weights):
                        index = (number * config.rows + row) * vectors + vector
                        sums[index] = multiply_add(self._machine, sums[index], weight, factor)

        with T.serial(0, layer.units // config.inputs) as steps:
            add(T.Bind(steps * config.inputs), config.inputs)
        add(layer.units // config.inputs * config.inputs, layer.units % config.inputs)
        totals = [sums[index] for index in range(count)]
        for number in range(1, config.inputs):
            totals = [T.Bind(total + sums[number * count + index]) for index, total in enumerate(totals)]
        return [T.Bind(total) for total in totals]

    def _finish(self, work: _Work, before: Expr, row: Expr, block: Expr, sums: Sequence[Expr]) -> None:
        """Write the gates and outputs of one vector of units."""
        layer, slot = self._layer, work.slot
        direction, sequence = self._direction_and_sequence(work.stream, row)
        state = T.Bind(direction * layer.batch + sequence)
        unit = T.Bind((work.group * self._config.blocks + block) * self._lanes)
        length = T.Bind(self._buffers["lengths"][sequence]) if layer.lengths else None
        position = locate(layer, direction, sequence, work.step, length)
        every, new = T.Bind(position.every), T.Bind(self._row(slot, 1 - before, row))
        old = T.Bind(self._row(slot, before, row))

        def inside() -> None:
            gates = T.Bind((position.row * len(layer.directions) + direction) * layer.gates)
            states = {"hidden": old, **{name: self._row(slot, number, row) for name, number in self._kept.items()}}

            def load(name: str, number: Expr) -> Expr:
                return self._load(name, number, unit)

            units = Units(load, gates, sums.__getitem__, work.phase, state, direction, states)
            for name, value in cell_outputs(layer, work.phase, self._functions, units).items():
                result = T.Bind(value)
                if name == "hidden":
                    self._store("kept", new, unit, result)
                    self._store("every", every, unit, result)
                elif name == "memory":
                    self._store("memory_last", state, unit, result)
                else:
                    self._store("kept", states[name], unit, result)

        if position.inside is None:  # all sequences have all steps
            inside()
            return
        with T.If(position.inside):
            with T.Then():
                inside()
            with T.Else():  # behind the end of a sequence its state stays, and its outputs are zero
                self._store("every", every, unit, self._functions.number(0.0))
                self._store("kept", new, unit, self._load("kept", old, unit))
