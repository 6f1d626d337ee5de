"""Records put to use: each kernel of a model gets the best schedule that is known for it."""

from __future__ import annotations

import json
from dataclasses import dataclass

import tvm
from tvm import relax

from toolchain.tuning import schedules
from toolchain.tuning._tvm import meta_schedule, target_table
from toolchain.tuning.records import Key, Record, Records, best_bytes
from toolchain.tuning.tasks import Task, extract, workload_hash


@dataclass(frozen=True)
class Applied:
    """A model whose kernels are scheduled, as far as there were records for them.

    Attributes:
        module: The Relax module; weights are still constants, and are packed as the schedules want them.
        tasks: How many kernels it has, each counted once.
        tuned: For how many of them a record was applied.
        records: The records that were applied, as the bytes of a file; empty if there are none.
        skipped: Names of the tasks whose record does not fit any more.
    """

    module: tvm.IRModule
    tasks: int
    tuned: int
    records: bytes
    skipped: tuple[str, ...]


def apply(module: tvm.IRModule, target: tvm.target.Target, records: Records, *, emulated: bool = False) -> Applied:
    """Schedule the kernels of a model by the best records for its target.

    Args:
        module: What a backend's `lowered` returned.
        target: TVM code-generation target.
        records: Where to look; what was found for another target or TVM version is passed over.
        emulated: Whether the records of an emulator are wanted, instead of those of a real board.
    """
    key = Key.of(target_table(target), emulated=emulated)
    best = records.best(key)
    tasks = extract(module, target)
    fitting = [(task, best[task.workload]) for task in tasks if task.workload in best]
    found = [(task, record, _scheduled(task, record, target)) for task, record in fitting]
    traces = [(task, record, trace) for task, record, trace in found if trace is not None]
    return Applied(
        _rewritten(module, target, traces) if traces else module,
        len(tasks),
        len(traces),
        best_bytes(records, key, {task.workload for task, _, _ in traces}),
        tuple(task.name for task, _, trace in found if trace is None),
    )


def _scheduled(task: Task, record: Record, target: tvm.target.Target) -> tvm.s_tir.schedule.Trace | None:
    """Make the schedule of a record again; None unless it is the very one that was measured."""
    try:
        schedule = schedules.Rebuilder(task.module, target).from_json(json.loads(record.trace))
    except ValueError:  # the trace is no JSON
        return None
    if schedule is None or workload_hash(schedule.mod) != record.candidate:
        return None
    return schedule.trace


def _rewritten(
    module: tvm.IRModule,
    target: tvm.target.Target,
    traces: list[tuple[Task, Record, tvm.s_tir.schedule.Trace]],
) -> tvm.IRModule:
    stock = meta_schedule().database
    database = stock.MemoryDatabase()
    for task, record, trace in traces:
        workload = database.commit_workload(task.module)
        database.commit_tuning_record(stock.TuningRecord(trace, workload, list(record.samples_s), target))
    passes = relax.transform
    with target, database:
        done: tvm.IRModule = tvm.transform.Sequential(
            [passes.MetaScheduleApplyDatabase(), passes.SplitLayoutRewritePreproc(), passes.FoldConstant()]
        )(module)
    return done
