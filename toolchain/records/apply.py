"""Applies records: each kernel of a model gets the best schedule that the records have for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tvm
from tvm import relax, tirx

from toolchain.backends.base import Backend, Choice, Templates
from toolchain.records import Key, Record, Records, best_bytes
from toolchain.records import traces as schedules
from toolchain.records.metaschedule import meta_schedule, target_table
from toolchain.records.tasks import Task, extract, layer_of, workload_hash


@dataclass(frozen=True)
class Applied:
    """A model whose kernels are scheduled by the records that were found for them.

    Attributes:
        module: The Relax module; weights are still constants, and are packed as the schedules require.
        choices: By layer, how its template computes it.
        tasks: Number of kernels, each counted once.
        tuned: Number of kernels for which a record was applied.
        shipped: Number of further kernels for which a record that comes with the toolchain was applied.
        records: The applied records as the bytes of a file, without those that come with the toolchain; empty if there
            are none.
        skipped: Names of the tasks whose record no longer fits.
        modelled: The machine and the model of the records' times, if a model computed them; empty otherwise.
    """

    module: tvm.IRModule
    choices: Mapping[str, Choice] = field(default_factory=dict)
    tasks: int = 0
    tuned: int = 0
    shipped: int = 0
    records: bytes = b""
    skipped: tuple[str, ...] = ()
    modelled: str = ""


def apply(
    module: tvm.IRModule,
    backend: Backend,
    records: Records,
    *,
    shipped: Records | None = None,
    key: Key | None = None,
) -> Applied:
    """Choose or schedule the kernels of a model by the best records for its target.

    Args:
        module: The module that the backend's `lower` returned.
        backend: The board's backend.
        records: The user's records; those of another target or TVM version are ignored.
        shipped: Records of templates that come with the toolchain, measured on any CPU with the same instructions; they
            are used for layers without a record in `records`.
        key: The key of the records to apply; by default that of a real board.
    """
    target, templates = backend.target, backend.templates
    key = key or Key.of(target_table(target))
    best = {name: record for name, record in records.best(key).items() if record.verdict != "untuned"}
    tasks = extract(module, backend)
    picks = [_pick(task, best[task.workload], target, templates) for task in tasks if task.workload in best]
    fitting = [pick for pick in picks if pick.fits]
    known = {pick.task.workload for pick in fitting}
    others = _shipped([task for task in tasks if task.layer and task.workload not in known], shipped, templates)
    traces = [(pick.task, pick.record, pick.trace) for pick in fitting if pick.trace is not None]
    return Applied(
        _schedule(module, target, traces) if traces else module,
        {pick.task.layer: pick.choice for pick in [*others, *fitting] if pick.choice},
        len(tasks),
        len(fitting),
        len(others),
        best_bytes(records, key, known) if known else b"",
        tuple(pick.task.name for pick in picks if not pick.fits),
        key.modelled if known else "",
    )


@dataclass(frozen=True)
class _Pick:
    """A record of a task with its trace, its choice, or the backend's own schedule; none if it no longer fits."""

    task: Task
    record: Record
    trace: tvm.s_tir.schedule.Trace | None = None
    choice: Choice | None = None
    default: bool = False

    @property
    def fits(self) -> bool:
        return self.trace is not None or self.choice is not None or self.default


def _pick(task: Task, record: Record, target: tvm.target.Target, templates: Templates) -> _Pick:
    try:
        trace = json.loads(record.trace)
    except ValueError:
        return _Pick(task, record)
    if task.layer:
        fits = isinstance(trace, dict) and templates.fits(task.layer, trace)
        return _Pick(task, record, choice=trace if fits else None)
    if trace == schedules.DEFAULT:
        return _Pick(task, record, default=True)
    schedule = schedules.Rebuilder(task.module, target).from_json(trace)
    # A newer TVM may make another schedule of the same trace than the one that was measured.
    if schedule is None or workload_hash(schedule.mod) != record.candidate:
        return _Pick(task, record)
    return _Pick(task, record, trace=schedule.trace)


def shipped_choices(tasks: Sequence[Task], shipped: Records | None, templates: Templates) -> dict[str, Choice]:
    """Return by workload how records that come with the toolchain compute layers."""
    picks = _shipped([task for task in tasks if task.layer], shipped, templates)
    return {pick.task.workload: pick.choice for pick in picks if pick.choice}


def _shipped(tasks: Sequence[Task], shipped: Records | None, templates: Templates) -> list[_Pick]:
    best: dict[str, Record] = {}
    for key in shipped.keys if shipped else ():
        best.update(shipped.best(key) if shipped else {})
    picks = [_pick(task, best[task.workload], None, templates) for task in tasks if task.workload in best]
    return [pick for pick in picks if pick.fits]


def _schedule(
    module: tvm.IRModule,
    target: tvm.target.Target,
    traces: list[tuple[Task, Record, tvm.s_tir.schedule.Trace]],
) -> tvm.IRModule:
    stock = meta_schedule().database
    database = stock.MemoryDatabase()
    for task, record, trace in traces:
        workload = database.commit_workload(task.module)
        database.commit_tuning_record(stock.TuningRecord(trace, workload, list(record.samples_s), target))
    passes, functions = relax.transform, dict(module.functions_items())
    # Kernels of templates have no body yet, on which the pass would fail.
    fused = {
        name: function
        for name, function in functions.items()
        if isinstance(function, tirx.PrimFunc) and not layer_of(function)
    }
    # MetaSchedule finds the schedules by the workload in the database.
    with target, database:
        scheduled = passes.MetaScheduleApplyDatabase()(tvm.IRModule(fused))
        merged = tvm.IRModule({**functions, **dict(scheduled.functions_items())}, module.attrs, module.global_infos)
        done: tvm.IRModule = tvm.transform.Sequential([passes.SplitLayoutRewritePreproc(), passes.FoldConstant()])(
            merged
        )
    return done
