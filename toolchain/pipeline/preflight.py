"""Everything that can be checked before a build is checked first, in seconds, and all problems are reported together.

A build takes minutes; a device that is off, busy or of another type, or a missing file of labels, is found without it.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from toolchain import board as boards
from toolchain import bundle, files, registry
from toolchain.adoption import needs, obstacles
from toolchain.architecture import GLIBC, MACHINES, is_android
from toolchain.board import Board
from toolchain.bundle import Bundle
from toolchain.checks import Check, Checklist
from toolchain.device import fit, probe, verification
from toolchain.device.connected import ConnectedDevice
from toolchain.device.probe import DeviceProbe
from toolchain.device.probe.facts import DeviceFacts
from toolchain.errors import FullError, InputError, MismatchError
from toolchain.models import inputs
from toolchain.native import cross, elf, programs
from toolchain.pipeline import device_programs
from toolchain.pipeline.source import BundleSource, Loaded, is_built

Connect = Callable[[], AbstractContextManager[ConnectedDevice]]

Subject = TypeVar("Subject", Bundle, Loaded)

_SPARE_KIB = 1024
_RUNNER_KIB = 3 << 10  # the smallest runner
_MIN_FREE = 64 << 20
_MAX_SHRINK = 4  # a network of floats may become this many times smaller than its file: float32 to int8


@dataclass(frozen=True)
class DeviceFindings:
    """The answers of a device."""

    facts: DeviceFacts
    models: frozenset[str]  # names of the models that it keeps releases of
    has_runner: bool = True
    probed: DeviceProbe | None = None  # hardware beside the CPU; None if the device is of another type or lacks a tool
    fits: bool = True  # whether it is what its board file says


@dataclass(frozen=True)
class Checked(Generic[Subject]):
    """The results of a command's checks."""

    subject: Subject  # the model as it was read, or the bundle
    triple: str  # of our programs for the device; the board type's if no device was asked


# --- the checks of commands ------------------------------------------------------------------------------------------


def before_build(source: BundleSource, connect: Connect | None = None, labels: Path | None = None) -> Checked[Loaded]:
    """Check everything that a build needs, and the device if it can be asked."""
    checks = Checklist()
    _check_host(checks, source.request.board)
    model = checks.find(Check("model", source.load))
    device = _check_run(checks, source, model, connect, labels)
    loaded = checks.passed(model)
    _check_compiler(checks, source)
    if connect:
        checks.find(Check("half precision", partial(_check_half, source, loaded, connect)))
    return Checked(checks.passed(loaded), _program_triple(source, device))


def before_compile(source: BundleSource) -> Loaded:
    """Check everything that a build without a device needs; return the model as it was read."""
    checks = Checklist()
    checks.find(Check("this machine", check_room))
    model = checks.passed(checks.find(Check("model", source.load)))
    _check_compiler(checks, source)
    return checks.passed(model)


def before_deploy(
    source: BundleSource, folder: Path, connect: Connect, labels: Path | None = None
) -> Checked[Bundle] | Checked[Loaded]:
    """Check everything that a deploy needs.

    A package is unpacked or pulled into `folder`.
    """
    if not is_built(source.request.model.source):
        return before_build(source, connect, labels)
    checks = Checklist()
    _check_host(checks, source.request.board)
    opened = checks.find(Check("bundle", partial(_open_bundle, source, folder)))
    device = _check_run(checks, source, opened, connect, labels)
    bundle = checks.passed(opened)
    checks.find(Check("half precision", partial(_check_half, source, bundle, connect)))
    return Checked(checks.passed(bundle), _program_triple(source, device))


def before_bench(board: Board, device: ConnectedDevice) -> None:
    """Check a device that is to be measured."""
    checks = Checklist()
    checks.find(_programs_check(board))
    _check_library(checks, board, _check_device(checks, board, lambda: contextlib.nullcontext(device)))
    checks.raise_faults()


def before_serving(board: Board, connect: Connect) -> None:
    """Check a device on which a board server is to be started."""
    checks = Checklist()
    _check_host(checks, board)
    _check_library(checks, board, _check_device(checks, board, connect))
    checks.raise_faults()


def before_survey(sources: Sequence[BundleSource], connect: Connect) -> None:
    """Check everything that a survey and each of its networks need."""
    checks = Checklist()
    board = sources[0].request.board
    _check_host(checks, board)
    for source in sources:
        checks.find(Check(source.request.model.source, source.load))
    # A missing library is one of the survey's results.
    _check_device(checks, board, connect)
    checks.raise_faults()
    _check_compiler(checks, sources[0])
    checks.raise_faults()


# --- the parts of them -----------------------------------------------------------------------------------------------


def _check_host(checks: Checklist, board: Board) -> None:
    checks.find(Check("this machine", check_host))
    checks.find(_programs_check(board))


def _programs_check(board: Board) -> Check[None]:
    return Check("device programs", partial(programs.check, board.triple))


def _check_run(
    checks: Checklist,
    source: BundleSource,
    subject: Bundle | Loaded | None,
    connect: Connect | None,
    labels: Path | None,
) -> DeviceFindings | None:
    """Check the device, whether the model or bundle fits it, and the class names; return what the device is."""
    device = None
    if connect:
        device = _check_device(checks, source.request.board, connect)
        _check_library(checks, source.request.board, device)
        if subject and device and device.fits:
            checks.find(Check("fit", partial(_check_fit, subject, device)))
        if device and device.fits:
            checks.find(Check("threads", partial(_check_threads, source.request.threads, device.facts)))
    if labels:
        checks.find(Check("labels", partial(_check_labels, labels, subject)))
    return device


