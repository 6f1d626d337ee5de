"""Products and quotients with zero, of infinities and NaN."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets
from tests.support.nets import node, value
from tests.support.one_node import agree_model

ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -7.0]


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("names", [("x", "zero"), ("zero", "x")])
@pytest.mark.parametrize("operator", ["Mul", "Div"])
def test_infinities_and_nan_survive(operator, names, zero, kind):
    ends = [value("x", (7,), kind)], [value("y", (7,), kind)]
    agree_model(
        nets.model([node(operator, names, ["y"])], *ends, {"zero": np.array(zero, kind)}), [np.array(ODD, kind)]
    )


def test_a_zero_of_more_axes_than_the_other_factor():
    proto = nets.model(
        [node("Mul", ["x", "z"], ["y"])],
        [value("x", (3,))],
        [value("y", (1, 1, 3))],
        {"z": np.zeros((1, 1, 1), np.float32)},
    )
    agree_model(proto, [np.array([1, np.inf, 2], np.float32)])


def test_whole_numbers_are_left_alone():
    proto = nets.model(
        [node("Mul", ["x", "z"], ["y"])],
        [value("x", (3,), "int32")],
        [value("y", (3,), "int32")],
        {"z": np.array(0, np.int32)},
    )
    agree_model(proto, [np.array([1, 5, 2], np.int32)])
