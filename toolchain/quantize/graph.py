"""The float form of an ONNX model for the quantizer: constants as initializers, batch norm folded, no Q/DQ nodes."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, shape_inference, version_converter

from toolchain.errors import InputError
from toolchain.models import batchnorm, protos
from toolchain.models.source import SourceModel
from toolchain.quantize import strip
from toolchain.quantize.ranges import Range

_OPSET = 13  # the first in which QuantizeLinear and DequantizeLinear have the form that is written
_IR_VERSION = 8


class Graph:
    """An ONNX graph with the maker and the readers of each tensor."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        self.nodes: list[onnx.NodeProto] = list(proto.graph.node)
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        self.weights = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.outputs = {value.name for value in proto.graph.output}
        self.uses = collections.Counter(protos.names_read(proto.graph))
        self._readers: dict[str, list[onnx.NodeProto]] = collections.defaultdict(list)
        for node in self.nodes:
            for name in node.input:
                self._readers[name].append(node)

    def only_reader(self, name: str) -> onnx.NodeProto | None:
        """Return the node that alone reads a tensor; None if there are others, or the tensor is a result."""
        readers = self._readers[name]
        return readers[0] if self.uses[name] == 1 and readers else None

    def readers(self, name: str) -> list[onnx.NodeProto]:
        """Return the nodes that read a tensor, those of inner graphs not among them."""
        return self._readers[name]

    def array(self, name: str) -> NDArray[Any]:
        return np.asarray(numpy_helper.to_array(self.weights[name]))

    def is_float(self, name: str) -> bool:
        """Whether a tensor is an initializer of float32."""
        return name in self.weights and self.weights[name].data_type == onnx.TensorProto.FLOAT

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors for which they are known."""
        graph = shape_inference.infer_shapes(protos.without_weights(self.proto)).graph
        shapes = {}
        for value in [*graph.input, *graph.value_info, *graph.output]:
            dims = value.type.tensor_type.shape.dim
            if value.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
                shapes[value.name] = tuple(dim.dim_value for dim in dims)
        return shapes


def title(node: onnx.NodeProto) -> str:
    """Return a node's name, or that of its first output."""
    return str(node.name or node.output[0])


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes by name."""
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def constants_as_initializers(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which tensors of Constant nodes, and Identity nodes of constants, are initializers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    weights = {tensor.name: tensor for tensor in copy.graph.initializer}
    results = {value.name for value in copy.graph.output}
    nodes = []
    for node in copy.graph.node:
        # A result of the graph has to come from a node.
        tensor = None if set(node.output) & results else _constant(node, weights)
        if tensor is None:
            nodes.append(node)
            continue
        copy.graph.initializer.append(tensor)
        weights[node.output[0]] = copy.graph.initializer[-1]
        copy.graph.initializer[-1].name = node.output[0]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


def _constant(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> onnx.TensorProto | None:
    if node.op_type == "Identity":
        return weights.get(node.input[0])
    value = attributes(node).get("value") if node.op_type == "Constant" else None
    return value if isinstance(value, onnx.TensorProto) else None


@dataclass(frozen=True)
class Floating:
    """A model's float form.

    Attributes:
        proto: The model, of opset 13 or later.
        ranges: The file's ranges of activations, by tensor; None if the model was not quantized before.
    """

    proto: onnx.ModelProto
    ranges: Mapping[str, Range] | None


def floating(source: SourceModel) -> Floating:
    """Return a model's float form.

    It is simplified as it would be for a build: a convolution in a function or a branch can be quantized too.

    Raises:
        InputError: It computes with integers in a way that cannot be taken back, or its opset cannot be raised.
    """
    from toolchain.models import converters, simplify  # noqa: PLC0415 - two seconds that `quantize --help` can save

    proto = constants_as_initializers(simplify.plain(source, converters.names()))
    ranges = strip.strip(proto, source.name)
    return Floating(batchnorm.fold(_raise_opset(proto, source.name)), ranges)


def _raise_opset(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    proto.ir_version = max(proto.ir_version, _IR_VERSION)  # before, initializers had to be among the inputs
    version = next((entry.version for entry in proto.opset_import if entry.domain in {"", "ai.onnx"}), _OPSET)
    if version >= _OPSET:
        return proto
    try:
        return version_converter.convert_version(proto, _OPSET)
    except Exception as fault:  # its exceptions share no base class of their own
        raise InputError(
            f"{name} has opset {version}, and cannot be converted to {_OPSET}",
            details=str(fault).strip()[-2000:],
            hint=f"export it again with opset {_OPSET} or later",
        ) from fault
