"""Networks whose shapes are open in the file, for tests of variants."""

from __future__ import annotations

import numpy as np
import onnx

from tests.support import nets


def pictures(channels: int = 16) -> onnx.ModelProto:
    """Return a classifier of pictures of any size: two convolutions, a mean over the picture, and a product."""
    stream = np.random.default_rng(3)
    weights = {
        "w0": stream.standard_normal((channels, 3, 3, 3)) / 4,
        "w1": stream.standard_normal((channels, channels, 3, 3)) / 8,
        "w2": stream.standard_normal((channels, 10)) / 4,
    }
    nodes = [
        nets.node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2], kernel_shape=[3, 3]),
        nets.node("Relu", ["a"], ["b"]),
        nets.node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        nets.node("Relu", ["c"], ["d"]),
        nets.node("GlobalAveragePool", ["d"], ["e"]),
        nets.node("Flatten", ["e"], ["f"]),
        nets.node("MatMul", ["f", "w2"], ["y"]),
    ]
    inputs = [nets.value("x", ("batch", 3, "height", "width"))]
    floats = {name: array.astype(np.float32) for name, array in weights.items()}
    return nets.model(nodes, inputs, [nets.value("y", ("batch", 10))], floats)


def text(length: int = 50, width: int = 16) -> onnx.ModelProto:
    """Return an encoder of words: rows of a table, a product, and a sum over those that the mask counts."""
    stream = np.random.default_rng(4)
    weights = {"table": stream.standard_normal((length, width)), "w": stream.standard_normal((width, width)) / 4}
    nodes = [
        nets.node("Gather", ["table", "ids"], ["a"]),
        nets.node("MatMul", ["a", "w"], ["b"]),
        nets.node("Tanh", ["b"], ["c"]),
        nets.node("Unsqueeze", ["mask", "axes"], ["m"]),
        nets.node("Mul", ["c", "m"], ["d"]),
        nets.node("ReduceSum", ["d", "rows"], ["y"], keepdims=0),
    ]
    inputs = [nets.value("ids", ("batch", "length"), "int64"), nets.value("mask", ("batch", "length"))]
    floats = {name: array.astype(np.float32) for name, array in weights.items()}
    axes = {"axes": np.array([2]), "rows": np.array([1])}
    return nets.model(nodes, inputs, [nets.value("y", ("batch", width))], floats | axes)
