"""What follows a layer, as arithmetic on whole numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from toolchain.backends.graph.values import Operation, Value
from toolchain.backends.vta.network.requantize import ByteGrid, Chain, UnfitError, exponents, grid, integers

ONES = np.ones((1, 1, 1, 1), np.int8)


def constant(number, dtype):
    expression = relax.const(np.asarray(number, dtype), dtype)
    return Value(None, np.shape(number), dtype, expression)


def quantize(scale, zero=0, dtype="int8"):
    inputs = Value(dtype="float32"), constant(scale, "float32"), constant(zero, dtype)
    return Operation("quantize", inputs, (Value(dtype=dtype),))


def dequantize(scale, zero=0):
    inputs = Value(dtype="int8"), constant(scale, "float32"), constant(zero, "int8")
    return Operation("dequantize", inputs, (Value(dtype="float32"),))


def chain(result, bias=0.0, residual=None, bounds=(), zero=0, residual_zero=0):
    """Return a chain of one channel whose result has an exponent."""
    added = None if residual is None else dequantize(2.0**-residual, residual_zero)
    return Chain(quantize(2.0**-result, zero), np.array([bias]), added, list(bounds))


@given(st.integers(-(2**24), 2**24), st.integers(-(2**20), 2**20), st.floats(0.01, 0.99), st.integers(0, 30))
def test_bias_and_shift_round_to_nearest(products, integer, fraction, shift):
    sums = 12
    result = integers(chain(sums - shift, math.ldexp(integer + fraction, -sums)), ONES, sums)
    exact = math.ldexp(products + integer + fraction, -shift)
    actual = (products + int(result.bias[0])) >> result.shift
    assert result.shift == shift
    if abs(exact % 1 - 0.5) > 1e-9 or shift:  # without a shift, the sums' own fraction is half-way alone
        assert actual == np.rint(exact)


@given(
    st.floats(-20, 20),
    st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)).map(sorted), max_size=3),
    st.integers(-128, 127),
)
def test_bounds_are_those_of_the_rounded_numbers(number, bounds, zero):
    result = integers(chain(4, bounds=bounds, zero=zero), ONES, 12)
    limited = number
    for low, high in bounds:
        limited = min(max(limited, low), high)
    expected = np.clip(np.rint(limited * 16) + zero, -128, 127)
    assert np.clip(np.rint(number * 16) + zero, result.low, result.high) == expected


BYTES = st.integers(-128, 127)


@given(
    st.lists(BYTES, min_size=3, max_size=3),
    st.lists(BYTES, min_size=3, max_size=3),
    st.tuples(BYTES, BYTES, BYTES),
    BYTES,
    st.integers(0, 12),
    st.integers(0, 20),
)
def test_zero_points_go_into_the_bias(data, weights, zeros, added, residual_shift, shift):
    """With a quarter of a unit, as `quantize` writes biases, nothing is half-way."""
    of_data, of_residual, of_result = zeros
    weights = np.array(weights, np.int8).reshape(1, 3, 1, 1)
    link = chain(12 - shift, math.ldexp(37.25, -12), 12 - residual_shift, zero=of_result, residual_zero=of_residual)
    result = integers(link, weights, 12, of_data)
    products = weights.ravel().astype(int)
    actual = (int(np.dot(data, products)) + (added << residual_shift) + int(result.bias[0])) >> result.shift
    sums = np.dot(np.array(data) - of_data, products) + ((added - of_residual) << residual_shift) + 37.25
    assert actual == np.rint(sums / 2**shift) + of_result or shift == 0
    assert shift or actual == np.floor(sums) + of_result


@pytest.mark.parametrize(("residual", "shift"), [(12, 0), (4, 8), (-3, 15)])
def test_shift_of_a_residual(residual, shift):
    assert integers(chain(4, residual=residual), ONES, 12).residual_shift == shift


@pytest.mark.parametrize(
    ("link", "cause"),
    [
        (chain(13), "shifted right by -1 bits"),
        (chain(-19), "shifted right by 31 bits"),
        (chain(4, residual=13), "shifted left by -1 bits"),
        (chain(4, residual=-4), "shifted left by 16 bits"),
        (chain(4, bias=2.0**19), "int32 ends at"),
        (chain(4, bias=-(2.0**19)), "int32 ends at"),
        (chain(4, bias=math.nan), "int32 ends at"),
        (chain(4, bias=2.0**19 - 2.0**-8 * 130, residual=4), "int32 ends at"),
        (chain(-13, zero=-128), "int32 ends at"),
    ],
)
def test_what_does_not_fit_is_refused(link, cause):
    with pytest.raises(UnfitError, match=cause):
        integers(link, ONES, 12)


@pytest.mark.parametrize(("scale", "exponent"), [(1.0, 0), (0.125, 3), (4.0, -2), ([0.5, 0.5], 1), (2.0**-140, 140)])
def test_exponent_of_a_scale(scale, exponent):
    assert grid(quantize(scale), "it") == ByteGrid(exponent)
    assert grid(dequantize(scale, -9), "it") == ByteGrid(exponent, -9)


@pytest.mark.parametrize(
    ("operation", "cause"),
    [
        (quantize(0.1), "the scale of it, 0.1, is not a power of two"),
        (quantize(0.0), "not a power of two"),
        (quantize(math.inf), "not a power of two"),
        (quantize(-0.5), "not a power of two"),
        (quantize(0.5, zero=[3, 4]), "the zero points of it differ"),
        (quantize([0.5, 0.25]), "the scales of it differ"),
        (quantize(0.5, dtype="uint8"), "the type of it is uint8"),
    ],
)
def test_scales_that_are_refused(operation, cause):
    with pytest.raises(UnfitError, match=cause):
        grid(operation, "it")


def test_weights_have_no_zero_point():
    with pytest.raises(UnfitError, match="the zero point of it is not 0"):
        exponents(dequantize([0.5, 0.25], [0, 1]), "it")
