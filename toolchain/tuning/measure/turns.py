"""The turns of a final: the untuned kernel and its best candidates are measured one after the other, repeatedly.

Only a significantly faster candidate replaces the untuned kernel. So a candidate that lost half of its first turns is
dropped, which saves time and excludes no winner; all others take all turns, and the confidence interval of their paired
ratios decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolchain import stats
from toolchain.stats import Estimate

TURNS = 12
"""Turns of a final: enough for a candidate to win although it lost one of them by chance."""

CONFIDENCE = 0.99
_EARLY = 4  # turns after which a candidate may be dropped
_NS = 1e9


def order(times: Sequence[Sequence[float]], number: int) -> list[int]:
    """Return the indices of the kernels of the next turn in their order, which rotates; 0 is the untuned kernel.

    Args:
        times: The times of each kernel so far.
        number: Number of the turn, from 0.
    """
    base, *rivals = times
    indices = [0, *(index for index, rival in enumerate(rivals, 1) if not _is_hopeless(rival, base))]
    # The first kernel of a turn may find other caches and clocks than the rest, so the order rotates.
    first = number % len(indices)
    return [*indices[first:], *indices[:first]]


def _is_hopeless(rival: Sequence[float], base: Sequence[float]) -> bool:
    lost = sum(rival_s >= base_s for rival_s, base_s in zip(rival, base, strict=False))
    # A rival with fewer turns was dropped before.
    return len(rival) < len(base) or (len(rival) >= _EARLY and 2 * lost >= len(rival))


def change(base: Sequence[float], rival: Sequence[float]) -> Estimate:
    """Estimate the relative change of the latency from the untuned kernel to a rival: -0.1 is a tenth less.

    Raises:
        ValueError: They took different numbers of turns, or none.
    """
    # Each turn is a round of a single sample, so that ratios are taken within turns.
    sides = [[[seconds * _NS] for seconds in samples] for samples in (rival, base)]
    return stats.estimate(stats.log_ratios(*sides), CONFIDENCE).change()
