"""The work and the number of weights of an ONNX graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import onnx

from toolchain.models import protos

_Shape = tuple[int, ...]


class _UnknownShapeError(Exception):
    """Shape inference lacks a tensor that the count needs."""


def count(graph: onnx.GraphProto) -> int | None:
    """Count the floating-point operations of one run, a multiply-add as two; None if a shape is unknown.

    Only convolutions, matrix products and fully connected layers count, as in the literature. The graph must have
    inferred shapes.
    """
    shapes: dict[str, _Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(dim.dim_value > 0 for dim in dims):
            shapes[value.name] = tuple(dim.dim_value for dim in dims)
    for node in graph.node:
        values = [a.t for a in node.attribute if node.op_type == "Constant" and a.name == "value"]
        shapes.update(zip(node.output, (tuple(value.dims) for value in values), strict=False))
    try:
        return sum(_COUNTERS[node.op_type](node, shapes) for node in graph.node if node.op_type in _COUNTERS)
    except _UnknownShapeError:
        return None


def parameters(graph: onnx.GraphProto) -> int:
    """Count the weights: elements of initializers and of constants that are neither scalars nor indices."""
    tensors = [*graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant":
            tensors += [attribute.t for attribute in node.attribute if attribute.name == "value"]
    # Integers of 64 bits are shapes and indices, not weights; those of 32 bits are the biases of QDQ models.
    weights = [tensor for tensor in tensors if tensor.dims and tensor.data_type != onnx.TensorProto.INT64]
    return sum(math.prod(tensor.dims) for tensor in weights)


def _shape(name: str, shapes: dict[str, _Shape]) -> _Shape:
    if name not in shapes:
        raise _UnknownShapeError(name)
    return shapes[name]


# Weights are [outputs, channels of a group, *kernel]: each output element needs all of its row.
def _conv(node: onnx.NodeProto, shapes: dict[str, _Shape], weights: int = 1) -> int:
    return 2 * math.prod(_shape(node.output[0], shapes)) * math.prod(_shape(node.input[weights], shapes)[1:])


# Weights are [channels, outputs of a group, *kernel]: each input element is multiplied with all of its row.
def _conv_transpose(node: onnx.NodeProto, shapes: dict[str, _Shape]) -> int:
    weight = _shape(node.input[1], shapes)
    return 2 * math.prod(_shape(node.input[0], shapes)) * math.prod(weight[1:])


def _matmul(node: onnx.NodeProto, shapes: dict[str, _Shape]) -> int:
    return 2 * math.prod(_shape(node.output[0], shapes)) * _shape(node.input[0], shapes)[-1]


def _gemm(node: onnx.NodeProto, shapes: dict[str, _Shape]) -> int:
    a = _shape(node.input[0], shapes)
    return 2 * math.prod(_shape(node.output[0], shapes)) * a[0 if protos.get_attribute(node, "transA") else -1]


_COUNTERS: dict[str, Callable[[onnx.NodeProto, dict[str, _Shape]], int]] = {
    "Conv": _conv,
    "ConvInteger": _conv,
    "QLinearConv": partial(_conv, weights=3),
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Gemm": _gemm,
}
COUNTED = frozenset(_COUNTERS)
"""Operators that most of a network's work is in."""
