from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolchain.errors import InputError
from toolchain.quantize import ranges, scales
from toolchain.quantize.plan import Layer
from toolchain.quantize.ranges import Grid, Range
from toolchain.quantize.scales import Exponents, Histogram


def about(**exponents):
    """Return grids about 0."""
    return {name: Grid.about(exponent) for name, exponent in exponents.items()}


def layer(name="a", source="x", output="y", residual=""):
    return Layer(name, f"{name}.conv", source, f"{name}.w", "", residual, output, clipped=False)


@given(st.floats(1e-9, 1e9))
def test_the_covering_exponent_is_the_lowest(limit):
    exponent = ranges.covering(limit)
    assert 127 * 2.0**exponent >= limit > 127 * 2.0 ** (exponent - 1)


def test_a_full_range_needs_no_more():
    assert ranges.covering(127 * 0.25) == -2
    assert ranges.covering(0) == -7
    assert ranges.covering(1e-30) == -40


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50), st.integers(1, 5))
def test_a_histogram_does_not_mind_how_its_values_come(values, count):
    at_once, split = Histogram(), Histogram()
    assert at_once.add(np.array(values, dtype=np.float32))
    for chunk in np.array_split(np.array(values, dtype=np.float32), count):
        assert split.add(chunk)
    for method in ("max", "percentile"):
        assert abs(at_once.grid(method).exponent - split.grid(method).exponent) <= (method == "percentile")


def test_the_greatest_value_counts():
    histogram = Histogram()
    histogram.add(np.array([0.5, -100.0]))
    histogram.add(np.array([1e-3]))
    assert histogram.grid("max").exponent == ranges.covering(100) - 1, "from -100 to 0.5, with a zero point"
    histogram.add(np.array([99.0]))
    assert histogram.grid("max") == Range(-100.0, 100.0).on(ranges.covering(100))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_histogram_refuses_what_is_not_finite(value):
    histogram = Histogram()
    assert not histogram.add(np.array([1.0, value]))
    assert histogram.grid("max").exponent == -7


@pytest.mark.parametrize("method", scales.METHODS)
def test_zeros_have_an_exponent(method):
    histogram = Histogram()
    assert histogram.add(np.zeros((2, 3)))
    assert (histogram.grid(method).exponent, histogram.grid(method).zero) == (-7, 0)


@pytest.mark.parametrize("method", ["mse", "percentile"])
def test_one_in_a_million_does_not_coarsen_the_rest(method):
    values = np.random.default_rng(0).standard_normal(10**6)
    values[0] = 20.0
    histogram = Histogram()
    histogram.add(values)
    assert histogram.grid("max").exponent == -3, "from -5 to 20"
    assert histogram.grid(method).exponent == -5
    assert histogram.grid(method).zero == 0


@given(st.integers(0, 10**6), st.floats(0.01, 100))
def test_the_least_error_of_a_histogram_is_that_of_its_values(seed, size):
    values = size * np.random.default_rng(seed).standard_normal(5000)
    histogram = Histogram()
    histogram.add(values)
    errors = {
        exponent: np.square(values - np.ldexp(scales.rounded(values, exponent).astype(float), exponent)).sum()
        for exponent in range(-15, 8)
    }
    assert errors[histogram.grid("mse").exponent] <= 1.1 * min(errors.values())
    assert errors[scales.of_weight(values)] == min(errors.values())


@pytest.mark.parametrize("method", scales.METHODS)
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_of_one_sign_gain_a_bit(method, sign):
    values = np.random.default_rng(0).uniform(0, 6, 10**5) * sign
    one_sided, two_sided = Histogram(), Histogram()
    one_sided.add(values)
    two_sided.add(np.concatenate([values, -values]))
    assert (one_sided.grid(method).zero, two_sided.grid(method).zero) == (-128 if sign > 0 else 127, 0)
    assert one_sided.grid(method).exponent == two_sided.grid(method).exponent - 1


def test_a_zero_point_has_to_gain_much():
    """Padding with it takes instructions: for a tenth of the error it stays where it is."""
    values = np.concatenate([np.random.default_rng(0).uniform(-0.95, 1, 10**5), [-1.15]])
    histogram = Histogram()
    histogram.add(values)
    assert histogram.grid("mse").zero == 0


def test_values_beyond_the_range_stay_at_its_ends():
    rounded = scales.rounded(np.array([-100.0, -0.26, 0.0, 0.24, 100.0]), -1)
    assert rounded.tolist() == [-128, -1, 0, 0, 127]
    assert rounded.dtype == np.int8


# --- what hardware demands -------------------------------------------------------------------------------------


def test_exponents_that_fit_stay():
    exponents = Exponents(about(x=-4, r=-5, y=-4), {"a.w": (-9,)})
    (first,) = layers = (layer(residual="r"),)
    assert scales.settled(layers, exponents) == exponents
    assert (exponents.accumulator(first), exponents.shifts(first), exponents.residual_shift(first)) == ((-13,), (9,), 8)


