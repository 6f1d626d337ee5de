"""What integer hardware makes of a QDQ network: whole numbers, a floor and shifts, and nothing of ONNX Runtime's.

Layers are computed with int64 from the int8 weights, the biases and the exponents in the file; the rest of the network
is computed on floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.support import nets, qdq_nets
from tests.support.nets import node
from toolchain.quantize.calibrate import Probe


def evaluate(
    proto: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]], recorded: Mapping[str, NDArray[Any]] | None = None
) -> dict[str, NDArray[Any]]:
    """Return every tensor by name; those behind DequantizeLinear as whole numbers, with 0 for the zero point.

    Args:
        proto: The network.
        feeds: Its inputs.
        seen: What QuantizeLinear nodes made elsewhere: layers read this, and so each is computed from the same inputs.
    """
    return _Machine(proto, feeds, recorded or {}).run()


class _Machine:
    def __init__(
        self, proto: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]], recorded: Mapping[str, NDArray[Any]]
    ) -> None:
        self.seen = recorded
        self.graph = proto.graph
        self.held = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
        self.values: dict[str, Any] = {**feeds}
        self.exponents: dict[str, Any] = {}  # of tensors of whole numbers; of weights and sums maybe one a channel
        self.readers = {name: node for node in proto.graph.node for name in node.input}

    def run(self) -> dict[str, NDArray[Any]]:
        for each in self.graph.node:
            getattr(self, f"_{each.op_type.lower()}")(each)
        return self.values

    def _exponent(self, name: str) -> Any:
        mantissas, exponents = np.frexp(self.held[name])
        assert (mantissas == 0.5).all()
        return exponents.astype(np.int64).reshape(-1, 1, 1) - 1 if self.held[name].ndim else int(exponents) - 1

    def _float(self, name: str) -> NDArray[Any]:
        if name in self.exponents:
            return np.ldexp(self.values[name].astype(np.float32), self.exponents[name])
        return self.held[name] if name in self.held else self.values[name]

    def _put(self, node: onnx.NodeProto, value: NDArray[Any], exponent: int | None = None) -> None:
        self.values[node.output[0]] = value
        if exponent is not None:
            self.exponents[node.output[0]] = exponent

    def _quantizelinear(self, node: onnx.NodeProto) -> None:
        source, exponent = node.input[0], self._exponent(node.input[1])
        if source not in self.exponents:  # a float: hardware has no part in it
            value = np.rint(np.ldexp(self.values[source], -exponent))
        else:
            shift = exponent - self.exponents[source]
            assert np.all((shift >= 0) & (shift <= 30))
            value = (self.values[source] + (1 << shift >> 1)) >> shift
        self._put(node, np.clip(value + self.held[node.input[2]], -128, 127).astype(np.int64), exponent)

    def _dequantizelinear(self, node: onnx.NodeProto) -> None:
        candidates = [each[node.input[0]] for each in (self.held, self.seen, self.values) if node.input[0] in each]
        zero = self.held[node.input[2]]
        assert zero.size == 1 or not zero.any()
        self._put(node, candidates[0].astype(np.int64) - zero.flat[0], self._exponent(node.input[1]))

    def _conv(self, node: onnx.NodeProto) -> None:
        options = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        source, weight, *bias = node.input
        if weight in self.held:
            offset = self.held[bias[0]].reshape(-1, 1, 1) if bias else 0
            self._put(node, conv(self._float(source), self.held[weight], options) + offset)
            return
        unit = self.exponents[source] + self.exponents[weight]
        rounded = np.floor(np.ldexp(self.held[bias[0]].astype(np.float64), -np.ravel(unit))).astype(np.int64)
        sums = conv(self.values[source], self.values[weight], options) + rounded.reshape(-1, 1, 1)
        self._put(node, sums, unit)

    def _add(self, node: onnx.NodeProto) -> None:
        first, second = sorted(node.input, key=lambda name: self.exponents.get(name, 99))
        if not {first, second} <= self.exponents.keys():
            self._put(node, self._float(node.input[0]) + self._float(node.input[1]))
            return
        shift = self.exponents[second] - self.exponents[first]
        assert 0 <= shift <= 15
        self._put(node, self.values[first] + (self.values[second] << shift), self.exponents[first])

    def _relu(self, node: onnx.NodeProto) -> None:
        self._put(node, np.maximum(self.values[node.input[0]], 0), self.exponents.get(node.input[0]))

    def _clip(self, node: onnx.NodeProto) -> None:
        exponent = self.exponents.get(node.input[0])
        unit = 0 if exponent is None else exponent
        bounds = [np.ldexp(self.held[name].item(), -unit) for name in node.input[1:]]
        self._put(node, np.clip(self.values[node.input[0]], *bounds).astype(self.values[node.input[0]].dtype), exponent)

    def _maxpool(self, node: onnx.NodeProto) -> None:
        options = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        windows = _windows(self._float(node.input[0]), options["kernel_shape"], options, -np.inf)
        self._put(node, windows.max(axis=(4, 5)))

    def _globalaveragepool(self, node: onnx.NodeProto) -> None:
        self._put(node, self._float(node.input[0]).mean(axis=(2, 3), keepdims=True))

    def _flatten(self, node: onnx.NodeProto) -> None:
        self._put(node, self._float(node.input[0]).reshape(len(self.values[node.input[0]]), -1))

    def _gemm(self, node: onnx.NodeProto) -> None:
        source, weight, bias = (self._float(name) for name in node.input)
        transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        self._put(node, source @ (weight.T if transposed else weight) + bias)

    def _softmax(self, node: onnx.NodeProto) -> None:
        powers = np.exp(self.values[node.input[0]] - self.values[node.input[0]].max(axis=-1, keepdims=True))
        self._put(node, powers / powers.sum(axis=-1, keepdims=True))


def _windows(x: NDArray[Any], kernel: Any, options: Mapping[str, Any], fill: float) -> NDArray[Any]:
    top, left, bottom, right = options.get("pads", [0, 0, 0, 0])
    rows, columns = options.get("strides", [1, 1])
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, tuple(kernel), axis=(2, 3))[:, :, ::rows, ::columns]


def conv(x: NDArray[Any], weight: NDArray[Any], options: Mapping[str, Any]) -> NDArray[Any]:
    """Convolve; whole numbers by float64, which holds their sums exactly."""
    kind = np.int64 if x.dtype.kind == "i" else x.dtype
    windows = _windows(x, weight.shape[2:], options, 0).astype(np.float64)
    return np.einsum("nchwij,ocij->nohw", windows, weight.astype(np.float64), optimize=True).astype(kind)


def residual(channels: int = 12, size: int = 14, seed: int = 0) -> onnx.ModelProto:
    """Return a network with both kinds of shortcut, batch norm, ReLU and ReLU6, from `x` to 10 numbers `y`."""
    half = channels // 2
    constants = {
        "w0": qdq_nets.weights(half, 3, 3, 3, seed=seed),
        "w1": qdq_nets.weights(channels, half, 3, 3, seed=seed + 1),
        **norm("n1", channels, seed),
        "w2": qdq_nets.weights(channels, channels, 3, 3, seed=seed + 2),
        "b2": qdq_nets.random((channels,), seed + 3),
        "w3": qdq_nets.weights(channels, half, 1, 1, seed=seed + 4),
        "w4": qdq_nets.weights(channels, channels, 1, 1, seed=seed + 5),
        "w5": qdq_nets.weights(channels, channels, 3, 3, seed=seed + 6),
        "wf": qdq_nets.weights(10, channels, seed=seed + 7),
        "bf": qdq_nets.random((10,), seed + 8),
        "low": np.float32(0),
        "high": np.float32(6),
    }
    around = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], "stem", strides=[2, 2], **around),
        node("Relu", ["c0"], ["r0"]),
        node("MaxPool", ["r0"], ["p0"], kernel_shape=[2, 2], strides=[1, 1]),
        node("Conv", ["p0", "w1"], ["c1"], "first", strides=[2, 2], **around),
        node("BatchNormalization", ["c1", "n1.g", "n1.b", "n1.m", "n1.v"], ["n1"]),
        node("Clip", ["n1", "low", "high"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], "second", **around),
        node("Conv", ["p0", "w3"], ["c3"], "shortcut", strides=[2, 2]),
        node("Add", ["c3", "c2"], ["a3"]),
        node("Relu", ["a3"], ["r3"]),
        node("Conv", ["r3", "w4"], ["c4"], "third"),
        node("Relu", ["c4"], ["r4"]),
        node("Conv", ["r4", "w5"], ["c5"], "fourth", **around),
        node("Add", ["c5", "r3"], ["a5"]),
        node("GlobalAveragePool", ["a5"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "wf", "bf"], ["y"], transB=1),
    ]
    return nets.model(nodes, [nets.value("x", (1, 3, size, size))], [nets.value("y", (1, 10))], constants)


def norm(name: str, channels: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return the constants of a batch normalization, under its name and a letter each."""
    stream = np.random.default_rng(seed + 100)
    mean, shift = 0.3 * stream.standard_normal((2, channels))
    scale, variance = 0.5 + stream.random((2, channels))
    statistics = {"g": scale, "b": shift, "m": mean, "v": variance}
    return {f"{name}.{letter}": array.astype(np.float32) for letter, array in statistics.items()}


