"""What can be known before a build is found out first, in seconds, and told together.

A build for a board takes minutes. That the device is off, of another machine or busy, that its name is misspelt or that
a file of labels is missing, is known without it.
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
from toolchain.adoption.probe import Probed
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
"""Connects to the device."""

_SPARE_KIB = 1024
_LIBRARY = "library"
_RUNNER_KIB = 3 << 10  # the smallest runner
_LEAST_FREE = 64 << 20
_QUANTIZED = 4  # times smaller than its file a network of floats may get on its way


@dataclass(frozen=True)
class Check:
    """One thing that is looked at before the work.

    Attributes:
        name: What is looked at, in a word or two.
        find: Returns what was found, for the checks that come after; takes what those before it found, by name.
        after: Names of the checks without whose findings it makes no sense.
        slow: Whether it takes seconds, so that it is left out where something else is wrong.
    """

    name: str
    find: Callable[[Mapping[str, Any]], Any]
    after: tuple[str, ...] = ()
    slow: bool = False


@dataclass(frozen=True)
class Seen:
    """What a device says of itself.

    Attributes:
        facts: What its store runs on.
        kept: Names of the models that it keeps releases of.
        has_runner: Whether it has a runner.
        probed: What it has beside its CPU; None if it is no board of its type, or lacks a tool.
    """

    facts: DeviceFacts
    kept: frozenset[str]
    has_runner: bool = True
    probed: Probed | None = None


def run(checks: Sequence[Check]) -> dict[str, Any]:
    """Do all checks that can be done, in order, the slow ones last; return their findings by name.

    Raises:
        ToolchainError: The only fault; or all of them in one, of the class of the first.
    """
    found: dict[str, Any] = {}
    for slow in (False, True):
        if faults := _faults([check for check in checks if check.slow is slow], found):
            raise _together(faults)
    return found


def _faults(checks: Sequence[Check], found: dict[str, Any]) -> dict[str, ToolchainError]:
    """Do checks, add their findings to those of others, and return what is wrong."""
    faults: dict[str, ToolchainError] = {}
    for check in checks:
        if not found.keys() >= set(check.after):
            continue
        try:
            found[check.name] = check.find(found)
        except ToolchainError as fault:
            faults[check.name] = fault
    return faults


def _together(faults: Mapping[str, ToolchainError]) -> ToolchainError:
    first, *others = faults.values()
    if not others:
        return first
    parts = [_described(name, fault) for name, fault in faults.items()]
    return type(first)(f"{len(faults)} problems: {', '.join(faults)}", details="\n".join(parts), hint=first.hint)


def _described(name: str, fault: ToolchainError) -> str:
    lines = [f"{name}: {fault.message}", *fault.details.splitlines()]
    return "\n  ".join([*lines, f"hint: {fault.hint}"] if fault.hint else lines)


# --- the checks of commands ------------------------------------------------------------------------------------------


def before_build(source: BundleSource, connect: Connect | None = None, labels: Path | None = None) -> Loaded:
    """Check all that a build needs, and the device that it is for.

    Args:
        source: What will be built or opened.
        connect: Connects to the device; None if there is none to ask.
        labels: File of class names.

    Returns:
        The model as it was read, for `BundleSource.build`.
    """
    ready: Loaded = run([*_of_host(source), *_of_model(source), *_of_run(source, "model", connect, labels)])["model"]
    return ready


def before_compile(source: BundleSource) -> Loaded:
    """Check all that a build for no device in particular needs; the model is returned as it was read."""
    ready: Loaded = run([Check("this machine", lambda _: check_room()), *_of_model(source)])["model"]
    return ready


def before_deploy(source: BundleSource, folder: Path, connect: Connect, labels: Path | None = None) -> Bundle | Loaded:
    """Check all that a deploy needs; as `before_build`, but for a package or a bundle too.

    Args:
        source: What will be built or opened.
        folder: Where a package is unpacked or pulled to.
        connect: Connects to the device.
        labels: File of class names.

    Returns:
        The model as it was read, or the bundle, for `BundleSource.obtain`.
    """
    if not is_built(source.request.model.source):
        return before_build(source, connect, labels)
    open_bundle = Check("bundle", lambda _: _fitting_bundle(source, folder))
    ready: Bundle = run([*_of_host(source), open_bundle, *_of_run(source, "bundle", connect, labels)])["bundle"]
    return ready


def before_bench(kind: Board, device: ConnectedDevice) -> None:
    """Check an connect device that is to be measured."""
    run([*_of_programs(kind), *of_device(kind, lambda: contextlib.nullcontext(device))])


def before_serving(kind: Board, connect: Connect) -> None:
    """Check a device that a board server is to be started on."""
    run([Check("this machine", lambda _: check_host()), *_of_programs(kind), *of_device(kind, connect)])


def before_survey(sources: Sequence[BundleSource], connect: Connect) -> None:
    """Check all that a survey needs, each of its networks among it; a missing library is one of its results."""
    first = sources[0]
    device = [check for check in of_device(first.request.board, connect) if check.name != _LIBRARY]
    models = [Check(source.request.model.source, lambda _, source=source: source.load()) for source in sources]  # type: ignore[misc]
    run([*_of_host(first), *of_compiler(first), *models, *device])


def _of_model(source: BundleSource) -> list[Check]:
    return [*of_compiler(source), Check("model", lambda _: source.load())]


def _of_host(source: BundleSource) -> list[Check]:
    return [Check("this machine", lambda _: check_host()), *_of_programs(source.request.board)]


def _of_programs(kind: Board) -> list[Check]:
    return [Check("device programs", lambda _: programs.check(kind.triple))]


def _of_run(source: BundleSource, what: str, connect: Connect | None, labels: Path | None) -> list[Check]:
    """Look at the device that something runs on, at how it fits there, and at the names of its classes."""
    checks = of_device(source.request.board, connect) if connect else []
    if connect:
        checks.append(Check("fit", lambda found: _check_fit(found[what], found["device"]), (what, "board")))
        after = (what, "board", _LIBRARY)
        half = Check("half precision", lambda found: _check_half(source, found[what], connect), after, slow=True)
        checks.append(half)
    if labels:
        checks.append(Check("labels", lambda found: _check_labels(labels, found.get(what))))
    return checks


def of_compiler(source: BundleSource) -> list[Check]:
    """Ask LLVM for the board's target, and look for what links its libraries: a compiler here, or an image."""
    return [
        Check("target", lambda _: source.check_possible(), slow=True),
        Check("compiler", lambda _: cross.choose(source.request.board, source.request.toolchain).describe(), slow=True),
    ]


