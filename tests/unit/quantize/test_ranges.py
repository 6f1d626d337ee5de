"""Ranges of a quantized file, and the finest powers of two that hold them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolchain.quantize import ranges
from toolchain.quantize.ranges import Range

NUMBERS = st.floats(-1e6, 1e6, width=32)


@given(low=NUMBERS, high=NUMBERS)
def test_a_third_saturates_at_most_and_no_finer_step_does_as_well(low, high):
    low, high = min(low, 0.0), max(high, 0.0)
    exponent = Range(low, high).exponent()

    def fits(bits):
        return -128.5 * 2.0**bits * math.sqrt(2) <= low and high <= 127.5 * 2.0**bits * math.sqrt(2)

    assert fits(exponent)
    assert exponent == ranges.LOWEST or (low, high) == (0, 0) or not fits(exponent - 1)


@pytest.mark.parametrize(
    ("dtype", "zero", "scale", "expected"),
    [
        ("int8", 0, 0.5, Range(-64, 63.5)),
        ("uint8", 0, 0.25, Range(0, 63.75)),
        ("uint8", 128, 1, Range(-128, 127)),
        ("int8", -128, 1, Range(0, 255)),
        ("uint8", 255, 1, Range(-255, 0)),
        ("int32", 0, 1, None),
        ("int8", 0, 0, None),
        ("int8", 0, np.nan, None),
        ("int8", 0, np.inf, None),
        ("uint8", 0, 3e38, None),
    ],
)
def test_grids_say_ranges(dtype, zero, scale, expected):
    assert ranges.of_grid(np.float32(scale), np.array(zero, dtype)) == expected


def test_a_grid_of_several_scales_says_none():
    assert ranges.of_grid(np.ones(2, np.float32), np.int8(0)) is None


@given(low=NUMBERS, high=NUMBERS, exponent=st.integers(-30, 20))
def test_a_grid_is_for_what_it_holds(low, high, exponent):
    full = Range(min(low, 0.0), max(high, 0.0))
    grid, step = full.on(exponent), 2.0**exponent
    assert -128 <= grid.zero <= 127
    assert (-128 - grid.zero) * step <= grid.range.low <= 0 <= grid.range.high <= (127 - grid.zero) * step
    assert grid.range.on(exponent) == grid, "it stays as it is"
    if full.is_held(exponent):
        assert grid.range.low <= full.low + step / 2
        assert grid.range.high >= full.high - step / 2
    else:
        near, covered = min((-full.low, -grid.range.low), (full.high, grid.range.high))
        assert covered >= near - step / 2 or grid.zero == 0, "what saturates is the far end"


@given(low=NUMBERS, high=NUMBERS)
def test_a_zero_point_gains_a_bit(low, high):
    full = Range(min(low, 0.0), max(high, 0.0))
    grid = full.grid()
    assert grid.exponent <= full.exponent()
    assert (grid.exponent < full.exponent()) or grid.zero == 0


@pytest.mark.parametrize(
    ("low", "high", "exponent", "zero"),
    [
        (0, 255, 0, -128),  # unsigned bytes keep all eight bits
        (-255, 0, 0, 127),
        (0, 300, 0, -128),  # nearly
        (-7, 248, 0, -121),
        (-7, 200, 0, -121),  # what room there is, is for greater numbers
        (-128, 127, 0, 0),
        (-150, 150, 0, 0),
        (-100, 140, 0, 0),  # without one it is no coarser
        (0, 360, 0, -128),
        (0, 363, 1, -128),  # next to the power of two above
        (0, 1, -8, -128),
    ],
)
def test_zero_points_of_ranges(low, high, exponent, zero):
    assert (Range(low, high).grid().exponent, Range(low, high).grid().zero) == (exponent, zero)


def test_a_power_of_two_is_its_own_grid():
    for bits in (-9, 0, 3):
        assert ranges.of_grid(np.float32(2.0**bits), np.int8(0)).exponent() == bits


def test_two_ranges_become_what_holds_both():
    assert Range(-1, 2).union(Range(-3, 1)) == Range(-3, 2)
    assert Range(-1, 2).union(None) == Range(-1, 2)
