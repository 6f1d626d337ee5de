"""Convolutions and transposed ones against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.one_node import One, agree

_RANDOM = np.random.default_rng(0)


def _array(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


_IMAGE, _BIAS = _array(1, 4, 7, 9), _array(6)


def test_padding() -> None:
    weights = _array(6, 4, 3, 3)
    agree(
        [
            One("Conv", [_IMAGE, weights, _BIAS], how)
            for how in (
                {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
                {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
                {"auto_pad": "VALID", "kernel_shape": [3, 3]},
                {"pads": [1, 0, 2, 1], "dilations": [2, 2]},
            )
        ]
        + [One("Conv", [_IMAGE, weights, _BIAS], given=3)]
    )


def test_one_axis() -> None:
    data, weights = _array(2, 4, 19), _array(6, 4, 4)
    agree(
        [
            One("Conv", [data, weights, _BIAS]),
            One("Conv", [data, weights], {"auto_pad": "SAME_LOWER"}),
            One("Conv", [data, weights, _BIAS], {"pads": [2, 1], "strides": [2], "dilations": [2]}),
            One("Conv", [data, _array(6, 2, 4), _BIAS], {"group": 2}),
            One("Conv", [data, _array(4, 1, 5)], {"group": 4, "pads": [2, 2]}),
        ]
    )


def test_three_axes() -> None:
    data = _array(2, 4, 5, 6, 7)
    agree(
        [
            One("Conv", [data, _array(6, 4, 3, 2, 3), _BIAS], {"auto_pad": "SAME_LOWER"}),
            One("Conv", [data, _array(6, 2, 3, 2, 3)], {"group": 2, "strides": [2, 1, 2], "pads": [1, 0, 1, 2, 1, 0]}),
            One("Conv", [data, _array(6, 4, 2, 2, 2)], {"dilations": [2, 1, 3]}),
        ]
    )


_TRANSPOSED: list[dict[str, Any]] = [
    {},
    {"strides": [2, 2]},
    {"strides": [2, 3], "pads": [1, 0, 2, 1]},
    {"strides": [2, 2], "output_padding": [1, 1], "pads": [1, 1, 1, 1]},
    {"strides": [3, 2], "dilations": [2, 2]},
    {"strides": [2, 2], "dilations": [2, 3], "pads": [1, 2, 0, 1]},
    {"strides": [3, 2], "output_shape": [20, 18]},
    {"strides": [3, 2], "output_shape": [20, 18], "auto_pad": "SAME_UPPER"},
    {"strides": [3, 2], "output_shape": [20, 20], "auto_pad": "SAME_LOWER"},
    {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"strides": [2, 1], "auto_pad": "SAME_LOWER"},
    {"strides": [2, 2], "auto_pad": "VALID"},
]


@pytest.mark.parametrize("half", [0, 1])
def test_transposed(half: int) -> None:
    weights = _array(4, 6, 3, 3)
    agree([One("ConvTranspose", [_IMAGE, weights, _BIAS], how) for how in _TRANSPOSED[half::2]])


def test_transposed_in_groups() -> None:
    nodes = [
        One("ConvTranspose", [_IMAGE, _array(4, 3, size, size), _BIAS], {"group": 2, "strides": [2, 2]})
        for size in (1, 2, 3)
    ]
    deep = {"group": 4, "strides": [2, 2], "pads": [1, 1, 1, 1]}
    agree([*nodes, One("ConvTranspose", [_IMAGE, _array(4, 1, 4, 4)], deep)])


def test_transposed_with_weights_that_are_computed() -> None:
    agree(
        [One("ConvTranspose", [_IMAGE, _array(4, 3, *size)], {"strides": [2, 2]}, given=2) for size in ((4, 2), (3, 3))]
    )


def test_transposed_along_one_axis_and_three() -> None:
    cube = _array(1, 3, 3, 4, 5)
    agree(
        [
            One("ConvTranspose", [_array(2, 4, 9), _array(4, 3, 5)], {"strides": [3], "pads": [1, 1]}),
            One("ConvTranspose", [cube, _array(3, 2, 2, 2, 2)], {"strides": [2, 2, 2]}),
            One("ConvTranspose", [cube, _array(3, 2, 3, 2, 3)], {"strides": [2, 2, 2], "pads": [1, 0, 1, 1, 0, 1]}),
        ]
    )
