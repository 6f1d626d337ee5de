"""What a device's CPUs reach at most, and how near a kernel comes to it: the roofline model (Williams et al., 2009)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BOUND = 0.5  # share of a kernel's time from which on its work or its data limits it
_CACHED = 1.2  # times the peak of the memory: data that came faster were in caches
_LARGEST_RATE = 1e7
_LARGEST_NUMBER = 1 << 62
_LONGEST_NAME = 40


@dataclass(frozen=True)
class Peak:
    """The peak performance of a device's CPUs, measured by loops of the runner or of the board server.

    Attributes:
        instructions: The instructions of the multiply-adds, such as `AVX2 and FMA`.
        threads: Number of threads.
        gflops: Billions of float32 operations a second; a multiply-add counts as two.
        gbytes_s: Billions of bytes a second of a triad, a[i] = b[i] + s * c[i], on arrays too large for most caches.
        array_kib: Size of each of the triad's three arrays.
        max_khz: Highest clock that the governor allowed; 0 if it was not read.
    """

    instructions: str
    threads: int
    gflops: float
    gbytes_s: float
    array_kib: int
    max_khz: int = 0

    @property
    def method(self) -> str:
        """A line about the method."""
        return (
            f"independent chains of {self.instructions} multiply-adds in float32, and a triad on three arrays of"
            f" {self.array_kib / 1024:g} MiB, the best of up to 25 tries on {self.threads} thread(s)"
        )


def read_peak(document: Mapping[str, Any]) -> Peak:
    """Read a peak that a device or a file claims.

    Raises:
        LookupError: A field is missing.
        OverflowError: A number is too large.
        TypeError: A field has another type.
        ValueError: A number is none that a peak can have.
    """
    rates = [float(document[key]) for key in ("gflops", "gbytes_s")]
    if not all(math.isfinite(rate) and 0 < rate < _LARGEST_RATE for rate in rates):
        raise ValueError(f"{rates} are not valid rates")
    return Peak(
        str(document["instructions"])[:_LONGEST_NAME],
        _number(document["threads"]),
        rates[0],
        rates[1],
        _number(document["array_kib"]),
        _number(document.get("max_khz", 0)),
    )


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST_NUMBER:
        raise ValueError(f"{value!r:.50} is not a valid number")
    return value


@dataclass(frozen=True)
class Attained:
    """How near a kernel comes to what the device allows.

    Attributes:
        limit_s: Shortest time that the peak allows: for its work, and for its data unless they were in caches.
        share: That over the kernel's time. Winograd's algorithm saves operations, so it may exceed 1.
        bound: What limits the kernel: `compute`, `memory`, or `neither`.
    """

    limit_s: float
    share: float
    bound: str


def attained(gflop: float, gbytes: float, seconds: float, peak: Peak) -> Attained:
    """Compare a kernel with the peak.

    Args:
        gflop: Billions of operations; 0 if unknown.
        gbytes: Billions of bytes of its arguments and its result, each moved once.
        seconds: Its time.
        peak: The peak of the device.
    """
    computing, moving = gflop / peak.gflops / seconds, gbytes / peak.gbytes_s / seconds
    moving = moving if moving <= _CACHED else 0.0
    share = max(computing, moving)
    limit = "compute" if computing >= moving else "memory"
    return Attained(share * seconds, share, limit if share >= _BOUND else "neither")
