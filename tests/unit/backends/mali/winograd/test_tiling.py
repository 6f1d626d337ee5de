"""How a convolution is cut into tiles, and that its transforms are those of a convolution."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain.backends.mali import winograd
from toolchain.backends.mali.winograd import Tiling
from toolchain.backends.mali.winograd.tiling import INPUTS, OUTPUTS

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
