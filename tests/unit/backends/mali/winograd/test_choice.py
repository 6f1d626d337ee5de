"""Which convolutions Winograd's algorithm computes: those that gain by it, by what kernels and memory cost."""

from __future__ import annotations

import pytest

from toolchain.backends.mali.winograd import choice

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
    tiling = choice.choose_tiling((1, side, side, inputs), outputs, ROUND)
    assert (tiling.size if tiling else None) == size
    if tiling is not None:
        assert choice.winograd_cycles(tiling) < choice.direct_cycles(tiling)


def test_memory_of_what_is_transformed_is_bounded():
    tiling = choice.choose_tiling((1, 28, 28, 128), 128, ROUND)
    assert tiling.components * tiling.tiles <= 4 * 28 * 28


def test_a_batch_shares_its_weights():
    single, many = (choice.choose_tiling((batch, 14, 14, 256), 256, ROUND) for batch in (1, 16))
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
    assert choice.choose_tiling(image, outputs, padding) is None
