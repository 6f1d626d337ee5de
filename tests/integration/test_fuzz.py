"""The parsers of the device's programs, each for a moment at night: `make fuzz` takes longer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import fuzzing
from tests.support.parts import require
from tests.support.paths import ROOT
from toolchain import resources


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    require("a compiler with a fuzzer", "clang libclang-rt-14-dev", fuzzing.is_there())
    return fuzzing.build(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """The programs for sounds and pictures alone, which need nothing of TVM and so little time."""
    require("a compiler with a fuzzer", "clang libclang-rt-14-dev", fuzzing.is_there())
    folder = tmp_path_factory.mktemp("readers")
    for room, parser in (("sounds", "sounds"), ("pictures", "decoders"), ("pictures", "pictures")):
        rooms = [resources.RUNTIME / name for name in ("steps", room)]
        sources = [path for each in rooms for path in sorted(each.glob("*.cc")) if path.name != "host.cc"]
        command = [fuzzing.COMPILER, "-std=c++17", "-O1", "-fsanitize=fuzzer,address,undefined"]
        command += ["-fno-sanitize-recover=all", f"-I{resources.RUNTIME}", f"-I{fuzzing.SOURCES}", *sources]
        command += [fuzzing.SOURCES / "parsers" / f"{parser}.cc", "-ldl", "-o", folder / parser]
        subprocess.run(command, check=True)
    return folder


@pytest.mark.parametrize("parser", ["sounds", "decoders", "pictures"])
@pytest.mark.parametrize("runs", [10_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def test_no_file_makes_its_reader_fail(readers, tmp_path, runs, parser):
    run = fuzzing.run(readers, parser, tmp_path, [f"-runs={runs}"])
    assert run.findings == (), run.log
    assert run.executions >= runs


@pytest.mark.nightly
@pytest.mark.parametrize("parser", fuzzing.parsers())
def test_no_input_makes_a_parser_fail(programs, parser, tmp_path):
    run = fuzzing.run(programs, parser, tmp_path, ["-runs=2000"])
    assert run.findings == (), run.log
    assert run.executions >= 2000


def test_each_parser_has_inputs_to_start_from():
    folders = {path.name for path in fuzzing.SEEDS.iterdir()}
    assert folders == set(fuzzing.parsers())
    assert all(any((fuzzing.SEEDS / name).iterdir()) for name in folders)


FAULTY = """
#include <cstddef>
#include <cstdint>
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { return size > 3 ? data[size] & 0 : 0; }
"""


def test_a_finding_is_told_with_its_file(tmp_path):
    require("a compiler with a fuzzer", "clang libclang-rt-14-dev", fuzzing.is_there())
    (tmp_path / "faulty.cc").write_text(FAULTY)
    command = [fuzzing.COMPILER, "-fsanitize=fuzzer,address", tmp_path / "faulty.cc", "-o", tmp_path / "json"]
    subprocess.run(command, check=True)
    run = fuzzing.run(tmp_path, "json", tmp_path, ["-runs=2000"])
    assert len(run.findings) == 1, run.log
    assert run.findings[0].is_file()
    assert str(run.findings[0]) in run.line()
    assert "heap-buffer-overflow" in run.log


def test_a_parser_that_there_is_not_is_named():
    command = [sys.executable, "-m", "tests.support.fuzzing", "--only", "json,jason"]
    completed = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert completed.returncode == 2
    assert "there is no parser jason: there are" in completed.stderr
