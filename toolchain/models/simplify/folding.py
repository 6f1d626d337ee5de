"""Fold constants: ONNX Runtime's basic optimizations, without those that change results."""

from __future__ import annotations

from pathlib import Path

import onnx

from toolchain import temporary
from toolchain.models import protos
from toolchain.models.ort import FAULTS, onnxruntime

_FATAL_ONLY = 4
_IN_ONE_PIECE = 2**31 - 2**20  # protobuf's limit
_NOT_FOLDED = frozenset({"RandomNormal", "RandomUniform", "QuantizeLinear", "DequantizeLinear"})

# Fusions that change how numbers are rounded, that the backends do better, or that rewrite quantized networks.
_DISABLED_OPTIMIZERS = [
    *("ClipQuantFusion", "CommonSubexpressionElimination", "ConstantSharing", "ConvAddFusion", "ConvBNFusion"),
    *("ConvMulFusion", "DoubleQDQPairsRemover", "EnsureUniqueDQForNodeUnit", "FuseReluClip", "GemmSumFusion"),
    *("GemmTransposeFusion", "MatMulAddFusion", "MatMul_BatchNormalization_Fusion", "Pad_Fusion"),
    *("QDQPropagationTransformer", "ReluQuantRewrite", "TransposeOptimizer", "WeightBiasQuantization"),
]


def has_constants(graph: onnx.GraphProto) -> bool:
    """Whether there is something to fold: a shape, a subgraph, or a node whose inputs are all constant."""
    constants = {tensor.name for tensor in graph.initializer} | {""}
    for node in graph.node:
        has_body = any(attribute.HasField("g") for attribute in node.attribute)
        if node.op_type == "Constant":
            constants.update(node.output)
        elif node.op_type not in _NOT_FOLDED and (
            has_body or node.op_type in {"Shape", "Size"} or all(name in constants for name in node.input)
        ):
            return True
    return False


def fold_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with constants computed, and with branches on constants inlined.

    A model that ONNX Runtime cannot load is returned unchanged, since the importer may support it.
    """
    if not has_constants(proto.graph):
        return proto
    with temporary.folder() as folder:
        source, result = Path(folder) / "model.onnx", Path(folder) / "folded.onnx"
        model: str | bytes = str(source)
        if proto.ByteSize() < _IN_ONE_PIECE:
            model = proto.SerializeToString()
        else:
            onnx.save(protos.clone(proto), source, save_as_external_data=True)  # a copy, since saving changes it
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(result)
        options.intra_op_num_threads = 1
        options.log_severity_level = _FATAL_ONLY
        # Above protobuf's limit, ONNX Runtime writes weights to a file of their own.
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        try:
            onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"], disabled_optimizers=_DISABLED_OPTIMIZERS
            )
        except FAULTS:
            return proto
        return onnx.load(result)