def of_device(kind: Board, connect: Connect) -> list[Check]:
    """Ask a device what it is, and whether somebody else is at work on it.

    Args:
        kind: The board type that it is said to be of.
        connect: Connects to it.
    """

    def ask(_: Mapping[str, Any]) -> Seen:
        with connect() as device:
            facts = device.store.facts()
            device.store.check_free()
            probed = _probed(kind, device, facts)
            has_runner = bool(device.store.look('ls "$ROOT"/runners 2>/dev/null || :').split())
            return Seen(facts, frozenset(one.name for one in device.store.generations()), has_runner, probed)

    return [
        Check("device", ask),
        Check("board", lambda found: check_board(kind, found["device"].facts), ("device",)),
        Check(_LIBRARY, lambda found: needs.check_library(kind, found["device"].probed), ("device",)),
    ]


def _probed(kind: Board, device: ConnectedDevice, facts: DeviceFacts) -> Probed | None:
    """Look at the rest of a device, and refuse a folder where nothing can be run."""
    if facts.lacks or facts.machine != kind.machine:
        return None  # which says more
    found = probe.ask(device.shell, device.store.root)
    obstacles.check_use(found, f"--root {obstacles.ANOTHER_ROOT}")
    return found


def check_host() -> None:
    """See that this machine has room for what is built, and lets it be written.

    Raises:
        InputError: The cache or the folder for temporary files cannot be written, or is full.
    """
    _check_free(files.check_cache(), "TOOLCHAIN_CACHE")
    check_room()


def check_room() -> None:
    """See that there is room for temporary files: LLVM ends the whole process where it cannot write.

    Raises:
        InputError: There is not.
    """
    _check_free(Path(tempfile.gettempdir()), "TMPDIR")


def _check_free(folder: Path, variable: str) -> None:
    limit, _hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    free = shutil.disk_usage(folder).free
    free = free if limit == resource.RLIM_INFINITY else min(free, limit)
    if free < _LEAST_FREE:
        raise InputError(
            f"{folder} has {free >> 20} MiB left, and a build needs {_LEAST_FREE >> 20} MiB",
            hint=f"free some space there, set {variable} to a folder on another disk, or raise `ulimit -f`",
        )


