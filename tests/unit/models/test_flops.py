from __future__ import annotations

import numpy as np
import pytest
from onnx import shape_inference

from tests.support import nets
from tests.support.nets import node, value
from toolchain.models import flops


def count(proto) -> int | None:
    return flops.count(shape_inference.infer_shapes(proto).graph)


def conv(groups: int = 1, pads: int = 0, shape=(1, 4, 8, 8)):
    rank = len(shape) - 2
    weight = np.zeros((6, shape[1] // groups, *[3] * rank), "float32")
    layer = node("Conv", ["x", "w"], ["y"], group=groups, pads=[pads] * 2 * rank)
    return nets.model([layer], [value("x", shape)], [value("y", ["n", *["?"] * (rank + 1)])], {"w": weight})


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (conv(), 2 * (6 * 6 * 6) * (4 * 9)),
        (conv(pads=1), 2 * (6 * 8 * 8) * (4 * 9)),
        (conv(groups=2), 2 * (6 * 6 * 6) * (2 * 9)),
        (conv(shape=(2, 4, 8)), 2 * (2 * 6 * 6) * (4 * 3)),
        (conv(shape=(1, 4, 5, 5, 5)), 2 * (6 * 27) * (4 * 27)),
    ],
    ids=["plain", "padded", "grouped", "1-D batch of 2", "3-D"],
)
def test_convolutions(proto, expected):
    assert count(proto) == expected


def matmul(a, b, out):
    return nets.model([node("MatMul", ["a", "b"], ["y"])], [value("a", a), value("b", b)], [value("y", out)])


@pytest.mark.parametrize(
    ("a", "b", "out", "expected"),
    [
        ((2, 3), (3, 5), (2, 5), 2 * 2 * 3 * 5),
        ((7, 2, 3), (7, 3, 5), (7, 2, 5), 7 * 2 * 2 * 3 * 5),
        ((7, 2, 3), (3, 5), (7, 2, 5), 7 * 2 * 2 * 3 * 5),
        ((3,), (3, 5), (5,), 2 * 3 * 5),
        ((3,), (3,), (), 2 * 3),
    ],
    ids=["plain", "batched", "broadcast", "vector", "two vectors"],
)
def test_matrix_products(a, b, out, expected):
    assert count(matmul(a, b, out)) == expected


@pytest.mark.parametrize(("flag", "shape"), [(0, (2, 3)), (1, (3, 2))])
def test_gemm(flag, shape):
    layer = node("Gemm", ["a", "b"], ["y"], transA=flag, transB=1)
    proto = nets.model([layer], [value("a", shape)], [value("y", (2, 5))], {"b": np.zeros((5, 3), "float32")})
    assert count(proto) == 2 * 2 * 3 * 5


def test_transposed_convolution():
    layer = node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])
    weight = np.zeros((4, 6, 2, 2), "float32")
    proto = nets.model([layer], [value("x", (1, 4, 5, 5))], [value("y", (1, 6, 10, 10))], {"w": weight})
    assert count(proto) == 2 * (4 * 5 * 5) * (6 * 4)


SCALES = {"s": np.float32(0.1), "z": np.uint8(128)}


def test_quantized_convolution():
    layer = node("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"])
    weights = {"w": np.zeros((6, 4, 3, 3), "uint8"), **SCALES}
    proto = nets.model([layer], [value("x", (1, 4, 8, 8), "uint8")], [value("y", (1, 6, 6, 6), "uint8")], weights)
    assert count(proto) == 2 * (6 * 6 * 6) * (4 * 9)


def test_quantized_matrix_product():
    layer = node("QLinearMatMul", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"])
    weights = {"w": np.zeros((3, 5), "uint8"), **SCALES}
    proto = nets.model([layer], [value("x", (2, 3), "uint8")], [value("y", (2, 5), "uint8")], weights)
    assert count(proto) == 2 * 2 * 3 * 5


def test_the_work_of_several_layers_adds_up():
    proto = conv(pads=1)
    proto.graph.node.append(node("Conv", ["y", "v"], ["z"]))
    proto.graph.initializer.append(nets.graph([], [], [], {"v": np.zeros((2, 6, 1, 1), "float32")}).initializer[0])
    proto.graph.output[0].name = "z"
    assert count(proto) == 2 * (6 * 8 * 8) * (4 * 9) + 2 * (2 * 8 * 8) * 6


def test_weights_in_constants_have_a_shape():
    tensor = nets.graph([], [], [], {"w": np.zeros((6, 4, 3, 3), "float32")}).initializer[0]
    nodes = [node("Constant", [], ["w"], value=tensor), node("Conv", ["x", "w"], ["y"])]
    proto = nets.model(nodes, [value("x", (1, 4, 8, 8))], [value("y", (1, 6, 6, 6))])
    assert flops.count(proto.graph) == 2 * (6 * 6 * 6) * (4 * 9)
    assert flops.parameters(proto.graph) == 6 * 4 * 9


def test_other_operators_count_nothing():
    assert count(nets.relu()) == 0


def test_an_open_shape_gives_no_count():
    assert count(matmul(("n", 3), (3, 5), ("n", 5))) is None


def test_an_open_shape_elsewhere_does_not_matter():
    assert count(nets.relu(("n", 3))) == 0


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((4, 3), "float32"), 12),
        (np.zeros((4, 3), "float16"), 12),
        (np.zeros((4, 3), "int8"), 12),
        (np.zeros(4, "int32"), 4),
        (np.zeros(4, "int64"), 0),
        (np.float32(1), 0),
        (np.zeros((0, 3), "float32"), 0),
    ],
    ids=["float32", "float16", "int8", "bias of a quantized layer", "shape", "scalar", "empty"],
)
def test_parameters(array, expected):
    proto = nets.relu()
    proto.graph.initializer.extend(nets.graph([], [], [], {"w": array}).initializer)
    assert flops.parameters(proto.graph) == expected
