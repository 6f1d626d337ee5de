"""Where the time of `toolchain build` goes, by stage: processor time of all threads, and the time that passes.

    python benchmarks/build.py [NETWORK ...] [--board local] [--json FILE] [--work FOLDER]

NETWORK is as for `benchmarks/cpu.py`. Each build runs in a process of its own, whose functions are timed from outside;
the time of a function that calls another one of the table is without that one's. Processor time is what to compare on
a machine that is shared. The digest shows whether two versions of the toolchain build the same.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

REST = "start and the rest"

# Stage, module, and the function or method in it.
STAGES = (
    ("read and check the file", "toolchain.models.source", "load_request"),
    ("check the file: ONNX's checker", "onnx.checker", "check_model"),
    ("infer shapes", "onnx.shape_inference", "infer_shapes"),
    ("simplify", "toolchain.models.simplify", "simplified"),
    ("simplify", "toolchain.models.batchnorm", "fold"),
    ("fold constants by ONNX Runtime", "toolchain.models.simplify.folding", "fold_constants"),
    ("import", "toolchain.models.importer", "import_model"),
    ("reference: open", "toolchain.models.reference", "open_model"),
    ("reference: open", "toolchain.models.reference", "open_perturbed"),
    ("reference: run", "toolchain.pipeline.expected", "ReferenceModel.run"),
    ("graph passes", "toolchain.backends.cpu.backend", "Cpu.lower"),
    ("records", "toolchain.compile.applicable_records", "RecordSources.apply"),
    ("write kernels", "toolchain.backends.cpu.backend", "Cpu.apply_choices"),
    ("schedule kernels", "toolchain.backends.cpu.backend", "Cpu.schedule"),
    ("choose templates", "toolchain.backends.cpu.kernels", "default"),
    ("pack weights", "toolchain.backends.cpu.kernels", "pack"),
    ("pack weights", "toolchain.compile.compiler", "lift_constants"),
    ("kernels to machine code", "toolchain.compile.executable", "compile_module"),
    ("link", "tvm.relax.vm_build", "VMExecutable.export_library"),
    ("graph as JSON and text", "toolchain.compile.compiler", "nodes_by_call"),
    ("graph as JSON and text", "toolchain.compile.compiler", "reproducible_text"),
    ("graph as JSON and text", "tvm.ir", "IRModule.script"),
    ("graph as JSON and text", "tvm.ir", "save_json"),
    ("write", "toolchain.tensors", "encode_aligned"),
    ("write", "toolchain.files", "write_atomic"),
    ("digests", "toolchain.files", "sha256_bytes"),
    ("digests", "toolchain.files", "sha256_file"),
)


@dataclass
class Spent:
    """What a stage has taken so far; without the stages that it called."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    calls: int = 0


class Clock:
    """Charges the time since the last change of stage to the stage that was running."""

    def __init__(self) -> None:
        self.spent: dict[str, Spent] = defaultdict(Spent)
        self._running = [REST]
        self._cpu, self._wall = 0.0, time.perf_counter()  # the process has run before, too

    def watch(self, stage: str, module: str, name: str) -> None:
        """Put a function that is timed in the place of a function."""
        owner: Any = importlib.import_module(module)
        *path, last = name.split(".")
        for attribute in path:
            owner = getattr(owner, attribute)
        setattr(owner, last, self._timed(stage, getattr(owner, last)))

    def charge(self) -> None:
        times = os.times()
        cpu, wall = times.user + times.system + times.children_user + times.children_system, time.perf_counter()
        spent = self.spent[self._running[-1]]
        spent.cpu_s += cpu - self._cpu
        spent.wall_s += wall - self._wall
        self._cpu, self._wall = cpu, wall

    def _timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            self.charge()
            self._running.append(stage)
            self.spent[stage].calls += 1
            try:
                return function(*args, **options)
            finally:
                self.charge()
                self._running.pop()

        return call


def run(arguments: list[str]) -> dict[str, Any]:
    """Build in this process; return the digest, and the seconds of each stage."""
    clock = Clock()
    from tests.support.commands import parsed

    for stage in STAGES:
        clock.watch(*stage)
    document = parsed("build", *arguments)
    clock.charge()
    return {
        "digest": document["digest"],
        "files": {name: record["sha256"] for name, record in document["manifest"]["files"].items()},
        "stages": {stage: vars(spent) for stage, spent in clock.spent.items()},
    }


def measure(name: str, board: str, work: Path) -> dict[str, Any]:
    """Build a network in a process of its own."""
    import _peers_networks

    source = name if Path(name).is_file() else _peers_networks.obtain(name, work).build
    command = [sys.executable, __file__, "--build", source, "--board", board, "-o", str(work / "bundle")]
    document: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return document


def table(name: str, measured: dict[str, Any]) -> str:
    """Return the stages of a build, in the order of the command."""
    order = [REST, *dict.fromkeys(stage for stage, _, _ in STAGES)]
    spent = {stage: Spent(**measured["stages"][stage]) for stage in order if stage in measured["stages"]}
    total = Spent(sum(each.cpu_s for each in spent.values()), sum(each.wall_s for each in spent.values()))
    lines = [f"| {name} | processor s | s | calls |", "|---|---:|---:|---:|"]
    for stage, each in {**spent, "total": total}.items():
        lines.append(f"| {stage} | {each.cpu_s:.2f} | {each.wall_s:.2f} | {each.calls or ''} |")
    return "\n".join([*lines, f"\n{measured['digest']}"])


def main() -> None:
    if sys.argv[1:2] == ["--build"]:
        print(json.dumps(run(sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["resnet-50", "densenet121", "vgg19"], metavar="NETWORK")
    parser.add_argument("--board", default="local")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        work = options.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        for name in options.networks:
            results[name] = measure(name, options.board, work)
            print(table(Path(name).stem, results[name]), end="\n\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
