"""The device's C++ runner: built once for a triple and cached, and called on a device."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import secrets
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cmake
from numpy.typing import NDArray

from toolchain import elf, files, tensors
from toolchain.board import Board
from toolchain.cross import HostCross
from toolchain.errors import BuildError, DeviceError
from toolchain.shell import Shell

PROGRAM = "runner"
INPUTS = "inputs.safetensors"
_SOURCES = Path(__file__).parent / "runtime"
_BUILD_TIMEOUT_S = 900.0
_FREE_RUNS = 60.0  # seconds beyond the time budget that loading, warming up and one slow run may take


@dataclass(frozen=True)
class Runner:
    """A built runner with the libraries it needs.

    Attributes:
        folder: Where its files are on this machine.
        files: SHA-256 of each file.
        digest: SHA-256 over all of them, which names its folder on a device.
        glibc: Lowest glibc version that all of them load on.
        machine: What `uname -m` must say on the device.
    """

    folder: Path
    files: Mapping[str, str]
    digest: str
    glibc: str
    machine: str


@dataclass(frozen=True)
class Run:
    """What one call of the runner gave.

    Attributes:
        outputs: Output tensors by name.
        samples_ns: Duration of every timed run in nanoseconds, in order; empty for a smoke run.
        warmup_ns: Durations of the runs before those, at least one.
        load_ms: Time to load library and params.
        threads: Threads the model ran on.
        peak_rss_kib: Largest memory use of the process.
    """

    outputs: Mapping[str, NDArray[Any]]
    samples_ns: tuple[int, ...]
    warmup_ns: tuple[int, ...]
    load_ms: float
    threads: int
    peak_rss_kib: int


@dataclass(frozen=True)
class Plan:
    """How often to run: at least `min_runs` and at most `max_runs` times, until `budget_s` seconds are used up.

    The first run, whose outputs are kept, warms up and is not timed; `warmup_runs` adds more of them.
    """

    budget_s: float = 10.0
    warmup_runs: int = 0
    min_runs: int = 3
    max_runs: int = 10_000


SMOKE = Plan(budget_s=0.0, min_runs=1, max_runs=0)


def build(board: Board) -> Runner:
    """Return the runner for a board, building it if the cache has none for these sources and this compiler.

    Raises:
        BuildError: The compiler is missing or refuses the sources.
    """
    if board.machine != platform.machine():
        raise BuildError(f"there is no runner for {board.machine} yet", hint="build for a board of this machine's kind")
    cross = HostCross(board.triple)
    folder = files.cache_root() / "runners" / f"{board.triple}-{_cache_key(cross)[:16]}"
    if not folder.is_dir():
        _build_into(cross, folder)
    return _described(folder, board.machine)


def _cache_key(cross: HostCross) -> str:
    """Digest everything that decides the result: our sources, the wheels they link with, and the compiler."""
    sources = {str(path.relative_to(_SOURCES)): files.sha256_file(path) for path in _source_files()}
    wheels = {name: importlib.metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")}
    return files.sha256_bytes(files.canonical_json([sources, wheels, cross.describe().compiler]))


def _source_files() -> list[Path]:
    return sorted(path for path in _SOURCES.rglob("*") if path.is_file() and path.suffix in {".cc", ".h", ".txt"})


def _package_folder(name: str) -> Path:
    """Find an installed package's folder without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise BuildError(f"the Python package {name} is not installed", hint="make setup")
    return Path(spec.origin).parent


