"""The second opinion: what ONNX Runtime computes for the same model and the same inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from toolchain import rankings
from toolchain.errors import InputError
from toolchain.models.ort import onnxruntime
from toolchain.models.simplify import dynamic_lstm
from toolchain.models.source import SourceModel, as_declared
from toolchain.rankings import Ranking
from toolchain.tensors import LARGEST_TOLERANCE, ROUNDING, TOLERANCE, Limit, Tensors

Opened = Callable[[Tensors], dict[str, NDArray[Any]]]
"""A model that is open: takes inputs by name, and returns outputs by name."""

NAME = f"onnxruntime {onnxruntime.__version__}"

_FATAL_ONLY = 4

# A sum that lies between two steps may be rounded to either. One step of 8 bits in an early layer changed the results
# of networks by up to 1.5e-2, a few of them by 2.4e-2.
_QUANTIZED = frozenset(
    {
        "QuantizeLinear",
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
    }
)
_QUANTIZED_TOLERANCE = 5e-2

# Of MatMulNBits, in ONNX Runtime's ContribOperators.md.
_ACCURACY, _OF_8_BITS = "accuracy_level", 4

# Ours, and the reference's two ways, are three orders of summation: two of them may lie on both sides of the third.
_MARGIN = 4

# Half precision has 11 bits: 5e-4 at each rounding, of which a deep network has many. bfloat16 has 8.
_FLOAT16_TOLERANCE = 2e-2
_BFLOAT16_TOLERANCE = 1e-1

# ONNX Runtime promises what is of this opset or newer.
_OLDEST = 7


def tolerance(source: SourceModel, *, float16: bool = False) -> float | None:
    """Return the limit for a model's relative difference where it does not follow from its output's dtype.

    The least precise type that the model computes in decides, also where its outputs are of a more precise one.

    Args:
        source: The model.
        float16: Whether the device computes in half precision.
    """
    if _is_quantized(source):
        return _QUANTIZED_TOLERANCE
    used = _computed_types(source.proto)
    if onnx.TensorProto.BFLOAT16 in used:
        return _BFLOAT16_TOLERANCE
    return _FLOAT16_TOLERANCE if float16 or onnx.TensorProto.FLOAT16 in used else None


def _computed_types(proto: onnx.ModelProto) -> set[int]:
    """Return the element types that nodes compute in: those they read, and those that numbers are converted to.

    Weights that are stored in half precision and converted before anything reads them count as what they become.
    """
    types: set[int] = set()
    graphs = [proto.graph]
    weights: dict[str, int] = {}
    known: dict[str, int] = {}
    bodies = [function.node for function in proto.functions]
    while graphs:
        graph = graphs.pop()
        weights |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        known |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
        bodies.append(graph.node)
        for node in graph.node:
            for attribute in node.attribute:
                graphs += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
    for nodes in bodies:
        for node in nodes:
            attributes = {attribute.name: attribute for attribute in node.attribute}
            if node.op_type == "Constant" and "value" in attributes:
                weights[node.output[0]] = attributes["value"].t.data_type
            elif node.op_type != "Cast":
                types |= {kind for name in node.input if (kind := weights.get(name, known.get(name))) is not None}
            elif node.input[0] in weights:
                weights[node.output[0]] = attributes["to"].i
            else:
                types.add(attributes["to"].i)
    return types


def _is_quantized(source: SourceModel) -> bool:
    return any(node.op_type in _QUANTIZED or _rounds_data(node) for node in source.proto.graph.node)


def _rounds_data(node: onnx.NodeProto) -> bool:
    """Whether ONNX Runtime is told to multiply weights of few bits with data of 8 bits, rounded on the way."""
    return any(one.name == _ACCURACY and one.i == _OF_8_BITS for one in node.attribute)


def limits(
    source: SourceModel,
    inputs: Tensors,
    outputs: Tensors,
    order: Sequence[Ranking] = (),
    opened_as: tuple[Opened, Opened] | None = None,
) -> dict[str, Limit]:
    """Return the limits of outputs that depend on the order in which sums are added up, or rounded.

    Such an output amplifies rounding: with the inputs at hand, ONNX Runtime itself gets another one without its
    optimizations, or with weights and inputs that differ in their last bit. No other program can come nearer than that.

    Args:
        source: The model.
        inputs: What it was run with.
        outputs: What `run` returned with optimizations.
        order: Which outputs have rows in an order of scores, which may be another one.
        opened_as: The model, opened to the letter, and as `opened_near` returns it, where many inputs make it worth
            keeping them.

    Returns:
        By output: a multiple of the reference's own difference, or of a quantized model its sum with the usual limit.
        An output whose difference is far below the usual limit has none.
    """
    literal = opened_as[0] if opened_as else opened(source, to_the_letter=True)
    own = _moved(literal(inputs), outputs, order)
    if _is_quantized(source):
        usual = _QUANTIZED_TOLERANCE
        wider = {name: min(value + usual, LARGEST_TOLERANCE) for name, value in own.items() if 2 * value > usual}
    else:
        ordered = {name for ranking in order for name in ranking.names}
        own = {name: value for name, value in own.items() if value <= _QUANTIZED_TOLERANCE or name not in ordered}
        near = opened_as[1] if opened_as else opened_near(source)
        for name, value in _moved(near(inputs), outputs, order).items():
            own[name] = max(own.get(name, 0.0), value if value <= _QUANTIZED_TOLERANCE else 0.0)
        wider = {
            name: min(_MARGIN * value, _QUANTIZED_TOLERANCE)
            for name, value in own.items()
            if _MARGIN * value > TOLERANCE["float32"]
        }
    return {name: Limit(wider[name], ROUNDING) for name in outputs if name in wider}


def _moved(other: Tensors, outputs: Tensors, order: Sequence[Ranking]) -> dict[str, float]:
    """Return how far outputs have moved, but for rows that are in another order.

    Where last bits change, one that moved further than any limit is a choice (which results there are, a class), and no
    measure of rounding.
    """
    alike = [name for name, value in outputs.items() if value.shape == other[name].shape and value.dtype.kind == "f"]
    whole = [ranking for ranking in order if set(ranking.names) <= {*alike}]
    if not alike:
        return {}
    found = rankings.compare({name: other[name] for name in alike}, {name: outputs[name] for name in alike}, whole)
    return {one.name: one.max_rel for one in found.outputs if np.isfinite(one.max_rel)}


def name(*, to_the_letter: bool = False) -> str:
    """Return what a report calls the reference; the argument is that of `run`."""
    return f"{NAME} without optimisations" if to_the_letter else NAME


def with_plain_lstm(source: SourceModel) -> SourceModel:
    """Return a model as it is compared: see `dynamic_lstm`; the same one if it has no such LSTM."""
    proto = dynamic_lstm.in_floats(source.proto)
    return source if proto is source.proto else replace(source, proto=proto)


def run(source: SourceModel, inputs: Tensors, *, to_the_letter: bool = False) -> dict[str, NDArray[Any]]:
    """Run a model once; see `opened`, which takes the same arguments but for what it is run with, `inputs`."""
    return opened(source, to_the_letter=to_the_letter)(inputs)


def opened(source: SourceModel, *, to_the_letter: bool = False) -> Opened:
    """Open a model in ONNX Runtime on this machine's CPU.

    One thread: a reduction split over threads may add up in another order, and the reference is to be reproducible.

    Args:
        source: The model.
        to_the_letter: Whether each operator is computed as the file has it. Otherwise those around a quantized one are
            merged with it, which rounds elsewhere.

    Returns:
        What runs it: takes inputs by name, and returns outputs by name.

    Raises:
        InputError: ONNX Runtime cannot run the model, now or when it is run, so there is nothing to compare with.
    """
    return _opened(source, as_declared(source), to_the_letter=to_the_letter)


def opened_near(source: SourceModel) -> Opened:
    """Open a model whose weights differ from the file's in their last bit, and change inputs likewise.

    Each number of single precision becomes one of its two neighbours, drawn with a fixed seed. A program that adds up
    in another order is as far from the reference as that: the outputs say how much of a difference rounding explains.

    Returns:
        What runs it, as `opened` does.

    Raises:
        InputError: As `opened`.
    """
    stream = np.random.default_rng(0)
    proto = as_declared(source)
    for tensor in proto.graph.initializer:
        # Vectors and scalars may be sizes, scales of images or exponents, where the last bit decides on a shape.
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(_neighbours(onnx.numpy_helper.to_array(tensor), stream), tensor.name)
            )
    call = _opened(source, proto, to_the_letter=False)

    def run_near(inputs: Tensors) -> dict[str, NDArray[Any]]:
        drawn = np.random.default_rng(1)
        return call({name: _neighbours(value, drawn) for name, value in inputs.items()})

    return run_near


def _neighbours(value: NDArray[Any], stream: np.random.Generator) -> NDArray[Any]:
    """Return numbers of single precision one step up or down; zeros, which are masks and padding, stay."""
    if value.dtype != np.float32:
        return value
    towards = np.where(stream.integers(0, 2, value.shape, np.uint8) == 1, np.float32(np.inf), np.float32(-np.inf))
    return np.where((value == 0) | ~np.isfinite(value), value, np.nextafter(value, towards))


def _opened(source: SourceModel, proto: onnx.ModelProto, *, to_the_letter: bool) -> Opened:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = _FATAL_ONLY
    if to_the_letter:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with _explained(source):
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def call(inputs: Tensors) -> dict[str, NDArray[Any]]:
        with _explained(source):
            values = session.run(list(source.output_names), dict(inputs))
        return {name: np.asarray(value) for name, value in zip(source.output_names, values, strict=True)}

    return call


@contextlib.contextmanager
def _explained(source: SourceModel) -> Iterator[None]:
    try:
        yield
    except Exception as fault:  # its exceptions share no base class of their own
        raise InputError(
            f"ONNX Runtime cannot run {source.name}, so there are no reference outputs",
            details=str(fault).strip()[-2000:],
            hint=_advice(source),
        ) from fault


def _advice(source: SourceModel) -> str:
    opset = max((entry.version for entry in source.proto.opset_import if entry.domain in {"", "ai.onnx"}), default=1)
    if opset < _OLDEST:
        return f"its opset is {opset}: export it with {_OLDEST} or newer, or try onnx.version_converter"
    return "check the model with `toolchain model inspect`"
