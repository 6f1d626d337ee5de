"""How quick candidates are built: this builder against MetaSchedule's LocalBuilder with its defaults.

    python benchmarks/builder.py [--count N] [--json FILE]

Both build the same sampled schedules of SqueezeNet's kernels on as many workers as there are CPUs, start-up included.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import tvm

from toolchain import board
from toolchain.backends import backend_of
from toolchain.models import importer, source
from toolchain.native import cross
from toolchain.records import tasks
from toolchain.records.metaschedule import meta_schedule
from toolchain.tuning.build import Builder

_PER_TASK = 4
_TIMEOUT_S = 10.0


def candidates(kind: board.Board, count: int) -> list[tvm.IRModule]:
    """Sample a few schedules of each kernel."""
    backend = backend_of(kind, backend_of(kind).template_names)  # both build what MetaSchedule schedules
    lowered = backend.lower(importer.import_model(source.load("squeezenet_v1.1")).module)
    modules: list[tvm.IRModule] = []
    for task in tasks.extract(lowered, backend):
        modules += sampled(task.module, backend.target, len(modules) + 1)
    return modules[:count]


def sampled(module: tvm.IRModule, target: tvm.target.Target, seed: int) -> list[tvm.IRModule]:
    """Take the first generation of an evolutionary search."""
    ms = meta_schedule()
    search = ms.search_strategy.EvolutionarySearch(
        population_size=16, init_measured_ratio=0.0, init_min_unmeasured=_PER_TASK, genetic_num_iters=1
    )
    context = ms.TuneContext(
        mod=module,
        target=target,
        space_generator=ms.space_generator.PostOrderApply(sch_rules="llvm", postprocs="llvm", mutator_probs="llvm"),
        search_strategy=search,
        rand_state=seed,
    )
    context.pre_tuning(
        max_trials=_PER_TASK,
        num_trials_per_iter=_PER_TASK,
        design_spaces=context.generate_design_space(),
        database=ms.database.MemoryDatabase(),
        cost_model=ms.cost_model.RandomModel(),
    )
    modules = [item.sch.mod for item in context.generate_measure_candidates() or ()]
    context.post_tuning()
    return modules


def ours(modules: list[tvm.IRModule], target: tvm.target.Target, compiler: cross.Cross) -> dict[str, Any]:
    """Build everything twice with one builder: the second round finds its workers ready."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        with Builder(target, compiler, Path(folder), timeout_s=_TIMEOUT_S) as builder:
            built = builder.build(modules)
            first = time.perf_counter() - start
            builder.build(modules)
            total = time.perf_counter() - start
    return {"seconds": first, "next_round_s": total - first, "failed": sum(result.library is None for result in built)}


def stock(modules: list[tvm.IRModule], target: tvm.target.Target) -> dict[str, Any]:
    """Build everything with the defaults of `tune_relax`."""
    ms = meta_schedule()
    start = time.perf_counter()
    built = ms.builder.LocalBuilder().build([ms.builder.BuilderInput(module, target) for module in modules])
    failures = [str(result.error_msg).strip().splitlines()[-1] for result in built if result.artifact_path is None]
    return {"seconds": time.perf_counter() - start, "failed": len(failures), "errors": sorted(set(failures))}


def main() -> None:
    """Measure both in turn and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kind = board.load("local").resolved()
    target = backend_of(kind).target
    modules = candidates(kind, options.count)
    figures: dict[str, Any] = {"candidates": len(modules), "workers": os.cpu_count()}
    figures["ours"] = ours(modules, target, cross.choose(kind, "host"))
    figures["stock"] = stock(modules, target)
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
