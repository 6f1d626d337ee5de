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
    target, place = backend_of(kind).target, cross.choose(kind, "host")
    with contextlib.ExitStack() as stack:
        found = {}
        for count in counts:
            own = folder / str(count)
            own.mkdir()
            running = stack.enter_context(builders.cluster(own, count))
            hire = partial(DaskCrew, parse(running.option, Access()), kind.triple, lambda _line: None)
            there = Builder(target, place, own, timeout_s=_TIMEOUT_S, hire=hire)
            here = Builder(target, place, own, workers=count, timeout_s=_TIMEOUT_S)
            found[f"dask {count}"], found[f"here {count}"] = map(stack.enter_context, (there, here))
        yield found


def round_of(builder: Builder, modules: list[tvm.IRModule]) -> dict[str, Any]:
    """Build everything once."""
    start = time.perf_counter()
    built = builder.build(modules)
    seconds = time.perf_counter() - start
    digest = hashlib.sha256()
    for one in built:
        digest.update(one.library.read_bytes() if one.library else one.error.encode())
        builder.discard(one)
    return {"seconds": seconds, "compiling_s": sum(one.seconds for one in built), "libraries": digest.hexdigest()}


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
    counts = [int(word) for word in options.workers.split(",")]
    with tempfile.TemporaryDirectory() as name, opened(counts, kind, Path(name)) as all_of_them:
        rounds: dict[str, list[dict[str, Any]]] = {one: [] for one in all_of_them}
        for _ in range(options.rounds + 1):
            for one, builder in all_of_them.items():
                rounds[one].append(round_of(builder, modules))
        extra = {one: empty_job_s(builder, modules) for one, builder in all_of_them.items()}
    found = {"candidates": len(modules), "cpus": os.cpu_count(), "load": os.getloadavg(), "rounds": rounds}
    found["per_minute"] = {
        one: [round(60 * len(modules) / item["seconds"], 1) for item in items[1:]] for one, items in rounds.items()
    }
    found["beyond_compiling_s"] = {one: round(seconds, 4) for one, seconds in extra.items()}
    found["identical"] = len({item["libraries"] for items in rounds.values() for item in items}) == 1
    text = json.dumps(found, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
