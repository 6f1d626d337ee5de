"""LSTM, GRU and RNN, which TVM's importer lacks: a matrix product for all inputs, and the kernel of a recurrence.

float16 and bfloat16 are computed in float32, as ONNX Runtime does, which has no such kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from tvm import relax

from toolchain.models.converters import converter
from toolchain.models.converters.node import Node
from toolchain.models.converters.sequence.recurrence import Activation, Cell, Recurrence
from toolchain.models.converters.sequence.recurrence_cell import ACTIVATIONS
from toolchain.models.converters.sequence.recurrence_kernel import plain

Expr = Any

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_USUAL: dict[str, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
_CONSTANTS: dict[str, tuple[float | None, ...]] = {
    "affine": (None, None),
    "elu": (1.0,),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01,),
    "scaledtanh": (None, None),
    "thresholdedrelu": (None,),
}
"""What alpha and beta of activation functions are where a node does not say it, as the operators of that name have it.

None where there is no such operator, or ONNX Runtime takes another number than its one.
"""


@converter("LSTM", "GRU", "RNN")
def _recurrent(node: Node) -> list[Expr]:
    given = _given(node)
    kinds = _kinds(node, given)
    if len(set(kinds)) == 1:
        directions = _DIRECTIONS[node.attributes.get("direction", "forward")]
        results = _computed(node, replace(kinds[0], directions=directions), given)
    else:
        apart = [
            _computed(node, replace(kind, directions=(bool(number),)), given.direction(node, number))
            for number, kind in enumerate(kinds)
        ]
        axes = [2 if kinds[0].batch_first else 1, 0, 0]
        results = [
            node.emit(relax.op.concat(list(parts), axis))
            for axis, parts in zip(axes, zip(*apart, strict=True), strict=False)
        ]
    return _outputs(node, results, kinds[0])


# --- what is given ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Given:
    """The inputs, in the type that is computed in.

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

    def direction(self, node: Node, number: int) -> _Given:
        """Return what one direction takes."""
        parts = {
            one.name: _sliced(node, value, 0, number, number + 1)
            for one in fields(self)
            if one.name not in {"data", "lengths"} and (value := getattr(self, one.name)) is not None
        }
        return replace(self, **parts)


def _given(node: Node) -> _Given:
    dtype = "float64" if node.dtype(0) == "float64" else "float32"

    def taken(index: int) -> Expr:
        value = node.input(index)
        return None if value is None else _cast(node, value, dtype)

    def state(index: int) -> Expr:
        value = taken(index)
        return (
            value if value is None or not _is_batch_first(node) else node.emit(relax.op.permute_dims(value, (1, 0, 2)))
        )

    memory, peepholes = (state(6), taken(7)) if node.operator == "LSTM" else (None, None)
    return _Given(taken(0), taken(1), taken(2), taken(3), state(5), memory, peepholes, _lengths(node))


def _lengths(node: Node) -> Expr:
    """Return the lengths of the sequences; None if all are as long as there are steps."""
    value = node.input(4)
    if value is None:
        return None
    steps = node.shape(0)[1 if _is_batch_first(node) else 0]
    known = node.constant(4) if node.is_constant(4) else None
    if known is not None and (known == steps).all():
        return None
    return _cast(node, value, "int32")


def _is_batch_first(node: Node) -> bool:
    return bool(node.attributes.get("layout", 0))


def _kinds(node: Node, given: _Given) -> list[Recurrence]:
    """Describe the recurrence of each direction, as if it went forwards."""
    steps, batch, _ = node.shape_of(given.data)
    batch_first = _is_batch_first(node)
    common = Recurrence(
        cell=_cell(node),
        steps=batch if batch_first else steps,
        batch=steps if batch_first else batch,
        units=node.shape_of(given.recurrent)[-1],
        directions=(False,),
        activations=(),
        clip=float(node.attributes.get("clip", 0.0)),
        batch_first=batch_first,
        peepholes=given.peepholes is not None,
        coupled=bool(node.attributes.get("input_forget", 0)),
        lengths=given.lengths is not None,
        dtype=str(given.data.ty.dtype),
    )
    return [replace(common, activations=one) for one in _activations(node)]


def _cell(node: Node) -> Cell:
    if node.operator == "GRU":
        return "gru_reset" if node.attributes.get("linear_before_reset", 0) else "gru"
    return "lstm" if node.operator == "LSTM" else "rnn"


def _activations(node: Node) -> list[tuple[Activation, ...]]:
    """Return the activation functions of each direction."""
    usual = _USUAL[node.operator]
    direction = node.attributes.get("direction", "forward")
    if direction not in _DIRECTIONS:
        raise node.refusal(f"{direction!r} is not a valid direction")
    count = len(_DIRECTIONS[direction])
    named = list(node.attributes.get("activations") or usual * count)
    if len(named) != len(usual) * count:
        raise node.refusal(f"{len(named)} activation functions instead of {len(usual) * count}")
    constants = [list(node.attributes.get(f"activation_{name}") or []) for name in ("alpha", "beta")]
    found = [_activation(node, str(name).lower(), constants) for name in named]
    return [tuple(found[start : start + len(usual)]) for start in range(0, len(found), len(usual))]


