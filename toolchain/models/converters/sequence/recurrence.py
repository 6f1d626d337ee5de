"""A recurrence, as an LSTM, a GRU or a simple recurrent layer has one: what it is, and what a kernel of it takes.

The input's part of all time steps is one matrix product, which any backend has a kernel for. The recurrence is a
kernel of its own, which takes these arguments and makes these results, all of one float type:

    projected  [rows, directions * gates * held]   row of sequence b at time t: t * batch + b, or b * steps + t
    weights    [directions, units, gates * held]   what each unit of the state adds to each gate
    bias       [directions, held]                  that of the candidate, if the `cell` is "gru_reset"
    peepholes  [directions, 3, held]               input, output, forget; if there are `peepholes`
    lengths    [batch], int32                      steps of each sequence, if there are `lengths`
    hidden     [directions, batch, held]           state at first
    memory     the same                            of an LSTM
    ->
    every      [steps, directions, batch, held]; [batch, steps, directions, held] if `batch_first`
    last       [directions, batch, held]           state in the end
    memory     the same                            of an LSTM

`held` is the number of units, filled up to whole vectors. What fills up holds zeros in the arguments, and anything in
the results.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from tvm import tirx
from tvm.ir import prim

Cell = Literal["lstm", "gru", "gru_reset", "rnn"]

RECURRENCE = "toolchain.recurrence"
"""Attribute of a kernel that computes a recurrence: its description as JSON."""

KIND = "recurrence"
"""Value of "kind" in that JSON."""
_WIDEST = 16  # elements of the widest vectors of any board: 512 bits of float32

Expr = Any


@dataclass(frozen=True)
class Activation:
    """An activation function by ONNX's name in lower case."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Phase:
    """A part of a time step that can be computed for all units at once: gates, and the operand of their products."""

    gates: tuple[int, ...]
    source: Literal["hidden", "damped"] = "hidden"


_PHASES: dict[Cell, tuple[Phase, ...]] = {
    "lstm": (Phase((0, 1, 2, 3)),),
    "gru": (Phase((0, 1)), Phase((2,), "damped")),
    "gru_reset": (Phase((0, 1, 2)),),
    "rnn": (Phase((0,)),),
}


@dataclass(frozen=True)
class Recurrence:
    """A recurrence.

    Attributes:
        cell: A "gru_reset" applies the reset gate after the product with the recurrent weights.
        units: Units of the state, for each direction.
        directions: Whether each direction goes backwards.
        activations: As ONNX lists them for one direction.
        clip: Limit of the absolute inputs of the gates' activations; 0 for none.
        batch_first: Whether sequences come before time steps.
        peepholes: Whether the gates of an LSTM see its memory.
        coupled: Whether the forget gate is 1 minus the input gate.
        lengths: Whether sequences have lengths of their own.
    """

    cell: Cell
    steps: int
    batch: int
    units: int
    directions: tuple[bool, ...]
    activations: tuple[Activation, ...]
    clip: float = 0.0
    batch_first: bool = False
    peepholes: bool = False
    coupled: bool = False
    lengths: bool = False
    dtype: str = "float32"

    @property
    def phases(self) -> tuple[Phase, ...]:
        return _PHASES[self.cell]

    @property
    def gates(self) -> int:
        """Number of gates, the candidate included."""
        return sum(len(phase.gates) for phase in self.phases)

    @property
    def held(self) -> int:
        """Units, padded to whole vectors."""
        return -(-self.units // _WIDEST) * _WIDEST

    @property
    def kept(self) -> tuple[str, ...]:
        """What a phase of a time step leaves for the next one."""
        return ("update", "damped") if len(self.phases) > 1 else ()

    @property
    def has_memory(self) -> bool:
        return self.cell == "lstm"

    @property
    def arguments(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name, in order."""
        directions, state = len(self.directions), self._state
        width = self.gates * self.held
        return {
            "projected": (self.steps * self.batch, directions * width),
            "weights": (directions, self.units, width),
            **({"bias": (directions, self.held)} if self.cell == "gru_reset" else {}),
            **({"peepholes": (directions, 3, self.held)} if self.peepholes else {}),
            **({"lengths": (self.batch,)} if self.lengths else {}),
            "hidden": state,
            **({"memory": state} if self.has_memory else {}),
        }

    @property
    def results(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name, in order."""
        directions, state = len(self.directions), self._state
        every = (self.steps, directions, self.batch)
        if self.batch_first:
            every = (self.batch, self.steps, directions)
        return {"every": (*every, self.held), "last": state, **({"memory_last": state} if self.has_memory else {})}

    @property
    def flops(self) -> int:
        """Operations of the products with the recurrent weights, a multiply-add as two."""
        return 2 * self.steps * self.batch * len(self.directions) * self.gates * self.units**2

    @property
    def _state(self) -> tuple[int, int, int]:
        return (len(self.directions), self.batch, self.held)

    def to_json(self) -> str:
        return json.dumps({"kind": KIND, **dataclasses.asdict(self)}, sort_keys=True, separators=(",", ":"))


def from_json(text: str) -> Recurrence:
    document = json.loads(text)
    del document["kind"]
    document["activations"] = tuple(Activation(**activation) for activation in document["activations"])
    document["directions"] = tuple(document["directions"])
    return Recurrence(**document)


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
