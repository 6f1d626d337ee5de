"""The estimated time of a layer in floats."""

from __future__ import annotations

import numpy as np
import onnx

from tests.support import nets, qdq_nets
from tests.support.nets import node
from toolchain.quantize import work
from toolchain.quantize.graph import Graph


def estimates(nodes, shape, weights):
    proto = onnx.shape_inference.infer_shapes(qdq_nets.floating(nodes, shape, weights))
    return [work.estimate(Graph(proto), item) for item in proto.graph.node]


def test_multiply_adds_decide_where_weights_are_used_often():
    weights = {"w": qdq_nets.weights(32, 64, 3, 3), "d": qdq_nets.weights(32, 8, 3, 3)}
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Conv", ["c", "d"], ["y"], group=4)]
    assert estimates(nodes, (1, 64, 34, 34), weights) == [32 * 32 * 32 * 64 * 9, 30 * 30 * 32 * 8 * 9]


def test_bytes_decide_for_a_row_times_a_matrix():
    weights = {"w": qdq_nets.weights(512, 100)}
    assert estimates([node("MatMul", ["x", "w"], ["y"])], (1, 512), weights) == [4 * 4 * (512 * 100 + 512 + 100)]


def test_weights_alone_count_where_no_shape_is_known():
    graph = Graph(nets.model([node("MatMul", ["x", "w"], ["y"])], [], [], {"w": np.zeros((4, 6), np.float32)}))
    assert work.estimate(graph, graph.nodes[0]) == 16 * 24
