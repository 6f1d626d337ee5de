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
from dataclasses import dataclass
from typing import Literal

Cell = Literal["lstm", "gru", "gru_reset", "rnn"]

RECURRENCE = "toolchain.recurrence"
"""Attribute of a kernel that computes a recurrence: its description as JSON."""

KIND = "recurrence"
"""Value of "kind" in that JSON."""
_WIDEST = 16  # elements of the widest vectors of any board: 512 bits of float32


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
