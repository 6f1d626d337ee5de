"""Record rounds of one release on this machine in one kind of noise, for `gate_rates.py` to try the gate's rule on.

    python benchmarks/rounds.py calm|neighbours|hostile [--rounds 8000] [--model squeezenet_v1.1] [--budget-ms 24]
                                [--bundle FOLDER] [--minutes 30] [--more] [--output FILE]

A round is one process of the C++ runner. What is written is one line for each: when it began, the median of its timed
runs, how many these were, how often the kernel took the CPU from it, and how many busy processes this script had set
beside it. Lines are in the order of the rounds.

calm: one thread under real-time priority, so that only caches, memory and what shares the core disturb.
neighbours: one thread with the highest of the ordinary priorities, beside one busy process and then beside two.
hostile: two threads among 14 busy processes. At their own priority a round of two threads takes six seconds there.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import _recorded
from benchmarks._neighbours import running
from benchmarks._recorded import Recording, Round
from toolchain import board, bundle, tensors
from toolchain.bundle import Bundle
from toolchain.compile.request import BuildRequest
from toolchain.device import runner, verification
from toolchain.device.runner import Plan
from toolchain.models import inputs
from toolchain.models.request import Model
from toolchain.native import programs
from toolchain.pipeline.source import BundleSource

_SAVE_EVERY = 500
_BUSY = """
import signal, sys, numpy
signal.alarm(int(sys.argv[1]))
data = numpy.ones(1 << 21)
while True:
    sum(range(1_000_000))
    for _ in range(4):
        data[:] = data[::-1]
"""
"""Half of its time it computes, half of it copies 16 MB; it ends by itself should nobody end it."""


@dataclass(frozen=True)
class Noise:
    """A kind of noise.

    Attributes:
        threads: Of the runner.
        busy: How many busy processes run beside it; the recording is cut into as many parts as there are numbers.
        nicer: How far these give way to others, as `nice` counts.
        before: Words in front of the runner's command line.
    """

    threads: int
    busy: tuple[int, ...]
    nicer: int = 0
    before: tuple[str, ...] = ()


KINDS = {
    "calm": Noise(1, (0,), before=("chrt", "--fifo", "10")),
    "neighbours": Noise(1, (1, 2), before=("nice", "-n", "-20")),
    "hostile": Noise(2, (14,), nicer=19),
}


@dataclass(frozen=True)
class Setup:
    """What every round runs: the command line, where its report goes, and its environment's noise."""

    argv: tuple[str, ...]
    report: Path


def built(name: str, folder: Path) -> Bundle:
    """Build a network for this machine."""
    request = BuildRequest(Model(name, {}, inputs.Source()), board.load("local").resolved(), toolchain="host")
    return BundleSource(request).build(folder / "bundle")


def prepared(release: Bundle, noise: Noise, budget_ms: float, folder: Path) -> Setup:
    """Put the inputs down and return the command line of a round."""
    kind = board.load("local").resolved()
    program = programs.build(programs.RUNNER, kind.triple, kind.machine)
    tensors.save(folder / runner.INPUTS, verification.samples_of(release).inputs)
    paths = {"runners": str(program.path.parent), "inputs": str(folder)}
    argv = runner.command(paths, str(release.folder.resolve()), str(folder), Plan(budget_s=budget_ms / 1000))
    return Setup((*noise.before, *argv, "--threads", str(noise.threads)), folder / "report")


def turn(setup: Setup, began: float, busy: int) -> Round:
    """Run one round."""
    start = time.monotonic()
    child = subprocess.Popen(setup.argv, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"the runner ended with code {child.returncode}")
    samples = json.loads(setup.report.read_text(encoding="utf-8"))["samples_ns"]
    return Round(round(start - began, 3), float(np.median(samples)) / 1000, len(samples), usage.ru_nivcsw, busy)


def company(count: int, nicer: int, seconds: float) -> contextlib.AbstractContextManager[None]:
    """Keep this many busy processes."""
    return running(["nice", "-n", str(nicer), sys.executable, "-c", _BUSY, str(round(seconds) + 60)], count)


def record(options: argparse.Namespace, folder: Path) -> None:
    """Record rounds until there are enough or the time is up, and keep what there is every now and then."""
    noise = KINDS[options.kind]
    release = bundle.load(options.bundle) if options.bundle else built(options.model, folder)
    setup = prepared(release, noise, options.budget_ms, folder)
    rounds = list(_recorded.load(options.kind).rounds) if options.more else []
    began = time.monotonic()
    earlier_s = rounds[-1].at_s + 1 if rounds else 0.0
    for phase, busy in enumerate(noise.busy, 1):
        share = phase / len(noise.busy)
        with company(busy, noise.nicer, options.minutes * 60):
            while len(rounds) < options.rounds * share and time.monotonic() - began < options.minutes * 60 * share:
                rounds.append(turn(setup, began - earlier_s, busy))
                if len(rounds) % _SAVE_EVERY == 0:
                    save(options, noise, rounds)
    save(options, noise, rounds)


def save(options: argparse.Namespace, noise: Noise, rounds: Sequence[Round]) -> None:
    """Write a recording, and say how noisy it is so far."""
    about = {
        "noise": options.kind,
        **asdict(noise),
        "model": options.model,
        "budget_ms": options.budget_ms,
        "machine": f"{os.cpu_count()} CPUs of a virtual machine, {cpu_name()}",
        "kernel": platform.release().partition("-")[0],
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    recording = Recording(about, tuple(rounds))
    recording.save(options.output or _recorded.FOLDER / f"{options.kind}.csv.gz")
    seconds = rounds[-1].at_s / max(len(rounds), 1)
    print(
        f"{options.kind}: {len(rounds)} rounds, {seconds:.3f} s each, {recording.spread()}", file=sys.stderr, flush=True
    )


def cpu_name() -> str:
    """Return what the kernel calls the CPU; its architecture where it does not say."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else os.uname().machine


def main() -> None:
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--rounds", type=int, default=8000)
    parser.add_argument("--minutes", type=float, default=30.0, help="stop then, with what there is")
    parser.add_argument("--more", action="store_true", help="go on with the recording that there is")
    parser.add_argument("--model", default="squeezenet_v1.1")
    parser.add_argument("--bundle", type=Path, help="what was built of the model")
    parser.add_argument("--budget-ms", type=float, default=24.0, help="of timed runs in a round")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        record(options, Path(folder))


if __name__ == "__main__":
    main()
