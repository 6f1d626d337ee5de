"""Forgetting: the lines that stay are those that a search through all lines leaves."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.reference_records import BOARDS, KEYS, LINES, NAMES, TIMES, ReferenceRecords
from toolchain.records import Record, RecordFile, Workload, encode, parse
from toolchain.records.forgetting import Forgotten, Which, forget

CONDITIONS = st.builds(
    Which,
    workloads=st.none() | st.frozensets(st.sampled_from(NAMES)),
    name=st.sampled_from(["", "conv", "on", "dense"]),
    key_id=st.sampled_from(["", *(key.id for key in KEYS)]),
    machine=st.sampled_from(BOARDS),
    before=st.none() | st.sampled_from(TIMES),
)


def fits(which, trial, workloads):
    workload = workloads.get(trial.workload)
    return (
        (which.workloads is None or trial.workload in which.workloads)
        and (not which.name or (workload is not None and which.name in workload.name))
        and which.key_id in {"", trial.key.id}
        and which.machine in {"", trial.board}
        and (which.before is None or trial.time < which.before)
    )


def expected(lines, which):
    records = ReferenceRecords.collect(lines)
    removed = [trial for trial in records.trials if fits(which, trial, records.workloads)]
    surviving = [(index, trial) for index, trial in records.numbered if not fits(which, trial, records.workloads)]
    kernels, runs = {trial.workload for _, trial in surviving}, {trial.run for _, trial in surviving}
    remaining = ReferenceRecords(records.workloads, tuple(surviving), records.runs).lines()
    finals = sum(bool(trial.verdict) for trial in removed)
    forgotten = Forgotten(len(surviving), len(removed) - finals, finals, len({trial.workload for trial in removed}))
    used = [
        line
        for line in remaining
        if isinstance(line, Record) or (line.workload in kernels if isinstance(line, Workload) else line.run in runs)
    ]
    return forgotten, used if removed else lines


@settings(deadline=None)
@given(LINES, CONDITIONS)
def test_the_lines_that_fit_no_condition_stay(lines, which):
    with tempfile.TemporaryDirectory() as folder:
        file = RecordFile(Path(folder) / "all.jsonl")
        file.path.write_bytes(encode(lines))
        forgotten, remaining = expected(lines, which)
        assert forget(file, which, dry=True) == forgotten
        assert file.path.read_bytes() == encode(lines)
        assert forget(file, which) == forgotten
        assert list(parse(file.path.read_bytes(), "here")) == remaining
