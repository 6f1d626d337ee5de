"""The parsers of the device's programs under libFuzzer and sanitizers: what `make fuzz` runs.

A parser is a file in `tests/fuzz/parsers`; what it starts from is in `tests/data/fuzz` under its name, with the inputs
that once were findings. What a run adds to that, and what it finds, is in `build/fuzz`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cmake

from tests.support.paths import DATA, ROOT
from toolchain import resources

SOURCES = ROOT / "tests" / "fuzz"
SEEDS = DATA / "fuzz"
PLACE = ROOT / "build" / "fuzz"
COMPILER = "clang++"
_OPTIONS = ("-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1", "-close_fd_mask=3")
_DONE = re.compile(r"#(\d+)\s+DONE +cov: (\d+).* corp: (\d+)/")
_EXECUTIONS = re.compile(r"number_of_executed_units: (\d+)")
_FOUND = re.compile(r"Test unit written to (\S+)")


@dataclass(frozen=True)
class Run:
    """How one parser fared.

    Attributes:
        parser: Its name.
        executions: How many inputs it was given.
        edges: Places between two branches that they reached; 0 after a finding.
        corpus: Inputs that are kept, because each reached something new.
        findings: Files with what it failed on: at most one, with which the run ended.
        log: What the fuzzer said.
    """

    parser: str
    executions: int
    edges: int
    corpus: int
    findings: tuple[Path, ...]
    log: str

    def line(self) -> str:
        """Return a row of the table."""
        paths = ", ".join(str(path) for path in self.findings) or "nothing"
        return f"{self.parser:20}{self.executions:>14,}{self.edges:>8}{self.corpus:>8}  {paths}"


def parsers() -> list[str]:
    """Return the names of all."""
    return sorted(path.stem for path in (SOURCES / "parsers").glob("*.cc"))


def is_there() -> bool:
    """Whether this machine has clang with libFuzzer and the sanitizers."""
    if shutil.which(COMPILER) is None:
        return False
    completed = subprocess.run([COMPILER, "-print-runtime-dir"], check=False, capture_output=True, text=True)
    return any(Path(completed.stdout.strip()).glob("libclang_rt.fuzzer*"))


def build(folder: Path, *, coverage: bool = False) -> Path:
    """Compile a program for each parser; returns the folder in which they are."""
    tool = Path(cmake.CMAKE_BIN_DIR) / "cmake"
    command = [f"-DCMAKE_CXX_COMPILER={COMPILER}", f"-DTVM_FFI_ROOT={resources.package_folder('tvm_ffi')}"]
    command.append(f"-DTVM_ROOT={resources.package_folder('tvm')}")
    command.append(f"-DZIG={resources.package_folder('ziglang') / 'zig'}")
    command.append(f"-DCOVERAGE={'ON' if coverage else 'OFF'}")
    subprocess.run([tool, "-S", SOURCES, "-B", folder, *command], check=True, stdout=subprocess.DEVNULL)
    jobs = str(len(os.sched_getaffinity(0)))
    subprocess.run([tool, "--build", folder, "--parallel", jobs], check=True, stdout=subprocess.DEVNULL)
    return folder


def run(programs: Path, parser: str, place: Path, limits: Sequence[str]) -> Run:
    """Fuzz one parser.

    Args:
        programs: Where `build` put them.
        parser: Its name.
        place: Where what is found, and what reaches something new, is kept from run to run.
        limits: When to end, as libFuzzer's options.
    """
    corpus, findings = place / "corpus" / parser, place / "findings" / parser
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    options = [*_OPTIONS, *limits, f"-artifact_prefix={findings}/"]
    dictionary = SOURCES / "words" / f"{parser}.dict"
    options += [f"-dict={dictionary}"] if dictionary.exists() else []
    command = [programs / parser, *options, corpus, SEEDS / parser, findings]  # what was found once is tried again
    log = place / f"{parser}.log"
    with log.open("wb") as file:
        code = subprocess.run(command, check=False, stdout=file, stderr=subprocess.STDOUT).returncode
    return _read(parser, code, log.read_text(errors="replace"))


def _read(parser: str, code: int, log: str) -> Run:
    executions, end = _EXECUTIONS.search(log), _DONE.search(log)
    edges, corpus = (int(end[2]), int(end[3])) if end else (0, 0)
    findings = tuple(Path(name) for name in _FOUND.findall(log))
    if code and not findings:  # it did not even begin
        raise RuntimeError(f"{parser}: exit code {code}\n{log}")
    return Run(parser, int(executions[1]) if executions else 0, edges, corpus, findings, log)


def main() -> int:
    """Fuzz each parser, or some, one after the other; returns 1 if there are findings."""
    reader = argparse.ArgumentParser(description="Fuzz the parsers of the device's programs.")
    reader.add_argument("--seconds", type=int, default=60, help="for each parser")
    reader.add_argument("--only", default="", help=f"names, with commas in between, of {', '.join(parsers())}")
    options = reader.parse_args()
    chosen = options.only.split(",") if options.only else parsers()
    if unknown := set(chosen) - set(parsers()):
        reader.error(f"there is no parser {', '.join(sorted(unknown))}: there are {', '.join(parsers())}")
    if not is_there():
        reader.error("clang with libFuzzer is missing: install the packages clang and libclang-rt-14-dev")
    return _fuzz(chosen, options.seconds)


def _fuzz(chosen: Sequence[str], seconds: int) -> int:
    programs, failed = build(PLACE / "programs"), False
    sys.stdout.write(f"{'parser':20}{'executions':>14}{'edges':>8}{'corpus':>8}  found\n")
    for parser in chosen:
        finished = run(programs, parser, PLACE, [f"-max_total_time={seconds}"])
        sys.stdout.write(finished.line() + "\n")
        sys.stdout.flush()
        if finished.findings:
            failed = True
            sys.stderr.write(finished.log)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
