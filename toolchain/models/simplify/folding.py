"""Fold what is constant: ONNX Runtime's basic optimizations, without those that would compute otherwise."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import onnx

from toolchain import temporary
from toolchain.models.ort import FAULTS, onnxruntime

_FATAL_ONLY = 4
_IN_ONE_PIECE = 2**31 - 2**20  # protobuf's limit
_DYNAMIC = frozenset({"RandomNormal", "RandomUniform", "QuantizeLinear", "DequantizeLinear"})

# Fusions that change how numbers are rounded, that the backends do better, or that rewrite quantized networks.
_LEFT_OUT = [
    "ClipQuantFusion",
    "CommonSubexpressionElimination",
    "ConstantSharing",
    "ConvAddFusion",
    "ConvBNFusion",
    "ConvMulFusion",
    "DoubleQDQPairsRemover",
    "EnsureUniqueDQForNodeUnit",
    "FuseReluClip",
    "GemmSumFusion",
    "GemmTransposeFusion",
    "MatMulAddFusion",
    "MatMul_BatchNormalization_Fusion",
    "Pad_Fusion",
    "QDQPropagationTransformer",
    "ReluQuantRewrite",
    "TransposeOptimizer",
    "WeightBiasQuantization",
]


def has_constants(graph: onnx.GraphProto) -> bool:
    """Whether there is anything to fold: a shape, a subgraph, or a node whose inputs are all known."""
    known = {tensor.name for tensor in graph.initializer} | {""}
    for node in graph.node:
        if node.op_type == "Constant":
            known.update(node.output)
        elif _is_foldable(node, known):
            return True
    return False


def _is_foldable(node: onnx.NodeProto, known: Collection[str]) -> bool:
    if node.op_type in _DYNAMIC:
        return False
    has_body = any(attribute.HasField("g") for attribute in node.attribute)
    return has_body or node.op_type in {"Shape", "Size"} or all(name in known for name in node.input)


def folded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with what is constant computed, and with branches on constants inlined.

    Args:
        proto: The model; one that ONNX Runtime cannot load is returned as it is, since the importer may know more.
    """
    if not has_constants(proto.graph):
        return proto
    with temporary.folder() as folder:
        whole, result = Path(folder) / "model.onnx", Path(folder) / "folded.onnx"
        given: str | bytes = proto.SerializeToString() if proto.ByteSize() < _IN_ONE_PIECE else _saved(proto, whole)
        try:
            onnxruntime.InferenceSession(
                given, _options(result), providers=["CPUExecutionProvider"], disabled_optimizers=_LEFT_OUT
            )
        except FAULTS:
            return proto
        return onnx.load(result)


def _saved(proto: onnx.ModelProto, path: Path) -> str:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    onnx.save(copy, path, save_as_external_data=True)
    return str(path)


def _options(result: Path) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(result)
    options.intra_op_num_threads = 1
    options.log_severity_level = _FATAL_ONLY
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    return options
