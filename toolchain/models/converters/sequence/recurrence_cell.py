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
    """Writes functions of numbers, or of vectors of them."""

    def number(self, value: float) -> Expr:
        """Return a constant."""

    def keep(self, value: Expr) -> Expr:
        """Compute something once that is used several times."""

    def clipped(self, x: Expr, least: float, greatest: float) -> Expr:
        """Return numbers between limits."""

    def exp(self, x: Expr) -> Expr:
        """Return the exponential."""

    def log(self, x: Expr) -> Expr:
        """Return the natural logarithm."""

    def sigmoid(self, x: Expr) -> Expr:
        """Return 1 / (1 + exp(-x))."""

    def tanh(self, x: Expr) -> Expr:
        """Return the hyperbolic tangent."""


@dataclass(frozen=True)
class Units:
    """Some units of one direction and sequence at one time step, as a phase sees them.

    Attributes:
        load: Reads a vector of a buffer, by its name and the row of `held` numbers.
        gates: Row of the projection of the first gate.
        sums: Holds the products of the phase.
        phase: The phase.
        state: Row of direction and sequence.
        direction: The direction.
        kept: Rows of the state of the step before, and of what earlier phases made, in one buffer.
    """

    load: Callable[[str, Expr], Expr]
    gates: Expr
    sums: Callable[[int], Expr]
    phase: Phase
    state: Expr
    direction: Expr
    kept: Mapping[str, Expr]

    def projected(self, gate: int) -> Expr:
        """Return the input's part of a gate."""
        return self.load("projected", self.gates + gate)

    def product(self, gate: int) -> Expr:
        """Return the recurrent weights' part of a gate of this phase."""
        return self.sums(self.phase.gates.index(gate))

    def held(self, name: str) -> Expr:
        """Return "hidden" or "memory" of the step before, or what an earlier phase made by that name."""
        if name == "memory":
            return self.load("memory_last", self.state)
        return self.load("kept", self.kept[name])

    def given(self, name: str, row: int = 0) -> Expr:
        """Return "bias", or a row of "peepholes"."""
        return self.load(name, self.direction * (3 if name == "peepholes" else 1) + row)


@dataclass(frozen=True)
class Place:
    """Where a time step of a sequence lies.

    Attributes:
        row: Row of the projection.
        every: Row of the result for all steps.
        inside: Whether the sequence is that long; None if all are.
    """

    row: Expr
    every: Expr
    inside: Expr = None


def placed(recurrence: Recurrence, direction: Expr, sequence: Expr, step: Expr, length: Expr = None) -> Place:
    """Return where the data of a time step lies, which is counted in the order of computation.

    Args:
        recurrence: The recurrence.
        direction: The direction.
        sequence: The sequence.
        step: The step.
        length: Steps of the sequence; None if it has all.
    """
    steps, batch, directions = recurrence.steps, recurrence.batch, len(recurrence.directions)
    inside = None if length is None else step < length
    turned = steps - 1 - step if inside is None else tirx.Select(inside, length - 1 - step, step)
    if directions == 1:
        time = turned if recurrence.directions[0] else step
    else:
        time = tirx.Select(direction == 1, turned, step)
    if recurrence.batch_first:
        row = sequence * steps + time
        return Place(row, row * directions + direction, inside)
    return Place(time * batch + sequence, (time * directions + direction) * batch + sequence, inside)


_Function = Callable[[Functions, Expr, float, float], Expr]


def _chosen(condition: Expr, first: Expr, second: Expr) -> Expr:
    return prim.Select(condition, first, second)


def _softplus(f: Functions, x: Expr) -> Expr:
    """Return log(1 + exp(x)), such that the exponential never overflows."""
    x = f.keep(x)
    size = tirx.max(x, f.number(0.0) - x)
    return tirx.max(x, f.number(0.0)) + f.log(f.number(1.0) + f.exp(f.number(0.0) - size))


def _elu(f: Functions, x: Expr, alpha: float) -> Expr:
    below = f.number(alpha) * (f.exp(tirx.min(x, f.number(0.0))) - f.number(1.0))
    return _chosen(x < f.number(0.0), below, x)


