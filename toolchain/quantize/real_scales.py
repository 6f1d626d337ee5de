"""Int8 with real scales, for processors that multiply each sum by a factor: as ONNX Runtime's own quantizer writes it.

Weights are int8 about 0, with a scale for each output channel; activations are uint8 with a zero point; biases are
int32. The ranges of activations come from ONNX Runtime's calibrators. Convolutions and products with a constant matrix
become int8, and so do the operators between two of them. What precedes the first of them, and what follows the last
ones, stays float: no integers are computed there, and results of several units would share one scale. What stays float
reads tensors before they are rounded.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from toolchain import interrupts, temporary
from toolchain.errors import InputError, did_you_mean
from toolchain.models import ort, protos
from toolchain.models.ort import onnxruntime
from toolchain.models.source import SourceModel
from toolchain.progress import Progress, Step
from toolchain.quantize import biases, strip, work
from toolchain.quantize import graph as quantize_graph
from toolchain.quantize.calibrate import session_options
from toolchain.quantize.graph import Graph, title
from toolchain.quantize.unround import unround
from toolchain.tensors import Tensors

CALIBRATORS = {"max": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
"""How ranges of activations are chosen: ONNX Runtime's calibrator by our name, the default first."""

_LAYERS = frozenset({"Conv", "Gemm", "MatMul"})
_ACTIVATIONS = frozenset({"Relu", "Clip"})  # the rounding to bytes does their work
_BETWEEN = _ACTIVATIONS | {
    "Add", "AveragePool", "Concat", "Flatten", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Mul", "Pad", "Reshape",
    "Resize", "Sigmoid", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
}  # fmt: skip
_GATES = frozenset({"Sigmoid", "HardSigmoid"})
_MARK = "edge-toolchain.quantized"  # key of a model's metadata
_BIAS = 2  # index among the inputs of a layer


@dataclass(frozen=True)
class Layer:
    """A convolution or product that can become int8; `nodes` are its own and those between it and the next layers."""

    name: str
    operator: str
    nodes: tuple[str, ...]
    work: float = 1.0  # estimated time in floats, in the unit of all layers of a network


@dataclass(frozen=True)
class FloatNetwork:
    """A float model whose nodes have names, with the layers that can become int8, in order."""

    proto: onnx.ModelProto
    layers: tuple[Layer, ...]


def is_ours(proto: onnx.ModelProto) -> bool:
    """Whether a model was written by this toolchain in this form."""
    return any(entry.key == _MARK for entry in proto.metadata_props)


def float_network(source: SourceModel, exclude: Collection[str] = ()) -> FloatNetwork:
    """Return a model as it is quantized.

    Args:
        source: The model.
        exclude: Names of layers that stay float.

    Raises:
        InputError: It is quantized already, has no such layer, or none that can become int8.
    """
    strip.check_operators(source.proto, source.name)
    if strip.has_pairs(source.proto) or strip.has_qoperators(source.proto):
        raise InputError(
            f"{source.name} is quantized already",
            hint="`toolchain build` takes it as it is; pass the float model to quantize it in another way",
        )
    proto = onnx.shape_inference.infer_shapes(quantize_graph.floating(source).proto)
    names: set[str] = set()
    for node in proto.graph.node:
        name = title(node)
        while name in names:
            name += "_"
        names.add(name)
        node.name = name
    _separate_biases(proto)
    layers = _find_layers(Graph(proto))
    known = [layer.name for layer in layers]
    for name in exclude:
        if name not in known:
            hint = did_you_mean(name, known) or f"its layers begin with {', '.join(known[:3])}"
            raise InputError(f"{source.name} has no layer {name!r} to exclude", hint=hint)
    layers = tuple(layer for layer in layers if layer.name not in exclude)
    if not layers:
        raise InputError(
            f"{source.name} has no layer to quantize",
            details="convolutions and products are quantized if their weights are constant float32",
            hint="list its operators: `toolchain inspect model`",
        )
    return FloatNetwork(proto, layers)