def gratings(count: int, size: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Return pictures of stripes in noise, and which of ten directions each has."""
    stream = np.random.default_rng(seed)
    classes = np.arange(count) % 10
    angles = np.pi * classes / 10 + 0.05 * stream.standard_normal(count)
    rows, columns = np.mgrid[:size, :size]
    ways = np.cos(angles)[:, None, None] * rows + np.sin(angles)[:, None, None] * columns
    stripes = np.sin(ways + 2 * np.pi * stream.random((count, 1, 1)))
    pictures = stripes[:, None] + 0.3 * stream.standard_normal((count, 3, size, size))
    return pictures.astype(np.float32), classes


def trained(size: int = 24) -> onnx.ModelProto:
    """Return a residual network that tells gratings apart: random filters, and a classifier fitted by least squares."""
    proto = residual(48, size)
    pictures, classes = gratings(600, size, seed=1)
    probe = Probe(proto, ["f"])
    features = np.concatenate([probe.run({"x": picture[None]})["f"] for picture in pictures]).astype(np.float64)
    mean = features.mean(axis=0)
    targets = np.eye(10)[classes] - 0.1
    inside = (features - mean).T @ (features - mean)
    weight = np.linalg.solve(
        inside + 1e-3 * np.trace(inside) / len(inside) * np.eye(len(inside)), (features - mean).T @ targets
    )
    fitted = {"wf": weight.T, "bf": -mean @ weight}
    for tensor in proto.graph.initializer:
        if tensor.name in fitted:
            tensor.CopyFrom(numpy_helper.from_array(fitted[tensor.name].astype(np.float32), tensor.name))
    return proto
