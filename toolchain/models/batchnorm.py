"""Fold inference-time batch normalization into the weights before it, in double precision.

y = gamma * (x - mean) / sqrt(variance + epsilon) + beta (Ioffe and Szegedy, arXiv:1502.03167) is a scale and a shift
for each channel. Relax can fold it too, but builds a kernel for every step of the arithmetic: 8 s for MobileNet.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference

from toolchain.models import protos

_EPSILON = 1e-5  # the operator's default


def fold(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model without batch normalizations with constant statistics.

    One that follows a convolution is folded into its weight and bias; any other becomes a Mul and an Add.
    """
    folded = protos.clone(proto)
    graph = shape_inference.infer_shapes(protos.without_weights(proto)).graph
    types = {value.name: value.type.tensor_type for value in [*graph.input, *graph.value_info, *graph.output]}
    _Folder(folded.graph, {name: tensor for name, tensor in types.items() if tensor.HasField("shape")}).run()
    return folded


class _Folder:
    def __init__(self, graph: onnx.GraphProto, types: dict[str, onnx.TypeProto.Tensor]) -> None:
        self._graph = graph
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._uses = collections.Counter(protos.names_read(graph))
        self._types = types

    def run(self) -> None:
        nodes: list[onnx.NodeProto] = []
        for node in self._graph.node:
            nodes += self._replacement(node)
        protos.set_repeated(self._graph.node, nodes)
        protos.drop_unread_weights(self._graph)

    def _replacement(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        # In training it takes the statistics of its input.
        is_training = protos.get_attribute(node, "training_mode", 0)
        is_constant = all(name in self._weights for name in node.input[1:])
        if node.op_type != "BatchNormalization" or not is_constant or is_training:
            return [node]
        gamma, beta, mean, variance = (self._value(weights).astype(np.float64) for weights in node.input[1:5])
        scale = gamma / np.sqrt(variance + protos.get_attribute(node, "epsilon", _EPSILON))
        shift = beta - mean * scale
        convolution = self._makers.get(node.input[0])
        if convolution is not None and convolution.op_type == "Conv" and self._is_read_once(convolution):
            self._scale_convolution(convolution, scale, shift)
            convolution.output[0] = node.output[0]
            # A second normalization behind this one is folded into the same convolution.
            self._makers[node.output[0]] = convolution
            return []
        data = self._types.get(node.input[0])
        # From opset 15 on, data in half precision may come with statistics in single precision.
        if data is None or data.elem_type != self._weights[node.input[1]].data_type:
            return [node]
        output = node.output[0]
        dtype = self._value(node.input[1]).dtype
        shape = (-1, *[1] * (len(data.shape.dim) - 2))
        factor, offset, scaled = (self._unused(f"{output}.{role}") for role in ("scale", "shift", "scaled"))
        self._store(factor, scale.reshape(shape), dtype)
        self._store(offset, shift.reshape(shape), dtype)
        return [
            helper.make_node("Mul", [node.input[0], factor], [scaled], scaled),
            helper.make_node("Add", [scaled, offset], [output], output),
        ]

    def _value(self, name: str) -> NDArray[Any]:
        value: NDArray[Any] = numpy_helper.to_array(self._weights[name])
        return value

    # A weight or output with another reader must keep its values.
    def _is_read_once(self, node: onnx.NodeProto) -> bool:
        constants = [name for name in node.input[1:] if name]
        return self._uses[node.output[0]] == 1 and all(
            name in self._weights and self._uses[name] == 1 for name in constants
        )

    def _scale_convolution(self, node: onnx.NodeProto, scale: NDArray[np.float64], shift: NDArray[np.float64]) -> None:
        weight = self._value(node.input[1])
        # Conv's weights are [outputs, channels of a group, *kernel].
        per_channel = scale.reshape(-1, *[1] * (weight.ndim - 1))
        self._store(node.input[1], weight * per_channel, weight.dtype)
        if len(node.input) > 2 and node.input[2]:  # noqa: PLR2004 - Conv's third input is its bias
            self._store(node.input[2], self._value(node.input[2]) * scale + shift, weight.dtype)
            return
        del node.input[2:]
        node.input.append(self._unused(f"{node.output[0]}.folded_bias"))
        self._store(node.input[2], shift, weight.dtype)

    def _unused(self, name: str) -> str:
        # A file may use any name.
        while name in self._weights or name in self._makers:
            name += "_"
        return name

    def _store(self, name: str, value: NDArray[Any], dtype: Any) -> None:
        tensor = numpy_helper.from_array(np.ascontiguousarray(value.astype(dtype)), name)
        if name in self._weights:
            self._weights[name].CopyFrom(tensor)
            return
        self._graph.initializer.append(tensor)
        self._weights[name] = self._graph.initializer[-1]
