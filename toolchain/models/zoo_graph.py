"""The builder behind `zoo`: adds named nodes and seeded weights, returns an ONNX model.

This module imports numpy and onnx, which `zoo` avoids until a network is really built.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from toolchain.models.zoo import Layer

OPSET = 17
IR_VERSION = 8  # the one that came with opset 17, so that older runtimes load the models too

Size = int | tuple[int, ...]
Weights = npt.NDArray[np.float32]

_EPSILON = 1e-5  # what a batch normalisation adds to the variance

# After a ReLU all activations are positive. Purely random filters pass their common mean on, layer by layer, until it
# hides the input: deep networks would return nearly the same for all inputs. So a part of each filter's mean is
# subtracted. Filters of mean zero would make the network chaotic, and rounding errors would grow with depth.
_CENTRING = 0.3
# He's variance, 2 / fan-in, divided by the share of a rectified normal value's second moment that centring leaves.
_VARIANCE = 2.0 / (1.0 - (1.0 - (1.0 - _CENTRING) ** 2) / math.pi)


class Tensor(NamedTuple):
    """A value in the graph: its name and the length of its channel axis (axis 1)."""

    name: str
    channels: int


class GraphBuilder:
    """Collects the nodes and weights of one network.

    Every method that adds an operator takes the node's name first and returns the node's output, which carries
    the same name. Weights are called `<node>.<role>` and drawn from a stream of their own, derived from the
    seed and that name: adding a layer leaves the weights of all others as they are.
    The input `data` has a batch, channels, and one or more spatial axes.
    """

    def __init__(self, name: str, shape: tuple[int, ...], seed: int) -> None:
        self.input = Tensor("data", shape[1])
        self._name = name
        self._shape = shape
        self._seed = seed
        self._rank = len(shape) - 2
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def conv(self, name: str, x: Tensor, layer: Layer, *, bias: bool = False) -> Tensor:
        """Add a convolution with weights after He et al. 2015, arXiv:1502.01852."""
        window = self._per_axis(layer.kernel)
        shape = (layer.channels, x.channels // layer.groups, *window)
        inputs = [x.name, self._he_normal(f"{name}.weight", shape, layer.gain)]
        inputs += [self._normal(f"{name}.bias", layer.channels, 1.0)] if bias else []
        self._add("Conv", name, inputs, group=layer.groups, **self._window(window, layer.stride, layer.pad))
        return Tensor(name, layer.channels)

    def norm(self, name: str, x: Tensor, *, gain: float = 1.0) -> Tensor:
        """Add a batch normalisation whose statistics are those of a standardised input, roughly.

        `gain` is a factor on scale and bias: below 1 for the last norm of a residual branch.
        """
        statistics = [
            self._uniform(f"{name}.scale", x.channels, gain),
            self._normal(f"{name}.bias", x.channels, gain),
            self._normal(f"{name}.mean", x.channels, 1.0),
            self._uniform(f"{name}.var", x.channels, 1.0),
        ]
        self._add("BatchNormalization", name, [x.name, *statistics], epsilon=_EPSILON)
        return Tensor(name, x.channels)

    def relu(self, name: str, x: Tensor) -> Tensor:
        self._add("Relu", name, [x.name])
        return Tensor(name, x.channels)

    def relu6(self, name: str, x: Tensor) -> Tensor:
        limits = [self._scalar(f"{name}.min", 0.0), self._scalar(f"{name}.max", 6.0)]
        self._add("Clip", name, [x.name, *limits])
        return Tensor(name, x.channels)

    def add(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        self._add("Add", name, [left.name, right.name])
        return Tensor(name, left.channels)

    def concat(self, name: str, tensors: list[Tensor]) -> Tensor:
        self._add("Concat", name, [tensor.name for tensor in tensors], axis=1)
        return Tensor(name, sum(tensor.channels for tensor in tensors))

    def max_pool(self, name: str, x: Tensor, kernel: Size, *, stride: Size, pad: Size = 0) -> Tensor:
        self._add("MaxPool", name, [x.name], **self._window(self._per_axis(kernel), stride, pad))
        return Tensor(name, x.channels)

    def average_pool(self, name: str, x: Tensor, kernel: Size, *, stride: Size, pad: Size = 0) -> Tensor:
        """Add a mean over a sliding window; padding does not count."""
        self._add("AveragePool", name, [x.name], **self._window(self._per_axis(kernel), stride, pad))
        return Tensor(name, x.channels)

    def global_average_pool(self, name: str, x: Tensor) -> Tensor:
        """Add the mean over all spatial axes, which stay with length 1."""
        self._add("GlobalAveragePool", name, [x.name])
        return Tensor(name, x.channels)

    def flatten(self, name: str, x: Tensor, features: int) -> Tensor:
        """Merge all axes but the first into one of length `features`."""
        self._add("Flatten", name, [x.name], axis=1)
        return Tensor(name, features)

    def dense(self, name: str, x: Tensor, units: int, *, gain: float = 1.0) -> Tensor:
        """Add x @ weight.T + bias for x of shape N x C; the result is N x `units`."""
        weights = self._he_normal(f"{name}.weight", (units, x.channels), gain)
        self._add("Gemm", name, [x.name, weights, self._normal(f"{name}.bias", units, 1.0)], transB=1)
        return Tensor(name, units)

    def finish(self, logits: Tensor) -> onnx.ModelProto:
        """Close the graph with a softmax over `logits` (N x classes), called `prob`, and wrap it as a model."""
        self._add("Softmax", "prob", [logits.name], axis=1)
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [helper.make_tensor_value_info("data", onnx.TensorProto.FLOAT, self._shape)],
            [helper.make_tensor_value_info("prob", onnx.TensorProto.FLOAT, (self._shape[0], logits.channels))],
            self._weights,
        )
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=[opset], producer_name="edge-toolchain")

    def _add(self, op: str, name: str, inputs: list[str], **attributes: object) -> None:
        self._nodes.append(helper.make_node(op, inputs, [name], name, **attributes))

    def _per_axis(self, size: Size) -> tuple[int, ...]:
        return (size,) * self._rank if isinstance(size, int) else size

    def _window(self, kernel: tuple[int, ...], stride: Size, pad: Size | None) -> dict[str, tuple[int, ...]]:
        pads = tuple(k // 2 for k in kernel) if pad is None else self._per_axis(pad)
        return {"kernel_shape": kernel, "strides": self._per_axis(stride), "pads": pads + pads}

    def _stream(self, name: str) -> np.random.Generator:
        # crc32, because Python's own hash of a string differs from process to process.
        return np.random.default_rng([self._seed, zlib.crc32(name.encode())])

    def _store(self, name: str, values: Weights) -> str:
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def _scalar(self, name: str, value: float) -> str:
        return self._store(name, np.asarray(value, np.float32))

    def _he_normal(self, name: str, shape: tuple[int, ...], gain: float) -> str:
        values = self._stream(name).standard_normal(shape, np.float32)
        inputs = tuple(range(1, len(shape)))
        values -= np.float32(_CENTRING) * values.mean(inputs, np.float64, keepdims=True).astype(np.float32)
        values *= np.float32(gain * math.sqrt(_VARIANCE / math.prod(shape[1:])))
        return self._store(name, values)

    def _normal(self, name: str, length: int, factor: float) -> str:
        return self._store(name, self._stream(name).standard_normal(length, np.float32) * np.float32(0.1 * factor))

    def _uniform(self, name: str, length: int, factor: float) -> str:
        spread = self._stream(name).random(length, np.float32) * np.float32(0.4) + np.float32(0.8)
        return self._store(name, spread * np.float32(factor))
