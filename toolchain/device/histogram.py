"""Histograms of durations that a device counted, in the buckets of HdrHistogram.

The buckets are those of runtime/runner/histogram.cc: with 11 bits, of an HdrHistogram from 1 ns on with three digits.
"""

from __future__ import annotations

import base64
import itertools
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

BITS, SLICE_BITS = 11, 4  # kBits and kSliceBits of runtime/runner/periodic.cc
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)
_LARGEST_BITS = 47  # of a value: 39 hours in nanoseconds
_TAIL = 0.025  # of a 95 % interval, on each side
_DEVIATIONS, _SPARE = 12.0, 40.0  # the rest of a binomial distribution is too unlikely to matter
_DIGITS = 3
_COOKIE, _COMPRESSED_COOKIE = 0x1C849313, 0x1C849314  # HdrHistogram's encoding V2
_LOG_HEAD = """#[Histogram log format version 1.3]
"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"
"""


@dataclass(frozen=True)
class Quantile:
    """The value at a percentile, in nanoseconds.

    Attributes:
        percentile: The percentile.
        value: Upper end of its bucket; None if there are too few values for that rank.
        low: Lower end of its 95 % interval; None if it is open.
        high: Upper end of the interval; None if it is open: more values are needed.
    """

    percentile: float
    value: int | None
    low: int | None
    high: int | None


@dataclass(frozen=True)
class Histogram:
    """Numbers of values by bucket.

    Attributes:
        counts: Number of values in each bucket by its index; none is 0.
        max: Largest value.
        bits: Bits of the buckets.
    """

    counts: Mapping[int, int]
    max: int
    bits: int = BITS

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def quantiles(self) -> tuple[Quantile, ...]:
        """Return the values at `PERCENTILES`; their intervals are order statistics of independent values."""
        indices = sorted(self.counts)
        reached = np.cumsum([self.counts[index] for index in indices]) if indices else np.zeros(0, np.int64)
        total = self.total

        def bucket(rank: int) -> int:
            return indices[int(np.searchsorted(reached, rank))]

        quantiles = []
        for percentile in PERCENTILES:
            share = percentile / 100
            rank, low, high = ranks(total, share)
            has_value = total * (1 - share) >= 1 - 1e-6
            quantiles.append(
                Quantile(
                    percentile,
                    min(upper(bucket(rank), self.bits), self.max) if has_value else None,
                    lower(bucket(low), self.bits) if low >= 1 else None,
                    min(upper(bucket(high), self.bits), self.max) if high <= total else None,
                )
            )
        return tuple(quantiles)

    def hdr_log(self, seconds: float) -> str:
        """Return a log of HdrHistogram (version 1.3) with this histogram as its only interval, of some seconds.

        Values are nanoseconds, and the largest one is in milliseconds, as its tools expect.
        """
        payload = _varints(self.counts)
        head = struct.pack(">iiiiqqd", _COOKIE, len(payload), 0, _DIGITS, 1, (1 << _LARGEST_BITS) - 1, 1.0)
        compressed = zlib.compress(head + payload)
        text = base64.b64encode(struct.pack(">ii", _COMPRESSED_COOKIE, len(compressed)) + compressed).decode()
        return f"{_LOG_HEAD}0.000,{seconds:.3f},{self.max / 1e6:.3f},{text}\n"


def largest_index(bits: int) -> int:
    """Return the index of the last bucket."""
    return ((_LARGEST_BITS - bits + 2) << (bits - 1)) - 1


def lower(index: int, bits: int = BITS) -> int:
    """Return the smallest value of a bucket."""
    bucket = max((index >> (bits - 1)) - 1, 0)
    return (index - (bucket << (bits - 1))) << bucket


def upper(index: int, bits: int = BITS) -> int:
    """Return the largest value of a bucket."""
    return lower(index + 1, bits) - 1


def ranks(total: int, share: float) -> tuple[int, int, int]:
    """Return the ranks of a quantile and of the ends of its 95 % interval, from 1 on.

    The number of values below the quantile has a binomial distribution. A rank of 0, or of `total + 1`, is an open end.
    """
    mean, deviation = total * share, (total * share * (1 - share)) ** 0.5
    first = max(int(mean - _DEVIATIONS * deviation - _SPARE), 0)
    last = min(int(mean + _DEVIATIONS * deviation + _SPARE), total)
    numbers = np.arange(first, last, dtype=np.float64)
    logs = np.concatenate([[0.0], np.cumsum(np.log((total - numbers) / (numbers + 1) * (share / (1 - share))))])
    chances = np.exp(logs - logs.max())
    below = np.cumsum(chances / chances.sum())  # the probability of at most first, first + 1, ... values
    low = first + int(np.searchsorted(below, _TAIL, side="right"))
    high = first + int(np.searchsorted(below, 1 - _TAIL)) + 1
    return max(int(np.ceil(mean - 1e-9)), 1), min(low, total), min(high, total + 1)


def _varints(counts: Mapping[int, int]) -> bytes:
    """Encode counts: ZigZag LEB128, with the number of empty buckets between two others as a negative number."""
    payload, following = bytearray(), 0
    for index in sorted(counts):
        for number in itertools.chain([following - index] if index > following else [], [counts[index]]):
            value = (number << 1) ^ (number >> 63)
            while value > 0x7F:  # noqa: PLR2004 - seven bits to a byte
                payload.append(value & 0x7F | 0x80)
                value >>= 7
            payload.append(value)
        following = index + 1
    return bytes(payload)
