"""Trials a minute of `toolchain tune` and of TVM's own `tune_relax` with its defaults, in turns in one run.

    python benchmarks/tune.py [MODEL] [--trials 128] [--turns 1] [--json FILE]

Both tune for this machine's CPU, on this machine, and by MetaSchedule alone: the toolchain's own templates are left
out. A failed trial is one that gave no latency.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import _ab, _stock


def ours(model: str, trials: int, folder: Path) -> dict[str, Any]:
    """Tune with the toolchain; returns seconds, trials and failures."""
    program = Path(sys.executable).with_name("toolchain")
    command = [program, "tune", model, "--trials", str(trials), "--without", "all", "--json"]
    command += ["--records", folder / "records.jsonl", "--no-compare"]
    start = time.monotonic()
    completed = subprocess.run(command, check=True, capture_output=True, text=True)
    report = json.loads(completed.stdout)
    return {
        "seconds": time.monotonic() - start,
        "trials": report["trials"]["total"],
        "failed": sum(report["trials"]["failed"].values()),
        "estimated_s": report["estimated_s"],
        "shares_s": report["shares_s"],
    }


def stock(model: str, trials: int, folder: Path) -> dict[str, Any]:
    """Tune with `tune_relax`, in a process of its own."""
    start = time.monotonic()
    result = _stock.tuned(model, trials, folder)
    return {"seconds": time.monotonic() - start, **result}


def one_turn(name: str, run: Callable[[str, int, Path], dict[str, Any]], model: str, trials: int) -> dict[str, Any]:
    """Tune once, and tell."""
    with tempfile.TemporaryDirectory() as folder:
        result = run(model, trials, Path(folder))
    minutes = result["seconds"] / 60
    good = result["trials"] - result["failed"]
    print(
        f"{name:15} {result['trials']} trials, {result['failed']} failed, {result['seconds']:.0f} s, "
        f"{result['trials'] / minutes:.1f} trials a minute, {good / minutes:.1f} of them with a latency",
        flush=True,
    )
    return {**result, "good_per_minute": good / minutes}


def main() -> None:
    """Run both in turns and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="squeezenet_v1.1")
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs = {"toolchain tune": ours, "tune_relax": stock}
    calls = {name: partial(one_turn, name, run, options.model, options.trials) for name, run in runs.items()}
    turns = _ab.in_turns(calls, options.turns)
    each = {name: [[60 / max(row["good_per_minute"], 1e-6)] for row in rows] for name, rows in turns.items()}
    ratio = _ab.ratio(each["tune_relax"], each["toolchain tune"])
    print(f"toolchain tune has {_ab.rendered(ratio)} times as many trials with a latency in a minute")
    if options.json:
        options.json.write_text(json.dumps({"turns": turns, "ratio": ratio}, indent=2))


if __name__ == "__main__":
    main()
