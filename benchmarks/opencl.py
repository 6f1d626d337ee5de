"""Starts and tuning on this machine's OpenCL device, of which CI has PoCL: its times say nothing about a GPU.

    python benchmarks/opencl.py [NETWORK ...] [--rounds 3] [--trials 64] [--board opencl-local] [--json FILE]

Starts: load, first run and second run of the runner, without and with the driver's compiled kernels kept on the
device, in turns. Tuning, with --trials: the share of valid candidates, seconds for each, and what the tuned network
gained, untuned and tuned in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import _ab
from tests.support import deploys
from toolchain import board
from toolchain.bundle import Bundle
from toolchain.compile.request import BuildRequest
from toolchain.device import bench, verification
from toolchain.device.lock import Owner
from toolchain.device.runner import Plan, Run
from toolchain.device.store import Store
from toolchain.models import inputs
from toolchain.models.request import Model
from toolchain.native.programs import Program
from toolchain.pipeline import device_programs
from toolchain.pipeline.source import BundleSource
from toolchain.shell import LocalShell

NETWORKS = ("mlp", "squeezenet_v1.1", "mobilenet", "resnet-18")
CACHE, POCL_CACHE = "EDGE_OPENCL_CACHE", "POCL_CACHE_DIR"


def run_once(
    release: Bundle, program: Program, store: Store, shell: LocalShell, cache: Path | None, scratch: Path
) -> Run:
    """Start the runner once, with kernels kept in a folder or nowhere; PoCL's own cache is empty each time."""
    os.environ[CACHE] = str(cache or "")
    os.environ[POCL_CACHE] = tempfile.mkdtemp(prefix="pocl-", dir=scratch)
    plan, inputs = Plan(budget_s=0.0, min_runs=1, max_runs=1), verification.samples_of(release).inputs
    with store.lock(Owner.here("benchmark")):
        current = bench.current(store, shell.name)
        return bench.measure(current.release(program, deploys.connected(shell, store)), inputs, plan).run


def starts(network: str, kind: board.Board, rounds: int, folder: Path) -> dict[str, Any]:
    """Start a network without and with kept kernels, in turns; medians in milliseconds."""
    job = BundleSource(BuildRequest(Model(network, {}, inputs.Source()), kind))
    release, program = job.build(folder / "bundle"), device_programs.runner(kind, job.stages)
    os.environ[CACHE] = str(folder / "kernels")
    with LocalShell() as shell:
        store = Store(shell, str(folder / "device"))
        deployed = deploys.deploy(release, program, shell, store, keep=1, threads=0)
        caches = {"without": None, "with": folder / "kernels"}
        calls = {
            name: partial(run_once, release, program, store, shell, cache, folder) for name, cache in caches.items()
        }
        runs = _ab.in_turns(calls, rounds)
    row: dict[str, Any] = {
        "network": network,
        "max_rel_diff": deployed.difference.max_rel if deployed.difference else None,
    }
    for name, each in runs.items():
        row[f"{name}_load_ms"] = statistics.median(run.load_ms for run in each)
        row[f"{name}_first_ms"] = statistics.median(run.warmup_ns[0] for run in each) / 1e6
    ready = {name: [[run.load_ms / 1e3 + run.warmup_ns[0] / 1e9] for run in each] for name, each in runs.items()}
    row["ratio"] = _ab.ratio(ready["without"], ready["with"])
    row["run_ms"] = statistics.median(run.samples_ns[0] for run in runs["with"]) / 1e6
    row["peak_mib"] = max(run.peak_rss_kib for run in runs["with"]) / 1024
    row["peak_compiling_mib"] = max(run.peak_rss_kib for run in runs["without"]) / 1024
    return row


def tuning(network: str, board_name: str, trials: int, folder: Path) -> dict[str, Any]:
    """Tune a network, then run it untuned and tuned in turns."""
    program, records = Path(sys.executable).with_name("toolchain"), folder / "records.jsonl"
    command = [program, "tune", network, "--board", board_name, "--trials", str(trials), "--records", records, "--json"]
    start = time.monotonic()
    tuned = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    seconds = time.monotonic() - start
    command = [program, "compare", network, "--board", board_name, "--records", records, "--json"]
    command += ["--root", folder / "root"]
    comparison = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {
        "network": network,
        "trials": tuned["trials"]["total"],
        "valid": tuned["trials"]["ok"],
        "seconds_per_trial": seconds / tuned["trials"]["total"],
        "failed": tuned["trials"]["failed"],
        "ratio": comparison["ratio"],
    }


def start_line(row: dict[str, Any]) -> str:
    """Return the line of a start."""
    compiling = f"{row['without_load_ms']:.0f} + {row['without_first_ms']:.0f} ms compiling"
    cached = f"{row['with_load_ms']:.0f} + {row['with_first_ms']:.0f} ms with kept kernels"
    peak = f"peak {row['peak_compiling_mib']:.0f} and {row['peak_mib']:.0f} MiB"
    return (
        f"{row['network']:16} emulated; error {row['max_rel_diff']:.1e}; load and first run {compiling}, {cached}, "
        f"{_ab.rendered(row['ratio'])} times as fast; a run {row['run_ms']:.1f} ms; {peak}"
    )


def tuning_line(row: dict[str, Any]) -> str:
    """Return the line of a tuning."""
    return (
        f"{row['network']:16} emulated; {row['valid']} of {row['trials']} trials valid, "
        f"{row['seconds_per_trial']:.2f} s a trial; tuned {_ab.rendered(row['ratio'])} times as fast"
    )


def main() -> None:
    """Print a line or two for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", default=list(NETWORKS))
    parser.add_argument("--board", default="opencl-local")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kind = board.load(options.board).resolved()
    rows = []
    for network in options.networks:
        with tempfile.TemporaryDirectory() as name:
            rows.append(starts(network, kind, options.rounds, Path(name)))
        print(start_line(rows[-1]), flush=True)
        if options.trials:
            with tempfile.TemporaryDirectory() as name:
                rows.append(tuning(network, options.board, options.trials, Path(name)))
            print(tuning_line(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
