"""LSTM, GRU and RNN, which TVM's importer lacks: a matrix product for all inputs, and the kernel of a recurrence.

float16 and bfloat16 are computed in float32, as ONNX Runtime does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from tvm import relax

from toolchain.models.converters import Node, converter
from toolchain.models.converters.sequence.recurrence import ACTIVATIONS, Activation, Cell, Recurrence
from toolchain.models.converters.sequence.recurrence_kernel import generic_kernel

Expr = Any

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_DEFAULT_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
# Default alpha and beta of activation functions: those of the operators of the same name. None where there is no such
# operator, or ONNX Runtime has another default.
_DEFAULT_CONSTANTS: dict[str, tuple[float | None, ...]] = {
    "affine": (None, None),
    "elu": (1.0,),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01,),
    "scaledtanh": (None, None),
    "thresholdedrelu": (None,),
}


@converter("LSTM", "GRU", "RNN")
def recurrent(node: Node) -> list[Expr]:
    inputs = _read_inputs(node)
    recurrences = _recurrences(node, inputs)
    if len(set(recurrences)) == 1:
        directions = _DIRECTIONS[node.attributes.get("direction", "forward")]
        results = _compute(node, replace(recurrences[0], directions=directions), inputs)
    else:
        by_direction = [
            _compute(node, replace(recurrence, directions=(bool(number),)), inputs.direction(node, number))
            for number, recurrence in enumerate(recurrences)
        ]
        axes = [2 if recurrences[0].batch_first else 1, 0, 0]
        results = [
            node.emit(relax.op.concat(list(outputs), axis))
            for axis, outputs in zip(axes, zip(*by_direction, strict=True), strict=False)
        ]
    all_steps, *states = results
    if recurrences[0].batch_first:
        states = [node.emit(relax.op.permute_dims(state, (1, 0, 2))) for state in states]
    return [_cast(node, value, node.dtype(0)) for value in (all_steps, *states)]


# --- inputs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Inputs:
    """The inputs, in the element type of the computation.

    Attributes:
        data: [steps, batch, features], or batch first.
        weights: [directions, gates * units, features].
        recurrent: [directions, gates * units, units].
        bias: [directions, 2 * gates * units].
        hidden: [directions, batch, units].
        memory: The same.
        peepholes: [directions, 3 * units].
        lengths: [batch].
    """

    data: Expr
    weights: Expr
    recurrent: Expr
    bias: Expr = None
    hidden: Expr = None
    memory: Expr = None
    peepholes: Expr = None
    lengths: Expr = None

    def direction(self, node: Node, number: int) -> _Inputs:
        names = [entry.name for entry in fields(self) if entry.name not in {"data", "lengths"}]
        values = {
            name: _slice(node, value, 0, number, number + 1)
            for name in names
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **values)


def _read_inputs(node: Node) -> _Inputs:
    dtype = "float64" if node.dtype(0) == "float64" else "float32"

    def read(index: int) -> Expr:
        value = node.input(index)
        return None if value is None else _cast(node, value, dtype)

    def state(index: int) -> Expr:
        value = read(index)
        return (
            value if value is None or not _is_batch_first(node) else node.emit(relax.op.permute_dims(value, (1, 0, 2)))
        )

    lengths = node.input(4)
    if node.is_constant(4):  # without lengths, the kernel is simpler
        steps = node.shape(0)[1 if _is_batch_first(node) else 0]
        lengths = None if (np.asarray(node.constant(4)) == steps).all() else lengths
    lengths = None if lengths is None else _cast(node, lengths, "int32")
    memory, peepholes = (state(6), read(7)) if node.operator == "LSTM" else (None, None)
    return _Inputs(read(0), read(1), read(2), read(3), state(5), memory, peepholes, lengths)


def _is_batch_first(node: Node) -> bool:
    return bool(node.attributes.get("layout", 0))


def _recurrences(node: Node, inputs: _Inputs) -> list[Recurrence]:
    """Return the recurrence of each direction, as if it went forwards."""
    steps, batch, _ = node.shape_of(inputs.data)
    batch_first = _is_batch_first(node)
    cells: dict[str, Cell] = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"}
    resets_after = node.operator == "GRU" and bool(node.attributes.get("linear_before_reset", 0))
    common = Recurrence(
        cell="gru_reset" if resets_after else cells[node.operator],
        steps=batch if batch_first else steps,
        batch=steps if batch_first else batch,
        units=node.shape_of(inputs.recurrent)[-1],
        directions=(False,),
        activations=(),
        clip=float(node.attributes.get("clip", 0.0)),
        batch_first=batch_first,
        peepholes=inputs.peepholes is not None,
        coupled=bool(node.attributes.get("input_forget", 0)),
        lengths=inputs.lengths is not None,
        dtype=str(inputs.data.ty.dtype),
    )
    return [replace(common, activations=activations) for activations in _activations(node)]


def _activations(node: Node) -> list[tuple[Activation, ...]]:
    """Return the activation functions of each direction."""
    default = _DEFAULT_ACTIVATIONS[node.operator]
    direction = node.attributes.get("direction", "forward")
    if direction not in _DIRECTIONS:
        raise node.refusal(f"{direction!r} is not a valid direction")
    count = len(_DIRECTIONS[direction])
    names = list(node.attributes.get("activations") or default * count)
    if len(names) != len(default) * count:
        raise node.refusal(f"{len(names)} activation functions instead of {len(default) * count}")
    constants = [list(node.attributes.get(f"activation_{name}") or []) for name in ("alpha", "beta")]
    activations = [_activation(node, str(name).lower(), constants) for name in names]
    return [tuple(activations[start : start + len(default)]) for start in range(0, len(activations), len(default))]


def _activation(node: Node, name: str, constants: list[list[float]]) -> Activation:
    """Return an activation function; its constants are the next ones in the node's lists."""
    if name not in ACTIVATIONS:
        raise node.refusal(
            f"the activation function {name!r} is not part of the ONNX standard: {', '.join(ACTIVATIONS)}"
        )
    defaults = _DEFAULT_CONSTANTS.get(name, ())
    values = [numbers.pop(0) if numbers else default for default, numbers in zip(defaults, constants, strict=False)]
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        raise node.refusal(f"the activation function {name!r} has no default alpha or beta, and the node sets none")
    return Activation(name, *numbers)


