"""The turns of a final: what a kernel is untuned and its best candidates, one after the other, again and again.

What is untuned is replaced only by what is surely faster. So a candidate that lost half of its first turns is left out,
which saves time and can make no winner; all others take all turns, and the interval of their paired ratios decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolchain import stats
from toolchain.stats import Estimate

TURNS = 12
"""Turns of a final: enough for a candidate that lost one of them by chance."""

CONFIDENCE = 0.99
_EARLY = 4  # turns after which a candidate may be without prospects
_NS = 1e9


def order(heats: Sequence[Sequence[float]], number: int) -> list[int]:
    """Return who takes the next turn, in which order: 0 is what is untuned, who comes first changes.

    Args:
        heats: The times so far, of each.
        number: Number of the turn, from 0.
    """
    base, *rivals = heats
    left = [0, *(place for place, heat in enumerate(rivals, 1) if not _is_hopeless(heat, base))]
    first = number % len(left)
    return [*left[first:], *left[:first]]


def _is_hopeless(heat: Sequence[float], base: Sequence[float]) -> bool:
    lost = sum(mine >= theirs for mine, theirs in zip(heat, base, strict=False))
    return len(heat) < len(base) or (len(heat) >= _EARLY and 2 * lost >= len(heat))


def change(base: Sequence[float], rival: Sequence[float]) -> Estimate:
    """Estimate how much longer a candidate takes than what is untuned: -0.1 is a tenth less; of the same turns.

    Raises:
        ValueError: They took different numbers of turns, or none.
    """
    sides = [[[second * _NS] for second in one] for one in (rival, base)]
    return stats.estimate(stats.log_ratios(*sides), CONFIDENCE).change()
