"""What the attributes of convolutions and pools come to."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax

from toolchain.errors import InputError
from toolchain.models.converters import Node
from toolchain.models.converters.nn.window import Window, window


def _window(size: int, kernel: int, **attributes: Any) -> Window:
    image = relax.Var("x", relax.TensorType((1, 2, size), "float32"))
    return window(Node("MaxPool", "pool", 18, relax.BlockBuilder(), (image,), attributes, 1), [kernel])


@pytest.mark.parametrize(
    ("how", "pads", "count"),
    [("SAME_UPPER", (0, 1), 5), ("SAME_LOWER", (1, 0), 5), ("VALID", (0, 0), 4), ("NOTSET", (2, 2), 6)],
)
def test_padding(how: str, pads: tuple[int, int], count: int) -> None:
    geometry = _window(10, 3, auto_pad=how, strides=[2], pads=[2, 2])
    assert (geometry.pads, geometry.output_sizes) == ((pads,), (count,))


def test_the_last_window_may_reach_beyond_the_padding() -> None:
    geometry = _window(10, 3, strides=[2], ceil_mode=1)
    assert (geometry.output_sizes, geometry.overhang, geometry.reach) == ((5,), (1,), ((0, 1),))


def test_no_window_starts_behind_the_image() -> None:
    assert _window(5, 2, strides=[3], pads=[1, 1], ceil_mode=1).output_sizes == (2,)


def test_one_axis_is_one_of_two() -> None:
    wide = _window(10, 3, dilations=[2]).widened()
    assert (wide.kernel, wide.dilations, wide.output_sizes) == ((1, 3), (1, 2), (1, 6))


def test_numbers_for_each_axis() -> None:
    with pytest.raises(InputError, match="MaxPool node 'pool'"):
        _window(10, 3, strides=[2, 2])
