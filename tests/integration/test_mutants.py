"""Packages that were tampered with: none passes for another, none ends in an internal error, none takes for ever.

TOOLCHAIN_MUTANTS is how many; `make mutants` tries 100,000.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support import bundles, mutants
from tests.support.mutants import Original, Tally
from toolchain import bundle, files
from toolchain.bundle.reference import RandomSamples, Sample

MUTANTS = int(os.environ.get("TOOLCHAIN_MUTANTS", "200"))
SEED = int(os.environ.get("TOOLCHAIN_MUTANTS_SEED", "0"))
_HANG_S = 20
_SHOWN = 20


@pytest.fixture(scope="module")
def work():
    """A folder in memory, where there is one: each mutant is written, unpacked and removed."""
    memory = Path("/dev/shm")  # noqa: S108 - the folder that TemporaryDirectory makes there is ours
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def originals(tiny, work):
    """Two bundles of few bytes: one with records and a reference of samples, and one with other weights."""
    small = {bundle.LIBRARY: b"\x7fELF", bundle.GRAPH: b"{}", bundle.GRAPH_TEXT: b"a graph"}
    records = bundle.Tuned(files.sha256_bytes(b"applied\n"), tasks=2, tuned=1)
    first = bundles.variant(tiny, work / "first", small, records=records)
    (first.folder / bundle.RECORDS).write_bytes(b"applied\n")
    answers = bundle.Reference.read(first.reference)
    random_samples = RandomSamples(0, (Sample("a" * 64), Sample("b" * 64, 0.125)), (answers.outputs, answers.outputs))
    bundle.Reference("numpy", answers.inputs, answers.outputs, 0.05, random_samples).save(first.folder)
    first = bundles.described(first, first.folder)
    second = bundles.variant(
        bundles.reweighted(tiny, work / "weights", seed=3), work / "second", small, name="another net"
    )
    assert np.isfinite(answers.outputs["y"]).all()
    return packed(first, work), packed(second, work)


def packed(package, work):
    path = work / f"{package.digest}.tar"
    bundle.pack(package, path)
    return Original(package, path)


def hang(_number, _frame):
    raise TimeoutError(f"it takes more than {_HANG_S} s")


def test_a_mutant_is_refused_or_is_what_its_name_says(originals, work, capsys):
    tally, slowest, began = Tally(), 0.0, time.monotonic()
    folder = work / "place"
    before = signal.signal(signal.SIGALRM, hang)
    try:
        for seed in range(SEED, SEED + MUTANTS):
            folder.mkdir()
            start = time.monotonic()
            signal.alarm(_HANG_S)
            mutants.run(originals, seed, folder, tally)
            signal.alarm(0)
            slowest = max(slowest, time.monotonic() - start)
            shutil.rmtree(folder)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    seconds = time.monotonic() - began
    with capsys.disabled():
        print(f"\n{MUTANTS} mutants in {seconds:.0f} s, the slowest in {slowest:.2f} s: {tally}")  # noqa: T201
    assert (tally.wrong[:_SHOWN], tally.internal[:_SHOWN]) == ([], [])
    assert sum(tally.refused.values()) > MUTANTS / 2