def _separate_biases(proto: onnx.ModelProto) -> None:
    """Give each layer a bias of its own.

    ONNX Runtime's quantizer appends a number to the name of a bias that several layers share. The result may be the
    name of another tensor: some exporters number their tensors in the same way.
    """
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    taken: set[str] = set()
    for node in proto.graph.node:
        bias = node.input[_BIAS] if node.op_type in _LAYERS and len(node.input) > _BIAS else ""
        if bias in taken:
            node.input[_BIAS] = f"{node.name}.bias"
            proto.graph.initializer.append(protos.clone(weights[bias], node.input[_BIAS]))
        elif bias in weights:
            taken.add(bias)


def _find_layers(graph: Graph) -> tuple[Layer, ...]:
    layers: list[tuple[onnx.NodeProto, list[str]]] = []
    owners: dict[str, int] = {}  # number of the last layer before a tensor
    needed = _needed(graph)
    for node in graph.nodes:
        before = [owners[name] for name in node.input if name in owners]
        if _is_layer(graph, node):
            layers.append((node, [node.name]))
            before = [len(layers) - 1]
        elif before and node.op_type in _BETWEEN and not _gates_itself(graph, node):
            owner = max(before)
            follows = node.op_type in _ACTIVATIONS and node.input[0] == layers[owner][0].output[0]
            if follows or needed & set(node.output):
                layers[owner][1].append(node.name)
        if before:
            owners.update(dict.fromkeys(node.output, max(before)))
    return tuple(Layer(node.name, node.op_type, tuple(names), work.estimate(graph, node)) for node, names in layers)


def _gates_itself(graph: Graph, node: onnx.NodeProto) -> bool:
    """Whether a node belongs to x * sigmoid(x), or to the same with a hard sigmoid.

    A layer computes it on its sums before they are rounded, so nothing is rounded within it.
    """
    if node.op_type == "Mul":
        x, y = node.input
        return any(_is_gate(graph.makers.get(gate), factor) for gate, factor in ((x, y), (y, x)))
    if node.op_type in _GATES:
        readers = graph.readers(node.output[0])
        return bool(readers) and all(reader.op_type == "Mul" and node.input[0] in reader.input for reader in readers)
    return False


def _is_gate(maker: onnx.NodeProto | None, factor: str) -> bool:
    return maker is not None and maker.op_type in _GATES and maker.input[0] == factor


def _is_layer(graph: Graph, node: onnx.NodeProto) -> bool:
    if node.op_type not in _LAYERS or node.input[0] in graph.weights or not graph.is_float(node.input[1]):
        return False
    bias = [name for name in node.input[_BIAS:] if name]
    # ONNX Runtime's quantizer loses a factor of the bias.
    return all(map(graph.is_float, bias)) and not (bias and protos.get_attribute(node, "beta", 1.0) != 1)


def _needed(graph: Graph) -> set[str]:
    """Return the tensors that a later layer depends on."""
    needed: set[str] = set()
    for node in reversed(graph.nodes):
        if _is_layer(graph, node) or needed & set(node.output):
            needed.update(name for name in node.input if name not in graph.weights)
    return needed


class Quantizer:
    """Quantizes a network by ranges that were measured once; ONNX Runtime's quantizer runs once, as it takes seconds.

    Args:
        network: The network.
        ranges: Its ranges, as `calibrate` returns them.

    Raises:
        InputError: ONNX Runtime's quantizer cannot convert the network.
    """

    def __init__(self, network: FloatNetwork, ranges: Any) -> None:
        self.layers = network.layers
        self._original = Graph(network.proto)
        self._whole = _convert(network, ranges, self._int8_nodes(()))

    def corrected(self, samples: Sequence[Tensors], tell: Progress) -> Quantizer:
        """Return a quantizer that also corrects biases, by the means of activations on samples."""
        names = [layer.name for layer in self.layers]
        means = biases.measure_means(self._original, names, samples, tell)
        other = copy.copy(self)
        other._whole = biases.correct(self._whole, self._original, names, means)  # noqa: SLF001 - its own class
        return other

    def _int8_nodes(self, floats: Collection[str]) -> list[str]:
        return [name for layer in self.layers if layer.name not in floats for name in layer.nodes]

    def quantized(self, floats: Collection[str] = ()) -> onnx.ModelProto:
        """Return the network in QDQ form; the layers of these names stay float."""
        proto = protos.clone(self._whole)
        unround(proto, self._original, self._int8_nodes(floats))
        ort.quantization().onnx_model.ONNXModel(proto).topological_sort()
        protos.set_repeated(proto.metadata_props, map(protos.clone, self._original.proto.metadata_props))
        proto.metadata_props.add(key=_MARK, value="real scales")
        return proto


