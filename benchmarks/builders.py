"""How many candidates a minute the workers of a Dask cluster build, in turns with the processes of this machine.

    python benchmarks/builders.py [--count N] [--rounds R] [--workers 1,2,4] [--json FILE]

Scheduler and workers are processes of this machine, of one thread each, so they share its CPUs: what counts is the
ratio to this machine's own crew of as many processes in the same round, and what Dask adds to a candidate. The first
round of each is thrown away: from then on its processes have loaded TVM.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import tvm

from benchmarks.builder import candidates
from tests.support import builders
from toolchain import board
from toolchain.backends import backend_of
from toolchain.native import cross
from toolchain.tuning.build import Builder
from toolchain.tuning.build.cluster.crew import DaskCrew
from toolchain.tuning.build.cluster.scheduler import Access, parse

_TIMEOUT_S = 120.0


@contextlib.contextmanager
def opened(counts: list[int], kind: board.Board, folder: Path) -> Iterator[dict[str, Builder]]:
    """Yield builders by name: for each number, workers of Dask's, and as many processes of this machine."""
    target, compiler = backend_of(kind).target, cross.choose(kind, "host")
    with contextlib.ExitStack() as stack:
        by_name = {}
        for count in counts:
            work = folder / str(count)
            work.mkdir()
            running = stack.enter_context(builders.cluster(work, count))
            hire = partial(DaskCrew, parse(running.option, Access()), kind.triple, lambda _line: None)
            there = Builder(target, compiler, work, timeout_s=_TIMEOUT_S, hire=hire)
            here = Builder(target, compiler, work, workers=count, timeout_s=_TIMEOUT_S)
            by_name[f"dask {count}"], by_name[f"here {count}"] = map(stack.enter_context, (there, here))
        yield by_name


def round_of(builder: Builder, modules: list[tvm.IRModule]) -> dict[str, Any]:
    """Build everything once."""
    start = time.perf_counter()
    built = builder.build(modules)
    seconds = time.perf_counter() - start
    digest = hashlib.sha256()
    for result in built:
        digest.update(result.library.read_bytes() if result.library else result.error.encode())
        builder.discard(result)
    return {"seconds": seconds, "compiling_s": sum(result.seconds for result in built), "libraries": digest.hexdigest()}


def empty_job_s(builder: Builder, modules: list[tvm.IRModule]) -> float:
    """Return the median seconds of a candidate alone beyond what its worker took: what carrying it there costs."""
    extra = []
    for module in modules[:16]:
        start = time.perf_counter()
        [built] = builder.build([module])
        extra.append(time.perf_counter() - start - built.seconds)
        builder.discard(built)
    return statistics.median(extra)


def main() -> None:
    """Measure in turns and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kind = board.load("local").resolved()
    modules = candidates(kind, options.count)
    counts = [int(count) for count in options.workers.split(",")]
    with tempfile.TemporaryDirectory() as name, opened(counts, kind, Path(name)) as all_of_them:
        rounds: dict[str, list[dict[str, Any]]] = {title: [] for title in all_of_them}
        for _ in range(options.rounds + 1):
            for title, builder in all_of_them.items():
                rounds[title].append(round_of(builder, modules))
        extra = {title: empty_job_s(builder, modules) for title, builder in all_of_them.items()}
    figures = {"candidates": len(modules), "cpus": os.cpu_count(), "load": os.getloadavg(), "rounds": rounds}
    figures["per_minute"] = {
        title: [round(60 * len(modules) / item["seconds"], 1) for item in items[1:]] for title, items in rounds.items()
    }
    figures["beyond_compiling_s"] = {title: round(seconds, 4) for title, seconds in extra.items()}
    figures["identical"] = len({item["libraries"] for items in rounds.values() for item in items}) == 1
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
