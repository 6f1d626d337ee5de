"""What changes the places of elements, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.one_node import One, agree


def _array(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_space_and_depth() -> None:
    image = _array(1, 8, 2, 6)
    agree(
        [One("SpaceToDepth", [image], {"blocksize": 2})]
        + [One("DepthToSpace", [image], {"blocksize": 2, "mode": mode}) for mode in ("DCR", "CRD")]
    )


@pytest.mark.parametrize(("shape", "how"), [((9, 8, 3), {}), ((11, 2), {"axes": [1, 0]}), ((4, 5), {"axes": [-1, -2]})])
def test_the_middle(shape: tuple[int, ...], how: dict[str, Any]) -> None:
    agree([One("CenterCropPad", [_array(10, 7, 3), np.array(shape)], how)])


def test_columns() -> None:
    block, wide = np.array([2, 2]), {"pads": [1, 0, 0, 1], "dilations": [1, 2]}
    agree(
        [
            One("Col2Im", [_array(2, 12, 20), np.array([5, 6]), block]),
            One("Col2Im", [_array(2, 12, 9), np.array([6, 6]), block], {"strides": [2, 2]}),
            One("Col2Im", [_array(2, 12, 16), np.array([5, 5]), np.array([3, 2])], wide),
        ]
    )