def _build_into(cross: HostCross, folder: Path) -> None:
    """Configure and build aside, then put the result in place by one rename: a second builder does no harm."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    program = Path(cmake.CMAKE_BIN_DIR) / "cmake"
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder.parent) as work:
        tree, staged = Path(work) / "build", Path(work) / "staged"
        definitions = {
            "CMAKE_CXX_COMPILER": cross.compiler,
            "TVM_ROOT": str(_package_folder("tvm")),
            "TVM_FFI_ROOT": str(_package_folder("tvm_ffi")),
            "TVM_VERSION": importlib.metadata.version("apache-tvm"),
            "TVM_FFI_VERSION": importlib.metadata.version("apache-tvm-ffi"),
            "RUNNER_WITH_EXTRA": "ON",
        }
        flags = [f"-D{key}={value}" for key, value in definitions.items()]
        cross.run([program, "-S", _SOURCES, "-B", tree, "-G", "Unix Makefiles", *flags], timeout=_BUILD_TIMEOUT_S)
        jobs = str(os.cpu_count() or 1)
        cross.run([program, "--build", tree, "--parallel", jobs], timeout=_BUILD_TIMEOUT_S)
        cross.run([program, "--install", tree, "--prefix", staged], timeout=_BUILD_TIMEOUT_S)
        os.sync()  # or a power cut after the rename would leave a truncated runner in the cache for good
        with contextlib.suppress(OSError):  # another builder was first
            staged.replace(folder)
    if not folder.is_dir():
        raise BuildError(
            f"the built runner cannot be moved to {folder}", hint="set TOOLCHAIN_CACHE to a folder of yours"
        )


def _described(folder: Path, machine: str) -> Runner:
    found = {path.name: files.sha256_file(path) for path in sorted(folder.iterdir())}
    glibc = max((elf.minimum_glibc(folder / name) for name in found), key=lambda text: elf.version_key(text or "0"))
    return Runner(folder, found, files.sha256_bytes(files.canonical_json(found)), glibc, machine)


def call(  # noqa: PLR0913 - one call has these independent parts
    shell: Shell, root: str, places: Mapping[str, str], *, release: str, threads: int, plan: Plan
) -> Run:
    """Run a release on a device.

    Args:
        shell: The device.
        root: The store's root on the device.
        places: Folders on the device that hold the runner (`runners`) and the inputs (`inputs`).
        release: Folder of the release on the device.
        threads: Threads; 0 leaves it to the runner, which takes every CPU.
        plan: How often.

    Raises:
        DeviceError: The runner failed; its own words are in the details.
    """
    scratch = f"{root}/run/{secrets.token_hex(8)}"
    argv = [f"{places['runners']}/{PROGRAM}", "--release", release, "--inputs", f"{places['inputs']}/{INPUTS}"]
    argv += ["--outputs", f"{scratch}/outputs", "--report", f"{scratch}/report"]
    argv += ["--warmup-runs", str(plan.warmup_runs), "--min-runs", str(plan.min_runs)]
    argv += ["--max-runs", str(plan.max_runs), "--budget-ms", str(round(plan.budget_s * 1000))]
    argv += ["--threads", str(threads)] if threads else []
    try:
        return _called(shell, argv, scratch, plan)
    finally:
        shell.run(f"rm -rf {shlex.quote(scratch)}", check=False)


def _called(shell: Shell, argv: list[str], scratch: str, plan: Plan) -> Run:
    # A slow network may need minutes for its first run; what is endless is ended by this limit all the same.
    limit = _FREE_RUNS * 10 + plan.budget_s * 10
    place = shlex.quote(scratch)
    result = shell.run(f"mkdir -p {place} && {shlex.join(argv)} && cat {place}/report", timeout=limit, check=False)
    if result.returncode != 0:
        raise DeviceError(
            f"the model does not run on {shell.name}",
            details=result.stderr.strip() or f"the runner ended with code {result.returncode}",
            hint="the device keeps the release that it had",
        )
    report = json.loads(result.stdout)
    with tempfile.TemporaryDirectory(prefix="toolchain-") as folder:
        outputs = Path(folder) / "outputs.safetensors"
        shell.pull(f"{scratch}/outputs", outputs)
        loaded = tensors.load(outputs)
    return Run(
        outputs=loaded,
        samples_ns=tuple(report["samples_ns"]),
        warmup_ns=(round(report["first_run_ms"] * 1e6), *report["warmup_ns"]),
        load_ms=report["load_ms"],
        threads=report["threads"],
        peak_rss_kib=report["peak_rss_kib"],
    )
