"""What is done with whole files of records: keep the best, put several together, tell what is in them."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain.errors import InputError
from toolchain.records import Catalog, Key, Record, RecordFile, Records, Tell, Written, encode, nobody, write
from toolchain.records.lines import Line
from toolchain.records.results import Verdict


def distilled(records: Catalog, keep: int = 1) -> Records:
    """Keep the `keep` fastest candidates of each workload for each target, and what finals decided; nothing else."""
    keys = sorted(records.keys, key=lambda key: key.id)
    found = ([*records.fastest(key, keep).values(), tuple(records.decided(key).values())] for key in keys)
    trials = tuple(trial for of_key in found for several in of_key for trial in several)
    used = {trial.workload for trial in trials}
    return Records({name: one for name, one in sorted(records.workloads.items()) if name in used}, trials)


def merged(several: Sequence[Catalog]) -> Iterator[Line]:
    """Yield the lines of several files together, without duplicates, in an order that does not depend on theirs.

    Runs begin where their time is among those of the trials. Of what is large, only those of one moment are held.
    """
    workloads = [one for records in several for one in records.workloads.values()]
    # The same module may have been compressed by another version of zlib.
    yield from {
        one.workload: one for one in sorted(workloads, key=lambda one: (one.workload, one.name, one.module))
    }.values()
    begun = sorted((one.start for records in several for one in records.runs.values()), key=lambda one: one.time)
    waiting = list({one.run: one for one in begun}.values())
    first = min((one.time for one in waiting), default=math.inf)
    for trial in _unique(several):
        if first <= trial.time:
            yield from (one for one in waiting if one.time <= trial.time)
            waiting = [one for one in waiting if one.time > trial.time]
            first = min((one.time for one in waiting), default=math.inf)
        yield trial
    yield from waiting


def _unique(several: Sequence[Catalog]) -> Iterator[Record]:
    """Yield the trials of several files in order; of equal ones the earliest stays, where it is in the order."""
    seen: set[bytes] = set()
    together = heapq.merge(*(records.by_time() for records in several), key=lambda one: one.time)
    for _, group in itertools.groupby(together, key=lambda one: one.time):
        trials = list(group)
        for trial in sorted(trials, key=_order) if len(trials) > 1 else trials:
            identity = _identity(trial)
            if identity not in seen:
                seen.add(identity)
                yield trial


def _identity(trial: Record) -> bytes:
    """Return what equal trials have in common: a few bytes, as those of a million are held."""
    found = (trial.run, trial.seed, trial.round, trial.samples_s, trial.cause, trial.verdict)
    told = repr((trial.key, trial.workload, trial.candidate, found)).encode()
    return hashlib.blake2b(told, digest_size=16).digest()


def _order(trial: Record) -> tuple[object, ...]:
    return trial.key.id, trial.workload, trial.seed, trial.round, trial.index, encode([trial])


def distill(source: Path, target: Path, keep: int = 1, tell: Tell = nobody) -> Written:
    """Write the best records of a file to another, or to itself, and return how many.

    Raises:
        InputError: There is no such file, or the target is another that exists.
    """
    return _rewrite(target, [source], lambda: distilled(RecordFile(source, tell).catalog(), keep).lines())


def merge(sources: Sequence[Path], target: Path, tell: Tell = nobody) -> Written:
    """Write the records of several files to one, which may be one of them, and return how many.

    Raises:
        InputError: One of them does not exist, or the target is another that exists.
    """
    return _rewrite(target, sources, lambda: merged([RecordFile(source, tell).catalog() for source in sources]))


def _rewrite(target: Path, sources: Sequence[Path], make: Callable[[], Iterable[Line]]) -> Written:
    if not target.exists():
        return write(target, make())
    if not any(source.exists() and source.samefile(target) for source in sources):
        raise InputError(
            f"{target} exists, and its records would be overwritten",
            hint=f"pass a new file name, or merge the records: `toolchain records merge FILE... {target} -o {target}`",
        )
    return RecordFile(target).replace(make)


@dataclass(frozen=True)
class Row:
    """What is known of one workload for one target.

    Attributes:
        workload: Structural hash.
        name: Name of its task; empty if the file does not say.
        trials: Trials of it.
        failures: How many of them have no latency, by cause.
        latency_s: Best latency in seconds, of the candidate that a final chose where there was one; None if none has
            any.
        gflops: Billions of operations a second at that latency; None if unknown.
        board: Board that it was measured on.
        tuner: Search that found it.
        verdict: What the last final decided; empty if there was none.
        gain: How many times as fast as untuned it was in that final.
    """

    workload: str
    name: str
    trials: int
    failures: Mapping[str, int]
    latency_s: float | None
    gflops: float | None
    board: str
    tuner: str
    verdict: Verdict = ""
    gain: float | None = None


@dataclass(frozen=True)
class Table:
    """What is known for one target.

    Attributes:
        id: The key's short name.
        key: Target, version of TVM, whether an emulator was measured, threads and options.
        rows: Its workloads, the slowest first; those without a latency at the end.
    """

    id: str
    key: Key
    rows: tuple[Row, ...]


def tables(records: Catalog) -> tuple[Table, ...]:
    """Sum a file up, by target in the order of the file."""
    return tuple(Table(key.id, key, _rows(records, key)) for key in records.keys)


def _rows(records: Catalog, key: Key) -> tuple[Row, ...]:
    fastest, decided = records.fastest(key), records.decided(key)
    best = {name: found[0] for name, found in fastest.items()} | decided
    tallies: dict[str, Mapping[str, int]] = {**{name: {} for name in decided}, **records.tallies(key)}
    rows = [_row(records, name, tally, best.get(name)) for name, tally in tallies.items()]
    return tuple(sorted(rows, key=lambda row: (-(row.latency_s or 0.0), row.workload)))


def _row(records: Catalog, workload: str, tally: Mapping[str, int], best: Record | None) -> Row:
    known = records.workloads.get(workload)
    base_s = best.base_latency_s if best else None
    return Row(
        workload=workload,
        name=known.name if known else "",
        trials=sum(tally.values()),
        failures={cause: count for cause, count in sorted(tally.items()) if cause},
        latency_s=best.latency_s if best else None,
        gflops=known.flops / best.latency_s / 1e9 if best and known and known.flops else None,
        board=best.board if best else "",
        tuner=best.tuner if best else "",
        verdict=best.verdict if best else "",
        gain=base_s / best.latency_s if best and base_s else None,
    )
