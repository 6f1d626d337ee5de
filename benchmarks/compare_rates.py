"""How often does `compare` see a difference where there is none? Compares a bundle with itself, again and again.

    python benchmarks/compare_rates.py [MODEL] [--comparisons 40] [--budget 2] [--loops 0] [--json FILE]

A false alarm is a verdict, `faster` or `slower`. `--loops` keeps so many processes busy beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._neighbours import loops
from toolchain import board
from toolchain.compile.request import BuildRequest
from toolchain.device.connected import Connection
from toolchain.device.deploy import Settings
from toolchain.devices import find_device
from toolchain.models import inputs
from toolchain.models.request import Model
from toolchain.pipeline import compare, device_programs
from toolchain.pipeline.source import BundleSource
from toolchain.shell import SshOptions


def compared(model: str, comparisons: int, budget_s: float, folder: Path) -> list[dict[str, Any]]:
    """Compare a model with itself; return the verdict and the figures of each comparison."""
    kind = board.load("local").resolved()
    job = BundleSource(BuildRequest(Model(model, {}, inputs.Source()), kind, print))
    program = device_programs.runner(kind, job.stages)
    bundle = job.build(folder / "bundle")
    rows = []
    with Connection(kind, find_device(kind, None, {}), SshOptions(), str(folder / "root")).open() as device:
        for number in range(comparisons):
            result = compare.run((bundle, bundle), program, device, Settings(budget_s))
            row = {"verdict": result.ratio.verdict, "ratio": result.ratio.value, "ci95": result.ratio.ci95}
            rows.append({**row, "ci99": result.ratio.ci99, "busy": result.before.busy})
            print(f"{number + 1}: {result.outcome}", flush=True)
    return rows


def main() -> None:
    """Compare and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="squeezenet_v1.1")
    parser.add_argument("--comparisons", type=int, default=40)
    parser.add_argument("--budget", type=float, default=2.0)
    parser.add_argument("--loops", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, loops(options.loops):
        rows = compared(options.model, options.comparisons, options.budget, Path(name))
    alarms = Counter(row["verdict"] for row in rows if row["verdict"])
    narrower = sum(not row["ci95"][0] <= 1 <= row["ci95"][1] for row in rows)
    print(f"{sum(alarms.values())} false alarms of {len(rows)}; the 95 % interval would give {narrower}")
    if options.json:
        options.json.write_text(json.dumps({"loops": options.loops, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