def check_board(kind: Board, facts: DeviceFacts) -> None:
    """Refuse a device that is not what its board file says.

    Raises:
        MismatchError: It has another machine, C library or CPU.
        DeviceError: It lacks programs that the store needs.
    """
    if facts.machine != kind.machine:
        fitting = [name for name in boards.names() if boards.load(name).machine == facts.machine]
        raise MismatchError(
            f"board {kind.name} is for {kind.machine}, and the device is {facts.machine}",
            details=f"boards for {facts.machine}: {', '.join(fitting)}" if fitting else "",
            hint="use --board with the board type of this device; `toolchain boards` lists them",
        )
    fit.check_tools(facts)
    _check_c_library(kind, facts)
    if missing := [flag for flag in kind.cpu_features if flag not in facts.cpu_features]:
        raise MismatchError(
            f"the device's CPU has no {', '.join(missing)}",
            details=f"board {kind.name} builds for {kind.target.mcpu}; the device is a {facts.cpu or facts.machine}",
            hint="use --board with a type for an older CPU, or lower target.mcpu in the board file",
        )


def _check_c_library(kind: Board, facts: DeviceFacts) -> None:
    needed = programs.GLIBC
    if is_android(kind.triple):
        return
    if facts.musl or (facts.glibc and elf.version_key(facts.glibc) < elf.version_key(needed)):
        raise MismatchError(
            f"the device has {'musl' if facts.musl else f'glibc {facts.glibc}'}, and glibc {needed} or newer is needed",
            hint="install a system with a newer glibc on the device, such as Debian 10 or later",
        )


def _fitting_bundle(source: BundleSource, folder: Path) -> Bundle:
    made = source.obtain(folder)
    bundle.check_board(made.manifest, source.request.board, _as_path(source.request.model.source))
    verification.check_referenced(made, unchecked=source.unchecked)
    return made


def _as_path(source: str) -> str:
    """Name what a word stands for that is a folder or a file here, and could be taken for a model's name."""
    path = Path(source)
    if registry.is_address(source) or not path.exists():
        return ""
    shown = source if "/" in source else f"./{source}"
    return f"the {'bundle' if path.is_dir() else 'package'} {shown}"


def _check_fit(ready: Bundle | Loaded, seen: Seen) -> None:
    """Refuse a device that cannot run what is there, or surely has no room for it."""
    if isinstance(ready, Bundle):
        fit.check_suits(ready.manifest, programs.versions(), seen.facts)
        size, name = sum(record.size for record in ready.manifest.files.values()), ready.manifest.name
    else:
        size, name = ready.source.proto.ByteSize() // _QUANTIZED, ready.source.name
    needed = size // 1024 + _SPARE_KIB + (0 if seen.has_runner else _RUNNER_KIB)
    if needed > seen.facts.free_kib and name not in seen.kept:  # of a release that it keeps it may have all blobs
        free, wanted = seen.facts.free_kib / 1024, needed / 1024
        raise FullError(
            f"the device has {free:.1f} MiB free, and {name} needs {wanted:.1f} MiB or more",
            hint="free some space there, or keep fewer releases (`keep` in the board file)",
        )


def _check_half(source: BundleSource, ready: Bundle | Loaded, connect: Connect) -> None:
    """Refuse a device that lacks what kernels in half precision need: only a program on the device can ask for it."""
    board = source.request.board
    own = halves.Wanted(board.target.float16, board.target.half_sums)
    wanted = halves.Wanted.of(ready.manifest) if isinstance(ready, Bundle) else own
    if not wanted.float16 or not needs.any_of(board):
        return
    program = device_programs.runner(board, source.stages)
    with connect() as device:
        found = halves.ask(program, device.shell, device.store, board.target.kind, source.request.tell)
        halves.check(found, wanted, device.shell.name)


def _check_labels(labels: Path, ready: Bundle | Loaded | None) -> None:
    inputs.read_labels(labels, (_classes(ready) if ready else None) or 1)


def _classes(ready: Bundle | Loaded) -> int | None:
    return ready.manifest.outputs[0].elements if isinstance(ready, Bundle) else ready.classes
