"""Operations on whole files of records: distill, merge and summarize."""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain.errors import InputError
from toolchain.records import Key, Line, Record, RecordFile, Records, Tell, Written, encode, silent, write
from toolchain.records.results import Verdict


def distill_lines(records: Records, keep: int = 1) -> Iterator[Line]:
    """Yield only the `keep` fastest candidates of each workload for each key, and the decisions of finals."""
    keys = sorted(records.keys, key=lambda key: key.id)
    groups = ([*records.fastest(key, keep).values(), tuple(records.decided(key).values())] for key in keys)
    trials = [trial for of_key in groups for group in of_key for trial in group]
    used = {trial.workload for trial in trials}
    yield from (workload for name, workload in sorted(records.workloads.items()) if name in used)
    yield from trials


def merge_lines(contents: Sequence[Records]) -> Iterator[Line]:
    """Yield the lines of several files without duplicates, in an order that does not depend on the order of the files.

    Runs begin where their time is among those of the trials. Only trials of the same time are in memory at once.
    """
    workloads = [workload for records in contents for workload in records.workloads.values()]
    workloads.sort(key=lambda workload: (workload.workload, workload.name, workload.module))
    # Lines of the same module may differ: another version of zlib compresses it to other bytes.
    yield from {workload.workload: workload for workload in workloads}.values()
    starts = [run.start for records in contents for run in records.runs.values()]
    last_starts = {start.run: start for start in sorted(starts, key=lambda start: start.time)}
    waiting = deque(sorted(last_starts.values(), key=lambda start: start.time))
    for trial in _unique_trials(contents):
        while waiting and waiting[0].time <= trial.time:
            yield waiting.popleft()
        yield trial
    yield from waiting


def _unique_trials(contents: Sequence[Records]) -> Iterator[Record]:
    """Yield the trials of several files by time; of equal trials only the first."""
    known: set[bytes] = set()
    by_time = heapq.merge(*(records.by_time() for records in contents), key=lambda trial: trial.time)
    for _, group in itertools.groupby(by_time, key=lambda trial: trial.time):
        trials = list(group)
        # Trials of the same time are sorted, so that the order of the files does not matter.
        for trial in sorted(trials, key=_order) if len(trials) > 1 else trials:
            identity = _identity(trial)
            if identity not in known:
                known.add(identity)
                yield trial


def _identity(trial: Record) -> bytes:
    """Return a digest that equal trials have in common; 16 bytes, since there may be millions."""
    result = (trial.run, trial.seed, trial.round, trial.samples_s, trial.cause, trial.verdict)
    text = repr((trial.key, trial.workload, trial.candidate, result)).encode()
    return hashlib.blake2b(text, digest_size=16).digest()


def _order(trial: Record) -> tuple[object, ...]:
    return trial.key.id, trial.workload, trial.seed, trial.round, trial.index, encode([trial])


def distill(source: Path, target: Path, keep: int = 1, tell: Tell = silent) -> Written:
    """Write the best records of a file to another file, or to itself.

    Raises:
        InputError: There is no such file, or the target is another that exists.
    """
    return _rewrite(target, [source], lambda: distill_lines(RecordFile(source, tell).read(), keep))


def merge(sources: Sequence[Path], target: Path, tell: Tell = silent) -> Written:
    """Write the records of several files to one file, which may be one of them.

    Raises:
        InputError: One of them does not exist, or the target is another that exists.
    """
    return _rewrite(target, sources, lambda: merge_lines([RecordFile(source, tell).read() for source in sources]))


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
    """The summary of one workload for one key.

    Attributes:
        workload: Structural hash.
        name: Name of its task; empty if unknown.
        trials: Number of trials.
        failures: Number of failed trials by cause.
        latency_s: Latency in seconds of the candidate that the last final chose, else of the fastest; None if there is
            none.
        gflops: Billions of operations a second at that latency; None if unknown.
        board: Board that it was measured on.
        tuner: Search that found it.
        verdict: What the last final decided; empty if there was none.
        gain: Speed relative to the untuned kernel in that final.
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
    """The summary of one key.

    Attributes:
        id: The key's short name.
        key: The key.
        rows: Its workloads, the slowest first; those without a latency at the end.
    """

    id: str
    key: Key
    rows: tuple[Row, ...]


def tables(records: Records) -> tuple[Table, ...]:
    """Summarize a file by key, in the order of the file."""
    return tuple(_table(records, key) for key in records.keys)


def _table(records: Records, key: Key) -> Table:
    fastest, decided = records.fastest(key), records.decided(key)
    best = {name: trials[0] for name, trials in fastest.items()} | decided
    tallies: dict[str, Mapping[str, int]] = {**{name: {} for name in decided}, **records.tallies(key)}
    rows = [_row(records, name, tally, best.get(name)) for name, tally in tallies.items()]
    return Table(key.id, key, tuple(sorted(rows, key=lambda row: (-(row.latency_s or 0.0), row.workload))))


def _row(records: Records, workload: str, tally: Mapping[str, int], best: Record | None) -> Row:
    workload_line = records.workloads.get(workload)
    base_s = best.base_latency_s if best else None
    return Row(
        workload=workload,
        name=workload_line.name if workload_line else "",
        trials=sum(tally.values()),
        failures={cause: count for cause, count in sorted(tally.items()) if cause},
        latency_s=best.latency_s if best else None,
        gflops=workload_line.flops / best.latency_s / 1e9 if best and workload_line and workload_line.flops else None,
        board=best.board if best else "",
        tuner=best.tuner if best else "",
        verdict=best.verdict if best else "",
        gain=base_s / best.latency_s if best and base_s else None,
    )
