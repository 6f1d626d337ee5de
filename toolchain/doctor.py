"""What this machine has and lacks for each board, and which package brings it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain import containers, files
from toolchain._linker import is_android
from toolchain.board import Board
from toolchain.cross import NDK_VARIABLE, HostCross
from toolchain.errors import BuildError

_PINS = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
_FREE_GIB = 2.0


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


def examine(boards: Sequence[Board]) -> tuple[Check, ...]:
    """Look for what every board needs, then for what each of the given boards needs."""
    common = [*(_pin(name, version) for name, version in _PINS.items()), _program("make", "make"), _space()]
    return (*common, *(check for board in boards for check in _for_board(board)))


def _pin(name: str, version: str) -> Check:
    """Other versions of these two crash together: the pin is not a matter of taste."""
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found = ""
    return Check("", f"{name} {version}", found if found == version else "", "make setup")


def _program(name: str, package: str, board: str = "") -> Check:
    return Check(board, name, shutil.which(name) or "", f"apt-get install {package}")


def _space() -> Check:
    cache = files.cache_root()
    there = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(there).free / 2**30
    enough = free >= _FREE_GIB and os.access(there, os.W_OK)
    return Check(
        "", f"{_FREE_GIB:g} GiB for the cache", f"{free:.1f} GiB in {cache}" if enough else "", "set TOOLCHAIN_CACHE"
    )


def _for_board(board: Board) -> list[Check]:
    resolved = board.resolved()
    checks = [_image(resolved) if resolved.toolchain == "container" else _compiler(resolved)]
    if is_android(resolved.triple):
        named = os.environ.get(NDK_VARIABLE, "")
        checks.append(Check(board.name, "an Android NDK", named, f"set {NDK_VARIABLE}: see docs/android.md"))
    if board.connection == "ssh":
        keys = Path.home() / ".ssh" / "known_hosts"
        found = str(keys) if keys.is_file() else ""
        checks.append(
            Check(board.name, "trusted host keys", found, "ssh-keyscan HOST >> ~/.ssh/known_hosts, after a check")
        )
    return checks


def _compiler(board: Board) -> Check:
    native = board.machine == platform.machine()
    package = "g++" if native else f"g++-{board.triple.replace('_', '-')}"
    return _program(HostCross(board.triple, board.compiler).compiler, package, board.name)


def _image(board: Board) -> Check:
    """Look for the image that a board is linked in; without an engine, the engine's own remedy is told."""
    what = f"image {board.image}, or --toolchain host"
    try:
        return Check(board.name, what, containers.identity(board.image), "")
    except BuildError as fault:
        return Check(board.name, what, "", fault.hint)
