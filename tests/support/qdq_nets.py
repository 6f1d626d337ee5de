"""Small quantised networks in QDQ form, as ONNX Runtime's own tool makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from tests.support import nets
from tests.support.nets import node, value
from toolchain.models import ort

quantization = ort.quantization()
QuantType = quantization.QuantType
TYPES = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}


class _Samples(quantization.CalibrationDataReader):
    def __init__(self, shape: Sequence[int]) -> None:
        self._left = [{"x": random(shape, seed)} for seed in range(3)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


def random(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Return normally distributed float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def weights(outputs: int, inputs: int, *kernel: int, seed: int = 0) -> np.ndarray:
    """Return weights that keep the variance."""
    return random((outputs, inputs, *kernel), seed) / np.float32(np.sqrt(inputs * np.prod(kernel)))


def floating(nodes: Sequence[Any], shape: Sequence[int], constants: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Return a network on numbers from `x` to `y`."""
    return nets.model(nodes, [value("x", shape)], [value("y", None)], constants)


def quantized(proto: onnx.ModelProto, folder: Path, activation: str = "uint8", **options: Any) -> onnx.ModelProto:
    """Return a network in QDQ form, calibrated with random data.

    Args:
        proto: The network on numbers, from `x` to `y`.
        folder: A place for files.
        activation: Type of the activations' bytes; int8 ones are symmetric about zero.
        options: More for `quantization.quantize_static`.
    """
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    source, result = folder / "float.onnx", folder / "qdq.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(proto), source)
    settings = {
        "quant_format": quantization.QuantFormat.QDQ,
        "per_channel": True,
        "activation_type": TYPES[activation],
        "weight_type": QuantType.QInt8,
        "extra_options": {"ActivationSymmetric": activation == "int8", "WeightSymmetric": True},
    }
    quantization.quantize_static(source, result, _Samples(shape), **{**settings, **options})
    return onnx.load(result)


def imported(proto: onnx.ModelProto) -> tvm.IRModule:
    """Return a network as the pass that looks for bytes gets it."""
    passes = [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings()]
    return tvm.transform.Sequential(passes)(from_onnx(proto))


def residual(channels: int = 20, size: int = 12) -> onnx.ModelProto:
    """Return a network with all that a residual network has, down to a vector of 10 numbers."""
    constants = {
        "w1": weights(channels, 3, 3, 3, seed=1),
        "b1": random((channels,), 2),
        "w2": weights(channels, channels, 1, 1, seed=3),
        "b2": random((channels,), 4),
        "w3": weights(channels, channels, 3, 3, seed=5),
        "w4": weights(10, channels, seed=6),
        "b4": random((10,), 7),
    }
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("MaxPool", ["r1"], ["p1"], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1]),
        node("Conv", ["p1", "w2", "b2"], ["c2"]),
        node("Relu", ["c2"], ["r2"]),
        node("Conv", ["r2", "w3"], ["c3"], pads=[1, 1, 1, 1]),
        node("Add", ["c3", "p1"], ["a3"]),
        node("Relu", ["a3"], ["r3"]),
        node("GlobalAveragePool", ["r3"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w4", "b4"], ["y"], transB=1),
    ]
    return floating(nodes, (1, 3, size, size), constants)


def two_convolutions():
    """A stem and a convolution behind it, on floats."""
    constants = {name: weights(16, 16, 1, 1) for name in ("w", "v")}
    return nets.model(
        [nets.node("Conv", ["x", "w"], ["c"], "stem"), nets.node("Conv", ["c", "v"], ["y"], "second")],
        [nets.value("x", (1, 16, 6, 6))],
        [nets.value("y", (1, 16, 6, 6))],
        constants,
    )
