"""TVM's own way: tuned by `tune_relax` in a process of its own, built without and with what that found, and run.

What TVM is given is the graph that the toolchain imports, and the same target.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from toolchain import board
from toolchain.backends import backend_of
from toolchain.models import importer
from toolchain.models import source as models

if TYPE_CHECKING:
    from benchmarks._peers import Arrays
    from toolchain.tensors import TensorSpec

ROUND = 64
"""Candidates of a kernel that `tune_relax` measures by default before it goes on to another one."""

UNTUNED, TUNED = "untuned.so", "tuned.so"
_PATIENCE_S = 300.0
_FAILED_S = 1e9  # what it records for a candidate that gave no time is more


class Engine:
    """One of the two builds in TVM's virtual machine; weights are constants in it. See `_peers.Engine`."""

    def __init__(self, library: Path, specs: Sequence[TensorSpec], names: Sequence[str]) -> None:
        self._specs, self._names = specs, names
        self._machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())

    def feed(self, inputs: Arrays) -> None:
        """See `_peers.Engine.feed`."""
        self._machine.save_function("main", "bound", *(tvm.runtime.tensor(inputs[spec.name]) for spec in self._specs))
        self._call = self._machine["bound"]

    def run(self) -> object:
        """See `_peers.Engine.run`."""
        self._result = self._call()
        return self._result

    def outputs(self) -> dict[str, Any]:
        """See `_peers.Engine.outputs`."""
        values = [self._result] if hasattr(self._result, "numpy") else list(self._result)
        return {name: value.numpy() for name, value in zip(self._names, values, strict=True)}


def tuned(
    model: str, trials: int, folder: Path, each: int = ROUND, *, board_name: str = "local", build: bool = False
) -> dict[str, Any]:
    """Tune in a process of its own; returns what became of the trials and of the kernels.

    Args:
        model: As `toolchain tune` takes it.
        trials: Of all kernels together.
        folder: Where TVM's database goes, and the builds.
        each: Candidates of a kernel before the next one's turn.
        board_name: A board type that this machine can run.
        build: Whether the model is built as well, untuned and tuned.
    """
    command = [sys.executable, __file__, model, "--trials", str(trials), "--round", str(each), "--folder", folder]
    command += ["--board", board_name]
    environment = {**os.environ, "TVM_NUM_THREADS": str(os.cpu_count())}
    command += ["--build"] if build else []
    completed = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if completed.returncode:
        raise SystemExit(f"TVM failed:\n{completed.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return result


def _tune(options: argparse.Namespace) -> dict[str, Any]:
    """Do what a user of TVM does."""
    target = backend_of(board.load(options.board).resolved()).target
    module = relax.transform.DecomposeOpsForInference()(importer.import_model(models.load(options.model)).module)
    with target:
        kernels = relax.get_pipeline("zero")(module)
    start = time.monotonic()
    # Each of its builders first imports descriptions of intrinsics, for 15 s of CPU time. With the 30 s that it gives a
    # candidate by default all of them fail on a busy machine; that is part of its rate, and not of what it finds.
    builder = ms.builder.LocalBuilder(timeout_sec=_PATIENCE_S) if options.build else "local"
    database = ms.relax_integration.tune_relax(
        kernels, {}, target, str(options.folder), options.trials, num_trials_per_iter=options.round, builder=builder
    )
    records = database.get_all_tuning_records()
    result = {
        "trials": len(records),
        "failed": sum(float(record.run_secs[0]) > _FAILED_S for record in records),
        "tuning_s": time.monotonic() - start,
    }
    return result | _build(module, kernels, database, target, options.folder) if options.build else result


def _build(
    module: tvm.IRModule, kernels: tvm.IRModule, database: Any, target: tvm.target.Target, folder: Path
) -> dict[str, int]:
    """Build a model without and with a database; returns how many kernels there are, and how many it has one for."""
    tvm.compile(module, target).export_library(str(folder / UNTUNED))
    ms.relax_integration.compile_relax(database, module, target, None).export_library(str(folder / TUNED))
    tasks = ms.relax_integration.extract_tasks(kernels, target)
    records = [database.query_tuning_record(task.dispatched[0], target, task.task_name) for task in tasks]
    return {"kernels": len(tasks), "replaced": sum(record is not None for record in records)}


def main() -> None:
    """Be the other process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--board", required=True)
    parser.add_argument("--build", action="store_true")
    print(json.dumps(_tune(parser.parse_args())))


if __name__ == "__main__":
    main()
