"""Exports records to a database of MetaSchedule, for tools that read those."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm

from toolchain.errors import InputError
from toolchain.records import Key, Record, Records, traces
from toolchain.records.metaschedule import meta_schedule
from toolchain.records.tasks import layer_of

FILES = ("database_workload.json", "database_tuning_record.json")


def export(records: Records, key: Key, folder: Path) -> int:
    """Write the trials with a latency as a database that `JSONDatabase` opens.

    Only those of one key: a database of MetaSchedule does not distinguish targets.

    Returns:
        The number of records written: those of MetaSchedule's schedules that still fit their kernel. Records of
        templates are left out, since MetaSchedule has none.

    Raises:
        InputError: The folder holds a database already, or a workload's module is not in the records.
    """
    if any((folder / name).exists() for name in FILES):
        raise InputError(f"{folder} already contains a database", hint="pass a new folder with -o")
    target = tvm.target.Target(json.loads(key.target))
    modules = {workload: _module(records, workload) for workload in records.tallies(key)}
    modules = {workload: module for workload, module in modules.items() if not layer_of(module["main"])}
    folder.mkdir(parents=True, exist_ok=True)
    database = meta_schedule().database.JSONDatabase(*(str(folder / name) for name in FILES))
    return sum(_commit(database, module, target, records.of(key, workload)) for workload, module in modules.items())


def _module(records: Records, workload: str) -> tvm.IRModule:
    line = records.workloads.get(workload)
    if line is None:
        raise InputError(f"the records do not contain the module of workload {workload}")
    try:
        return tvm.ir.load_json(line.text())
    except (RuntimeError, ValueError, TypeError) as fault:
        raise InputError(f"the module of workload {line.name} cannot be read", details=str(fault)[-500:]) from fault


def _commit(database: Any, module: tvm.IRModule, target: tvm.target.Target, trials: Sequence[Record]) -> int:
    """Add the trials of one workload, with MetaSchedule's postprocessing, which its own records contain, too."""
    stock, rebuilder = meta_schedule(), traces.Rebuilder(module, target)
    workload = database.commit_workload(module)
    arguments = stock.arg_info.ArgInfo.from_entry_func(module, False)  # noqa: FBT003 - positional-only in TVM
    rebuilt = [(trial, rebuilder.from_json(json.loads(trial.trace))) for trial in trials if trial.samples_s]
    fitting = [(trial, schedule) for trial, schedule in rebuilt if schedule is not None]
    for trial, schedule in fitting:
        samples = list(trial.samples_s)
        database.commit_tuning_record(stock.database.TuningRecord(schedule.trace, workload, samples, target, arguments))
    return len(fitting)
