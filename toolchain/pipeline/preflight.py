"""Everything that can be checked before a build is checked first, in seconds, and all problems are reported together.

A build takes minutes; a device that is off, busy or of another type, or a missing file of labels, is found without it.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import board as boards
from toolchain import bundle, files, registry
from toolchain.adoption import needs, obstacles, probe
from toolchain.adoption.probe import DeviceProbe
from toolchain.board import Board
from toolchain.bundle import Bundle
from toolchain.device import fit, halves, verification
from toolchain.device.connected import ConnectedDevice
from toolchain.device.store import DeviceFacts
from toolchain.errors import FullError, InputError, MismatchError, ToolchainError
from toolchain.models import inputs
from toolchain.native import cross, elf, programs
from toolchain.native.linker import is_android
from toolchain.pipeline import device_programs
from toolchain.pipeline.source import BundleSource, Loaded, is_built

Connect = Callable[[], AbstractContextManager[ConnectedDevice]]

_SPARE_KIB = 1024
_LIBRARY = "library"
_RUNNER_KIB = 3 << 10  # the smallest runner
_MIN_FREE = 64 << 20
_MAX_SHRINK = 4  # a network of floats may become this many times smaller than its file: float32 to int8


@dataclass(frozen=True)
class Check:
    """One check before the work begins."""

    name: str  # one or two words
    # Returns its finding for later checks, or raises; takes the findings of earlier ones, by name
    find: Callable[[Mapping[str, Any]], Any]
    after: tuple[str, ...] = ()  # names of the checks whose findings it needs
    slow: bool = False  # whether it takes seconds, so that it is skipped if something else is wrong


@dataclass(frozen=True)
class DeviceFindings:
    """The answers of a device."""

    facts: DeviceFacts
    models: frozenset[str]  # names of the models that it keeps releases of
    has_runner: bool = True
    probed: DeviceProbe | None = None  # hardware beside the CPU; None if the device is of another type or lacks a tool


def run(checks: Sequence[Check]) -> dict[str, Any]:
    """Run the checks in order, the slow ones last; return their findings by name.

    A check is skipped if one that it depends on has failed.

    Raises:
        ToolchainError: The only fault; or all of them in one error, of the class of the first.
    """
    findings: dict[str, Any] = {}
    for slow in (False, True):
        faults: dict[str, ToolchainError] = {}
        for check in checks:
            if check.slow is not slow or not findings.keys() >= set(check.after):
                continue
            try:
                findings[check.name] = check.find(findings)
            except ToolchainError as fault:
                faults[check.name] = fault
        if len(faults) == 1:
            raise next(iter(faults.values()))
        if faults:
            first, texts = next(iter(faults.values())), []
            for name, problem in faults.items():
                lines = [f"{name}: {problem.message}", *problem.details.splitlines()]
                texts.append("\n  ".join([*lines, f"hint: {problem.hint}"] if problem.hint else lines))
            message = f"{len(faults)} problems: {', '.join(faults)}"
            raise type(first)(message, details="\n".join(texts), hint=first.hint)
    return findings


# --- the checks of commands ------------------------------------------------------------------------------------------


def before_build(source: BundleSource, connect: Connect | None = None, labels: Path | None = None) -> Loaded:
    """Check everything that a build needs, and the device if it can be asked; return the model as it was read."""
    loaded: Loaded = run(
        [*_host_checks(source), *_model_checks(source), *_run_checks(source, "model", connect, labels)]
    )["model"]
    return loaded


def before_compile(source: BundleSource) -> Loaded:
    """Check everything that a build without a device needs; return the model as it was read."""
    loaded: Loaded = run([Check("this machine", lambda _: check_room()), *_model_checks(source)])["model"]
    return loaded


def before_deploy(source: BundleSource, folder: Path, connect: Connect, labels: Path | None = None) -> Bundle | Loaded:
    """Check everything that a deploy needs; return the model as it was read, or the bundle.

    A package is unpacked or pulled into `folder`.
    """
    if not is_built(source.request.model.source):
        return before_build(source, connect, labels)
    opening = Check("bundle", lambda _: _open_bundle(source, folder))
    opened: Bundle = run([*_host_checks(source), opening, *_run_checks(source, "bundle", connect, labels)])["bundle"]
    return opened


def before_bench(board: Board, device: ConnectedDevice) -> None:
    """Check a device that is to be measured."""
    run([*_program_checks(board), *_device_checks(board, lambda: contextlib.nullcontext(device))])


def before_serving(board: Board, connect: Connect) -> None:
    """Check a device on which a board server is to be started."""
    run([Check("this machine", lambda _: check_host()), *_program_checks(board), *_device_checks(board, connect)])


def before_survey(sources: Sequence[BundleSource], connect: Connect) -> None:
    """Check everything that a survey and each of its networks need."""
    first = sources[0]
    # A missing library is one of the survey's results.
    device = [check for check in _device_checks(first.request.board, connect) if check.name != _LIBRARY]
    models = [Check(source.request.model.source, lambda _, source=source: source.load()) for source in sources]  # type: ignore[misc]
    run([*_host_checks(first), *_compiler_checks(first), *models, *device])


def _model_checks(source: BundleSource) -> list[Check]:
    return [*_compiler_checks(source), Check("model", lambda _: source.load())]


def _host_checks(source: BundleSource) -> list[Check]:
    return [Check("this machine", lambda _: check_host()), *_program_checks(source.request.board)]


def _program_checks(board: Board) -> list[Check]:
    return [Check("device programs", lambda _: programs.check(board.triple))]


def _run_checks(source: BundleSource, subject: str, connect: Connect | None, labels: Path | None) -> list[Check]:
    """Check the device, whether the model or bundle fits it, and the class names."""
    checks = _device_checks(source.request.board, connect) if connect else []
    if connect:
        checks.append(
            Check("fit", lambda findings: _check_fit(findings[subject], findings["device"]), (subject, "board"))
        )
        after = (subject, "board", _LIBRARY)
        half = Check(
            "half precision", lambda findings: _check_half(source, findings[subject], connect), after, slow=True
        )
        checks.append(half)
    if labels:
        checks.append(Check("labels", lambda findings: _check_labels(labels, findings.get(subject))))
    return checks


def _compiler_checks(source: BundleSource) -> list[Check]:
    """Check that LLVM knows the board's target, and that a compiler or an image can link its libraries."""
    return [
        Check("target", lambda _: source.check_possible(), slow=True),
        Check("compiler", lambda _: cross.choose(source.request.board, source.request.toolchain).describe(), slow=True),
    ]


