"""An encoder of tokens as exporters write it, with shapes that are read from its inputs, for tests of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, numpy_helper

from tests.support import nets


class _Writer:
    """Appends nodes and weights to a graph."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._stream = np.random.default_rng(seed)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, inputs, [output], name=f"{kind}_{output}", **attributes))
        return output

    def constant(self, value: ArrayLike) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def floats(self, value: float) -> str:
        return self.constant(np.float32(value))

    def whole(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def random(self, *shape: int) -> str:
        return self.constant((self._stream.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def size(self, value: str, axis: int) -> str:
        """Return one size of a tensor, as an array of one element."""
        index = self.constant(np.int64(axis))
        return self.op("Unsqueeze", self.op("Gather", self.op("Shape", value), index, axis=0), self.whole(0))

    def shaped(self, value: str, *rest: int) -> str:
        """Keep the first two axes, and give the others this shape."""
        shape = self.op("Concat", self.size(value, 0), self.size(value, 1), self.whole(*rest), axis=0)
        return self.op("Reshape", value, shape)

    def dense(self, value: str, inputs: int, outputs: int) -> str:
        return self.op("Add", self.op("MatMul", value, self.random(inputs, outputs)), self.random(outputs))

    def normalised(self, value: str, width: int) -> str:
        apart = self.op("Sub", value, self.op("ReduceMean", value, axes=[-1]))
        variance = self.op("ReduceMean", self.op("Pow", apart, self.floats(2)), axes=[-1])
        scaled = self.op("Div", apart, self.op("Sqrt", self.op("Add", variance, self.floats(1e-5))))
        return self.op("Add", self.op("Mul", scaled, self.random(width)), self.random(width))

    def attention(self, value: str, mask: str, width: int, heads: int) -> str:
        def split(order: list[int]) -> str:
            return self.op("Transpose", self.shaped(self.dense(value, width, width), heads, width // heads), perm=order)

        query, key, content = split([0, 2, 1, 3]), split([0, 2, 3, 1]), split([0, 2, 1, 3])
        scores = self.op("Div", self.op("MatMul", query, key), self.floats(np.sqrt(width // heads)))
        weights = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        joined = self.op("Transpose", self.op("MatMul", weights, content), perm=[0, 2, 1, 3])
        return self.dense(self.shaped(joined, width), width, width)

    def gelu(self, value: str) -> str:
        error = self.op("Erf", self.op("Div", value, self.floats(np.sqrt(2))))
        return self.op("Mul", self.op("Mul", value, self.op("Add", error, self.floats(1))), self.floats(0.5))


def encoder(layers: int = 1, width: int = 32, heads: int = 2, words: int = 50, positions: int = 80) -> onnx.ModelProto:
    """Return an encoder of `batch` rows of `length` tokens: states of all tokens, and their mean without the masked."""
    write = _Writer(7)
    length = write.size("ids", 1)
    places = write.op("Slice", write.whole(*range(positions)), write.whole(0), length, write.whole(0))
    value = write.op(
        "Add",
        write.op("Gather", write.random(words, width), "ids"),
        write.op("Gather", write.random(positions, width), places),
    )
    value = write.normalised(value, width)
    counted = write.op("Cast", "mask", to=TensorProto.FLOAT)
    hidden = write.op("Sub", write.floats(1), write.op("Unsqueeze", counted, write.whole(1, 2)))
    mask = write.op("Mul", hidden, write.floats(-1e4))
    for _ in range(layers):
        value = write.normalised(write.op("Add", value, write.attention(value, mask, width, heads)), width)
        inner = write.gelu(write.dense(value, width, 3 * width))
        value = write.normalised(write.op("Add", value, write.dense(inner, 3 * width, width)), width)
    of_tokens = write.op("Mul", value, write.op("Unsqueeze", counted, write.whole(2)))
    total = write.op("ReduceSum", of_tokens, write.whole(1), keepdims=0)
    count = write.op("ReduceSum", counted, write.whole(1), keepdims=1)
    mean = write.op("Div", total, write.op("Clip", count, write.floats(1e-9)))
    ends = {"tokens": value, "mean": mean}
    write.nodes.extend(onnx.helper.make_node("Identity", [source], [name]) for name, source in ends.items())
    inputs = [nets.value(name, ("batch", "length"), "int64") for name in ("ids", "mask")]
    outputs = [nets.value("tokens", ("batch", "length", width)), nets.value("mean", ("batch", width))]
    graph = onnx.helper.make_graph(write.nodes, "encoder", inputs, outputs, write.weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
