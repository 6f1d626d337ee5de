"""Tuning records for tests: made up ones, and true ones whose schedules are the first of each kernel's space."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from toolchain.tuning.records import Key, Record, Workload, tvm_version

TARGET = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64", "num-cores": 4}
OTHER = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "mattr": ["+neon"], "num-cores": 4}
KEY, OTHER_KEY = Key.of(TARGET), Key.of(OTHER)


def workload(number: int = 0, name: str = "conv", flops: float = 2e6, text: str = "{}") -> Workload:
    return Workload.of(f"{number:016x}", name, flops, text)


def record(number: int = 0, seconds: float | None = 1e-3, **fields: Any) -> Record:
    """Return the record of a candidate of workload 0 with this number."""
    given = {
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


def of_kernels(module: Any, target: Any, **fields: Any) -> Iterator[Workload | Record]:
    """Yield a workload and a record for each kernel of a lowered module, of the first schedule that fits it."""
    from toolchain.tuning import schedules
    from toolchain.tuning._tvm import meta_schedule, target_table
    from toolchain.tuning.tasks import extract, workload_hash

    for task in extract(module, target):
        context = meta_schedule().TuneContext(
            mod=task.module, target=target, space_generator=schedules.space_generator(), num_threads=1, rand_state=1
        )
        rebuilder = schedules.Rebuilder(task.module, target)
        traces = [schedules.as_json(one) for one in context.generate_design_space()]
        made = next((trace, one) for trace in traces if (one := rebuilder.from_json(trace)) is not None)
        given = {
            "workload": task.workload,
            "target": target_table(target),
            "candidate": workload_hash(made[1].mod),
            "trace": json.dumps(made[0]),
        }
        yield Workload.of(task.workload, task.name, task.gflop * 1e9, "{}")
        yield record(**(given | fields))
