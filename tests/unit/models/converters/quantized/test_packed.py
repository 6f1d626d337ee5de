"""Weights of few bits in blocks: MatMulNBits and DequantizeLinear, compiled, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support import nets
from tests.support.nets import node, value
from tests.support.one_node import One, agree, agree_model, refusal
from toolchain.models.converters.quantized import packed

_RNG = np.random.default_rng(7)


def numbers(*shape: int, dtype: str = "float32") -> Any:
    return (_RNG.standard_normal(shape) * 0.5).astype(dtype)


def some_bytes(*shape: int) -> Any:
    return _RNG.integers(0, 256, shape).astype(np.uint8)


def product(bits: int, block: int, rows: int, sizes: tuple[int, int], /, *rest: Any, **attributes: Any) -> One:
    """Return a MatMulNBits of random weights; `sizes` are inputs and outputs."""
    inputs, outputs = sizes
    blocks = -(-inputs // block)
    data, weights = numbers(rows, inputs), some_bytes(outputs, blocks, block * bits // 8)
    scales = numbers(outputs * blocks) / (1 << bits)
    about = {"K": inputs, "N": outputs, "bits": bits, "block_size": block, **attributes}
    return One("MatMulNBits", [data, weights, scales, *rest], about, 1, (True,), "com.microsoft")


def test_each_size_of_a_block() -> None:
    agree(
        [product(bits, block, rows, (256, 24)) for bits in (4, 8) for block in (16, 32, 64, 128) for rows in (1, 3)],
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_as_bytes_and_as_floats(bits: int) -> None:
    agree(
        [
            product(bits, 16, 3, (48, 10), some_bytes(10 * -(-3 * bits // 8))),
            product(bits, 32, 1, (64, 6), some_bytes(6, 2 * bits // 8)),
            product(bits, 16, 2, (48, 10), None, None, numbers(10)),
            # ONNX Runtime takes floats with 4 bits alone.
            product(4, 32, 2, (64, 6), numbers(6 * 2) * 4 + 8),
        ],
        rtol=1e-4,
        atol=1e-4,
    )


def test_inputs_that_do_not_fill_their_last_block() -> None:
    agree(
        [product(4, 16, 3, (40, 6)), product(8, 32, 1, (33, 5)), product(4, 32, 2, (70, 6), some_bytes(6, 2))],
        rtol=1e-4,
        atol=1e-4,
    )


def test_data_of_several_axes_and_of_half_precision() -> None:
    layer = product(4, 16, 1, (32, 6))
    cube = One(layer.operator, [numbers(2, 3, 32), *layer.inputs[1:]], layer.attributes, 1, (True,), "com.microsoft")
    halves = [numbers(2, 32, dtype="float16"), layer.inputs[1], layer.inputs[2].astype(np.float16)]
    agree([cube, One(layer.operator, halves, layer.attributes, 1, (True,), "com.microsoft")], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
def test_data_is_rounded_where_the_file_allows_it(bits: int) -> None:
    """ONNX Runtime rounds to the same steps: more than one step of one number is a difference."""
    agree(
        [
            product(bits, block, rows, (128, 24), *zeros, accuracy_level=4)
            for block in (16, 32, 128)
            for rows in (1, 5)
            for zeros in ((), (some_bytes(24, -(-128 // block * bits // 8)),))
        ],
        rtol=1e-3,
        atol=2e-3,
    )


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (product(4, 16, 1, (16, 6), None, np.zeros(16, np.int32)), "g_idx"),
        (product(4, 16, 1, (16, 6), weight_prepacked=1), "weight_prepacked"),
        (product(4, 16, 1, (16, 6), bits=3), "weights are of 3 bits"),
        (product(4, 16, 1, (16, 6), block_size=32), "not N=6, K=16 in blocks of 32"),
    ],
    ids=["order", "order of their own", "bits", "sizes"],
)
def test_what_is_refused(layer: One, reason: str) -> None:
    fault = refusal(layer)
    assert fault.message == "com.microsoft.MatMulNBits node 'n0' cannot be compiled"
    assert reason in fault.details


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT8", "UINT8"])
@pytest.mark.parametrize("axis", [0, 1])
def test_dequantize_linear_in_blocks(kind: str, axis: int) -> None:
    """The matrix is [inputs, outputs] with blocks along the inputs, or with transB the other way round."""
    bits, signed = (4 if "4" in kind else 8), kind.startswith("I")
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    shapes = [(48, 10), (3, 10)] if axis == 0 else [(10, 48), (10, 3)]

    def whole(name: str, shape: tuple[int, int]) -> onnx.TensorProto:
        return helper.make_tensor(name, getattr(TensorProto, kind), shape, _RNG.integers(low, high, shape).reshape(-1))

    nodes = [
        node("DequantizeLinear", ["w", "scales", "zeros"], ["v"], axis=axis, block_size=16),
        node("Gemm", ["x", "v", "bias"], ["h"], transB=1) if axis else node("MatMul", ["x", "v"], ["h"]),
        node("Relu", ["h"], ["y"]),
    ]
    constants = {"scales": numbers(*shapes[1]), "bias": numbers(10)}
    proto = nets.model(nodes, [value("x", (3, 48))], [value("y", (3, 10))], constants, opset=21)
    proto.graph.initializer.extend([whole("w", shapes[0]), whole("zeros", shapes[1])])
    proto.ir_version = 10
    agree_model(proto, [numbers(3, 48)], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["INT4", "INT8"])
@pytest.mark.parametrize("pixels", [1, 3])
def test_filters_of_1x1_in_blocks(kind: str, pixels: int) -> None:
    """On images of one pixel, the weights stay packed; on others they are floats."""
    limit = 8 if kind == "INT4" else 128
    nodes = [
        node("DequantizeLinear", ["w", "scales", "zeros"], ["v"], axis=1, block_size=16),
        node("Conv", ["x", "v", "bias"], ["h"]),
        node("Add", ["h", "z"], ["a"]),
        node("Relu", ["a"], ["y"]),
    ]
    constants = {"scales": numbers(10, 3, 1, 1), "bias": numbers(10)}
    shapes = [(2, 48, pixels, pixels), (2, 10, pixels, pixels)]
    inputs = [value("x", shapes[0]), value("z", shapes[1])]
    proto = nets.model(nodes, inputs, [value("y", shapes[1])], constants, opset=21)
    for name, shape in (("w", (10, 48, 1, 1)), ("zeros", (10, 3, 1, 1))):
        elements = _RNG.integers(-limit, limit, shape).reshape(-1)
        proto.graph.initializer.append(helper.make_tensor(name, getattr(TensorProto, kind), shape, elements))
    proto.ir_version = 10
    agree_model(proto, [numbers(*shape) for shape in shapes], rtol=1e-4, atol=1e-3)


def test_the_numbers_of_weights() -> None:
    weights = packed.PackedWeights(
        np.array([[1, -2, 3]], np.int8), np.array([[0.5, 2]], np.float32), np.array([[1, 4]], np.float32), 2
    )
    np.testing.assert_array_equal(weights.unpacked(), [[0, -1.5, -2]])
    assert weights.bits == 4
    again = packed.of_arrays(weights.arrays, 2)
    np.testing.assert_array_equal(again.unpacked(), weights.unpacked())
    assert packed.PackedWeights(np.array([[8]], np.int8), weights.scales, None, 1).bits == 8
