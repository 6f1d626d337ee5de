"""Records put to use: each kernel of a model gets the best schedule that is known for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx

from toolchain.backends.base import Backend, Choice, Templates
from toolchain.records import Catalog, Key, Record, best_bytes
from toolchain.records import traces as schedules
from toolchain.records.metaschedule import meta_schedule, target_table
from toolchain.records.tasks import Task, extract, layer_of, workload_hash


@dataclass(frozen=True)
class Applied:
    """A model whose kernels are scheduled, as far as there were records for them.

    Attributes:
        module: The Relax module; weights are still constants, and are packed as the schedules want them.
        choices: By layer, how its template shall compute it.
        tasks: How many kernels it has, each counted once.
        tuned: For how many of them a record was applied.
        shipped: For how many more a record that comes with the toolchain was.
        records: The records that were applied, as the bytes of a file, but for those that come with the toolchain;
            empty if there are none.
        skipped: Names of the tasks whose record does not fit any more.
        modelled: What the times of the applied records were computed for by a model, and by what; empty otherwise.
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
    records: Catalog,
    *,
    shipped: Catalog | None = None,
    key: Key | None = None,
) -> Applied:
    """Choose or schedule the kernels of a model by the best records for its target.

    Args:
        module: What the backend's `lower` returned.
        backend: The board's.
        records: Where to look; what was found for another target or TVM version is passed over.
        shipped: Records of templates that come with the toolchain, whatever CPU of the same instructions they were
            found on; they count where `records` has nothing.
        key: What the records are of that are wanted; None for those of a real board.
    """
    target, templates = backend.target, backend.templates
    key = key or Key.of(target_table(target))
    best = {name: one for name, one in records.best(key).items() if one.verdict != "untuned"}
    tasks = extract(module, backend)
    mine = [_applied(task, best[task.workload], target, templates) for task in tasks if task.workload in best]
    fitting = [one for one in mine if one.fits]
    known = {one.task.workload for one in fitting}
    others = _shipped([task for task in tasks if task.layer and task.workload not in known], shipped, templates)
    traces = [(one.task, one.record, one.trace) for one in fitting if one.trace is not None]
    return Applied(
        _rewritten(module, target, traces) if traces else module,
        {one.task.layer: one.choice for one in [*others, *fitting] if one.choice},
        len(tasks),
        len(fitting),
        len(others),
        best_bytes(records, key, known) if known else b"",
        tuple(one.task.name for one in mine if not one.fits),
        key.modelled if known else "",
    )


@dataclass(frozen=True)
class _Pick:
    """A record of a task, and what it says: a trace, a choice, or the backend's own schedule.

    None of them is there if the record does not fit any more.
    """

    task: Task
    record: Record
    trace: tvm.s_tir.schedule.Trace | None = None
    choice: Choice | None = None
    default: bool = False

    @property
    def fits(self) -> bool:
        return self.trace is not None or self.choice is not None or self.default


def _applied(task: Task, record: Record, target: tvm.target.Target, templates: Templates) -> _Pick:
    try:
        said = json.loads(record.trace)
    except ValueError:
        return _Pick(task, record)
    if not task.layer and said == schedules.DEFAULT:
        return _Pick(task, record, default=True)
    if not task.layer:
        return _Pick(task, record, trace=_scheduled(task, record, said, target))
    fits = isinstance(said, dict) and templates.fits(task.layer, said)
    return _Pick(task, record, choice=said if fits else None)


def shipped_choices(tasks: Sequence[Task], shipped: Catalog | None, templates: Templates) -> dict[str, Choice]:
    """Return how the layers among some tasks are computed by records that come with the toolchain, by workload."""
    found = _shipped([task for task in tasks if task.layer], shipped, templates)
    return {one.task.workload: one.choice for one in found if one.choice}


def _shipped(tasks: Sequence[Task], shipped: Catalog | None, templates: Templates) -> list[_Pick]:
    found: dict[str, Record] = {}
    for key in shipped.keys if shipped else ():
        found.update(shipped.best(key) if shipped else {})
    picks = [_applied(task, found[task.workload], None, templates) for task in tasks if task.workload in found]
    return [one for one in picks if one.fits]


def _scheduled(task: Task, record: Record, said: Any, target: tvm.target.Target) -> tvm.s_tir.schedule.Trace | None:
    """Make the schedule of a record again; None unless it is the very one that was measured."""
    schedule = schedules.Rebuilder(task.module, target).from_json(said)
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
    passes, functions = relax.transform, dict(module.functions_items())
    # The kernels that templates compute have no body yet, which the pass would trip over.
    fused = {name: one for name, one in functions.items() if isinstance(one, tirx.PrimFunc) and not layer_of(one)}
    with target, database:
        scheduled = passes.MetaScheduleApplyDatabase()(tvm.IRModule(fused))
        whole = tvm.IRModule({**functions, **dict(scheduled.functions_items())}, module.attrs, module.global_infos)
        done: tvm.IRModule = tvm.transform.Sequential([passes.SplitLayoutRewritePreproc(), passes.FoldConstant()])(
            whole
        )
    return done
