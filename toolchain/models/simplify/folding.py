"""Constants: every form of them becomes an initializer, and what is computed from constants alone is folded.

The standard has nine ways to write a constant; the later steps support one. Folding is ONNX Runtime's basic
optimizations, without those that change results.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain import temporary
from toolchain.models import protos
from toolchain.models.ort import FAULTS, Session, onnxruntime

_ELEMENT_TYPES = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}

_FATAL_ONLY = 4
_NOT_FOLDED = frozenset({"RandomNormal", "RandomUniform", "QuantizeLinear", "DequantizeLinear"})
# Fusions that change how numbers are rounded, that the backends do better, or that rewrite quantized networks.
_DISABLED_OPTIMIZERS = [
    *("ClipQuantFusion", "CommonSubexpressionElimination", "ConstantSharing", "ConvAddFusion", "ConvBNFusion"),
    *("ConvMulFusion", "DoubleQDQPairsRemover", "EnsureUniqueDQForNodeUnit", "FuseReluClip", "GemmSumFusion"),
    *("GemmTransposeFusion", "MatMulAddFusion", "MatMul_BatchNormalization_Fusion", "Pad_Fusion"),
    *("QDQPropagationTransformer", "ReluQuantRewrite", "TransposeOptimizer", "WeightBiasQuantization"),
]


def has_constants_of_other_forms(graph: onnx.GraphProto) -> bool:
    """Whether a graph, or a graph inside it, has constants in another form than initializers."""
    return bool(graph.sparse_initializer) or any(
        _is_constant(node) or any(map(has_constants_of_other_forms, protos.bodies(node))) for node in graph.node
    )


def as_initializers(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose constants are initializers; the same model if they already are."""
    if not has_constants_of_other_forms(proto.graph):
        return proto
    converted = protos.clone(proto)
    _convert_graph(converted.graph)
    return converted


def dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    """Return a sparse tensor as a dense one: its indices count elements, or are coordinates, a row for each value."""
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    array = np.zeros(tuple(sparse.dims), values.dtype)
    flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), array.shape)
    array.reshape(-1)[flat] = values
    return numpy_helper.from_array(array, name)


def _convert_graph(graph: onnx.GraphProto) -> None:
    results = {value.name for value in graph.output}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for body in protos.bodies(node):
            _convert_graph(body)
        if not _is_constant(node):
            nodes.append(node)
            continue
        tensor = _tensor(node)
        if node.output[0] in results:  # an initializer cannot be a graph's output
            nodes.append(helper.make_node("Constant", [], node.output, node.name, value=tensor))
        else:
            graph.initializer.append(tensor)
    graph.initializer.extend(dense(sparse, sparse.values.name) for sparse in graph.sparse_initializer)
    del graph.sparse_initializer[:]
    protos.set_repeated(graph.node, nodes)


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and node.domain in protos.STANDARD and len(node.attribute) == 1


def _tensor(node: onnx.NodeProto) -> onnx.TensorProto:
    """Return the value of a Constant node, named after its output."""
    name, (attribute,) = node.output[0], node.attribute
    value = helper.get_attribute_value(attribute)
    if attribute.name == "sparse_value":
        return dense(value, name)
    if attribute.name == "value":
        return protos.clone(value, name)
    if attribute.name in _ELEMENT_TYPES:
        return numpy_helper.from_array(np.asarray(value, _ELEMENT_TYPES[attribute.name]), name)
    texts = [value] if attribute.name == "value_string" else list(value)
    return helper.make_tensor(
        name, onnx.TensorProto.STRING, [] if attribute.name == "value_string" else [len(texts)], texts
    )


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
        result = Path(folder) / "folded.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(result)
        options.intra_op_num_threads = 1
        options.log_severity_level = _FATAL_ONLY
        # Above protobuf's limit, ONNX Runtime writes weights to a file of their own.
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        try:
            Session(proto, options, _DISABLED_OPTIMIZERS)
        except FAULTS:
            return proto
        return onnx.load(result)
