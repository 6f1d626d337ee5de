"""Layers of every kind that Mali's rules schedule, in odd and even sizes, each as a network from x to y."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx

from tests.support import nets
from tests.support.nets import node, value

_RANDOM = np.random.default_rng(0)
_ODD, _EVEN = (1, 5, 9, 7), (1, 16, 12, 12)


def _weights(*shape: int) -> np.ndarray:
    return (_RANDOM.standard_normal(shape) / max(1, np.prod(shape[1:])) ** 0.5).astype(np.float32)


def _net(nodes: Sequence[onnx.NodeProto], shape: Sequence[int], constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    draft = nets.model(nodes, [value("x", shape)], [value("y", None)], constants)
    (result,) = nets.run(draft, {"x": np.zeros(shape, np.float32)})
    return nets.model(nodes, [value("x", shape)], [value("y", result.shape)], constants)


def _conv(shape: Sequence[int], outputs: int, kernel: int, group: int = 1, **attributes) -> onnx.ModelProto:
    weight = _weights(outputs, shape[1] // group, *[kernel] * (len(shape) - 2))
    nodes = [node("Conv", ["x", "w", "b"], ["c"], group=group, **attributes), node("Relu", ["c"], ["y"])]
    return _net(nodes, shape, {"w": weight, "b": _weights(outputs)})


def _transposed(shape: Sequence[int], outputs: int, kernel: int, group: int = 1, **attributes) -> onnx.ModelProto:
    """A transposed convolution between two others, as decoders have it."""
    channels = shape[1]
    nodes = [
        node("Conv", ["x", "k"], ["a"]),
        node("ConvTranspose", ["a", "w", "b"], ["c"], group=group, **attributes),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "l"], ["y"]),
    ]
    constants = {
        "k": _weights(channels, channels, 1, 1),
        "w": _weights(channels, outputs // group, kernel, kernel),
        "b": _weights(outputs),
        "l": _weights(outputs, outputs, 1, 1),
    }
    return _net(nodes, shape, constants)


def _convolutions() -> Iterator[tuple[str, onnx.ModelProto]]:
    for kernel, pads, shape in ((1, 0, _EVEN), (1, 0, _ODD), (3, 1, _EVEN), (3, 1, _ODD), (5, 2, (2, 8, 10, 11))):
        for strides in ([1, 1], [2, 2]):
            name = f"conv {kernel} of {shape}, steps {strides[0]}"
            yield name, _conv(shape, shape[1] + 8, kernel, pads=[pads] * 4, strides=strides)
    yield "conv 7, first", _conv((1, 3, 23, 23), 16, 7, pads=[3] * 4, strides=[2, 2])
    yield "conv 3, dilated", _conv((1, 8, 13, 11), 12, 3, pads=[2] * 4, dilations=[2, 2])
    yield "conv 2, uneven padding", _conv((1, 8, 9, 9), 8, 2, pads=[1, 0, 0, 1])
    yield "conv of one dimension", _conv((1, 12, 50), 16, 3, pads=[1, 1])
    yield "conv of three dimensions", _conv((1, 4, 5, 7, 6), 8, 3, pads=[1] * 6)
    for channels, steps in ((24, 1), (24, 2), (5, 1), (5, 2), (251, 1)):
        shape = (1, channels, 11, 9)
        yield (
            f"depthwise of {channels}, steps {steps}",
            _conv(shape, channels, 3, channels, pads=[1] * 4, strides=[steps] * 2),
        )
    yield "depthwise, two of each", _conv((1, 10, 9, 9), 20, 3, 10, pads=[1] * 4)
    for channels, outputs, group in ((16, 32, 4), (15, 10, 5), (6, 9, 3), (14, 14, 2)):
        yield f"{channels} to {outputs} in {group} groups", _conv((1, channels, 9, 8), outputs, 3, group, pads=[1] * 4)
    for kernel, strides, group in ((2, 2, 1), (3, 2, 1), (4, 2, 1), (3, 1, 1), (2, 2, 4), (3, 2, 8)):
        name = f"transposed {kernel}, steps {strides}, {group} groups"
        yield name, _transposed((1, 8, 7, 6), 8, kernel, group, strides=[strides] * 2, pads=[kernel // 3] * 4)
    yield "transposed, odd", _transposed((1, 5, 7, 6), 3, 3, strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])


def _others() -> Iterator[tuple[str, onnx.ModelProto]]:
    for shape in (_EVEN, _ODD):
        conv, constants = node("Conv", ["x", "k"], ["c"]), {"k": _weights(shape[1], shape[1], 1, 1)}
        for kind in ("MaxPool", "AveragePool"):
            pool = node(kind, ["c"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
            yield f"{kind} of {shape}", _net([conv, pool], shape, constants)
        for kind in ("GlobalAveragePool", "GlobalMaxPool", "LRN", "Softmax", "HardSwish"):
            attributes = {"LRN": {"size": 5}, "Softmax": {"axis": 1}}.get(kind, {})
            yield f"{kind} of {shape}", _net([conv, node(kind, ["c"], ["y"], **attributes)], shape, constants)
        for mode in ("nearest", "linear", "cubic"):
            for size in (2.0, 0.5):
                scales = {"s": np.array([1, 1, size, size], np.float32)}
                resize = node("Resize", ["c", "", "s"], ["y"], mode=mode)
                yield f"{mode} of {shape}, {size} times", _net([conv, resize], shape, constants | scales)
        joined = [conv, node("Sigmoid", ["c"], ["d"]), node("Concat", ["c", "x", "d"], ["y"], axis=1)]
        yield f"joined of {shape}", _net(joined, shape, constants)
        again = [conv, node("Sum", ["x", "c"], ["s"]), node("Max", ["s", "x"], ["y"])]
        yield f"read twice of {shape}", _net(again, shape, constants)


def _dense() -> Iterator[tuple[str, onnx.ModelProto]]:
    for rows, depth, columns in ((1, 130, 12), (1, 33, 1001), (7, 17, 20), (16, 64, 65), (1, 2048, 3)):
        nodes = [node("Gemm", ["x", "w", "b"], ["y"])]
        constants = {"w": _weights(depth, columns), "b": _weights(columns)}
        yield f"dense {rows} of {depth} to {columns}", _net(nodes, (rows, depth), constants)
    for rows, depth, columns in ((1, 768, 64), (2, 640, 10), (1, 999, 7), (3, 1024, 36), (1, 4096, 1000)):
        yield f"few of {rows} by {columns}, {depth} products each", _few(rows, depth, columns)
    yield "GELU", _gelu((1, 17, 20))
    yield "decoding", _decoding(3, 64, 16)
    for size, channels in ((16, 32), (17, 20)):
        yield f"attention of {size} with {channels}", _attention(size, channels)
        constants = {"s": _weights(channels) + 1, "b": _weights(channels)}
        nodes = [node("LayerNormalization", ["x", "s", "b"], ["y"], axis=-1)]
        yield f"layer norm of {size} with {channels}", _net(nodes, (1, size, channels), constants)
    for shape in ((1, 1000), (3, 40, 6), (30, 17, 17), (1, 20000)):
        yield f"softmax of {shape}", _net([node("Softmax", ["x"], ["y"])], shape, {})
        yield f"mean of {shape}", _net([node("ReduceMean", ["x"], ["y"], axes=[-1], keepdims=0)], shape, {})


def _few(rows: int, depth: int, columns: int) -> onnx.ModelProto:
    """Few results of many products, with what comes after them."""
    nodes = [node("Gemm", ["x", "w", "b"], ["a"]), node("Sigmoid", ["a"], ["y"])]
    return _net(nodes, (rows, depth), {"w": _weights(depth, columns), "b": _weights(columns)})


def _gelu(shape: Sequence[int]) -> onnx.ModelProto:
    nodes = [
        node("Mul", ["x", "scale"], ["a"]),
        node("Erf", ["a"], ["b"]),
        node("Add", ["b", "one"], ["c"]),
        node("Mul", ["x", "c"], ["y"]),
    ]
    return _net(nodes, shape, {"scale": np.float32(2), "one": np.float32(1)})


def _decoding(heads: int, tokens: int, channels: int) -> onnx.ModelProto:
    """One row that is multiplied with what was kept of others: scores, and what is taken by them."""
    constants = {"k": _weights(heads, channels, tokens), "v": _weights(heads, tokens, channels)}
    nodes = [
        node("MatMul", ["x", "k"], ["a"]),
        node("Softmax", ["a"], ["p"]),
        node("Relu", ["v"], ["w"]),
        node("MatMul", ["p", "w"], ["y"]),
    ]
    return _net(nodes, (heads, 1, channels), constants)


def _attention(size: int, channels: int, heads: int = 4) -> onnx.ModelProto:
    each = channels // heads
    nodes = [
        node("MatMul", ["x", "q"], ["q0"]),
        node("Reshape", ["q0", "split"], ["q1"]),
        node("Transpose", ["q1"], ["a"], perm=[0, 2, 1, 3]),
        node("Transpose", ["q1"], ["b"], perm=[0, 2, 3, 1]),
        node("MatMul", ["a", "b"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "a"], ["o"]),
        node("Transpose", ["o"], ["t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["t", "joined"], ["j"]),
        node("Add", ["j", "x"], ["y"]),
    ]
    constants = {
        "q": _weights(channels, channels),
        "split": np.array([1, size, heads, each]),
        "joined": np.array([1, size, channels]),
    }
    return _net(nodes, (1, size, channels), constants)


def layers() -> dict[str, onnx.ModelProto]:
    """Return all layers by name."""
    return dict([*_convolutions(), *_others(), *_dense()])