# --- the computation ------------------------------------------------------------------------------------------


def _compute(node: Node, recurrence: Recurrence, inputs: _Inputs) -> list[Expr]:
    """Return all outputs; states have directions first."""
    weights = node.emit(relax.op.permute_dims(_split_gates(node, inputs.recurrent, recurrence), (0, 3, 1, 2)))
    fused, candidate = _biases(node, recurrence, inputs)
    # The product of all inputs with the weights of all gates and directions.
    features, width = node.shape_of(inputs.data)[-1], recurrence.arguments["projected"][1]
    matrix = _reshape(node, _split_gates(node, inputs.weights, recurrence), (width, features))
    data = _reshape(node, inputs.data, (recurrence.steps * recurrence.batch, features))
    projected = node.emit(relax.op.matmul(data, node.emit(relax.op.permute_dims(matrix))))
    if fused is not None:
        projected = node.emit(relax.op.add(projected, _reshape(node, fused, (width,))))
    values = {
        "projected": projected,
        "weights": weights,
        "bias": candidate,
        "peepholes": inputs.peepholes,
        "lengths": inputs.lengths,
        "hidden": inputs.hidden,
        "memory": inputs.memory,
    }
    arguments = [_argument(node, recurrence, name, values[name]) for name in recurrence.arguments]
    kernel = node.builder.add_func(generic_kernel(recurrence), f"{recurrence.cell}_kernel")
    types = [relax.TensorType(shape, recurrence.dtype) for shape in recurrence.results.values()]
    outputs = node.emit(relax.op.call_tir(kernel, relax.Tuple(arguments), types))
    results = [node.emit(relax.TupleGetItem(outputs, number)) for number in range(len(types))]
    if recurrence.held == recurrence.units:
        return results
    return [_slice(node, result, -1, 0, recurrence.units) for result in results]


def _split_gates(node: Node, matrix: Expr, recurrence: Recurrence) -> Expr:
    """Return weights as [directions, gates, padded units, inputs]."""
    inputs = node.shape_of(matrix)[-1]
    split = _reshape(node, matrix, (len(recurrence.directions), recurrence.gates, recurrence.units, inputs))
    return _pad(node, split, 2, recurrence.held)


def _biases(node: Node, recurrence: Recurrence, inputs: _Inputs) -> tuple[Expr, Expr]:
    """Return the bias of the projection, [directions, gates, padded units], and the separate one of a candidate."""
    if inputs.bias is None:
        return None, None
    directions, gates = len(recurrence.directions), recurrence.gates
    split = _reshape(node, inputs.bias, (directions, 2, gates, recurrence.units))
    halves = [_slice(node, _pad(node, split, 3, recurrence.held), 1, half, half + 1) for half in (0, 1)]
    input_bias, state_bias = (_reshape(node, half, (directions, gates, recurrence.held)) for half in halves)
    if recurrence.cell != "gru_reset":
        return node.emit(relax.op.add(input_bias, state_bias)), None
    candidate = _slice(node, state_bias, 1, gates - 1, gates)
    others = _slice(node, state_bias, 1, 0, gates - 1)
    nothing = _zeros((directions, 1, recurrence.held), recurrence.dtype)
    others = node.emit(relax.op.concat([others, nothing], 1))
    return node.emit(relax.op.add(input_bias, others)), candidate


def _argument(node: Node, recurrence: Recurrence, name: str, value: Expr) -> Expr:
    """Return an argument of the kernel in its shape; zeros if it is left out."""
    shape = recurrence.arguments[name]
    if value is None:
        return _zeros(shape, recurrence.dtype)
    if name == "peepholes":
        value = _reshape(node, value, (*shape[:-1], recurrence.units))
    if name in {"peepholes", "hidden", "memory"}:
        value = _pad(node, value, -1, recurrence.held)
    return _reshape(node, value, shape)


# --- operations -----------------------------------------------------------------------------------------------


def _cast(node: Node, value: Expr, dtype: str) -> Expr:
    return value if str(value.ty.dtype) == dtype else node.emit(relax.op.astype(value, dtype))


def _reshape(node: Node, value: Expr, shape: Sequence[int]) -> Expr:
    return value if node.shape_of(value) == tuple(shape) else node.emit(relax.op.reshape(value, shape))


def _slice(node: Node, value: Expr, axis: int, begin: int, end: int) -> Expr:
    return node.emit(relax.op.strided_slice(value, axes=[axis], begin=[begin], end=[end]))


def _pad(node: Node, value: Expr, axis: int, size: int) -> Expr:
    """Append zeros to an axis."""
    shape = list(node.shape_of(value))
    missing = size - shape[axis]
    if not missing:
        return value
    shape[axis] = missing
    return node.emit(relax.op.concat([value, _zeros(shape, str(value.ty.dtype))], axis))


def _zeros(shape: Sequence[int], dtype: str) -> Expr:
    return relax.const(np.zeros(shape, dtype), dtype)
