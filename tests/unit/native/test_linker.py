"""The script of many links, run by this machine's shell in the place of a container's."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

import pytest

from toolchain.errors import BuildError
from toolchain.native.linker import Batch, Linker

OWN = Linker(("c++",), f"{platform.machine()}-linux-gnu")


@pytest.fixture
def thing(tmp_path) -> Path:
    path = tmp_path / "it's one.o"
    command = ["c++", "-c", "-fPIC", "-x", "c++", "-", "-o", path]
    subprocess.run(command, input="int one() { return 1; }", text=True, check=True)
    return path


def run(tmp_path: Path, linker: Linker, pairs, timeout: float = 60.0) -> tuple[Batch, int]:
    folder = tmp_path / "it's a batch"
    folder.mkdir()
    batch = Batch(linker, pairs, folder, timeout)
    batch.write()
    return batch, subprocess.run(["sh", batch.script], timeout=batch.timeout, check=False).returncode


def test_each_link_has_its_own_outcome(tmp_path, thing):
    pairs = [(tmp_path / f"lib {number}.so", [thing] * (2 if number == 3 else 1)) for number in range(7)]
    batch, code = run(tmp_path, OWN, pairs)
    outcomes = [batch.outcome(number, "x", None) for number in range(7)]
    assert code == 0
    assert [fault is None for fault in outcomes] == [number != 3 for number in range(7)]
    assert outcomes[3].message == "c++ failed with exit code 1 in the image x"
    assert "lib 3.so" in outcomes[3].details
    assert "multiple definition" in outcomes[3].details
    assert [path.exists() for path, _ in pairs] == [number != 3 for number in range(7)]


def test_a_hanging_link_is_ended_alone(tmp_path, thing):
    driver = tmp_path / "driver"
    driver.write_text('#!/bin/sh\ncase "$*" in *slow.so*) exec sleep 600;; esac\nexec c++ "$@"\n')
    driver.chmod(0o755)
    start = time.monotonic()
    pairs = [(tmp_path / name, [thing]) for name in ("slow.so", "a.so", "b.so")]
    batch, _ = run(tmp_path, Linker((str(driver),), OWN.triple), pairs, timeout=2.0)
    assert time.monotonic() - start < 60
    assert "exit code 137" in batch.outcome(0, "x", None).message
    assert [batch.outcome(number, "x", None) for number in (1, 2)] == [None, None]


def test_what_never_ran_takes_the_containers_fault(tmp_path, thing):
    batch = Batch(OWN, [(tmp_path / "a.so", [thing])], tmp_path, 60.0)
    fault = BuildError("the engine is gone")
    assert batch.outcome(0, "x", fault) is fault
    assert "ended before" in batch.outcome(0, "x", None).message


def test_libraries_that_are_lacking_come_first(monkeypatch, tmp_path, thing):
    """A compiler that makes none of Android's empty libraries is asked for nothing else."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    failing = tmp_path / "aarch64-linux-gnu-g++"
    failing.write_text("#!/bin/sh\nexit 1\n")
    failing.chmod(0o755)
    missing = Linker((failing.name,), "aarch64-linux-android24")
    assert missing.needs_stubs
    batch, code = run(tmp_path, missing, [(tmp_path / "a.so", [thing])])
    assert code != 0
    assert "ended before" in batch.outcome(0, "x", None).message
