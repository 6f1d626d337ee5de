"""The equations of recurrences, on whatever a kernel computes with: single numbers, or vectors of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tvm import tirx
from tvm.ir import prim

from toolchain.models.converters.sequence.recurrence import Phase, Recurrence

Expr = Any


class Functions(Protocol):
    """Writes functions of numbers, or of vectors of numbers; `keep` binds a value that is used several times."""

    def number(self, value: float) -> Expr: ...
    def keep(self, value: Expr) -> Expr: ...
    def clipped(self, x: Expr, least: float, greatest: float) -> Expr: ...
    def exp(self, x: Expr) -> Expr: ...
    def log(self, x: Expr) -> Expr: ...
    def sigmoid(self, x: Expr) -> Expr: ...
    def tanh(self, x: Expr) -> Expr: ...


@dataclass(frozen=True)
class Units:
    """Some units of one direction and sequence at one time step, as a phase sees them.

    Attributes:
        load: Reads a vector of a buffer, by its name and the row of padded units.
        gates: Row of the projection for the first gate.
        sums: The products of the phase, by their number.
        state: Row of direction and sequence.
        kept: Rows, in one buffer, of the previous state and of what earlier phases computed.
    """

    load: Callable[[str, Expr], Expr]
    gates: Expr
    sums: Callable[[int], Expr]
    phase: Phase
    state: Expr
    direction: Expr
    kept: Mapping[str, Expr]

    def projected(self, gate: int) -> Expr:
        """Return the input's share of a gate."""
        return self.load("projected", self.gates + gate)

    def product(self, gate: int) -> Expr:
        """Return the recurrent weights' share of a gate of this phase."""
        return self.sums(self.phase.gates.index(gate))

    def held(self, name: str) -> Expr:
        """Return the previous "hidden" or "memory", or what an earlier phase computed under that name."""
        if name == "memory":
            return self.load("memory_last", self.state)
        return self.load("kept", self.kept[name])

    def parameter(self, name: str, row: int = 0) -> Expr:
        return self.load(name, self.direction * (3 if name == "peepholes" else 1) + row)


@dataclass(frozen=True)
class StepLocation:
    """Where a time step of a sequence lies: its rows in the projection and in the result for all steps.

    `inside` says whether the sequence is that long; it is None if all are.
    """

    row: Expr
    every: Expr
    inside: Expr = None


def locate(recurrence: Recurrence, direction: Expr, sequence: Expr, step: Expr, length: Expr = None) -> StepLocation:
    """Return where the data of a time step lies; steps are counted in the order of computation.

    Without a `length` the sequence has all steps.
    """
    steps, batch, directions = recurrence.steps, recurrence.batch, len(recurrence.directions)
    inside = None if length is None else step < length
    reversed_step = steps - 1 - step if inside is None else tirx.Select(inside, length - 1 - step, step)
    if directions == 1:
        time = reversed_step if recurrence.directions[0] else step
    else:
        time = tirx.Select(direction == 1, reversed_step, step)
    if recurrence.batch_first:
        row = sequence * steps + time
        return StepLocation(row, row * directions + direction, inside)
    return StepLocation(time * batch + sequence, (time * directions + direction) * batch + sequence, inside)


_Function = Callable[[Functions, Expr, float, float], Expr]


def _select(condition: Expr, first: Expr, second: Expr) -> Expr:
    return prim.Select(condition, first, second)


# log(1 + exp(x)), written such that the exponential never overflows.
def _softplus(f: Functions, x: Expr) -> Expr:
    x = f.keep(x)
    size = tirx.max(x, f.number(0.0) - x)
    return tirx.max(x, f.number(0.0)) + f.log(f.number(1.0) + f.exp(f.number(0.0) - size))


def _elu(f: Functions, x: Expr, alpha: float) -> Expr:
    below = f.number(alpha) * (f.exp(tirx.min(x, f.number(0.0))) - f.number(1.0))
    return _select(x < f.number(0.0), below, x)


