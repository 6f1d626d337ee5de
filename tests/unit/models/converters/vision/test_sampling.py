"""GridSample, AffineGrid and DeformConv against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.one_node import One, agree
from toolchain.errors import InputError

_RANDOM = np.random.default_rng(0)


def _array(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.long
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_of_images_and_volumes(padding: str) -> None:
    image, volume = (_array(2, 3, 6, 7), _array(2, 4, 5, 2)), (_array(1, 2, 4, 5, 3), _array(1, 3, 2, 4, 3))
    kinds = [(image, "linear", 0), (image, "nearest", 1), (image, "cubic", 0), (image, "cubic", 1)]
    kinds += [(volume, "linear", 1), (volume, "nearest", 0)]
    agree(
        [
            One("GridSample", tensors, {"mode": mode, "padding_mode": padding, "align_corners": corners}, given=2)
            for tensors, mode, corners in kinds
        ],
        22,
    )


@pytest.mark.parametrize("align_corners", [0, 1])
def test_grids(align_corners: int) -> None:
    sizes = [(2, 3, 4, 5), (2, 3, 1 + align_corners, 5), (2, 1, 4, 5, 2)]
    cases = [(_array(2, len(size) - 2, len(size) - 1), np.array(size)) for size in sizes]
    agree([One("AffineGrid", tensors, {"align_corners": align_corners}) for tensors in cases], 20)


def test_corners_of_a_single_element_are_refused() -> None:
    with pytest.raises(InputError, match=r"AffineGrid node .* cannot be compiled"):
        agree([One("AffineGrid", (_array(2, 2, 3), np.array((2, 3, 1, 5))), {"align_corners": 1})], 20)


def test_deformed_convolutions() -> None:
    data, parted = _array(2, 3, 6, 7), _array(2, 4, 6, 7)
    tensors = [data, _array(4, 3, 3, 3), _array(2, 18, 6, 7), _array(4), _array(2, 9, 6, 7)]
    how = {"group": 2, "offset_group": 2, "strides": [2, 2], "pads": [1, 1, 1, 0]}
    agree(
        [
            One("DeformConv", tensors, {"pads": [1, 1, 1, 1]}, given=5),
            One("DeformConv", [parted, _array(4, 2, 3, 3), _array(2, 36, 3, 3)], how, given=3),
        ],
        19,
    )
