"""What this machine and a device have and lack for each board, and which command or package brings it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain import files, process, resources
from toolchain.adoption import choice, needs, obstacles
from toolchain.architecture import is_android
from toolchain.board import Board
from toolchain.checks import Check, Outcome
from toolchain.containers import images
from toolchain.device import probe
from toolchain.device.probe import decoders
from toolchain.errors import BuildError, BusyError
from toolchain.native.cross import NDK_VARIABLE, HostCross
from toolchain.progress import size_text
from toolchain.report import Table
from toolchain.shell import Shell
from toolchain.shell.adb.client import VARIABLE as ADB_VARIABLE

if TYPE_CHECKING:
    from toolchain.farm.boards import BoardRequest

_PINS = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
_MIN_FREE = 2e9  # bytes for the cache
_PACKAGE = re.compile(r"apt-get install ([\w.+-]+)")


def render_text(outcomes: Sequence[Outcome]) -> list[str | Table]:
    """Return what is there, and what is missing with its remedy; boards with the same need share a row."""
    present: dict[tuple[str, str], list[str]] = {}
    missing: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        rows, state = (present, outcome.found) if outcome.passed else (missing, outcome.remedy)
        rows.setdefault((outcome.name, state), []).append(outcome.board or "every board")
    tables = [
        Table([(name, state, ", ".join(boards)) for (name, state), boards in rows.items()], head)
        for rows, head in ((present, ("NEEDED", "FOUND", "FOR")), (missing, ("MISSING", "BROUGHT BY", "FOR")))
    ]
    if not missing:
        return [tables[0], "", "nothing is missing"]
    matches = (_PACKAGE.match(outcome.remedy) for outcome in outcomes if not outcome.passed)
    packages = " ".join(dict.fromkeys(match[1] for match in matches if match))
    command = ["", f"all packages at once: apt-get install {packages}"] if packages else []
    return [tables[0], "", tables[1], *command]


def document(outcomes: Sequence[Outcome]) -> list[dict[str, str]]:
    return [
        {"board": outcome.board, "what": outcome.name, "found": outcome.found, "remedy": outcome.remedy}
        for outcome in outcomes
    ]


def examine(boards: Sequence[Board], *, by_adb: bool = False) -> tuple[Outcome, ...]:
    """Check what every board needs, then what each of the given boards needs; with adb, SSH keys are not needed."""
    checks = [
        *(_package(name, version) for name, version in _PINS.items()),
        _program("make"),
        _requirement("2 GB for the cache", _space, "set TOOLCHAIN_CACHE"),
        Check("pictures", partial(decoders.describe, decoders.of_this_machine(), has_packages=True)),
        *(check for board in boards for check in _for_board(board, by_adb=by_adb)),
    ]
    return tuple(check.outcome() for check in checks)


def _requirement(name: str, find: Callable[[], str | None], remedy: str, board: str = "") -> Check[str]:
    """Return the check for what `find` returns; it is missing if that is empty."""

    def probe() -> str:
        if not (found := find()):
            raise BuildError(f"{name} is missing")
        return found

    return Check(name, probe, remedy, board)


def _package(name: str, version: str) -> Check[str]:
    """Look for a package; another version counts as missing: other pairs of these two packages crash."""

    def find() -> str:
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return ""
        return installed if installed == version else ""

    return _requirement(f"{name} {version}", find, resources.REPAIR)


def _space() -> str:
    cache = files.cache_root()
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    return f"{size_text(free)} in {cache}" if free >= _MIN_FREE and os.access(existing, os.W_OK) else ""


def _program(name: str, board: str = "") -> Check[str]:
    return _requirement(name, lambda: shutil.which(name), process.installing(name) or f"install {name}", board)


def _for_board(board: Board, *, by_adb: bool) -> list[Check[str]]:
    resolved, client = board.resolved(), os.environ.get(ADB_VARIABLE) or "adb"
    checks = [_image(resolved) if resolved.toolchain == "container" else _host_linker(resolved)]
    need = partial(_requirement, board=board.name)
    if is_android(resolved.triple):
        remedy = f"set {NDK_VARIABLE}: see {resources.manual('android')}"
        checks.append(need("an Android NDK", lambda: os.environ.get(NDK_VARIABLE), remedy))
    if by_adb:
        checks.append(need(client, lambda: shutil.which(client), process.installing("adb")))
    elif is_android(resolved.triple):  # which is reached by adb, or by an SSH server on the device
        name = "adb, or trusted host keys"
        checks.append(need(name, lambda: shutil.which(client) or _trusted_keys(), process.installing("adb")))
    elif board.connection == "ssh":
        remedy = "ssh-keyscan HOST >> ~/.ssh/known_hosts, after a check"
        checks.append(need("trusted host keys", _trusted_keys, remedy))
    return checks


def _trusted_keys() -> str:
    keys = Path.home() / ".ssh" / "known_hosts"
    return str(keys) if keys.is_file() else ""


def _host_linker(board: Board) -> Check[str]:
    """Look for the compiler of this machine that links a board's libraries, or what takes its place."""
    linker = HostCross(board.triple, board.compiler)
    remedy = process.installing(linker.compiler) or f"install {linker.compiler}"
    return _requirement(linker.compiler, lambda: shutil.which(linker.command[0]), remedy, board.name)