ACTIVATIONS: dict[str, _Function] = {
    "affine": lambda f, x, alpha, beta: x * f.number(alpha) + f.number(beta),
    "elu": lambda f, x, alpha, _: _elu(f, f.keep(x), alpha),
    "hardsigmoid": lambda f, x, alpha, beta: f.clipped(x * f.number(alpha) + f.number(beta), 0.0, 1.0),
    "leakyrelu": lambda f, x, alpha, _: _select(x < f.number(0.0), x * f.number(alpha), x),
    "relu": lambda f, x, _, __: tirx.max(x, f.number(0.0)),
    "scaledtanh": lambda f, x, alpha, beta: f.number(alpha) * f.tanh(x * f.number(beta)),
    "sigmoid": lambda f, x, _, __: f.sigmoid(x),
    "softplus": lambda f, x, _, __: _softplus(f, x),
    "softsign": lambda f, x, _, __: x / (f.number(1.0) + tirx.max(x, f.number(0.0) - x)),
    "tanh": lambda f, x, _, __: f.tanh(x),
    "thresholdedrelu": lambda f, x, alpha, _: _select(x > f.number(alpha), x, f.number(0.0)),
}
"""The activation functions of ONNX's recurrent operators by their names in lower case."""


def cell_outputs(recurrence: Recurrence, phase: Phase, f: Functions, units: Units) -> dict[str, Expr]:
    """Return the results of a phase: the new "hidden", the new "memory", or what a later phase needs."""
    if recurrence.cell == "lstm":
        return _lstm(recurrence, f, units)
    if recurrence.cell == "rnn":
        return {"hidden": _activate(recurrence, 0, f, _sum(units, 0))}
    if phase.source == "damped":
        return {"hidden": _gru_state(recurrence, f, units, _sum(units, 2), units.held("update"))}
    update, reset = (_activate(recurrence, 0, f, _sum(units, gate)) for gate in (0, 1))
    if recurrence.cell == "gru":
        return {"update": update, "damped": reset * units.held("hidden")}
    candidate = units.projected(2) + reset * (units.product(2) + units.parameter("bias"))
    return {"hidden": _gru_state(recurrence, f, units, candidate, update)}


def _sum(units: Units, gate: int) -> Expr:
    return units.projected(gate) + units.product(gate)


def _activate(recurrence: Recurrence, index: int, f: Functions, x: Expr) -> Expr:
    """Clip, then apply an activation function."""
    activation = recurrence.activations[index]
    if recurrence.clip:
        x = f.clipped(x, -recurrence.clip, recurrence.clip)
    return f.keep(ACTIVATIONS[activation.name](f, f.keep(x), activation.alpha, activation.beta))


def _gru_state(recurrence: Recurrence, f: Functions, units: Units, candidate: Expr, update: Expr) -> Expr:
    update = f.keep(update)
    new = _activate(recurrence, 1, f, candidate)
    return (f.number(1.0) - update) * new + update * units.held("hidden")


# The gates have ONNX's order: input, output, forget, candidate.
def _lstm(recurrence: Recurrence, f: Functions, units: Units) -> dict[str, Expr]:
    def gate(number: int, memory: Expr) -> Expr:
        x = _sum(units, number)
        if recurrence.peepholes:
            x = x + units.parameter("peepholes", number) * memory
        return _activate(recurrence, 0, f, x)

    before = f.keep(units.held("memory"))
    input_gate = gate(0, before)
    forget_gate = f.number(1.0) - input_gate if recurrence.coupled else gate(2, before)
    memory = f.keep(forget_gate * before + input_gate * _activate(recurrence, 1, f, _sum(units, 3)))
    output_gate = gate(1, memory)
    unlimited = replace(recurrence, clip=0.0)  # ONNX Runtime clips what gates are made of alone
    return {"memory": memory, "hidden": output_gate * _activate(unlimited, 2, f, memory)}
