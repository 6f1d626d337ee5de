"""Ctrl-C while a model is compiled, or tuned, at points that nobody chose."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.support.paths import ROOT

ALL = "TOOLCHAIN_INTERRUPTS" in os.environ
TIMES = int(os.environ.get("TOOLCHAIN_INTERRUPTS", "8"))
TUNES = TIMES if ALL else 2
SEED = int(os.environ.get("TOOLCHAIN_INTERRUPTS_SEED", "0"))
BUSY = 2  # processes beside every second run
WITHIN_S = 8.0  # of a run's beginning
PATIENCE_S = 60

pytestmark = pytest.mark.timeout(4 * 3600 if ALL else 600)

# What a shell starts in the background ignores SIGINT, and so would the tests' children there. The stacks of a run that
# does not end tell where it is.
CLIENT = """
import faulthandler, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
faulthandler.register(signal.SIGUSR1, all_threads=True)
from toolchain import cli, interrupts
interrupts.listen()
print("listening", flush=True)
sys.argv[0] = "toolchain"
cli.main()
"""


def test_an_interrupted_build_ends_with_130_and_leaves_nothing():
    command = [sys.executable, "-m", "tests.support.interrupts", "mlp", str(TIMES), "0"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    ends = [line.split(maxsplit=1)[1] for line in completed.stdout.splitlines()]
    assert ends == ["130 [] ['interrupted']"] * TIMES


@contextlib.contextmanager
def busy(count):
    """Keep the machine busy."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def interrupted_tune(folder, after_s):
    """Return how a tuning run ended that was interrupted so many seconds after its beginning; None if it went on."""
    command = ["tune", "mlp", "--without", "all", "--op", "matmul", "--tuner", "evolutionary-random", "--no-compare"]
    command += ["--number", "1", "--repeat", "1", "--min-repeat-ms", "0", "--trials", "500"]
    command += ["--records", folder / "R.jsonl", "--root", folder / "root"]
    argv = [sys.executable, "-c", CLIENT, *map(str, command)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout.readline() == "listening\n"
            time.sleep(after_s)
            process.send_signal(signal.SIGINT)
            _out, err = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            process.kill()
            raise AssertionError(
                f"interrupted after {after_s:.3f} s, and not ended:\n{process.stderr.read()}"
            ) from None
    return process.returncode, err


def test_interrupted_tuning_ends_with_130(tmp_path):
    stream = random.Random(SEED)  # noqa: S311 - which points, not which secrets
    faults = []
    for number in range(TUNES):
        folder = tmp_path / str(number)
        folder.mkdir()
        after_s = stream.uniform(0.0, WITHIN_S)
        with busy(BUSY * (number % 2)):
            code, err = interrupted_tune(folder, after_s)
        if (code, "interrupted" in err) != (130, True):
            faults.append((after_s, code, err))
    assert faults == []
