"""Finals: when the search of a kernel is over, its best candidates are measured in turns with what it is untuned.

A search measures each candidate once, at some moment of a machine that others use. The lowest of many such figures is
low by luck, and no gain. So only what is surely faster in turns replaces what a deploy does without the user's records.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolchain.records import Catalog, Key, Record
from toolchain.records.results import LEAST_S, TensorArg
from toolchain.records.tasks import Task, args_of
from toolchain.stats import Estimate
from toolchain.tuning.measure import turns
from toolchain.tuning.search import Search
from toolchain.tuning.template_search import Candidate
from toolchain.tuning.trials import Built, Measured, Rival, Trial

RIVALS = 3
"""Candidates of a final, beside what is untuned."""
LEAST_GAIN = 0.01
"""What a winner surely gains: for less than that, nothing is replaced."""


@dataclass(frozen=True)
class Final:
    """A final that is to be held.

    Attributes:
        task: The kernel.
        base: What it is untuned.
        rivals: Its best candidates, the fastest first.
        fastest: The trial of the first of them.
    """

    task: Task
    base: Candidate
    rivals: tuple[Candidate, ...]
    fastest: Record

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All of them, what is untuned first."""
        return (self.base, *self.rivals)

    @property
    def among(self) -> tuple[str, ...]:
        """Their keys."""
        return tuple(one.key for one in self.candidates)


@dataclass(frozen=True)
class Decision:
    """What came out of a final.

    Attributes:
        winner: The candidate that is used from now on; what is untuned if none is surely faster.
        measured: Its times, one for each turn; or why there are none, and so no decision.
        base_s: The times of what is untuned.
        why: In words.
    """

    winner: Candidate
    measured: Measured
    base_s: tuple[float, ...] = ()
    why: str = ""


def due(tasks: Iterable[Task], search: Search, known: Catalog, key: Key) -> list[Final]:
    """Return the finals that are to be held: of each kernel with candidates that work, unless one of the same was.

    Args:
        tasks: The kernels.
        search: Makes their candidates again.
        known: What counts by now.
        key: What it was found for.
    """
    found = (_final(task, search, known.ranked(key, task.workload)) for task in tasks)
    decided = {name: set(one.among) for name, one in known.decided(key).items()}
    return [one for one in found if one is not None and decided.get(one.task.workload) != set(one.among)]


def _final(task: Task, search: Search, ranked: Iterable[Record]) -> Final | None:
    base = search.base(task)
    working = (one for one in ranked if one.candidate != base.key)
    rebuilt = ((one, search.rebuilt(task, json.loads(one.trace))) for one in working)
    fitting = ((one, made) for one, made in rebuilt if made is not None and made.key == one.candidate)
    chosen = list(itertools.islice(fitting, RIVALS))
    if not chosen:
        return None
    return Final(task, base, tuple(made for _, made in chosen), chosen[0][0])


def trial(final: Final, built: Sequence[Built], passing_bytes: int) -> Trial | None:
    """Return what is measured in a final: its candidates that were built; None if there are not two of them.

    Args:
        final: It.
        built: What became of its candidates in the builder, in their order.
        passing_bytes: As a trial has it.
    """
    base, running = built[0].library, _running(final, built)
    if base is None or not running:
        return None
    rivals = tuple(Rival(library, _args(one)) for one, library in running)
    name = f"final of {final.task.name}"
    return Trial(base, _args(final.base), name, passing_bytes, final.task.gflop, rivals)


def _running(final: Final, built: Sequence[Built]) -> list[tuple[Candidate, Path]]:
    pairs = zip(final.rivals, built[1:], strict=True)
    return [(one, made.library) for one, made in pairs if made.library is not None]


def _args(candidate: Candidate) -> tuple[TensorArg, ...]:
    return args_of(candidate.module, packed=True)


def undecided(final: Final, built: Sequence[Built], *, by_model: bool) -> Decision:
    """Decide a final in which nothing is measured.

    Args:
        final: It.
        built: What became of its candidates in the builder.
        by_model: Whether a model stands in for the boards. A kernel that it has no time for untuned, such as one that
            spills, is better off with any candidate that it has one for.
    """
    base = built[0]
    if base.library is None and by_model:
        measured = Measured(final.fastest.samples_s, board=final.fastest.board)
        return Decision(final.rivals[0], measured, why=f"the untuned kernel could not be measured: {base.error}")
    fault = base.error or next(one.error for one in built if one.error)
    return Decision(final.base, Measured((), "build", f"a candidate of the final does not compile: {fault}"))


def decided(final: Final, built: Sequence[Built], measured: Measured) -> Decision:
    """Decide a final by its turns.

    Args:
        final: It.
        built: What became of its candidates in the builder.
        measured: What came of its trial.
    """
    base, base_s = final.base, measured.samples_s
    if measured.cause:
        return Decision(base, measured)
    rivals = zip((one for one, _ in _running(final, built)), measured.rivals_s, strict=True)
    full = [(one, samples) for one, samples in rivals if len(samples) == turns.TURNS and min(samples) >= LEAST_S]
    judged = [(turns.change(base_s, samples), one, samples) for one, samples in full]
    judged.sort(key=lambda one: one[0].value)
    surely = next((one for one in judged if one[0].high < -LEAST_GAIN), None)
    if surely is None:
        closest = f"; the best of them: {_words(judged[0][0])}" if judged else ""
        return Decision(base, measured, base_s, f"none of {len(final.rivals)} candidates is measurably faster{closest}")
    change, winner, samples_s = surely
    return Decision(winner, replace(measured, samples_s=samples_s), base_s, _words(change))


def _words(change: Estimate) -> str:
    within = f"{1 / (1 + change.high):.3f} to {1 / (1 + change.low):.3f}"
    return f"{1 / (1 + change.value):.3f} times as fast as untuned, {change.confidence:.0%} within {within}"
