"""Interrupts real builds at random points, and prints how each one ended.

`python -m tests.support.interrupts MODEL TIMES SEED`. One process for all of them, in which everything is imported:
each interrupt then meets the compiler at its work.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.support.commands import Outcome, toolchain


def build(model: str, folder: Path, after_s: float | None) -> tuple[Outcome, bool]:
    """Build a model, and press Ctrl-C after some seconds; tell whether it was pressed in time."""
    pressed = threading.Event()

    def press() -> None:
        pressed.set()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after_s or 0.0, press)
    if after_s is not None:
        timer.start()
    outcome = toolchain("build", model, "-o", folder / "out")
    timer.cancel()
    return outcome, pressed.is_set()


def interrupted(model: str, folder: Path, after_s: float) -> Outcome | None:
    """Return how a build ended that was interrupted; None if it had ended before."""
    try:
        outcome, pressed = build(model, folder, after_s)
    except KeyboardInterrupt:  # it came once the command had ended
        return None
    return outcome if pressed else None


def main(model: str, times: int, seed: int) -> None:
    """Print a line for each interrupted build: when, its exit code, and what it said at last."""
    stream = random.Random(seed)  # noqa: S311 - which points, not which secrets
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(model, folder, None)  # imports
        start = time.monotonic()
        build(model, folder, None)
        span = time.monotonic() - start
        completed = 0
        while completed < times:
            after = stream.uniform(0.0, span)
            outcome = interrupted(model, folder, after)
            if outcome is not None:
                completed += 1
                remaining = [item.name for item in folder.iterdir() if item.name != "out"]
                sys.stdout.write(f"{after / span:.2f} {outcome.code} {remaining} {outcome.err.splitlines()[-1:]}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
