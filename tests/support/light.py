"""The nine networks of the onnx wheel with weights that make a comparison mean something.

The wheel ships the graphs of the ONNX model zoo with most weights replaced by one constant, so that every class
gets the same probability. `load` draws all weights anew: He-normal for convolutions and dense layers, moderate and
positive statistics for batch normalisations. The true weights that the files do keep are drawn anew as well, as
they were trained for pixels from 0 to 255 and fit to nothing here.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Container
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)

_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
_IR_VERSION = 8  # from 4 on weights need not be listed as inputs; the files have 3

# What an operator's input is, by its position.
_ROLES = {
    "Conv": {1: "weight", 2: "offset"},
    "Gemm": {1: "weight", 2: "offset"},
    "BatchNormalization": {1: "scale", 2: "offset", 3: "offset", 4: "scale"},
    "Mul": {1: "scale"},
    "Add": {1: "offset"},
}

# Each filter gives up a part of its mean, for the reason that toolchain/models/zoo_graph.py gives.
_CENTRING = 0.3
_VARIANCE = 2.0 / (1.0 - (1.0 - (1.0 - _CENTRING) ** 2) / math.pi)

# Two equal branches that meet in a sum share the variance; a branch beside an identity adds little to it.
_SHARED = math.sqrt(0.5)
_RESIDUAL = 0.3

# A factor for the last layer's weights where the logits would spread so far that one class takes all of the
# probability, or so little that none stands out.
_HEAD = {
    "bvlc_alexnet": 0.3,
    "densenet121": 0.6,
    "inception_v1": 6.0,
    "inception_v2": 0.3,
    "resnet50": 0.4,
    "shufflenet": 0.1,
    "squeezenet": 0.4,
    "vgg19": 0.3,
}


def load(name: str, seed: int = 0) -> onnx.ModelProto:
    """Return a network of the onnx wheel with seeded random weights as initializers.

    The model has one input, float32 of shape 1x3x224x224, and one output of 1000 classes: probabilities of shape
    1x1000, but 1x1000x1x1 for squeezenet, and logits of shape 1x1000x1x1 for densenet121.
    """
    model = onnx.load(_FOLDER / f"light_{name}.onnx")
    model.ir_version = _IR_VERSION
    shapes, roles = _shapes(model.graph), _roles(model.graph)
    gains = _gains(model.graph) | _head_gain(name, model.graph)
    _strip(model.graph, shapes)
    for key, shape in shapes.items():  # one at a time: vgg19 has 0.6 GB of them
        values = _values(key, shape, roles[key], seed) * np.float32(gains.get(key, 1.0))
        model.graph.initializer.append(numpy_helper.from_array(values, key))
    return model


def _strip(graph: onnx.GraphProto, weights: Container[str]) -> None:
    """Remove the old weights, what made or shaped them, and their mention among the inputs."""
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    used = {value for node in nodes for value in node.input}
    initializers = [tensor for tensor in graph.initializer if tensor.name in used and tensor.name not in weights]
    constant = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constant]
    for field, values in ((graph.node, nodes), (graph.initializer, initializers), (graph.input, inputs)):
        del field[:]
        field.extend(values)


def _shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """The shape of every float weight that some operator uses."""
    used = {value for node in graph.node for value in node.input}
    stored = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {
        name: tuple(tensor.dims)
        for name, tensor in stored.items()
        if tensor.data_type == onnx.TensorProto.FLOAT and name in used
    }
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = tuple(numpy_helper.to_array(stored[node.input[0]]).tolist())
    return shapes


def _roles(graph: onnx.GraphProto) -> dict[str, str]:
    """What each value is to the operator that uses it, seen through Unsqueeze and Reshape."""
    roles: dict[str, str] = {}
    for node in reversed(graph.node):
        if node.op_type in {"Unsqueeze", "Reshape"}:
            roles[node.input[0]] = roles.get(node.output[0], "")
        for position, role in _ROLES.get(node.op_type, {}).items():
            if position < len(node.input):
                roles[node.input[position]] = role
    return roles


def _head_gain(name: str, graph: onnx.GraphProto) -> dict[str, float]:
    """The factor for the weights of the last layer, dense or a 1x1 convolution."""
    head = [node for node in graph.node if node.op_type in {"Conv", "Gemm"}][-1]
    reshaped = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Reshape"}
    return {reshaped.get(head.input[1], head.input[1]): _HEAD.get(name, 1.0)}


def _gains(graph: onnx.GraphProto) -> dict[str, float]:
    """A factor for scale and offset of each batch normalisation that ends in a sum."""
    norms = {node.output[0]: node for node in graph.node if node.op_type == "BatchNormalization"}
    gains = {}
    for node in graph.node:
        if node.op_type == "Sum":
            branches = [norms[value] for value in node.input if value in norms]
            gain = _SHARED if len(branches) == len(node.input) else _RESIDUAL
            gains.update({value: gain for branch in branches for value in branch.input[1:3]})
    return gains


def _values(name: str, shape: tuple[int, ...], role: str, seed: int) -> np.ndarray:
    stream = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if role == "scale":
        return stream.random(shape, np.float32) * np.float32(0.4) + np.float32(0.8)
    values = stream.standard_normal(shape, np.float32)
    if role == "offset":
        return values * np.float32(0.1)
    values -= np.float32(_CENTRING) * values.mean(tuple(range(1, values.ndim)), keepdims=True)
    return values * np.float32(math.sqrt(_VARIANCE / math.prod(shape[1:])))