def _device_checks(board: Board, connect: Connect) -> list[Check]:
    """Ask a device what it is, and whether it is in use."""

    def ask(_: Mapping[str, Any]) -> DeviceFindings:
        with connect() as device:
            facts = device.store.facts()
            device.store.check_free()
            probed = None
            if not facts.lacks and facts.machine == board.machine:  # other checks report these two
                probed = probe.ask(device.shell, device.store.root)
                obstacles.check_use(probed, f"--root {obstacles.ANOTHER_ROOT}")
            has_runner = bool(device.store.look('ls "$ROOT"/runners 2>/dev/null || :').split())
            models = frozenset(generation.name for generation in device.store.releases.generations())
            return DeviceFindings(facts, models, has_runner, probed)

    return [
        Check("device", ask),
        Check("board", lambda findings: check_board(board, findings["device"].facts), ("device",)),
        Check(_LIBRARY, lambda findings: needs.check_library(board, findings["device"].probed), ("device",)),
    ]


def check_host() -> None:
    """Check that this machine has room for a build.

    Raises:
        InputError: The cache or the folder for temporary files cannot be written, or is full.
    """
    _check_free(files.check_cache(), "TOOLCHAIN_CACHE")
    check_room()


def check_room() -> None:
    """Check that there is room for temporary files: LLVM ends the whole process if it cannot write.

    Raises:
        InputError: There is too little.
    """
    _check_free(Path(tempfile.gettempdir()), "TMPDIR")


def _check_free(folder: Path, variable: str) -> None:
    limit, _hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    free = shutil.disk_usage(folder).free
    free = free if limit == resource.RLIM_INFINITY else min(free, limit)
    if free < _MIN_FREE:
        raise InputError(
            f"{folder} has {free >> 20} MiB left, and a build needs {_MIN_FREE >> 20} MiB",
            hint=f"free some space there, set {variable} to a folder on another disk, or raise `ulimit -f`",
        )


