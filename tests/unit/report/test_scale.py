"""Where values lie in pictures, and the round values that axes are labelled with."""

from __future__ import annotations

import pytest

from toolchain.report import scale


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 10.0, [0, 2, 4, 6, 8, 10]),
        (0.0, 0.13, [0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12]),
        (0.0, 75.0, [0, 10, 20, 30, 40, 50, 60, 70]),
        (9.95, 10.05, [9.96, 9.98, 10.0, 10.02, 10.04]),
    ],
)
def test_linear_ticks(low, high, expected):
    assert scale.linear_ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.9, 1100.0, [1, 10, 100, 1000]),
        (1.4, 13.0, [2, 5, 10]),
        (2.6, 7.5, [3, 4, 5, 7]),
        (0.0101, 0.0109, [0.0101, 0.0102, 0.0103, 0.0104, 0.0105, 0.0106, 0.0107, 0.0108, 0.0109]),
    ],
)
def test_logarithmic_ticks(low, high, expected):
    assert scale.logarithmic_ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize("values", [[0.0], [5.0], [-3.0, -3.0], [1e-300], [1e99, -1e99], [1.0, 1.0 + 1e-15]])
def test_every_value_has_a_place(values):
    spanned = scale.spanning(values, 100.0, 500.0)
    assert all(100.0 <= spanned.at(value) <= 500.0 for value in values)
    assert spanned.ticks()


@pytest.mark.parametrize(("values", "logarithmic"), [([1.0, 4.1], True), ([1.0, 3.9], False), ([0.0, 100.0], False)])
def test_a_scale_is_logarithmic_where_values_lie_far_apart(values, logarithmic):
    assert scale.fitting(values, 0.0, 1.0).logarithmic is logarithmic


def test_what_is_outside_lies_at_the_edge():
    spanned = scale.Scale(0.0, 1.0, 10.0, 20.0)
    assert (spanned.at(-5.0), spanned.at(5.0), spanned.holds(5.0)) == (10.0, 20.0, False)