def _image(board: Board) -> Check[str]:
    """Look for the image that links a board's libraries, or a compiler of this machine instead."""
    linker = HostCross(board.triple, board.compiler)
    compiler = linker.compiler

    def probe() -> str:
        try:
            return images.identity(board.image)
        except BuildError as fault:
            if program := shutil.which(linker.command[0]):
                return f"{program}, with --toolchain host"
            package = process.installing(compiler)
            ways = [package and f"{package} for --toolchain host", fault.hint]
            raise BuildError(fault.message, hint="; ".join(filter(None, ways))) from fault

    return Check(f"image {board.image}, or {compiler}", probe, board=board.name)


# --- the device ------------------------------------------------------------------------------------------------------


def examine_device(board: Board, shell: Shell, root: str, name: str) -> tuple[Outcome, ...]:
    """Probe a device, and check what it lacks for a board type.

    Args:
        board: The board type.
        shell: The device.
        root: The folder of its store.
        name: What the user called it; empty for this machine, of which only the accelerator is checked.
    """
    probed = probe.ask(shell, root)
    checks = needs.of(board, probed)
    if not name:
        return tuple(check.outcome() for check in checks)
    present = Outcome(f"device {name}", board.name, f"{probed.machine}, {probed.model}".rstrip(", "), "", passed=True)
    system = [
        *obstacles.of(probed, f"--root {obstacles.ANOTHER_ROOT}"),
        Check("board type", partial(choice.check_runs, board, probed)),
    ]
    # Nothing that a board type needs: raw pixels, and models without steps, need no library.
    reads = decoders.describe(probed.decoders, has_packages=probed.libc != "bionic")
    pictures = Outcome("pictures", board.name, reads, "", passed=True)
    return (present, pictures, *(replace(check, board=board.name).outcome() for check in (*checks, *system)))


def compare_hardware(board: Board, request: BoardRequest, progress: Callable[[str], None]) -> Outcome:
    """Compare a device's own description of its accelerator with the board file, as `toolchain hardware` does."""
    from toolchain.farm import boards  # noqa: PLC0415 - TVM loads in two seconds, and only an accelerator needs it
    from toolchain.rpc import hardware  # noqa: PLC0415

    def compare() -> str:
        try:
            with boards.open_boards(request, progress) as lease:
                description, notes = hardware.examine(board, lease.places[0])
        except BusyError as fault:  # nothing that the device lacks
            return f"not compared: {fault.message}"
        return "; ".join([str(description or "unknown"), *(f"warning: {note}" for note in notes)])

    return Check(f"hardware for {board.name}", compare, board=board.name).outcome()