def check_board(board: Board, facts: DeviceFacts) -> None:
    """Refuse a device that is not what its board file says.

    Raises:
        MismatchError: It has another machine, C library or CPU.
        DeviceError: It lacks programs that the store needs.
    """
    if facts.machine != board.machine:
        fitting = [name for name in boards.names() if boards.load(name).machine == facts.machine]
        raise MismatchError(
            f"board {board.name} is for {board.machine}, and the device is {facts.machine}",
            details=f"boards for {facts.machine}: {', '.join(fitting)}" if fitting else "",
            hint="use --board with the board type of this device; `toolchain board list` lists them",
        )
    fit.check_tools(facts)
    is_old = bool(facts.glibc) and elf.version_key(facts.glibc) < elf.version_key(programs.GLIBC)
    if not is_android(board.triple) and (facts.musl or is_old):
        present = "musl" if facts.musl else f"glibc {facts.glibc}"
        raise MismatchError(
            f"the device has {present}, and glibc {programs.GLIBC} or newer is needed",
            hint="install a system with a newer glibc on the device, such as Debian 10 or later",
        )
    if missing := [flag for flag in board.cpu_features if flag not in facts.cpu_features]:
        raise MismatchError(
            f"the device's CPU has no {', '.join(missing)}",
            details=f"board {board.name} builds for {board.target.mcpu}; the device is a {facts.cpu or facts.machine}",
            hint="use --board with a type for an older CPU, or lower target.mcpu in the board file",
        )


def _open_bundle(source: BundleSource, folder: Path) -> Bundle:
    opened = source.obtain(folder)
    name, description = source.request.model.source, ""
    if not registry.is_address(name) and Path(name).exists():
        # A folder or a file could be taken for the model of that name.
        path = name if "/" in name else f"./{name}"
        description = f"the {'bundle' if Path(name).is_dir() else 'package'} {path}"
    bundle.check_board(opened.manifest, source.request.board, description)
    verification.check_referenced(opened, unchecked=source.unchecked)
    return opened


def _check_fit(subject: Bundle | Loaded, device: DeviceFindings) -> None:
    """Refuse a device that cannot run the bundle or the model, or has no room for it."""
    if isinstance(subject, Bundle):
        fit.check_suits(subject.manifest, programs.versions(), device.facts)
        size, name = sum(record.size for record in subject.manifest.files.values()), subject.manifest.name
    else:
        size, name = subject.source.proto.ByteSize() // _MAX_SHRINK, subject.source.name
    needed = size // 1024 + _SPARE_KIB + (0 if device.has_runner else _RUNNER_KIB)
    if needed > device.facts.free_kib and name not in device.models:  # it may have all blobs of an earlier release
        free_mib, needed_mib = device.facts.free_kib / 1024, needed / 1024
        raise FullError(
            f"the device has {free_mib:.1f} MiB free, and {name} needs {needed_mib:.1f} MiB or more",
            hint="free some space there, or keep fewer releases (`keep` in the board file)",
        )


def _check_half(source: BundleSource, subject: Bundle | Loaded, connect: Connect) -> None:
    """Refuse a device that cannot run kernels in half precision; only a program on it can find that out."""
    board = source.request.board
    requested = halves.RequiredPrecision(board.target.float16, board.target.half_sums)
    needed = halves.RequiredPrecision.of(subject.manifest) if isinstance(subject, Bundle) else requested
    if not needed.float16 or not needs.any_of(board):
        return
    program = device_programs.runner(board, source.stages)
    with connect() as device:
        available = halves.ask(program, device.shell, device.store, board.target.kind, source.request.progress)
        halves.check(available, needed, device.shell.name)


def _check_labels(labels: Path, subject: Bundle | Loaded | None) -> None:
    if isinstance(subject, Bundle):
        classes: int | None = subject.manifest.outputs[0].elements
    else:
        classes = subject.classes if subject else None
    inputs.read_labels(labels, classes or 1)
