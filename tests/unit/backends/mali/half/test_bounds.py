"""Sums of products in half precision never overflow where the weights are bounded."""

from __future__ import annotations

import numpy as np

from toolchain.backends.mali.half import bounds

RANDOM = np.random.default_rng(0)
GREATEST = np.float16(65504)


def test_only_as_many_as_are_summed_count():
    rows = np.array([[1.0] * 40, [-4.0, *[0.0] * 39]])
    np.testing.assert_array_equal(bounds.greatest(rows), [bounds.PRODUCTS, 4.0])


def test_rows_are_brought_near_to_the_limit():
    rows = RANDOM.standard_normal((64, 200)) * 10.0 ** RANDOM.integers(-20, 20, (64, 1))
    rows[0] = 0
    sums = bounds.greatest(np.ldexp(rows, bounds.exponents(rows)[:, None]))
    assert sums[0] == 0
    assert ((sums[1:] > bounds.LIMIT / 2) & (sums[1:] <= bounds.LIMIT)).all()
    assert bounds.exponents(np.array([[np.inf, 1.0], [np.nan, 1.0]])).tolist() == [0, 0]


def test_no_order_of_any_inputs_overflows():
    for _ in range(50):
        row = RANDOM.standard_normal((1, bounds.PRODUCTS)) * 10.0 ** RANDOM.uniform(-3, 6)
        weights = np.ldexp(row, bounds.exponents(row)[:, None]).astype(np.float16)[0]
        total = np.float16(0)
        for weight_row in weights:  # each product is as great as it can be
            total += weight_row * np.copysign(GREATEST, weight_row)
        assert np.isfinite(total)
        assert total > GREATEST / 4
