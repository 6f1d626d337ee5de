"""How much faster is a model that is built for a newer level of x86-64? Builds for each board type run in turns.

    python benchmarks/board_levels.py [NETWORK ...] [--budget 8] [--json FILE]

Each network runs on floats as the zoo has it, and `NETWORK:int8` after `toolchain quantize`. The builds, the runner and
the measurement are those of `toolchain compare`; its ratios are to the build for the first board type, `x86_64`.
docs/cpu.md has the figures, and `toolchain/backends/cpus.toml` the factors that the commands show.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import _ab
from toolchain import board, files
from toolchain.board import Board
from toolchain.bundle import Bundle
from toolchain.compile.request import BuildRequest
from toolchain.device.connected import Connection
from toolchain.device.deploy import Settings
from toolchain.devices import find_device
from toolchain.models import inputs
from toolchain.models.request import Model
from toolchain.pipeline import compare, device_programs
from toolchain.pipeline.source import BundleSource
from toolchain.shell import SshOptions

BOARDS = ("x86_64", "x86_64-v2", "x86_64-v3", "x86_64-v4", "x86_64-v4-vnni")
NETWORKS = ("resnet-50", "mobilenet", "squeezenet_v1.1", "resnet-18:int8", "mobilenet:int8")
_INT8 = ":int8"


def kinds() -> list[Board]:
    """Return the board types as this machine, without SSH."""
    return [replace(board.load(name).resolved(), connection="local") for name in BOARDS]


def source(network: str, folder: Path) -> str:
    """Return the model that a name stands for; a quantized one is written into a folder."""
    if not network.endswith(_INT8):
        return network
    target = folder / f"{network.removesuffix(_INT8)}-int8.onnx"
    arguments = ["quantize", network.removesuffix(_INT8), "--calibration", "random", "-o", str(target)]
    subprocess.run([Path(sys.executable).parent / "toolchain", *arguments], check=True, stdout=subprocess.DEVNULL)
    return str(target)


def measured(network: str, budget_s: float, folder: Path) -> list[dict[str, Any]]:
    """Build a network for each board type, and compare each build with the first."""
    model = Model(source(network, folder), {}, inputs.Source())
    jobs = [BundleSource(BuildRequest(model, kind, print)) for kind in kinds()]
    builds: list[Bundle] = [job.build(folder / job.request.board.name) for job in jobs]
    program = device_programs.runner(jobs[0].request.board, jobs[0].stages)
    rows = []
    here = board.load("local").resolved()
    with Connection(here, find_device(here, None, {}), SshOptions(), str(folder / "root")).open() as device:
        for name, build in zip(BOARDS[1:], builds[1:], strict=True):
            result = compare.run((builds[0], build), program, device, Settings(budget_s))
            rows.append(
                {
                    "network": network,
                    "board": name,
                    "base_ms": result.first.median,
                    "ms": result.second.median,
                    "ratio": asdict(result.ratio),
                    "warnings": list(result.warnings),
                }
            )
            print(f"{network} {name}: {_ab.rendered(rows[-1]['ratio'])} times as fast as {BOARDS[0]}", flush=True)
    return rows


def means(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the geometric means of the ratios by board type, of networks on floats and of int8 ones."""
    by_board: dict[str, dict[str, float]] = {}
    for name in BOARDS[1:]:
        for kind, int8 in (("float32", False), ("int8", True)):
            ratios = [
                row["ratio"]["value"] for row in rows if row["board"] == name and row["network"].endswith(_INT8) == int8
            ]
            if ratios:
                by_board.setdefault(name, {})[kind] = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return by_board


def main() -> None:
    """Measure, and print the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--budget", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for network in options.networks:
        with tempfile.TemporaryDirectory() as name:
            rows += measured(network, options.budget, Path(name))
        if options.json:
            options.json.write_bytes(files.canonical_json({"rows": rows, "means": means(rows)}))
    for name, ratios in means(rows).items():
        print(name, ", ".join(f"{kind} {value:.2f}" for kind, value in ratios.items()))


if __name__ == "__main__":
    main()
