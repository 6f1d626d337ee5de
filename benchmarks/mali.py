"""What the kernels of networks cost on Mali GPUs by Mesa's machine code, now and as an older commit writes them.

    python benchmarks/mali.py [NETWORK ...] [--board rk3588 --board odroid-n2] [--before COMMIT] [--json FILE]

No board is asked: all of it is modelled. A network is one of the zoo, or a file of others that
tests/support/third_party.py knows (nudenet-320n is a YOLOv8n). With --before, the backend of that commit takes the
place of today's, and nothing else. The times beside the estimates are those that are published of ncnn.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support import third_party
from toolchain import board
from toolchain.backends.mali import cost
from toolchain.backends.mali.cost import network
from toolchain.board import Board
from toolchain.compile import compiler
from toolchain.compile.request import BuildRequest
from toolchain.models.inputs import Source
from toolchain.models.request import Model

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = ("mobilenet", "resnet-18", "squeezenet_v1.1", "mobilenet_v2", "nudenet-320n")
BOARDS = ("rk3588", "odroid-n2")
PUBLISHED_MS = {
    ("mobilenet", "g610"): 9.2,
    ("resnet-18", "g610"): 16.3,
    ("squeezenet_v1.1", "g610"): 7.1,
    ("mobilenet", "g52"): 32.4,
    ("resnet-18", "g52"): 61.4,
    ("squeezenet_v1.1", "g52"): 21.6,
}
BACKEND = "toolchain/backends/mali"
COSTS = "cost"
KEPT = (COSTS, "images.py", "gpu.py")
"""What counts, and what it needs: today's, where a commit has none."""
Row = dict[str, Any]


def say(line: str) -> None:
    """Tell about the progress."""
    print(line, file=sys.stderr, flush=True)


def costed(name: str, kind: Board) -> Row:
    """Return what a network's kernels cost on a board's GPU, without tuning records."""
    entries = third_party.MODELS
    shapes = {key: tuple(value) for key, value in entries[name].shapes.items()} if name in entries else {}
    source = str(third_party.obtain(entries[name])) if name in entries else name
    request = BuildRequest(Model(source, shapes, Source()), kind, tuned=False)
    launches = network.launches(compiler.schedule(request), request.backend.target)
    if kind.gpu is None:
        raise SystemExit(f"board {kind.name} has no GPU that there is a model of")
    cost_compiler = cost.Compiler(cost.root(say), cost.gpu(kind.gpu.name))
    estimate = network.network(name, launches, cost_compiler, kind.gpu)
    spills = sum(row.cost.spills * row.launch.items for row in estimate.rows if row.launch)
    return {
        "network": name,
        "board": kind.name,
        "gpu": estimate.gpu.name,
        "stamp": estimate.stamp,
        "kernels": len(estimate.rows),
        "spilling": estimate.spilling,
        "refused": estimate.failed,
        "spills": spills,
        "load_store": estimate.load_store,
        "estimated_ms": estimate.ms,
        "published_ncnn_ms": PUBLISHED_MS.get((name, estimate.gpu.name)),
    }


def clear(backend: Path) -> None:
    """Remove a backend, packages and modules, but for the model of costs, which stays today's."""
    for path in backend.iterdir():
        if path.name in KEPT:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def of_commit(commit: str, arguments: list[str]) -> list[Row]:
    """Return the rows of a commit's backend, in a copy of this checkout that has it in place of today's."""
    with tempfile.TemporaryDirectory(prefix="mali-before-") as folder:
        copy = Path(folder)
        for name in ("toolchain", "boards", "docker", "docs", "tests", "benchmarks"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        clear(copy / BACKEND)
        archive = subprocess.run(["git", "-C", ROOT, "archive", commit, BACKEND], check=True, stdout=subprocess.PIPE)
        leave_out = f"--exclude={BACKEND}/{COSTS}"
        subprocess.run(["tar", "-x", leave_out, "-C", copy], check=True, input=archive.stdout)
        report = copy / "before.json"
        argv = [sys.executable, "benchmarks/mali.py", *arguments, "--json", str(report)]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        subprocess.run(argv, cwd=copy, env=environment, check=True, stdout=sys.stderr)
        rows: list[Row] = json.loads(report.read_text())
        return rows


def number(value: float | None, scale: float = 1.0) -> str:
    """Write a number, or what stands for none."""
    return "-" if value is None else f"{value / scale:.1f}"


def show(now: list[Row], before: list[Row]) -> None:
    """Print the rows as a table in Markdown."""
    older = {(row["network"], row["gpu"]): row for row in before}
    print("| network | GPU | kernels | spilling | load/store, M cycles | of before | estimated ms | ncnn, published |")
    print("|---|---|---|---|---|---|---|---|")
    for row in now:
        was = older.get((row["network"], row["gpu"]))
        spilling = f"{was['spilling']} -> {row['spilling']}" if was else str(row["spilling"])
        loads = number(row["load_store"], 1e6)
        ms = number(row["estimated_ms"])
        if was:
            loads = f"{number(was['load_store'], 1e6)} -> {loads}"
            ms = f"{number(was['estimated_ms'])} -> {ms}"
        share = f"{row['load_store'] / was['load_store']:.2f}" if was else "-"
        published = number(row["published_ncnn_ms"])
        cells = (row["network"], row["gpu"], row["kernels"], spilling, loads, share, ms, published)
        print("| " + " | ".join(map(str, cells)) + " |")
    print("\nestimates, " + ", ".join(sorted({row["stamp"] for row in now})))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--board", action="append", dest="boards", help=f"by default {', '.join(BOARDS)}")
    parser.add_argument("--before", metavar="COMMIT", help="cost the kernels of this commit's backend, too")
    parser.add_argument("--json", type=Path, help="write the rows to a file")
    options = parser.parse_args()
    boards = options.boards or list(BOARDS)
    now = []
    for name in options.networks:
        for kind in boards:
            say(f"{name} on {kind}")
            now.append(costed(name, board.load(kind).resolved()))
    arguments = [*options.networks, *(argument for kind in boards for argument in ("--board", kind))]
    before = of_commit(options.before, arguments) if options.before else []
    show(now, before)
    if options.json:
        options.json.write_text(
            json.dumps([*now, *({**row, "commit": options.before} for row in before)], indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
