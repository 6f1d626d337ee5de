"""Things timed against each other: in turns, and by the statistics of `toolchain gate` and `toolchain compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from toolchain import stats

T = TypeVar("T")

_NS = 1e9


def in_turns(calls: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Call all of them in rounds; each is first, last and in between equally often, so that what drifts drifts for all.

    Returns:
        What each gave, in the order of the rounds.
    """
    results: dict[str, list[T]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in order(list(calls), number):
            results[name].append(calls[name]())
    return results


def order(names: list[str], number: int) -> list[str]:
    """Return the order of a round: rotated by one each time, and backwards in every other full turn."""
    first = number % len(names)
    rotated = names[first:] + names[:first]
    return rotated[::-1] if number // len(names) % 2 else rotated


def ratio(first_s: Sequence[Sequence[float]], second_s: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return how many times as fast the second is as the first, as `stats.Ratio` tells it.

    Args:
        first_s: Samples of one thing, in seconds, one sequence for each round.
        second_s: Samples of the other, in the same rounds.
    """
    return asdict(
        stats.ratio(*([[value * _NS for value in samples] for samples in side] for side in (first_s, second_s)))
    )


def rendered(estimate: Mapping[str, Any], digits: int = 2) -> str:
    """Render a ratio with its interval."""
    if not estimate["ci95"]:
        return f"{estimate['value']:.{digits}f}"
    low, high = estimate["ci95"]
    return f"{estimate['value']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
