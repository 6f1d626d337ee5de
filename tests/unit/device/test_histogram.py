"""Histograms in HdrHistogram's buckets, intervals by order statistics, and HdrHistogram's log format."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from toolchain.device import histogram
from toolchain.device.histogram import Histogram, largest_index, lower, ranks, upper

LARGEST = (1 << 47) - 1


def index_of(value: int, bits: int = histogram.BITS) -> int:
    """The bucket of a value, as runtime/runner/histogram.cc counts it."""
    bucket = (value | ((1 << bits) - 1)).bit_length() - bits
    return (bucket << (bits - 1)) + (value >> bucket)


def of(values) -> Histogram:
    return Histogram(dict(Counter(map(index_of, values))), max(values))


@pytest.mark.parametrize("bits", [histogram.BITS, histogram.SLICE_BITS])
def test_buckets_follow_each_other_without_a_gap(bits):
    for value in (0, 1, 7, 8, 15, 16, 17, 2047, 2048, 2049, 4096, 1_000_003, LARGEST):
        index = index_of(value, bits)
        assert lower(index, bits) <= value <= upper(index, bits)
        assert lower(index + 1, bits) == upper(index, bits) + 1
    assert (index_of(LARGEST, bits), upper(largest_index(bits), bits)) == (largest_index(bits), LARGEST)


def test_a_bucket_is_at_most_a_thousandth_wide():
    for index in range(2048, largest_index(histogram.BITS), 97):
        assert upper(index) - lower(index) < lower(index) / 1000


def test_quantiles_are_those_of_the_values_within_a_bucket():
    values = [int(value) for value in np.random.default_rng(0).lognormal(15, 1, 5000)]
    ordered = sorted(values)
    for quantile in of(values).quantiles()[:4]:
        exact = ordered[int(np.ceil(5000 * quantile.percentile / 100)) - 1]
        assert exact <= quantile.value <= exact * 1.001
        assert quantile.low <= exact <= quantile.high


def test_a_percentile_that_few_values_cannot_have_is_none_and_an_open_end_too():
    by_percentile = {quantile.percentile: quantile for quantile in of(range(1000, 2000)).quantiles()}
    assert (by_percentile[99.9].value, by_percentile[99.9].high) == (1998, None)
    assert by_percentile[99.9].low == 1996
    assert by_percentile[99.99].value is None
    assert all(quantile.value is None for quantile in Histogram({}, 0).quantiles())


def test_the_ends_of_an_interval_are_those_of_the_binomial_distribution():
    """The sums of its terms, added exactly: 95 % of the probability lies between the ends, and less within them."""
    from fractions import Fraction
    from math import comb

    for total, share in ((5, Fraction(1, 2)), (59, Fraction(9, 10)), (400, Fraction(99, 100))):
        terms = [comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(total + 1)]
        _rank, low, high = ranks(total, float(share))
        assert sum(terms[:low]) <= Fraction(1, 40) < sum(terms[: low + 1])
        assert sum(terms[high:]) <= Fraction(1, 40) < sum(terms[high - 1 :])


def test_intervals_of_a_day_of_runs_are_found_at_once():
    rank, low, high = ranks(864_000_000, 0.9999)
    assert low < rank < high
    assert high - low == pytest.approx(2 * 1.96 * (864_000_000 * 0.9999 * 0.0001) ** 0.5, rel=0.01)


def test_the_interval_of_a_percentile_covers_it():
    """A 95 % interval may miss it in 1 of 20 series."""
    stream = np.random.default_rng(1)
    true = 1_000_000 * np.log(10)
    intervals = [of([int(value) for value in stream.exponential(1_000_000, 300)]).quantiles()[1] for _ in range(100)]
    assert sum(interval.low <= true <= interval.high for interval in intervals) >= 85


def test_the_log_is_that_of_hdr_histogram():
    """HdrHistogram's own library (hdrhistogram 0.10.8 for Python) reads it: 1 value of 5, 2 of 7, 3 of 2048."""
    assert Histogram({5: 1, 7: 2, 2048: 3}, 2049).hdr_log(1.0) == (
        "#[Histogram log format version 1.3]\n"
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'
        "0.000,1.000,0.002,HISTFAAAACd4nJNpmSzMwMDAzgABzFCakYGh/j8I2H+ACHAyMbK8l2cDALQJCR8=\n"
    )
