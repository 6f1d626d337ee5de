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
    words = [program, "tune", model, "--trials", str(trials), "--without", "all", "--json"]
    words += ["--records", folder / "records.jsonl", "--no-compare"]
    start = time.monotonic()
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return {
        "seconds": time.monotonic() - start,
        "trials": found["trials"]["total"],
        "failed": sum(found["trials"]["failed"].values()),
        "estimated_s": found["estimated_s"],
        "shares_s": found["shares_s"],
    }


def stock(model: str, trials: int, folder: Path) -> dict[str, Any]:
    """Tune with `tune_relax`, in a process of its own."""
    start = time.monotonic()
    found = _stock.tuned(model, trials, folder)
    return {"seconds": time.monotonic() - start, **found}


def one_turn(name: str, run: Callable[[str, int, Path], dict[str, Any]], model: str, trials: int) -> dict[str, Any]:
    """Tune once, and tell."""
    with tempfile.TemporaryDirectory() as folder:
        found = run(model, trials, Path(folder))
    minutes = found["seconds"] / 60
    good = found["trials"] - found["failed"]
    print(
        f"{name:15} {found['trials']} trials, {found['failed']} failed, {found['seconds']:.0f} s, "
        f"{found['trials'] / minutes:.1f} trials a minute, {good / minutes:.1f} of them with a latency",
        flush=True,
    )
    return {**found, "good_per_minute": good / minutes}


def main() -> None:
    """Run both in turns and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="squeezenet_v1.1")
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    runs = {"toolchain tune": ours, "tune_relax": stock}
    calls = {name: partial(one_turn, name, run, given.model, given.trials) for name, run in runs.items()}
    found = _ab.in_turns(calls, given.turns)
    each = {name: [[60 / max(row["good_per_minute"], 1e-6)] for row in rows] for name, rows in found.items()}
    ratio = _ab.ratio(each["tune_relax"], each["toolchain tune"])
    print(f"toolchain tune has {_ab.told(ratio)} times as many trials with a latency in a minute")
    if given.json:
        given.json.write_text(json.dumps({"turns": found, "ratio": ratio}, indent=2))


if __name__ == "__main__":
    main()
