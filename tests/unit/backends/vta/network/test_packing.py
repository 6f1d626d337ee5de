"""Layouts of VTA: channels in blocks, and folded images."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax

from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.network import packing
from toolchain.backends.vta.network.packing import folding

BLOCK = 16
WIDE = VtaConfig(log_batch=2)


def evaluated(shape, write):
    """Return what an expression makes of numbers of some shape, and those numbers."""
    array = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    data, builder = relax.Var("x", relax.TensorType(shape, "int8")), relax.BlockBuilder()
    with builder.function("main", [data]):
        builder.emit_func_output(builder.emit(write(builder, data)))
    main = relax.VirtualMachine(tvm.compile(builder.get(), target="llvm"), tvm.cpu())["main"]
    return array, main(tvm.runtime.tensor(array)).numpy()


@pytest.mark.parametrize("config", [DEFAULT, VtaConfig(log_block=5), WIDE], ids=lambda config: config.name)
@pytest.mark.parametrize("shape", [(1, 3, 2, 5), (2, 16, 3, 3), (1, 40, 1, 2), (3, 20), (4, 16, 2, 1), (5, 3, 2, 2)])
def test_channels_in_blocks_and_back(shape, config):
    def write(builder, data):
        return packing.unpack(builder.emit(packing.pack(data, config)), shape)

    array, there_and_back = evaluated(shape, write)
    assert np.array_equal(array, there_and_back)


@pytest.mark.parametrize("shape", [(2, 20, 3, 5), (3, 20)])
def test_where_a_channel_lies(shape):
    array, packed = evaluated(shape, lambda _, data: packing.pack(data, DEFAULT))
    assert packed.shape == packing.packed_shape(shape, DEFAULT)
    images = array.reshape(packing.image(shape))
    assert np.array_equal(packed[:, 1, :, :, 0, 2], images[:, 18])
    assert not packed[:, 1, ..., 4:].any()


def test_where_an_image_lies():
    array, packed = evaluated((5, 20, 3, 2), lambda _, data: packing.pack(data, WIDE))
    assert packed.shape == packing.packed_shape((5, 20, 3, 2), WIDE) == (2, 2, 3, 2, 4, 16)
    assert np.array_equal(packed[0, 1, :, :, 3, 2], array[3, 18])
    assert np.array_equal(packed[1, 0, :, :, 0, 5], array[4, 5])
    assert not packed[1, ..., 1:, :].any()
    assert not packed[:, 1, ..., 4:].any()


def test_where_a_weight_lies():
    weights = np.random.default_rng(0).integers(-128, 128, (20, 40, 3, 2)).astype(np.int8)
    packed = packing.pack_weights(weights, BLOCK)
    assert packed.shape == (2, 3, 3, 2, 16, 16)
    assert packed[1, 2, 1, 0, 3, 7] == weights[19, 39, 1, 0]
    assert packed.any(axis=(0, 1, 2, 3)).all()
    assert not packed[1, :, :, :, 4:].any()
    assert not packed[:, 2, ..., 8:].any()


def test_a_bias_ends_with_zeros():
    packed = packing.pack_vector(np.arange(1, 21, dtype=np.int32), DEFAULT)
    assert packed.shape == (2, 1, 16)
    assert packed.reshape(-1).tolist() == [*range(1, 21), *[0] * 12]


def test_a_bias_is_the_same_in_each_row():
    packed = packing.pack_vector(np.arange(20, dtype=np.int32), WIDE)
    assert packed.shape == (2, 4, 16)
    assert (packed == packed[:, :1]).all()


@pytest.mark.parametrize(("shift", "weight"), [(0, 1), (5, 32), (6, 64), (15, 64)])
def test_a_residual_is_shifted_by_weights_as_far_as_int8_goes(shift, weight):
    weights = packing.residual_weights(shift, BLOCK)
    assert weights.dtype == np.int8
    assert np.array_equal(weights, np.diag([weight] * BLOCK))


# --- folded images ---------------------------------------------------------------------------------------------------


def convolved(image, weights, step):
    height, width = weights.shape[2:]
    windows = sliding_window_view(image.astype(np.int64), (height, width), (2, 3))[:, :, :: step[0], :: step[1]]
    return np.einsum("nchwij,ocij->nohw", windows, weights.astype(np.int64))


def folded(fold, image):
    """Run what a folding makes of an image."""
    builder, data = relax.BlockBuilder(), relax.Var("x", relax.TensorType(image.shape, "int8"))
    with builder.function("main", [data]):
        builder.emit_func_output(builder.emit(fold.image(data)))
    executable = tvm.compile(relax.transform.LegalizeOps()(builder.get()), target="llvm")
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(image)).numpy()


@pytest.mark.parametrize("step", [(2, 2), (1, 2), (2, 1), (4, 4), (3, 2)])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (3, 2, 1, 4), (1, 1, 0, 0)])
@pytest.mark.parametrize("pad", [0, -128])
def test_sums_are_the_same(step, padding, pad):
    random = np.random.default_rng(0)
    channels = 16 // (step[0] * step[1])
    image = random.integers(-128, 128, (2, channels, 13, 11)).astype(np.int8)
    weights = random.integers(-128, 128, (5, channels, 5, 4)).astype(np.int8)
    layer = Conv2d(2, 13, 11, 16, 16, (5, 4), step, padding, pad=pad)
    fold = folding(layer, channels, 16)
    top, left, bottom, right = padding
    expected = convolved(
        np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=pad), weights, step
    )
    actual = folded(fold, image)
    assert actual.shape == fold.shape(image.shape)
    np.testing.assert_array_equal(convolved(actual, fold.weights(weights), (1, 1)), expected)


@pytest.mark.parametrize(
    ("layer", "channels"),
    [
        (Conv2d(1, 8, 8, 16, 16, (3, 3)), 3),  # nothing is gained
        (Conv2d(1, 8, 8, 16, 16, (3, 3), (2, 2)), 5),  # 20 channels
        (Conv2d(1, 8, 8, 16, 16, (1, 1), (2, 2)), 3),  # most pixels are read by no window
        (Conv2d(1, 8, 8, 16, 16, (3, 3), (2, 2), alone=True), 1),
    ],
)
def test_what_stays_as_it_is(layer, channels):
    assert folding(layer, channels, 16) is None
