"""Ctrl-C while a model is compiled, at points that nobody chose."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.paths import ROOT

TIMES = int(os.environ.get("TOOLCHAIN_INTERRUPTS", "8"))


def test_an_interrupted_build_ends_with_130_and_leaves_nothing():
    words = [sys.executable, "-m", "tests.support.interrupts", "mlp", str(TIMES), "0"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    ends = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines()]
    assert ends == ["130 [] ['interrupted']"] * TIMES
