"""What this machine has and lacks for each board, and which command or package brings it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain import files, process, resources
from toolchain.board import Board
from toolchain.containers import images
from toolchain.errors import BuildError
from toolchain.native.cross import NDK_VARIABLE, HostCross
from toolchain.native.linker import is_android
from toolchain.progress import size_text
from toolchain.report import Table
from toolchain.shell.adb.faults import VARIABLE as ADB_VARIABLE

_PINS = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
_MIN_FREE = 2e9  # bytes for the cache
_PACKAGE = re.compile(r"apt-get install ([\w.+-]+)")


@dataclass(frozen=True)
class Check:
    """One requirement of this machine."""

    board: str  # board type that needs it; empty if every board does
    what: str  # what was looked for
    found: str  # what is there; empty if it is missing
    remedy: str  # the command or package that brings it

    @property
    def ok(self) -> bool:
        return bool(self.found)


def render_text(checks: Sequence[Check]) -> list[str | Table]:
    """Return what is there, and what is missing with its remedy; boards with the same need share a row."""
    present: dict[tuple[str, str], list[str]] = {}
    missing: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        rows, state = (present, check.found) if check.ok else (missing, check.remedy)
        rows.setdefault((check.what, state), []).append(check.board or "every board")
    tables = [
        Table([(what, state, ", ".join(boards)) for (what, state), boards in rows.items()], head)
        for rows, head in ((present, ("NEEDED", "FOUND", "FOR")), (missing, ("MISSING", "BROUGHT BY", "FOR")))
    ]
    if not missing:
        return [tables[0], "", "nothing is missing"]
    matches = (_PACKAGE.match(check.remedy) for check in checks if not check.ok)
    packages = " ".join(dict.fromkeys(match[1] for match in matches if match))
    command = ["", f"all packages at once: apt-get install {packages}"] if packages else []
    return [tables[0], "", tables[1], *command]


def examine(boards: Sequence[Board], *, by_adb: bool = False) -> tuple[Check, ...]:
    """Check what every board needs, then what each of the given boards needs; with adb, SSH keys are not needed."""
    checks = []
    for name, version in _PINS.items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = ""
        # Any other version counts as missing: other pairs of these two packages crash.
        checks.append(Check("", f"{name} {version}", installed if installed == version else "", resources.REPAIR))
    cache = files.cache_root()
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    space = f"{size_text(free)} in {cache}" if free >= _MIN_FREE and os.access(existing, os.W_OK) else ""
    checks += [_program("make"), Check("", "2 GB for the cache", space, "set TOOLCHAIN_CACHE")]
    return (*checks, *(check for board in boards for check in _for_board(board, by_adb=by_adb)))


def _program(name: str, board: str = "") -> Check:
    return Check(board, name, shutil.which(name) or "", process.installing(name) or f"install {name}")


def _for_board(board: Board, *, by_adb: bool) -> list[Check]:
    resolved = board.resolved()
    checks = [_image(resolved) if resolved.toolchain == "container" else _program(_linker(resolved), board.name)]
    if is_android(resolved.triple):
        remedy = f"set {NDK_VARIABLE}: see {resources.manual('android')}"
        checks.append(Check(board.name, "an Android NDK", os.environ.get(NDK_VARIABLE, ""), remedy))
    keys = Path.home() / ".ssh" / "known_hosts"
    trusted = str(keys) if keys.is_file() else ""
    client = os.environ.get(ADB_VARIABLE) or "adb"
    if by_adb:
        checks.append(Check(board.name, client, shutil.which(client) or "", process.installing("adb")))
    elif is_android(resolved.triple):  # which is reached by adb, or by an SSH server on the device
        found = shutil.which(client) or trusted
        checks.append(Check(board.name, "adb, or trusted host keys", found, process.installing("adb")))
    elif board.connection == "ssh":
        remedy = "ssh-keyscan HOST >> ~/.ssh/known_hosts, after a check"
        checks.append(Check(board.name, "trusted host keys", trusted, remedy))
    return checks


def _linker(board: Board) -> str:
    return HostCross(board.triple, board.compiler).compiler


def _image(board: Board) -> Check:
    """Look for the image that links a board's libraries, or a compiler of this machine instead."""
    compiler = _linker(board)
    what = f"image {board.image}, or {compiler}"
    try:
        return Check(board.name, what, images.identity(board.image), "")
    except BuildError as fault:
        if program := shutil.which(compiler):
            return Check(board.name, what, f"{program}, with --toolchain host", "")
        package = process.installing(compiler)
        ways = [package and f"{package} for --toolchain host", fault.hint]
        return Check(board.name, what, "", "; or ".join(filter(None, ways)))