def test_an_output_finer_than_the_sums_is_raised_to_them():
    result = scales.settled((layer(),), Exponents(about(x=0, y=-20), {"a.w": (-12, -9)}))
    assert {name: grid.exponent for name, grid in result.activations.items()} == {"x": 0, "y": -9}
    assert result.activations["y"].range == Grid.about(-20).range


def test_a_zero_point_that_gains_nothing_any_more_is_given_up():
    activations = {"x": Grid.about(0), "y": Range(0, 255 * 2.0**-13).on(-13)}
    assert activations["y"].zero == -128
    result = scales.settled((layer(),), Exponents(activations, {"a.w": (-12,)}))
    assert (result.activations["y"].exponent, result.activations["y"].zero) == (-12, 0)


def test_a_result_with_a_zero_point_is_shifted_less():
    activations = {"x": Grid.about(-10), "y": Range(0, 2.0**10 * 255).on(10)}
    result = scales.settled((layer(),), Exponents(activations, {"a.w": (-14,)}))
    assert result.shifts(layer()) == (22,)
    plain = scales.settled((layer(),), Exponents({**activations, "y": Grid.about(10)}, {"a.w": (-14,)}))
    assert plain.shifts(layer()) == (30,)


def test_sums_much_finer_than_what_is_added_get_coarser_weights():
    result = scales.settled((layer(residual="r"),), Exponents(about(x=-10, r=0, y=0), {"a.w": (-12,)}))
    assert result.weights == {"a.w": (-5,)}
    assert result.residual_shift(layer(residual="r")) == 15


EXPONENTS = st.integers(-30, 5)
FINE = st.integers(-30, -7)  # of weights below 1


@given(st.lists(EXPONENTS, min_size=4, max_size=4), st.lists(FINE, min_size=3, max_size=3))
def test_every_shift_is_there_in_the_end(activations, weights):
    layers = (layer("a", "x", "y"), layer("b", "y", "z", "x"), layer("c", "z", "t", "y"))
    exponents = Exponents(
        about(**dict(zip("xyzt", activations, strict=True))),
        {f"{name}.w": (bits,) for name, bits in zip("abc", weights, strict=True)},
    )
    result = scales.settled(layers, exponents)
    assert all(0 <= result.shifts(layer)[0] <= 30 for layer in layers)
    assert all(0 <= (result.residual_shift(layer) or 0) <= 15 for layer in layers)
    assert all(result.activations[name].exponent >= grid.exponent for name, grid in exponents.activations.items())
    assert all(result.weights[name] >= value for name, value in exponents.weights.items())


def test_what_never_settles_is_told():
    layers = (layer("a", "x", "y", "z"), layer("b", "y", "t", "x"))
    with pytest.raises(InputError, match="shifts that the hardware supports") as fault:
        scales.settled(layers, Exponents(about(x=0, y=0, z=0, t=0), {"a.w": (3,), "b.w": (3,)}))
    assert "--exclude" in fault.value.hint


# --- channels by themselves ------------------------------------------------------------------------------------


def test_channels_have_scales_of_their_own_where_that_gains_a_bit():
    weight = np.random.default_rng(1).standard_normal((4, 3, 3, 3)) * np.array([1, 0.1, 0.01, 1e-9]).reshape(4, 1, 1, 1)
    powers = scales.powers(weight, apart=True)
    assert powers[0] == scales.of_weight(weight[0]) > powers[1] > powers[2] > powers[3]
    assert powers[3] == powers[0] - scales.MOST_SPREAD
    assert scales.powers(weight, apart=False) == (scales.of_weight(weight),)
    assert scales.powers(weight[:1], apart=True) == (scales.of_weight(weight[:1]),)


def test_channels_that_are_alike_have_one_scale():
    weight = np.random.default_rng(1).uniform(-1, 1, (8, 4, 3, 3))
    assert len(scales.powers(weight, apart=True)) == 1


def test_steps_stand_for_multiples_of_their_channels_scale():
    weight = np.array([[1.0, -2.0], [0.25, 0.5]])
    steps = scales.rounded(weight, (-1, -3))
    assert steps.tolist() == [[2, -4], [2, 4]]
    assert scales.multiples(steps, (-1, -3)).tolist() == weight.tolist()


@given(st.lists(FINE, min_size=3, max_size=3), EXPONENTS, EXPONENTS)
def test_no_channel_is_shifted_too_far(weights, data, result):
    coarsest = max(weights)
    exponents = tuple(max(exponent, coarsest - scales.MOST_SPREAD) for exponent in weights)
    shifted = scales.settled((layer(),), Exponents(about(x=data, y=result), {"a.w": exponents}))
    shifts = shifted.shifts(layer())
    assert all(0 <= shift <= 30 for shift in shifts)
    assert max(shifts) - min(shifts) <= scales.MOST_SPREAD