def _activation(node: Node, name: str, constants: list[list[float]]) -> Activation:
    """Return an activation function; each that has constants takes the next ones of the node's lists."""
    if name not in ACTIVATIONS:
        raise node.refusal(
            f"the activation function {name!r} is not part of the ONNX standard: {', '.join(ACTIVATIONS)}"
        )
    found = [given.pop(0) if given else one for one, given in zip(_CONSTANTS.get(name, ()), constants, strict=False)]
    numbers = [one for one in found if one is not None]
    if len(numbers) < len(found):
        raise node.refusal(f"the activation function {name!r} has no default alpha or beta, and the node sets none")
    return Activation(name, *numbers)


# --- what is computed ------------------------------------------------------------------------------------------


def _computed(node: Node, about: Recurrence, given: _Given) -> list[Expr]:
    """Return all outputs, states with directions first."""
    weights = node.emit(relax.op.permute_dims(_by_gate(node, given.recurrent, about), (0, 3, 1, 2)))
    fused, candidate = _biases(node, about, given)
    every = {
        "projected": _projected(node, about, given, fused),
        "weights": weights,
        "bias": candidate,
        "peepholes": given.peepholes,
        "lengths": given.lengths,
        "hidden": given.hidden,
        "memory": given.memory,
    }
    arguments = [_argument(node, about, name, every[name]) for name in about.arguments]
    kernel = node.builder.add_func(plain(about), f"{about.cell}_kernel")
    types = [relax.TensorType(shape, about.dtype) for shape in about.results.values()]
    made = node.emit(relax.op.call_tir(kernel, relax.Tuple(arguments), types))
    results = [node.emit(relax.TupleGetItem(made, number)) for number in range(len(types))]
    return [one if about.held == about.units else _sliced(node, one, -1, 0, about.units) for one in results]


def _projected(node: Node, about: Recurrence, given: _Given, bias: Expr) -> Expr:
    """Return the product of all inputs with the weights of all gates and directions."""
    features, width = node.shape_of(given.data)[-1], about.arguments["projected"][1]
    matrix = _reshaped(node, _by_gate(node, given.weights, about), (width, features))
    data = _reshaped(node, given.data, (about.steps * about.batch, features))
    product = node.emit(relax.op.matmul(data, node.emit(relax.op.permute_dims(matrix))))
    return product if bias is None else node.emit(relax.op.add(product, _reshaped(node, bias, (width,))))


def _by_gate(node: Node, matrix: Expr, about: Recurrence) -> Expr:
    """Return weights as [directions, gates, units, inputs], with units filled up."""
    inputs = node.shape_of(matrix)[-1]
    split = _reshaped(node, matrix, (len(about.directions), about.gates, about.units, inputs))
    return _filled(node, split, 2, about.held)


def _biases(node: Node, about: Recurrence, given: _Given) -> tuple[Expr, Expr]:
    """Return what is added to the projection, [directions, gates, held], and the bias of a candidate apart."""
    if given.bias is None:
        return None, None
    directions, gates = len(about.directions), about.gates
    split = _reshaped(node, given.bias, (directions, 2, gates, about.units))
    parts = [_sliced(node, _filled(node, split, 3, about.held), 1, part, part + 1) for part in (0, 1)]
    inputs, recurrent = (_reshaped(node, part, (directions, gates, about.held)) for part in parts)
    if about.cell != "gru_reset":
        return node.emit(relax.op.add(inputs, recurrent)), None
    candidate = _sliced(node, recurrent, 1, gates - 1, gates)
    others = _sliced(node, recurrent, 1, 0, gates - 1)
    nothing = _zeros((directions, 1, about.held), about.dtype)
    others = node.emit(relax.op.concat([others, nothing], 1))
    return node.emit(relax.op.add(inputs, others)), candidate


def _argument(node: Node, about: Recurrence, name: str, value: Expr) -> Expr:
    """Return an argument of the kernel in its shape; zeros if it is left out."""
    shape = about.arguments[name]
    if value is None:
        return _zeros(shape, about.dtype)
    if name == "peepholes":
        value = _reshaped(node, value, (*shape[:-1], about.units))
    if name in {"peepholes", "hidden", "memory"}:
        value = _filled(node, value, -1, about.held)
    return _reshaped(node, value, shape)


def _outputs(node: Node, results: list[Expr], given: Recurrence) -> list[Expr]:
    """Return the outputs as the node has them: batch first where it says so, and in its type."""
    every, *states = results
    if given.batch_first:
        states = [node.emit(relax.op.permute_dims(state, (1, 0, 2))) for state in states]
    return [_cast(node, value, node.dtype(0)) for value in (every, *states)]


# --- small parts -----------------------------------------------------------------------------------------------


def _cast(node: Node, value: Expr, dtype: str) -> Expr:
    return value if str(value.ty.dtype) == dtype else node.emit(relax.op.astype(value, dtype))


def _reshaped(node: Node, value: Expr, shape: Sequence[int]) -> Expr:
    return value if node.shape_of(value) == tuple(shape) else node.emit(relax.op.reshape(value, shape))


def _sliced(node: Node, value: Expr, axis: int, begin: int, end: int) -> Expr:
    return node.emit(relax.op.strided_slice(value, axes=[axis], begin=[begin], end=[end]))


def _filled(node: Node, value: Expr, axis: int, size: int) -> Expr:
    """Return a tensor with zeros at the end of an axis."""
    shape = list(node.shape_of(value))
    missing = size - shape[axis]
    if not missing:
        return value
    shape[axis] = missing
    return node.emit(relax.op.concat([value, _zeros(shape, str(value.ty.dtype))], axis))


def _zeros(shape: Sequence[int], dtype: str) -> Expr:
    return relax.const(np.zeros(shape, dtype), dtype)
