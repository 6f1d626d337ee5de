"""Tiles of Winograd convolutions, their numbers, and where they pay."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain.backends.mali import winograd
from toolchain.backends.mali.winograd import Tiling
from toolchain.backends.mali.winograd.tiling import INPUTS, OUTPUTS, choose_tiling, direct_cycles, winograd_cycles

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("size", [2, 4])
def test_the_transforms_are_a_convolution(size):
    image, weights = RANDOM.standard_normal((size + 2, size + 2)), RANDOM.standard_normal((1, 1, 3, 3))
    into, out = np.array(INPUTS[size]), np.array(OUTPUTS[size])
    factors = winograd.transform_weights(weights, size).reshape(size + 2, size + 2)
    result = out @ (factors * (into @ image @ into.T)) @ out.T
    expected = [
        [(image[row : row + 3, column : column + 3] * weights[0, 0]).sum() for column in range(size)]
        for row in range(size)
    ]
    np.testing.assert_allclose(result, expected, atol=2e-6)


def test_tiles_cover_what_is_no_multiple_of_them():
    tiling = Tiling((2, 13, 9, 8), 16, (1, 0, 2, 0), 4)
    assert (tiling.height, tiling.width) == (14, 7)
    assert (tiling.down, tiling.across, tiling.tiles) == (4, 2, 16)
    assert (tiling.side, tiling.components, tiling.inputs) == (6, 36, 8)


# --- the choice ------------------------------------------------------------------------------------------------------

ROUND = (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("side", "inputs", "outputs", "size"),
    [
        (56, 64, 64, 4),  # ResNet-18
        (28, 128, 128, 4),
        (14, 256, 256, 2),  # weights of F(4x4) are more to read than is saved
        (7, 512, 512, 2),
        (224, 64, 64, 4),  # VGG-16
        (112, 128, 128, 4),
        (55, 16, 64, None),  # SqueezeNet: transforming 64 channels takes longer than the sums of 16
        (27, 32, 128, 4),
        (13, 48, 192, 2),
        (8, 8, 8, None),
    ],
)
def test_a_layer_is_cut_into_tiles_where_that_takes_less(side, inputs, outputs, size):
    tiling = choose_tiling((1, side, side, inputs), outputs, ROUND)
    assert (tiling.size if tiling else None) == size
    if tiling is not None:
        assert winograd_cycles(tiling) < direct_cycles(tiling)


def test_memory_of_what_is_transformed_is_bounded():
    tiling = choose_tiling((1, 28, 28, 128), 128, ROUND)
    assert tiling.components * tiling.tiles <= 4 * 28 * 28


def test_a_batch_shares_its_weights():
    single, many = (choose_tiling((batch, 14, 14, 256), 256, ROUND) for batch in (1, 16))
    assert (single.size, many.size) == (2, 4)


@pytest.mark.parametrize(
    ("image", "outputs", "padding"),
    [
        ((1, 56, 56, 62), 64, ROUND),
        ((1, 56, 56, 64), 66, ROUND),
        ((1, 56, 56, 64), 64, (3, 1, 1, 1)),
        ((1, 2, 56, 64), 64, (0, 0, 0, 0)),
    ],
)
def test_what_the_kernels_cannot_compute_is_left_alone(image, outputs, padding):
    assert choose_tiling(image, outputs, padding) is None
