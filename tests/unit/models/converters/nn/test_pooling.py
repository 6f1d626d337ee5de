"""Pools against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.one_node import One, agree

_RANDOM = np.random.default_rng(0)
_IMAGE = _RANDOM.standard_normal((2, 3, 10, 9)).astype(np.float32)
_WINDOWS: list[dict[str, Any]] = [
    {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]},
    {"kernel_shape": [3, 3], "strides": [3, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "strides": [2, 2]},
    {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER", "strides": [2, 3]},
    {"kernel_shape": [3, 3], "auto_pad": "VALID", "strides": [2, 2]},
    {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 1, 2, 1], "strides": [2, 2], "ceil_mode": 1},
]
_LINE = {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}
_SPACE = {"kernel_shape": [3, 2, 2], "strides": [2, 1, 2], "pads": [1, 0, 1, 0, 1, 0]}


def _array(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def test_the_greatest() -> None:
    nodes = [One("MaxPool", [_IMAGE], window) for window in _WINDOWS]
    nodes += [One("MaxPool", [(_IMAGE * 50).astype(kind)], _WINDOWS[0]) for kind in ("uint8", "int8")]
    agree([*nodes, One("MaxPool", [_array(1, 2, 9)], _LINE), One("MaxPool", [_array(1, 2, 5, 6, 7)], _SPACE)], 18)


@pytest.mark.parametrize("storage_order", [0, 1])
def test_where_the_greatest_are(storage_order: int) -> None:
    chosen = [_WINDOWS[0], _WINDOWS[1], _WINDOWS[3]]
    outputs, equal = (True, True), np.round(_IMAGE)  # of equal elements, the first
    nodes = [
        One("MaxPool", [data], window | {"storage_order": storage_order}, outputs=outputs)
        for window, data in zip(chosen, (_IMAGE, equal, _IMAGE), strict=True)
    ]
    agree([*nodes, One("MaxPool", [_array(1, 2, 9)], _LINE, outputs=outputs)], 18)


@pytest.mark.parametrize("count_include_pad", [0, 1])
def test_means(count_include_pad: int) -> None:
    padded = {"count_include_pad": count_include_pad}
    nodes = [One("AveragePool", [_IMAGE], window | padded) for window in _WINDOWS]
    nodes += [One("AveragePool", [_array(1, 2, 9)], _LINE), One("AveragePool", [_array(1, 2, 5, 6, 7)], _SPACE)]
    agree(nodes, 22)


@pytest.mark.parametrize("power", [1, 2, 3])
def test_norms(power: int) -> None:
    nodes = [One("LpPool", [_IMAGE], window | {"p": power}) for window in _WINDOWS]
    agree([*nodes, One("GlobalLpPool", [_IMAGE], {"p": power})], 18)


def test_all_of_a_channel() -> None:
    images = (_IMAGE, _array(1, 2, 9), _array(1, 2, 3, 4, 5))
    agree([One(name, [image]) for name in ("GlobalMaxPool", "GlobalAveragePool") for image in images], 18)


def test_the_greatest_go_back() -> None:
    values, indices = _array(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]], np.int64)
    how = {"kernel_shape": [2, 2], "strides": [2, 2]}
    agree(
        [
            One("MaxUnpool", [values, indices], how, given=2),
            One("MaxUnpool", [values, indices, np.array([1, 1, 4, 4], np.int64)], how, given=2),
            One("MaxUnpool", [values, indices], {**how, "kernel_shape": [3, 3], "pads": [0, 0, 1, 0]}, given=2),
        ],
        18,
    )


def test_local_normalization() -> None:
    how = {"alpha": 0.1, "beta": 0.7, "bias": 2.0}
    images = (_IMAGE, _array(1, 7, 4, 4))
    agree([One("LRN", [image], {**how, "size": size}) for image in images for size in (3, 5)], 18)


def test_columns() -> None:
    block, wide = np.array([2, 2]), {"pads": [1, 0, 0, 1], "dilations": [1, 2]}
    agree(
        [
            One("Col2Im", [_array(2, 12, 20), np.array([5, 6]), block]),
            One("Col2Im", [_array(2, 12, 9), np.array([6, 6]), block], {"strides": [2, 2]}),
            One("Col2Im", [_array(2, 12, 16), np.array([5, 5]), np.array([3, 2])], wide),
        ]
    )
