"""The state of a model: outputs of a step that are inputs of the next one.

A step has the model's other inputs and outputs. A sequence has these for each step, along an axis in front.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.tensors import Tensors, TensorSpec

STEPS = 32
"""Steps of a sequence that a build makes up."""
LARGEST_STEPS = 4096
"""Steps that a reference may have."""
_FEW = 5  # names and faults that a message lists

Call = Callable[[Tensors], dict[str, NDArray[Any]]]
"""Takes inputs by name, and returns outputs by name."""


@dataclass(frozen=True)
class StatePair:
    """An output that is an input of the next step; both have the same shape and element type.

    Attributes:
        input: Name of the input.
        output: Name of the output.
        in_place: Whether a step of the compiled model writes what is new into the memory of the input. Pairs that
            differ only in that are equal: it changes no result.
    """

    input: str
    output: str
    in_place: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.input}={self.output}"


def describe(pairs: Sequence[StatePair]) -> str:
    """List the states of a compiled model, and which of them a step writes in place."""
    return ", ".join(f"{pair} (in place)" if pair.in_place else str(pair) for pair in pairs)


def of_step(specs: Sequence[TensorSpec], state: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Return the inputs or the outputs of a step: those whose names are not in the state."""
    names = set(state)
    return tuple(spec for spec in specs if spec.name not in names)


def stacked(specs: Sequence[TensorSpec], steps: int) -> tuple[TensorSpec, ...]:
    """Return the specs of a sequence; 0 steps mean a model without a state, and its own specs."""
    return tuple(spec.stacked(steps) for spec in specs) if steps else tuple(specs)


def count_steps(arrays: Tensors) -> int:
    """Return the number of steps of a sequence, by its first array; 0 if that is a single number."""
    first = next(iter(arrays.values()), np.empty(()))
    return first.shape[0] if first.ndim else 0


def faults(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], states: Sequence[StatePair]) -> list[str]:
    """Return why these pairs cannot be the state of a model with this signature, a few reasons; empty if they can."""
    if not states:
        return []
    sources, results = ({spec.name: spec for spec in specs} for specs in (inputs, outputs))
    found = (_pair_fault(sources, results, pair) for pair in states)
    messages = list(itertools.islice(filter(None, found), _FEW))
    for side, names in (("input", [pair.input for pair in states]), ("output", [pair.output for pair in states])):
        repeated = (name for name, count in Counter(names).items() if count > 1)
        messages += [f"{side} {name} is in two states" for name in itertools.islice(repeated, _FEW)]
    if not of_step(inputs, [pair.input for pair in states]):
        messages.append("no input is left beside the state")
    if not of_step(outputs, [pair.output for pair in states]):
        messages.append("no output is left beside the state")
    bound = next((spec.name for spec in outputs if spec.bound), None)
    if bound is not None:
        messages.append(f"the size of output {bound} depends on the data, which a model with a state cannot have")
    return messages


def _pair_fault(sources: Mapping[str, TensorSpec], results: Mapping[str, TensorSpec], pair: StatePair) -> str:
    source, result = sources.get(pair.input), results.get(pair.output)
    if source is None:
        return f"{pair}: there is no input {pair.input}; inputs: {', '.join(itertools.islice(sources, _FEW))}"
    if result is None:
        return f"{pair}: there is no output {pair.output}; outputs: {', '.join(itertools.islice(results, _FEW))}"
    if (source.shape, source.dtype) != (result.shape, result.dtype):
        return f"{pair}: the input is {source}, but the output is {result}"
    return ""


def sequence(call: Call, inputs: Sequence[TensorSpec], states: Sequence[StatePair]) -> Call:
    """Return a call that runs a sequence, from a state of zeros; `call` runs a step, with its state."""
    specs = {spec.name: spec for spec in inputs}

    def run(arrays: Tensors) -> dict[str, NDArray[Any]]:
        state = {pair.input: np.zeros(specs[pair.input].shape, specs[pair.input].dtype) for pair in states}
        rows = []
        for step in range(count_steps(arrays)):
            outputs = call({**{name: value[step] for name, value in arrays.items()}, **state})
            state = {pair.input: outputs.pop(pair.output) for pair in states}
            rows.append(outputs)
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    return run
