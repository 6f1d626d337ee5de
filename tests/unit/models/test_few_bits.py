from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.support import nets
from tests.support.nets import node, value
from toolchain.models import few_bits


def test_matrices_of_few_bits_are_counted():
    nodes = [
        node("MatMulNBits", ["x", "w", "s"], ["h"], domain="com.microsoft", K=64, N=32, block_size=32),
        node("DequantizeLinear", ["v", "t"], ["f"], axis=0, block_size=16),
        node("MatMul", ["h", "f"], ["y"]),
    ]
    constants = {"w": np.zeros((32, 2, 16), np.uint8), "s": np.ones(64, np.float32), "t": np.ones((2, 10), np.float32)}
    graph = nets.graph(nodes, [value("x", (1, 64))], [value("y", (1, 10))], constants)
    graph.initializer.append(helper.make_tensor("v", TensorProto.INT8, (32, 10), np.ones(320, np.int8)))
    measured = few_bits.measure(graph)
    assert measured == few_bits.FewBits(2, (4, 8), 64 * 32 + 320, 64 * 16 + 320)
    assert str(measured) == "2 matrices of 4 and 8 bits in blocks: 0.00 MB without scales, 0.01 MB in float32"


def test_other_models_have_none():
    assert few_bits.measure(nets.relu().graph) is None
    scalar = node("DequantizeLinear", ["v", "t"], ["f"])
    graph = nets.graph([scalar], [], [value("f", (2, 2))], {"v": np.ones((2, 2), np.int8), "t": np.float32(1)})
    assert few_bits.measure(graph) is None