def _convert(network: FloatNetwork, ranges: Any, names: list[str]) -> onnx.ModelProto:
    tools = ort.quantization()
    proto = protos.clone(network.proto)
    tools.quant_utils.add_infer_metadata(proto)  # otherwise it infers shapes by files
    try:
        with _silent():
            quantizer = tools.QDQQuantizer(
                proto,
                per_channel=True,
                reduce_range=False,
                weight_qType=tools.QuantType.QInt8,
                activation_qType=tools.QuantType.QUInt8,
                tensors_range=ranges,
                nodes_to_quantize=names,
                nodes_to_exclude=[],
                op_types_to_quantize=sorted(_LAYERS | _BETWEEN),
                extra_options={},
            )
            whole: onnx.ModelProto = quantizer.quantize_model()
    except Exception as fault:  # its exceptions share no base class of their own
        raise InputError(
            "ONNX Runtime's quantizer cannot convert the model",
            details=f"{type(fault).__name__}: {str(fault).strip()[-2000:]}",
            hint="keep the layer that it names float: --exclude NAME",
        ) from fault
    return whole


def calibrate(network: FloatNetwork, samples: Sequence[Tensors], method: str, tell: Progress) -> Any:
    """Measure the ranges of activations with one of `CALIBRATORS`; return them in ONNX Runtime's form.

    Raises:
        InputError: ONNX Runtime cannot run the model, or an activation is infinite.
    """
    tools = ort.quantization()
    with temporary.folder() as folder:
        path, augmented = folder / "float.onnx", folder / "augmented.onnx"
        onnx.save(network.proto, path)
        try:
            with _silent():
                calibrator = tools.create_calibrator(
                    path,
                    sorted(_LAYERS | _BETWEEN),
                    augmented_model_path=str(augmented),
                    calibrate_method=tools.CalibrationMethod[CALIBRATORS[method]],
                )
                calibrator.infer_session = onnxruntime.InferenceSession(
                    str(augmented), session_options(optimized=False), providers=["CPUExecutionProvider"]
                )
            for number, sample in enumerate(samples):
                interrupts.check()
                tell(Step("measuring the ranges of activations", number, len(samples), "samples"))
                with _silent():
                    calibrator.collect_data(_OneSample(sample))
            with _silent():
                ranges = calibrator.compute_data()
        except ort.FAULTS as fault:
            raise InputError(
                "ONNX Runtime cannot run the model, so its activations cannot be measured",
                details=str(fault).strip()[-2000:],
                hint="check the model with `toolchain inspect model`",
            ) from fault
    for name, data in ranges.items():
        if not np.isfinite(data.range_value).all():
            raise InputError(
                f"tensor {name!r} of the float model is infinite or not a number for a sample",
                hint="remove that sample, or check why the model overflows on it",
            )
    return ranges


class _OneSample:
    """A reader of one sample, as calibrators take it: they keep all tensors of all samples of a reader in memory."""

    def __init__(self, sample: Tensors) -> None:
        self._samples = [dict(sample)]

    def get_next(self) -> dict[str, Any] | None:
        return self._samples.pop() if self._samples else None


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Drop what ONNX Runtime's tools print and log."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
