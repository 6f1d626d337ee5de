"""Building the runner, its cache, and calling it; what it does itself is in integration/test_runner.py."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from toolchain import cross, deploy, files, runner
from toolchain.errors import BuildError, DeviceError
from toolchain.runner import Plan
from toolchain.shell import LocalShell

BUILD = """
import sys
from pathlib import Path
from toolchain import board, runner
runner._SOURCES = Path(sys.argv[1])
print(runner.build(board.load("local").resolved()).digest)
"""

# A runner of one line: what is tested with it is the way to the cache, not the runner.
LISTS = """
cmake_minimum_required(VERSION 3.24)
project(tiny CXX)
add_executable(runner main.cc)
install(TARGETS runner DESTINATION .)
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "runners"


@pytest.fixture
def sources(tmp_path, monkeypatch):
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(LISTS)
    (folder / "main.cc").write_text("int main() { return 0; }\n")
    monkeypatch.setattr(runner, "_SOURCES", folder)
    return folder


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Put another C++ compiler in the place of this machine's."""

    def install(script: str) -> None:
        path = tmp_path / "bin" / "c++"
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")

    return install


# --- the cache ---


def test_real_runner(program, native):
    """A device gets the program and the libraries that it was linked with, and nothing else."""
    assert runner.PROGRAM in program.files
    assert {"libtvm_runtime.so", "libtvm_ffi.so"} <= set(program.files)
    assert program.files == {path.name: files.sha256_file(path) for path in program.folder.iterdir()}
    assert (program.machine, len(program.digest)) == (native.machine, 64)
    assert program.glibc.startswith("2.")
    assert os.access(program.folder / runner.PROGRAM, os.X_OK)


@pytest.mark.usefixtures("sources")
def test_built_once(cache, native, monkeypatch):
    first = runner.build(native)
    assert first.folder.parent == cache
    assert [path.name for path in first.folder.iterdir()] == ["runner"]
    monkeypatch.setattr(runner, "_build_into", lambda *_: pytest.fail("built again"))
    assert runner.build(native) == first


@pytest.mark.usefixtures("cache")
def test_other_sources_are_another_runner(sources, native):
    first = runner.build(native)
    (sources / "main.cc").write_text("int main() { return 1; }\n")
    second = runner.build(native)
    assert second.folder != first.folder
    assert second.digest != first.digest


@pytest.mark.usefixtures("cache", "sources")
def test_other_compiler_is_another_runner(native, compiler):
    first = runner._cache_key(cross.HostCross(native.triple))
    compiler('[ "$1" != --version ] || { echo other 1.0; exit; }')
    assert runner._cache_key(cross.HostCross(native.triple)) != first


@pytest.mark.usefixtures("sources")
def test_broken_compiler(cache, native, compiler):
    compiler('[ "$1" != --version ] || { echo broken 1.0; exit; }\necho it hurts >&2; exit 1')
    with pytest.raises(BuildError, match="cmake failed") as caught:
        runner.build(native)
    assert "it hurts" in caught.value.details
    assert list(cache.iterdir()) == []


def test_sources_that_do_not_compile(cache, sources, native):
    (sources / "main.cc").write_text("int main() { return nothing; }\n")
    with pytest.raises(BuildError) as caught:
        runner.build(native)
    assert "nothing" in caught.value.details
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("cache")
def test_missing_compiler(native, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"c\+\+ is not installed") as caught:
        runner.build(native)
    assert "doctor" in caught.value.hint


@pytest.mark.usefixtures("cache")
def test_board_of_another_machine(native):
    with pytest.raises(BuildError, match="no runner for vax"):
        runner.build(dataclasses.replace(native, machine="vax"))


def test_concurrent_builders(cache, sources):
    argv = [sys.executable, "-c", BUILD, str(sources)]
    builders = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    digests = {builder.communicate(timeout=120)[0] for builder in builders}
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    assert len(digests) == 1
    assert len(list(cache.iterdir())) == 1


@pytest.mark.usefixtures("sources")
def test_builder_that_loses_the_race(cache, native, monkeypatch):
    """Another one puts its result in place while this one is building."""
    first = runner.build(native)
    looks = iter([False])
    monkeypatch.setattr(Path, "is_dir", lambda path: next(looks, True) if path == first.folder else path.exists())
    assert runner.build(native) == first
    assert list(cache.iterdir()) == [first.folder]


@pytest.mark.usefixtures("sources")
def test_cache_that_cannot_be_filled(cache, native, monkeypatch):
    def refuse(_path, _target):
        raise PermissionError

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(BuildError, match="cannot be moved") as caught:
        runner.build(native)
    assert "TOOLCHAIN_CACHE" in caught.value.hint
    assert list(cache.iterdir()) == []


# --- calls ---


@pytest.fixture
def places(tiny, program, tmp_path):
    """The folders of a call, without a store; the root has a name that a shell would take apart."""
    root = tmp_path / "the root's"
    (root / "inputs").mkdir(parents=True)
    runner.tensors.save(root / "inputs" / runner.INPUTS, deploy.samples_of(tiny).inputs)
    return root, {"runners": str(program.folder), "inputs": str(root / "inputs")}


def test_smoke_call(tiny, places):
    root, folders = places
    run = runner.call(LocalShell(), str(root), folders, release=str(tiny.folder), threads=1, plan=runner.SMOKE)
    assert np.allclose(run.outputs["y"], deploy.samples_of(tiny).expected["y"], rtol=1e-5)
    assert (run.samples_ns, len(run.warmup_ns), run.threads) == ((), 1, 1)
    assert run.load_ms > 0
    assert run.peak_rss_kib > 1000
    assert list((root / "run").iterdir()) == []


def test_timed_call(tiny, places):
    root, folders = places
    plan = Plan(budget_s=0.0, warmup_runs=3, min_runs=7)
    run = runner.call(LocalShell(), str(root), folders, release=str(tiny.folder), threads=0, plan=plan)
    assert (len(run.samples_ns), len(run.warmup_ns)) == (7, 4)
    assert run.threads == len(os.sched_getaffinity(0))
    assert min(run.samples_ns) > 0


def test_budget_ends_a_call(tiny, places):
    root, folders = places
    plan = Plan(budget_s=0.2, max_runs=10_000_000)
    run = runner.call(LocalShell(), str(root), folders, release=str(tiny.folder), threads=1, plan=plan)
    assert 3 < len(run.samples_ns) < plan.max_runs
    assert sum(run.samples_ns) < 1e9


def test_failing_call_leaves_nothing(places, tmp_path):
    root, folders = places
    with pytest.raises(DeviceError, match="does not run on local") as caught:
        runner.call(LocalShell(), str(root), folders, release=str(tmp_path / "no"), threads=1, plan=runner.SMOKE)
    assert "manifest.json" in caught.value.details
    assert list((root / "run").iterdir()) == []


def test_crash_is_told(places, tmp_path):
    root, _ = places
    crashing = tmp_path / "runner"
    crashing.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    folders = {"runners": str(tmp_path), "inputs": str(tmp_path)}
    with pytest.raises(DeviceError) as caught:
        runner.call(LocalShell(), str(root), folders, release="x", threads=1, plan=runner.SMOKE)
    assert "Segmentation fault" in caught.value.details
