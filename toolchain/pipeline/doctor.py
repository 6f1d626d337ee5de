"""What this machine has and lacks for each board, and which package brings it."""

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
from toolchain.shell.adb.faults import VARIABLE as ADB_VARIABLE
from toolchain.tables import Table

_PINS = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
_FREE = 2e9
_PACKAGE = re.compile(r"apt-get install ([\w.+-]+)")


@dataclass(frozen=True)
class Check:
    """One thing that was looked for.

    Attributes:
        board: Board type that needs it; empty if every board does.
        what: What was looked for.
        found: What is there; empty if it is missing.
        remedy: The command or package that brings it.
    """

    board: str
    what: str
    found: str
    remedy: str

    @property
    def ok(self) -> bool:
        """Whether it is there."""
        return bool(self.found)


def shown(checks: Sequence[Check]) -> list[str | Table]:
    """Return what a person is shown: what is missing, by what it is needed for, with the command that brings it."""
    found = [(one.board or "every board", one.what, one.found) for one in checks if one.ok]
    groups: dict[tuple[str, str], list[str]] = {}
    for one in checks:
        if not one.ok:
            groups.setdefault((one.what, one.remedy), []).append(one.board or "every board")
    parts: list[str | Table] = [Table(_merged(found), ("NEEDED", "FOUND", "FOR"))]
    if not groups:
        return [*parts, "", "nothing is missing"]
    missing = [(what, remedy, ", ".join(boards)) for (what, remedy), boards in groups.items()]
    return [*parts, "", Table(missing, ("MISSING", "BROUGHT BY", "FOR")), *_one_command(checks)]


def _merged(rows: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Put boards that need the same thing into one row."""
    boards: dict[tuple[str, str], list[str]] = {}
    for board, what, found in rows:
        boards.setdefault((what, found), []).append(board)
    return [(what, found, ", ".join(names)) for (what, found), names in boards.items()]


def _one_command(checks: Sequence[Check]) -> list[str]:
    """Say the one command that brings all the missing packages of the system."""
    found = (_PACKAGE.match(check.remedy) for check in checks if not check.ok)
    packages = " ".join(dict.fromkeys(match[1] for match in found if match))
    return ["", f"all packages at once: apt-get install {packages}"] if packages else []


def examine(boards: Sequence[Board], *, by_adb: bool = False) -> tuple[Check, ...]:
    """Look for what every board needs, then for what each of the given boards needs; adb asks for no SSH keys."""
    common = [*(_pin(name, version) for name, version in _PINS.items()), _program("make"), _space()]
    return (*common, *(check for board in boards for check in _for_board(board, by_adb=by_adb)))


def _pin(name: str, version: str) -> Check:
    """Other versions of these two crash together: the pin is not a matter of taste."""
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found = ""
    return Check("", f"{name} {version}", found if found == version else "", resources.REPAIR)


def _program(name: str, board: str = "") -> Check:
    return Check(board, name, shutil.which(name) or "", process.installing(name) or f"install {name}")


def _space() -> Check:
    cache = files.cache_root()
    there = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(there).free
    enough = free >= _FREE and os.access(there, os.W_OK)
    return Check("", "2 GB for the cache", f"{size_text(free)} in {cache}" if enough else "", "set TOOLCHAIN_CACHE")


def _for_board(board: Board, *, by_adb: bool) -> list[Check]:
    resolved = board.resolved()
    checks = [_image(resolved) if resolved.toolchain == "container" else _compiler(resolved)]
    if is_android(resolved.triple):
        named = os.environ.get(NDK_VARIABLE, "")
        remedy = f"set {NDK_VARIABLE}: see {resources.manual('android')}"
        checks.append(Check(board.name, "an Android NDK", named, remedy))
    if by_adb:
        checks.append(_adb(board))
    elif is_android(resolved.triple):
        checks.append(_way_to_android(board))
    elif board.connection == "ssh":
        keys = Path.home() / ".ssh" / "known_hosts"
        found = str(keys) if keys.is_file() else ""
        checks.append(
            Check(board.name, "trusted host keys", found, "ssh-keyscan HOST >> ~/.ssh/known_hosts, after a check")
        )
    return checks


def _way_to_android(board: Board) -> Check:
    """Look for adb's client, or trusted keys of an SSH server on the device."""
    keys = Path.home() / ".ssh" / "known_hosts"
    found = shutil.which(os.environ.get(ADB_VARIABLE) or "adb") or (str(keys) if keys.is_file() else "")
    return Check(board.name, "adb, or trusted host keys", found, process.installing("adb"))


def _adb(board: Board) -> Check:
    client = os.environ.get(ADB_VARIABLE) or "adb"
    return Check(board.name, client, shutil.which(client) or "", process.installing("adb"))


def _compiler(board: Board) -> Check:
    return _program(HostCross(board.triple, board.compiler).compiler, board.name)


def _image(board: Board) -> Check:
    """Look for what a board's libraries are linked by: its image, or a compiler of this machine."""
    compiler = HostCross(board.triple, board.compiler).compiler
    what = f"image {board.image}, or {compiler}"
    try:
        return Check(board.name, what, images.identity(board.image), "")
    except BuildError as fault:
        if there := shutil.which(compiler):
            return Check(board.name, what, f"{there}, with --toolchain host", "")
        package = process.installing(compiler)
        ways = [package and f"{package} for --toolchain host", fault.hint]
        return Check(board.name, what, "", "; or ".join(filter(None, ways)))
