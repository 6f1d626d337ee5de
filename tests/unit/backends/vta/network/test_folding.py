"""Pixels that become channels: what a window reads of the folded image is what it read of the image."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax

from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.network.folding import folding


def convolved(image, weights, step):
    height, width = weights.shape[2:]
    windows = sliding_window_view(image.astype(np.int64), (height, width), (2, 3))[:, :, :: step[0], :: step[1]]
    return np.einsum("nchwij,ocij->nohw", windows, weights.astype(np.int64))


def folded(found, image):
    """Run what a folding makes of an image."""
    builder, data = relax.BlockBuilder(), relax.Var("x", relax.TensorType(image.shape, "int8"))
    with builder.function("main", [data]):
        builder.emit_func_output(builder.emit(found.image(data)))
    made = tvm.compile(relax.transform.LegalizeOps()(builder.get()), target="llvm")
    return relax.VirtualMachine(made, tvm.cpu())["main"](tvm.runtime.tensor(image)).numpy()


@pytest.mark.parametrize("step", [(2, 2), (1, 2), (2, 1), (4, 4), (3, 2)])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (3, 2, 1, 4), (1, 1, 0, 0)])
@pytest.mark.parametrize("pad", [0, -128])
def test_sums_are_the_same(step, padding, pad):
    random = np.random.default_rng(0)
    channels = 16 // (step[0] * step[1])
    image = random.integers(-128, 128, (2, channels, 13, 11)).astype(np.int8)
    weights = random.integers(-128, 128, (5, channels, 5, 4)).astype(np.int8)
    layer = Conv2d(2, 13, 11, 16, 16, (5, 4), step, padding, pad=pad)
    found = folding(layer, channels, 16)
    top, left, bottom, right = padding
    wanted = convolved(
        np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=pad), weights, step
    )
    made = folded(found, image)
    assert made.shape == found.shape(image.shape)
    np.testing.assert_array_equal(convolved(made, found.weights(weights), (1, 1)), wanted)


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
