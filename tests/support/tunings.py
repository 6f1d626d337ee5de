"""Tuning records for tests: made up ones, and true ones whose schedules are the first of each kernel's space."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from toolchain.records import Key, Record, Workload, tvm_version

TARGET = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64", "num-cores": 4}
OTHER = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "mattr": ["+neon"], "num-cores": 4}
KEY, OTHER_KEY = Key.of(TARGET), Key.of(OTHER)


def workload(number: int = 0, name: str = "conv", flops: float = 2e6, text: str = "{}") -> Workload:
    return Workload.of(f"{number:016x}", name, flops, text)


def record(number: int = 0, seconds: float | None = 1e-3, **fields: Any) -> Record:
    """Return the record of a candidate of workload 0 with this number, as they were when the fastest one decided."""
    given = {
        "schema": 1,
        "workload": f"{0:016x}",
        "target": TARGET,
        "tvm": tvm_version(),
        "candidate": f"{number:016x}",
        "trace": "[[],[]]",
        "samples_s": () if seconds is None else (seconds,),
        "cause": "crash" if seconds is None else "",
        "index": number,
    }
    return Record(**(given | fields))


def of_kernels(module: Any, backend: Any, **fields: Any) -> Iterator[Workload | Record]:
    """Yield a workload and a record for each kernel of a lowered module.

    It is of the first schedule that fits, or of the template that is likely the slowest: not what is taken untuned.
    """
    from toolchain.records.metaschedule import target_table
    from toolchain.records.tasks import extract, workload_hash
    from toolchain.tuning.search import choice_hash

    for task in extract(module, backend):
        if task.layer:
            trace = backend.templates.candidates(task.layer)[-1]
            candidate = choice_hash(trace)
        else:
            trace, module_of_it = _first_schedule(task, backend.target)
            candidate = workload_hash(module_of_it)
        given = {
            "workload": task.workload,
            "target": target_table(backend.target),
            "candidate": candidate,
            "trace": json.dumps(trace),
        }
        yield Workload.of(task.workload, task.name, task.gflop * 1e9, "{}")
        yield record(**(given | fields))


def _first_schedule(task: Any, target: Any) -> tuple[Any, Any]:
    from toolchain.records import traces as schedules
    from toolchain.records.metaschedule import meta_schedule

    context = meta_schedule().TuneContext(
        mod=task.module, target=target, space_generator=schedules.space_generator(target), num_threads=1, rand_state=1
    )
    rebuilder = schedules.Rebuilder(task.module, target)
    traces = [schedules.as_json(schedule) for schedule in context.generate_design_space()]
    return next((trace, rebuilt.mod) for trace in traces if (rebuilt := rebuilder.from_json(trace)) is not None)
