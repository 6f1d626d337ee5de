"""What is done with whole files of records: keep the best, put several together, tell what is in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain import files
from toolchain.errors import InputError
from toolchain.records import Key, Record, RecordFile, Records, encode


def distilled(records: Records, keep: int = 1) -> Records:
    """Keep the `keep` fastest candidates of each workload for each target, and the workloads that have one."""
    trials = tuple(
        trial
        for key in sorted(records.keys, key=lambda key: key.id)
        for found in records.fastest(key, keep).values()
        for trial in found
    )
    used = {trial.workload for trial in trials}
    return Records({name: one for name, one in sorted(records.workloads.items()) if name in used}, trials)


def merged(several: Sequence[Records]) -> Records:
    """Put records together without duplicates, in an order that does not depend on that of the files."""
    workloads = [one for records in several for one in records.workloads.values()]
    trials = sorted((trial for records in several for trial in records.trials), key=_order)
    first: dict[tuple[object, ...], Record] = {}  # of equal trials the earliest stays, where it is in the order
    for trial in trials:
        first.setdefault(_identity(trial), trial)
    return Records(
        # The same module may have been compressed by another version of zlib.
        {one.workload: one for one in sorted(workloads, key=lambda one: (one.workload, one.name, one.module))},
        tuple(first.values()),
    )


def _identity(trial: Record) -> tuple[object, ...]:
    found = (trial.run, trial.seed, trial.round, trial.samples_s, trial.cause)
    return trial.key, trial.workload, trial.candidate, found


def _order(trial: Record) -> tuple[object, ...]:
    return trial.time, trial.key.id, trial.workload, trial.seed, trial.round, trial.index, encode([trial])


def distill(source: Path, target: Path, keep: int = 1) -> Records:
    """Write the best records of a file to another, or to itself, and return them.

    Raises:
        InputError: There is no such file, or the target is another that exists.
    """
    return _rewrite(target, [source], lambda: distilled(RecordFile(source).read(), keep))


def merge(sources: Sequence[Path], target: Path) -> Records:
    """Write the records of several files to one, which may be one of them, and return them.

    Raises:
        InputError: One of them does not exist, or the target is another that exists.
    """
    return _rewrite(target, sources, lambda: merged([RecordFile(source).read() for source in sources]))


def _rewrite(target: Path, sources: Sequence[Path], make: Callable[[], Records]) -> Records:
    if not target.exists():
        made = make()
        files.write_atomic(target, encode(made.lines()))
        return made
    if not any(source.exists() and source.samefile(target) for source in sources):
        raise InputError(
            f"{target} exists, and its records would be lost",
            hint=f"name a new file; or merge them: `toolchain records merge FILE... {target} -o {target}`",
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
        latency_s: Best latency in seconds; None if none has one.
        gflops: Billions of operations a second at that latency; None if unknown.
        board: Board that it was measured on.
        tuner: Search that found it.
    """

    workload: str
    name: str
    trials: int
    failures: Mapping[str, int]
    latency_s: float | None
    gflops: float | None
    board: str
    tuner: str


@dataclass(frozen=True)
class Table:
    """What is known for one target.

    Attributes:
        id: The key's short name.
        key: Target, version of TVM, and whether an emulator was measured.
        rows: Its workloads, the slowest first; those without a latency at the end.
    """

    id: str
    key: Key
    rows: tuple[Row, ...]


def tables(records: Records) -> tuple[Table, ...]:
    """Sum a file up, by target in the order of the file."""
    return tuple(Table(key.id, key, _rows(records, key)) for key in records.keys)


def _rows(records: Records, key: Key) -> tuple[Row, ...]:
    grouped: dict[str, list[Record]] = {}
    for trial in records.of(key):
        grouped.setdefault(trial.workload, []).append(trial)
    best = records.best(key)
    rows = [_row(records, trials, best.get(name)) for name, trials in grouped.items()]
    return tuple(sorted(rows, key=lambda row: (-(row.latency_s or 0.0), row.workload)))


def _row(records: Records, trials: Sequence[Record], best: Record | None) -> Row:
    known = records.workloads.get(trials[0].workload)
    return Row(
        workload=trials[0].workload,
        name=known.name if known else "",
        trials=len(trials),
        failures=dict(sorted(Counter(trial.cause for trial in trials if trial.cause).items())),
        latency_s=best.latency_s if best else None,
        gflops=known.flops / best.latency_s / 1e9 if best and known and known.flops else None,
        board=best.board if best else "",
        tuner=best.tuner if best else "",
    )