def _program_triple(source: BundleSource, device: DeviceFindings | None) -> str:
    triple = source.request.board.triple
    return device.facts.program_triple(triple) if device else triple


def _check_compiler(checks: Checklist, source: BundleSource) -> None:
    """Check that LLVM knows the board's target, and that a compiler or an image can link its libraries; in seconds."""
    checks.find(Check("target", source.check_possible))
    linker = partial(cross.choose, source.request.board, source.request.toolchain)
    checks.find(Check("compiler", lambda: linker().describe()))


def _check_device(checks: Checklist, board: Board, connect: Connect) -> DeviceFindings | None:
    """Ask a device what it is, and whether it is in use, and compare it with its board file."""
    device = checks.find(Check("device", partial(_ask_device, board, connect)))
    if not device:
        return None
    facts = checks.find(Check("board", partial(check_board, board, device.facts)))
    return replace(device, fits=facts is not None)


def _ask_device(board: Board, connect: Connect) -> DeviceFindings:
    with connect() as device:
        facts = device.store.facts()
        device.store.check_free()
        probed = None
        if not facts.lacks and facts.machine == board.machine:  # other checks report these two
            probed = probe.ask(device.shell, device.store.folder)
            obstacles.check_use(probed, f"--root {obstacles.ANOTHER_ROOT}")
        has_runner = bool(device.store.look_at_store('ls "$ROOT"/runners 2>/dev/null || :').split())
        slots = device.store.releases.in_each_slot()  # which share their blobs
        models = frozenset(generation.name for generations in slots.values() for generation in generations)
        return DeviceFindings(facts, models, has_runner, probed)


def _check_library(checks: Checklist, board: Board, device: DeviceFindings | None) -> None:
    if device:
        checks.find(Check("library", partial(needs.check_library, board, device.probed)))


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


def check_board(board: Board, facts: DeviceFacts) -> DeviceFacts:
    """Refuse a device that is not what its board file says; return its facts.

    Raises:
        MismatchError: It has another machine, C library or CPU.
        DeviceError: It lacks programs that the store needs.
    """
    if facts.machine != board.machine:
        fitting = [name for name in boards.names() if boards.load(name).machine == facts.machine]
        raise MismatchError(
            f"board {board.name} is for {board.machine}, and the device is {facts.machine}",
            details=f"boards for {facts.machine}: {', '.join(fitting)}" if fitting else "",
            hint="use --board with the board type of this device; `toolchain board list` lists them"
            if facts.machine in MACHINES
            else f"a device needs a processor that is supported: {', '.join(MACHINES)}",
        )
    fit.check_tools(facts)
    if not is_android(board.triple):
        _check_c_library(facts)
    if missing := [flag for flag in board.cpu_features if flag not in facts.cpu_features]:
        raise MismatchError(
            f"the device's CPU has no {', '.join(missing)}",
            details=f"board {board.name} builds for {board.target.mcpu}; the device is a {facts.cpu or facts.machine}",
            hint="use --board with a type for an older CPU, or lower target.mcpu in the board file",
        )
    return facts


def _check_c_library(facts: DeviceFacts) -> None:
    if facts.glibc and elf.version_key(facts.glibc) < elf.version_key(GLIBC):
        raise MismatchError(
            f"the device has glibc {facts.glibc}, and glibc {GLIBC} or newer is needed",
            hint="install a system with a newer glibc on the device, such as Debian 10 or later",
        )
    if facts.musl and (fault := fit.musl_fault(facts.machine, facts.musl_version, facts.musl_loaders)):
        raise MismatchError(f"the device has {fault.message}", details=fault.details, hint=fault.hint)


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


def _check_threads(requested: int, facts: DeviceFacts) -> None:
    """Refuse more threads than CPUs, as the runner would after the build."""
    if requested > facts.cpus:
        raise InputError(
            f"{requested} threads, but programs may use {facts.cpus} CPUs of the device",
            hint=f"use at most --threads {facts.cpus}; without --threads the board file decides",
        )


def _check_fit(subject: Bundle | Loaded, device: DeviceFindings) -> None:
    """Refuse a device that cannot run the bundle or the model, or has no room for it."""
    if isinstance(subject, Bundle):
        fit.check_suits(subject.manifest, programs.versions(), device.facts)
        size, name = sum(record.size for record in subject.manifest.files.values()), subject.manifest.name
    else:
        size, name = subject.source.size // _MAX_SHRINK, subject.source.name
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
    requested = fit.RequiredPrecision(board.target.float16, board.target.half_sums)
    needed = fit.RequiredPrecision.of(subject.manifest) if isinstance(subject, Bundle) else requested
    if not needed.float16 or not needs.any_of(board):
        return
    with connect() as device:
        program = device_programs.runner(device.triple, source.stages)
        available = fit.ask_half_precision(
            program, device.shell, device.store, board.target.kind, source.request.progress
        )
        fit.check_half_precision(available, needed, device.shell.name)


def _check_labels(labels: Path, subject: Bundle | Loaded | None) -> None:
    if isinstance(subject, Bundle):
        classes: int | None = subject.manifest.step_outputs[0].elements
    else:
        classes = subject.classes if subject else None
    inputs.read_labels(labels, classes or 1)
