"""What the constants of a quantised network are understood as."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from toolchain.backends.graph import quantization as constants
from toolchain.backends.graph.quantization import Grid
from toolchain.backends.graph.values import read


def made(build, *inputs):
    """Return what a network makes of constants and of its inputs, as the graph's pass reads it."""
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"x{number}", relax.TensorType(shape, dtype)) for number, (shape, dtype) in enumerate(inputs)
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            out = builder.emit_output(build(builder, *variables))
        builder.emit_func_output(out)
    module = builder.get()
    (block,) = module["main"].body.blocks
    graph = read(block, module)
    (variable,) = graph.escaping
    return graph.values[variable]


def dequantized(array, scale, zero, axis=0, dtype="int8"):
    def build(builder):
        stored = relax.const(np.asarray(array, dtype), dtype)
        return builder.emit(
            relax.op.dequantize(stored, relax.const(np.float32(scale)), relax.const(np.asarray(zero, dtype)), axis)
        )

    return build


def bytes_of(shape, seed=0):
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def test_weights_with_a_scale_for_each_channel():
    stored, scales = bytes_of((6, 3, 2, 2)), np.linspace(0.1, 0.6, 6)
    weights = constants.weights(made(dequantized(stored, scales, np.zeros(6))))
    assert (weights.numbers == stored).all()
    assert not weights.has_offset
    np.testing.assert_allclose(weights.scales, scales, rtol=1e-6)


def test_weights_with_one_scale():
    weights = constants.weights(made(dequantized(bytes_of((6, 3, 2, 2)), 0.5, 0)))
    assert weights.scales.tolist() == [0.5] * 6


def test_weights_with_a_scale_for_each_input_channel_do_not_fit():
    value = made(dequantized(bytes_of((6, 3, 2, 2)), np.ones(3), np.zeros(3), axis=1))
    assert constants.weights(value) is None


def test_unsigned_weights_about_the_middle():
    stored = bytes_of((6, 3, 1, 1))
    value = made(dequantized(stored.astype(int) + 128, 0.5, 128, dtype="uint8"))
    assert (constants.weights(value).numbers == stored).all()


def test_weights_on_both_sides_of_signed_bytes():
    weights = constants.weights(made(dequantized([[[[255]]], [[[0]]]], 0.5, 100, dtype="uint8")))
    assert weights.numbers.ravel().tolist() == [155, -100]
    assert weights.has_offset


def test_whole_numbers_of_more_than_a_byte_are_no_weights():
    assert constants.weights(made(dequantized([[[[400]]], [[[0]]]], 0.5, 100, dtype="int32"))) is None


def test_a_matrix_is_turned():
    stored, scales = bytes_of((6, 3)), np.linspace(0.1, 0.6, 6)

    def build(builder):
        return builder.emit(relax.op.permute_dims(dequantized(stored, scales, np.zeros(6))(builder)))

    weights = constants.weights(made(build))
    assert (weights.numbers == stored).all()
    np.testing.assert_allclose(weights.scales, scales, rtol=1e-6)


def test_a_matrix_that_lies_the_other_way():
    stored, scales = bytes_of((3, 6)), np.linspace(0.1, 0.6, 6)
    weights = constants.weights(made(dequantized(stored, scales, np.zeros(6), axis=1)))
    assert (weights.numbers == stored.T).all()
    np.testing.assert_allclose(weights.scales, scales, rtol=1e-6)


def test_weights_that_the_network_rounds_itself():
    source = np.array([[0.26, -0.74], [9.0, -9.0]], np.float32).reshape(2, 2, 1, 1)

    def build(builder):
        scale, zero = relax.const(np.array([0.5, 0.25], np.float32)), relax.const(np.zeros(2, np.int8))
        rounded = builder.emit(relax.op.quantize(relax.const(source), scale, zero, 0, "int8"))
        return builder.emit(relax.op.dequantize(rounded, scale, zero, 0))

    weights = constants.weights(made(build))
    assert weights.numbers.reshape(-1).tolist() == [1, -1, 36, -36]
    assert weights.scales.tolist() == [0.5, 0.25]


def test_weights_that_are_no_constant():
    def build(builder, source):
        return builder.emit(relax.op.dequantize(source, relax.const(np.float32(1)), relax.const(np.int8(0)), 0))

    assert constants.weights(made(build, ((6, 3, 1, 1), "int8"))) is None


def test_a_bias_is_known_through_a_change_of_shape():
    def build(builder):
        stored = dequantized([100000, -5, 7], [0.5, 0.25, 2.0], np.zeros(3), dtype="int32")(builder)
        return builder.emit(relax.op.reshape(stored, (1, 3, 1, 1)))

    bias = constants.constant_of(made(build))
    assert bias.shape == (1, 3, 1, 1)
    assert bias.reshape(-1).tolist() == [50000.0, -1.25, 14.0]


def test_a_bias_that_is_numbers_is_known():
    def build(builder):
        return builder.emit(relax.op.add(relax.const(np.ones(3, np.float32)), relax.const(np.ones(3, np.float32))))

    value = made(build)
    assert constants.constant_of(value) is None
    assert constants.constant_of(value.maker.inputs[0]).tolist() == [1, 1, 1]


def rounding(scale, zero, dtype):
    def build(builder, source):
        stored = relax.const(np.asarray(zero, dtype)), relax.const(np.asarray(scale, np.float32))
        return builder.emit(relax.op.quantize(source, stored[1], stored[0], 1, dtype))

    return made(build, ((1, 3, 2, 2), "float32")).maker


@pytest.mark.parametrize(
    ("dtype", "zero", "byte", "expected"),
    [("uint8", 7, "uint8", 7), ("uint8", 7, "int8", -121), ("int8", 0, "uint8", 128), ("int8", 0, "int8", 0)],
)
def test_grids_move_with_the_type_of_bytes(dtype, zero, byte, expected):
    operation = rounding(0.25, zero, dtype)
    assert constants.is_quantize(operation)
    assert not constants.is_dequantize(operation)
    assert constants.grid_of(operation, byte) == Grid(0.25, expected)


def test_no_grid_for_each_channel_and_none_of_wider_numbers():
    assert constants.grid_of(rounding([0.25, 0.5, 1], [0, 0, 0], "int8"), "int8") is None
    assert constants.grid_of(rounding(0.25, 0, "int16"), "int8") is None


def test_a_grid_that_is_not_known_ahead_of_time():
    def build(builder, source, scale):
        return builder.emit(relax.op.quantize(source, scale, relax.const(np.int8(0)), 1, "int8"))

    operation = made(build, ((1, 3), "float32"), ((), "float32")).maker
    assert not constants.is_quantize(operation)
    assert not constants.is_quantize(None)
