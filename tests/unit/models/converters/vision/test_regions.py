"""RoiAlign and MaxRoiPool against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.one_node import One, agree

_IMAGE = np.random.default_rng(0).standard_normal((2, 3, 6, 7)).astype(np.float32)
_REGIONS = np.array([[0.3, 0.4, 5.2, 4.1], [1, 2, 3, 4.5], [2, 1, 2.2, 1.1], [-1, -2, 8, 9]], np.float32)
_IMAGES = np.array([0, 1, 1, 0], np.int64)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_are_sampled(mode: str) -> None:
    how = {"mode": mode, "output_height": 3, "output_width": 2, "spatial_scale": 0.8}
    agree(
        [
            One(
                "RoiAlign",
                [_IMAGE, _REGIONS, _IMAGES],
                {**how, "coordinate_transformation_mode": edges, "sampling_ratio": ratio},
                given=3,
            )
            for edges in ("half_pixel", "output_half_pixel")
            for ratio in (0, 2)
        ]
    )


def test_the_greatest_of_regions() -> None:
    regions = np.array([[0, 0, 0, 5, 4], [1, 1, 2, 3, 4], [1, 2, 1, 2, 1], [0, -1, 3, 9, 9]], np.float32)
    agree(
        [
            One("MaxRoiPool", [_IMAGE, regions], {"pooled_shape": [2, 3], "spatial_scale": scale}, given=2)
            for scale in (1.0, 0.6, 0.5)  # half a pixel is rounded away from zero
        ]
    )