ACTIVATIONS: dict[str, _Function] = {
    "affine": lambda f, x, alpha, beta: x * f.number(alpha) + f.number(beta),
    "elu": lambda f, x, alpha, _: _elu(f, f.keep(x), alpha),
    "hardsigmoid": lambda f, x, alpha, beta: f.clipped(x * f.number(alpha) + f.number(beta), 0.0, 1.0),
    "leakyrelu": lambda f, x, alpha, _: _chosen(x < f.number(0.0), x * f.number(alpha), x),
    "relu": lambda f, x, _, __: tirx.max(x, f.number(0.0)),
    "scaledtanh": lambda f, x, alpha, beta: f.number(alpha) * f.tanh(x * f.number(beta)),
    "sigmoid": lambda f, x, _, __: f.sigmoid(x),
    "softplus": lambda f, x, _, __: _softplus(f, x),
    "softsign": lambda f, x, _, __: x / (f.number(1.0) + tirx.max(x, f.number(0.0) - x)),
    "tanh": lambda f, x, _, __: f.tanh(x),
    "thresholdedrelu": lambda f, x, alpha, _: _chosen(x > f.number(alpha), x, f.number(0.0)),
}
"""The activation functions of ONNX's recurrent operators by their names in lower case."""


def finished(recurrence: Recurrence, phase: Phase, f: Functions, units: Units) -> dict[str, Expr]:
    """Return what a phase makes of its products.

    Args:
        recurrence: The recurrence.
        phase: One of its phases.
        f: Writes functions.
        units: What they are applied to.

    Returns:
        By name: the new "hidden", the new "memory", or what a later phase needs.
    """
    if recurrence.cell == "lstm":
        return _lstm(recurrence, f, units)
    if recurrence.cell == "rnn":
        return {"hidden": _activated(recurrence, 0, f, _sum(units, 0))}
    if phase.source == "damped":
        return {"hidden": _mixed(recurrence, f, units, _sum(units, 2), units.held("update"))}
    update, reset = (_activated(recurrence, 0, f, _sum(units, gate)) for gate in (0, 1))
    if recurrence.cell == "gru":
        return {"update": update, "damped": reset * units.held("hidden")}
    candidate = units.projected(2) + reset * (units.product(2) + units.given("bias"))
    return {"hidden": _mixed(recurrence, f, units, candidate, update)}


def _sum(units: Units, gate: int) -> Expr:
    return units.projected(gate) + units.product(gate)


def _activated(recurrence: Recurrence, number: int, f: Functions, x: Expr) -> Expr:
    """Return an activation function of something that is clipped first."""
    one = recurrence.activations[number]
    if recurrence.clip:
        x = f.clipped(x, -recurrence.clip, recurrence.clip)
    return f.keep(ACTIVATIONS[one.name](f, f.keep(x), one.alpha, one.beta))


def _mixed(recurrence: Recurrence, f: Functions, units: Units, candidate: Expr, update: Expr) -> Expr:
    """Return the new state of a GRU."""
    update = f.keep(update)
    new = _activated(recurrence, 1, f, candidate)
    return (f.number(1.0) - update) * new + update * units.held("hidden")


def _lstm(recurrence: Recurrence, f: Functions, units: Units) -> dict[str, Expr]:
    """Gates in the order of ONNX: input, output, forget, candidate."""

    def gate(number: int, memory: Expr) -> Expr:
        x = _sum(units, number)
        if recurrence.peepholes:
            x = x + units.given("peepholes", number) * memory
        return _activated(recurrence, 0, f, x)

    before = f.keep(units.held("memory"))
    taken = gate(0, before)
    forgotten = f.number(1.0) - taken if recurrence.coupled else gate(2, before)
    memory = f.keep(forgotten * before + taken * _activated(recurrence, 1, f, _sum(units, 3)))
    shown = gate(1, memory)
    unlimited = replace(recurrence, clip=0.0)  # ONNX Runtime clips what gates are made of alone
    return {"memory": memory, "hidden": shown * _activated(unlimited, 2, f, memory)}
