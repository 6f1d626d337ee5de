"""The reference: what ONNX Runtime computes for the same model and the same inputs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from toolchain import rankings
from toolchain.errors import InputError
from toolchain.models import protos
from toolchain.models.ort import Session, onnxruntime
from toolchain.models.simplify import rewrites
from toolchain.models.source import SourceModel, as_declared
from toolchain.rankings import Ranking
from toolchain.tensors import LARGEST_TOLERANCE, ROUNDING, TOLERANCE, Limit, Tensors

OpenModel = Callable[[Tensors], dict[str, NDArray[Any]]]
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

# The oldest opset that ONNX Runtime promises to support.
_OLDEST = 7
# The newest versions that the pinned ONNX Runtime reads; the onnx package is ahead of it.
_NEWEST_OPSET, _NEWEST_IR = 26, 13


# The least precise type that the model or (by the other arguments) the device computes in decides, even if outputs have
# a more precise one.
def tolerance(source: SourceModel, *, float16: bool = False, bfloat16: bool = False, weights: str = "") -> float | None:
    """Return the limit for a model's relative difference if it does not follow from its output's dtype."""
    if weights == "int4":
        return LARGEST_TOLERANCE  # weights that are normally distributed are off by 9 % of their deviation
    if _is_quantized(source) or weights == "int8":
        return _QUANTIZED_TOLERANCE
    types = _computed_types(source.proto)
    if bfloat16 or onnx.TensorProto.BFLOAT16 in types:
        return _BFLOAT16_TOLERANCE
    return _FLOAT16_TOLERANCE if float16 or onnx.TensorProto.FLOAT16 in types else None


def _computed_types(proto: onnx.ModelProto) -> set[int]:
    """Return the element types that nodes compute in: those they read, and those that numbers are converted to.

    Weights that are stored in half precision and converted before anything reads them count as their converted type.
    """
    types: set[int] = set()
    graphs = [proto.graph]
    weights: dict[str, int] = {}
    input_types: dict[str, int] = {}
    bodies = [function.node for function in proto.functions]
    while graphs:
        graph = graphs.pop()
        weights |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        input_types |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
        bodies.append(graph.node)
        for node in graph.node:
            graphs += protos.bodies(node)
    for nodes in bodies:
        for node in nodes:
            attributes = {attribute.name: attribute for attribute in node.attribute}
            if node.op_type == "Constant" and "value" in attributes:
                weights[node.output[0]] = attributes["value"].t.data_type
            elif node.op_type != "Cast":
                types |= {kind for name in node.input if (kind := weights.get(name, input_types.get(name))) is not None}
            elif node.input[0] in weights:
                weights[node.output[0]] = attributes["to"].i
            else:
                types.add(attributes["to"].i)
    return types


def _is_quantized(source: SourceModel) -> bool:
    for node in source.proto.graph.node:
        # With this accuracy level, ONNX Runtime multiplies weights of few bits with data that it rounds to 8 bits.
        rounds_data = any(attribute.name == _ACCURACY and attribute.i == _OF_8_BITS for attribute in node.attribute)
        if node.op_type in _QUANTIZED or rounds_data:
            return True
    return False


def limits(
    source: SourceModel,
    inputs: Tensors,
    outputs: Tensors,
    order: Sequence[Ranking] = (),
    open_models: tuple[OpenModel, OpenModel] | None = None,
) -> dict[str, Limit]:
    """Return the limits of outputs that depend on the order in which sums are added up, or rounded.

    Such an output amplifies rounding: for these inputs, ONNX Runtime itself has another result without its
    optimizations, or with weights and inputs that differ in their last bit. No other program can come nearer than that.

    Args:
        source: The model.
        inputs: Its inputs.
        outputs: Results of `run` with optimizations.
        order: Which outputs have rows in an order of scores, which may differ.
        open_models: The model, open without optimizations and as from `open_perturbed`, for use with many inputs.

    Returns:
        By output: a multiple of the reference's own difference, or of a quantized model its sum with the usual limit.
            None for an output whose difference is far below the usual limit.
    """
    literal = open_models[0] if open_models else open_model(source, unoptimized=True)
    differences = _differences(literal(inputs), outputs, order)
    if _is_quantized(source):
        usual = _QUANTIZED_TOLERANCE
        wider = {
            name: min(value + usual, LARGEST_TOLERANCE) for name, value in differences.items() if 2 * value > usual
        }
    else:
        ordered = {name for ranking in order for name in ranking.names}
        differences = {
            name: value for name, value in differences.items() if value <= _QUANTIZED_TOLERANCE or name not in ordered
        }
        near = open_models[1] if open_models else open_perturbed(source)
        for name, value in _differences(near(inputs), outputs, order).items():
            differences[name] = max(differences.get(name, 0.0), value if value <= _QUANTIZED_TOLERANCE else 0.0)
        wider = {
            name: min(_MARGIN * value, _QUANTIZED_TOLERANCE)
            for name, value in differences.items()
            if _MARGIN * value > TOLERANCE["float32"]
        }
    return {name: Limit(wider[name], ROUNDING) for name in outputs if name in wider}


def _differences(other: Tensors, outputs: Tensors, order: Sequence[Ranking]) -> dict[str, float]:
    """Return how far outputs differ, except for rows in another order.

    If last bits change, a difference above any limit is a choice (which results there are, a class), not rounding.
    """
    comparable = [
        name for name, value in outputs.items() if value.shape == other[name].shape and value.dtype.kind == "f"
    ]
    applicable = [ranking for ranking in order if set(ranking.names) <= {*comparable}]
    if not comparable:
        return {}
    comparison = rankings.compare(
        {name: other[name] for name in comparable}, {name: outputs[name] for name in comparable}, applicable
    )
    return {output.name: output.max_rel for output in comparison.outputs if np.isfinite(output.max_rel)}


def name(*, unoptimized: bool = False) -> str:
    return f"{NAME} without optimisations" if unoptimized else NAME


def with_plain_lstm(source: SourceModel) -> SourceModel:
    """Return the model that is compared with (see `dynamic_lstm`); the same one if it has no such LSTM."""
    proto = rewrites.quantized_lstm_in_floats(source.proto)
    return source if proto is source.proto else replace(source, proto=proto)


def run(source: SourceModel, inputs: Tensors, *, unoptimized: bool = False) -> dict[str, NDArray[Any]]:
    return open_model(source, unoptimized=unoptimized)(inputs)


def open_model(source: SourceModel, *, unoptimized: bool = False) -> OpenModel:
    """Open a model in ONNX Runtime on this machine's CPU.

    Each operator is computed as in the file if `unoptimized`. Otherwise operators around a quantized one are merged
    with it, which rounds differently.

    Raises:
        InputError: ONNX Runtime cannot run the model, now or later.
    """
    return _open(source, as_declared(source), unoptimized=unoptimized)


def open_perturbed(source: SourceModel) -> OpenModel:
    """Open a model whose weights differ from the file's in their last bit, and which changes inputs likewise.

    Each number of single precision becomes one of its two neighbours, drawn with a fixed seed. A program that adds up
    in another order is as far from the reference as that: the outputs say how much of a difference rounding explains.
    """
    stream = np.random.default_rng(0)
    proto = as_declared(source)
    for tensor in proto.graph.initializer:
        # Vectors and scalars may be sizes, scales of images or exponents, where the last bit decides on a shape.
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(_perturb(onnx.numpy_helper.to_array(tensor), stream), tensor.name)
            )
    call = _open(source, proto, unoptimized=False)

    def run_near(inputs: Tensors) -> dict[str, NDArray[Any]]:
        input_stream = np.random.default_rng(1)
        return call({name: _perturb(value, input_stream) for name, value in inputs.items()})

    return run_near


# One step up or down. Zeros stay, which are masks and padding, and so do the largest numbers: these are masks that are
# added to scores, and their upper neighbour is infinite.
def _perturb(value: NDArray[Any], stream: np.random.Generator) -> NDArray[Any]:
    if value.dtype != np.float32:
        return value
    is_up = stream.integers(0, 2, value.shape, np.uint8) == 1
    moves = (value != 0) & (np.abs(value) < np.finfo(np.float32).max)
    # As an integer, a float counts the steps from zero.
    steps = (2 * (is_up == (value > 0)).astype(np.int8) - 1) * moves
    return np.asarray(value.view(np.int32) + steps).view(np.float32)


def _open(source: SourceModel, proto: onnx.ModelProto, *, unoptimized: bool) -> OpenModel:
    options = onnxruntime.SessionOptions()
    # With one thread, sums are added in the same order on every machine.
    options.intra_op_num_threads = 1
    options.log_severity_level = _FATAL_ONLY
    if unoptimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    _lower_versions(proto)
    with _explain_errors(source):
        session = Session(proto, options)

    def call(inputs: Tensors) -> dict[str, NDArray[Any]]:
        with _explain_errors(source):
            values = session.run(list(source.output_names), dict(inputs))
        return {name: np.asarray(value) for name, value in zip(source.output_names, values, strict=True)}

    return call


def _lower_versions(proto: onnx.ModelProto) -> None:
    """Give a model versions that ONNX Runtime reads, if none of its operators has changed since then."""
    proto.ir_version = min(proto.ir_version, _NEWEST_IR)
    opset = protos.opset(proto)
    nodes = itertools.chain(proto.graph.node, *(function.node for function in proto.functions))
    if opset <= _NEWEST_OPSET or any(
        onnx.defs.get_schema(node.op_type, opset).since_version > _NEWEST_OPSET
        for node in protos.walk_nodes(nodes)
        if node.domain in protos.STANDARD
    ):
        return
    for owner in (proto, *proto.functions):
        for entry in owner.opset_import:
            if entry.domain in protos.STANDARD:
                entry.version = min(entry.version, _NEWEST_OPSET)


@contextlib.contextmanager
def _explain_errors(source: SourceModel) -> Iterator[None]:
    try:
        yield
    except Exception as fault:  # its exceptions share no base class of their own
        opset = protos.opset(source.proto)
        hint = "check the model with `toolchain inspect model`"
        if opset < _OLDEST:
            hint = f"its opset is {opset}: export it with {_OLDEST} or newer, or try onnx.version_converter"
        raise InputError(
            f"ONNX Runtime cannot run {source.name}, so there are no reference outputs",
            details=str(fault).strip()[-2000:],
            hint=hint,
        ) from fault
