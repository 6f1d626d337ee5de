"""Two transformers as PyTorch's exporter writes them, with random weights: no file of them may be passed on.

A BERT-mini (4 layers of 256, 128 tokens) and the encoder of Whisper-tiny (4 layers of 384) for ten seconds of sound,
where the true one always takes thirty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_VOCABULARY = 30522
_OPSET, _IR_VERSION = 17, 8


class _Graph:
    """Nodes and weights that belong together; each method returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def random(self, *shape: int, spread: float) -> str:
        return self.constant(self._random.standard_normal(shape, np.float32) * np.float32(spread))

    def dense(self, data: str, inputs: int, outputs: int, *, bias: bool = True) -> str:
        product = self.node("MatMul", data, self.random(inputs, outputs, spread=1 / math.sqrt(inputs)))
        return self.node("Add", self.random(outputs, spread=0.1), product) if bias else product

    def normal(self, data: str, width: int, epsilon: float) -> str:
        factors = self.constant(np.ones(width, np.float32))
        return self.node("LayerNormalization", data, factors, self.random(width, spread=0.1), axis=-1, epsilon=epsilon)

    def gelu(self, data: str) -> str:
        root, one, half = (self.constant(np.float32(number)) for number in (math.sqrt(2), 1, 0.5))
        error = self.node("Add", self.node("Erf", self.node("Div", data, root)), one)
        return self.node("Mul", self.node("Mul", data, error), half)

    def attention(self, data: str, rows: int, width: int, heads: int) -> str:
        """Return attention of rows to each other."""
        each = width // heads
        split, whole = (
            self.constant(np.array(shape, np.int64)) for shape in ((1, rows, heads, each), (1, rows, width))
        )

        def part(order: Sequence[int], *, bias: bool = True) -> str:
            apart = self.node("Reshape", self.dense(data, width, width, bias=bias), split)
            return self.node("Transpose", apart, perm=order)

        query, key, value = part((0, 2, 1, 3)), part((0, 2, 3, 1), bias=False), part((0, 2, 1, 3))
        root = self.constant(np.float32(math.sqrt(each)))
        scores = self.node("Softmax", self.node("Div", self.node("MatMul", query, key), root), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", scores, value), perm=(0, 2, 1, 3))
        return self.dense(self.node("Reshape", mixed, whole), width, width)

    def feed_forward(self, data: str, width: int) -> str:
        return self.dense(self.gelu(self.dense(data, width, 4 * width)), 4 * width, width)

    def model(self, given: onnx.ValueInfoProto, result: str, shape: Sequence[int]) -> onnx.ModelProto:
        output = helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)
        self.nodes.append(helper.make_node("Identity", [result], ["output"]))
        graph = helper.make_graph(self.nodes, "encoder", [given], [output], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        onnx.checker.check_model(model)
        return model


def bert_mini(tokens: int = 128) -> onnx.ModelProto:
    """Return a BERT-mini: tokens in, and a vector for each out. Nothing is masked, and all tokens are of one part."""
    width, epsilon, graph = 256, 1e-12, _Graph()
    given = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, tokens])
    words = graph.node("Gather", graph.random(_VOCABULARY, width, spread=0.5), "input_ids", axis=0)
    data = graph.normal(graph.node("Add", words, graph.random(1, tokens, width, spread=0.1)), width, epsilon)
    for _ in range(4):
        mixed = graph.node("Add", graph.attention(data, tokens, width, heads=4), data)
        middle = graph.normal(mixed, width, epsilon)
        data = graph.normal(graph.node("Add", graph.feed_forward(middle, width), middle), width, epsilon)
    return graph.model(given, data, [1, tokens, width])


def whisper_tiny_encoder(frames: int = 1000) -> onnx.ModelProto:
    """Return the encoder of Whisper-tiny: a spectrogram in, and a vector for every second frame out."""
    width, rows, epsilon, graph = 384, frames // 2, 1e-5, _Graph()
    given = helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, 80, frames])
    data = "features"
    for inputs, stride in ((80, 1), (width, 2)):
        filters = graph.random(width, inputs, 3, spread=math.sqrt(2 / (3 * inputs)))
        bias = graph.random(width, spread=0.1)
        data = graph.gelu(graph.node("Conv", data, filters, bias, kernel_shape=[3], pads=[1, 1], strides=[stride]))
    data = graph.node("Transpose", data, perm=[0, 2, 1])
    data = graph.node("Add", data, graph.random(1, rows, width, spread=0.1))
    for _ in range(4):
        data = graph.node("Add", data, graph.attention(graph.normal(data, width, epsilon), rows, width, heads=6))
        data = graph.node("Add", data, graph.feed_forward(graph.normal(data, width, epsilon), width))
    return graph.model(given, graph.normal(data, width, epsilon), [1, rows, width])


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "bert-mini": bert_mini,
    "whisper-tiny-encoder": whisper_tiny_encoder,
}
