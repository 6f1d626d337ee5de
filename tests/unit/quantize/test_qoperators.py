"""Operators on bytes in QDQ form: the same results, and what cannot be known stays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support import nets
from tests.support.nets import node, value
from toolchain.quantize import strip

MICROSOFT = "com.microsoft"
HELD = {
    "s": np.float32(0.05), "z": np.uint8(120), "t": np.float32(0.02), "v": np.uint8(3), "r": np.float32(0.1),
    "u": np.uint8(100), "each": np.array([0.03, 0.01], np.float32), "zeros": np.zeros(2, np.int8),
    "w": np.random.default_rng(1).integers(-90, 90, (2, 2, 3, 3), np.int8),
    "m": np.random.default_rng(2).integers(-90, 90, (6, 2), np.int8),
    "b": np.array([400, -900], np.int32),
}  # fmt: skip
X = np.random.default_rng(3).integers(0, 256, (1, 2, 6, 6), np.uint8)
IMAGE, TRIPLE, RESULT = (1, 2, 6, 6), ["s", "z"], ["r", "u"]


def case(operator, inputs, shape=IMAGE, domain="", **attributes):
    operation = node(operator, inputs, ["y"], operator, domain=domain, **attributes)
    proto = nets.model([operation], [value("x", shape, "uint8")], [value("y", None, "uint8")], HELD)
    if domain:
        proto.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    return proto


CASES = {
    "conv": case("QLinearConv", ["x", *TRIPLE, "w", "each", "zeros", *RESULT, "b"], pads=[1, 1, 1, 1]),
    "conv without a bias": case("QLinearConv", ["x", *TRIPLE, "w", "each", "zeros", *RESULT]),
    "matmul": case("QLinearMatMul", ["x", *TRIPLE, "m", "each", "zeros", *RESULT]),
    "add": case("QLinearAdd", ["x", *TRIPLE, "x", "t", "v", *RESULT], domain=MICROSOFT),
    "mul": case("QLinearMul", ["x", *TRIPLE, "x", "t", "v", *RESULT], domain=MICROSOFT),
    "sigmoid": case("QLinearSigmoid", ["x", *TRIPLE, "t", "v"], domain=MICROSOFT),
    "leaky": case("QLinearLeakyRelu", ["x", *TRIPLE, *RESULT], domain=MICROSOFT, alpha=0.25),
    "pool": case("QLinearAveragePool", ["x", *TRIPLE, *RESULT], domain=MICROSOFT, kernel_shape=[2, 2]),
    "mean": case("QLinearGlobalAveragePool", ["x", *TRIPLE, *RESULT], domain=MICROSOFT, channels_last=0),
    "concat": case("QLinearConcat", [*RESULT, "x", *TRIPLE, "x", "t", "v"], domain=MICROSOFT, axis=1),
    "gemm": case("QGemm", ["x", *TRIPLE, "m", "each", "zeros", "b", *RESULT], (4, 6), MICROSOFT, alpha=0.5),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same(name):
    proto = onnx.ModelProto()
    proto.CopyFrom(CASES[name])
    feeds = {"x": X if name != "gemm" else X.reshape(-1)[:24].reshape(4, 6)}
    (expected,) = nets.run(proto, feeds)
    assert strip.has_qoperators(proto)
    strip.expand_qoperators(proto)
    kinds = {node.op_type for node in proto.graph.node}
    assert kinds >= {"QuantizeLinear", "DequantizeLinear"}
    assert not any(kind.startswith(("QL", "QG")) for kind in kinds)
    (actual,) = nets.run(proto, feeds)
    assert np.ptp(expected) > 5
    assert np.abs(actual.astype(int) - expected).max() <= 1


def test_others_stay():
    proto = nets.model([node("Relu", ["x"], ["y"])], [value("x", (2, 2))], [value("y", None)])
    before = proto.SerializeToString()
    strip.expand_qoperators(proto)
    assert not strip.has_qoperators(proto)
    assert proto.SerializeToString() == before


@pytest.mark.parametrize(
    "odd",
    [
        case("QLinearGlobalAveragePool", ["x", *TRIPLE, *RESULT], domain=MICROSOFT, channels_last=1),
        case("QLinearConv", ["x", "made", "z", "w", "each", "zeros", *RESULT]),
    ],
)
def test_what_cannot_be_known_stays(odd):
    proto = onnx.ModelProto()
    proto.CopyFrom(odd)
    strip.expand_qoperators(proto)
    assert [node.op_type for node in proto.graph.node] == [node.op_type for node in odd.graph.node]
