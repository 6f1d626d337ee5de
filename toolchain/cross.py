"""Where the cross compiler runs, on this host or in a container, and what it is; in the shape of TVM's fcompile."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from toolchain import containers, process
from toolchain.board import Board
from toolchain.errors import BuildError, InputError

Words = Sequence[str | Path]
"""A command and its arguments."""
NDK_VARIABLE = "TVM_NDK_CC"
"""Names the NDK's compiler driver, as in TVM's own tools."""

_LINK_TIMEOUT_S = 300.0
_ANDROID = "-linux-android"
# A build id would be the digest of paths too; nothing reads it here.
_REPRODUCIBLE = ("-Wl,--build-id=none", "-Wl,--as-needed")
# A board may lack libgcc_s, from which 32-bit code takes its integer division.
_SELF_CONTAINED = "-static-libgcc"
# Android loads only libraries whose segments fit its pages, which new devices have in 16 KiB.
_ANDROID_PAGES = ("-Wl,--hash-style=gnu", "-Wl,-z,max-page-size=16384", "-Wl,-z,relro,-z,now")
_ANDROID_LIBRARIES = ("m", "c", "dl")


@dataclass(frozen=True)
class Description:
    """What built a library: the compiler's own version line, and the image it ran in, if any."""

    compiler: str
    image: str = ""


class Cross(Protocol):
    """A compiler driver for one board type, and the place where it runs."""

    @property
    def triple(self) -> str:
        """GNU triple of what it makes."""

    @property
    def compiler(self) -> str:
        """Program that compiles and links C++ for the triple."""

    def run(self, argv: Words, *, writable: Sequence[Path] = (), timeout: float = 600.0) -> process.Result:
        """Run a build command where the compiler is.

        Args:
            argv: The command; paths in it are the same there as here.
            writable: Folders that it writes to. It can count on no others.
            timeout: Seconds until it is ended.

        Raises:
            BuildError: It is missing, failed, or ran out of time.
        """

    def link(self, output: Path, objects: Sequence[Path]) -> None:
        """Link objects into a shared library that is the same bytes wherever it is built.

        Raises:
            BuildError: The compiler is missing or refuses the objects.
        """

    def describe(self) -> Description:
        """Ask the compiler who it is."""


@dataclass(frozen=True)
class HostCross:
    """A compiler of this machine.

    Attributes:
        triple: GNU triple of the board. The machine's own triple takes `c++`, any other `<triple>-g++`.
        driver: Another compiler driver than that.
    """

    triple: str
    driver: str = ""

    @property
    def compiler(self) -> str:
        """Program that compiles and links C++ for the triple."""
        if self.driver:
            return self.driver
        if _is_android(self.triple) and (named := os.environ.get(NDK_VARIABLE)):
            return named
        return "c++" if self.triple == f"{platform.machine()}-linux-gnu" else _gnu_driver(self.triple)

    def run(self, argv: Words, *, writable: Sequence[Path] = (), timeout: float = 600.0) -> process.Result:
        """Run a build command on this machine, where it may write anywhere."""
        del writable
        return process.run(argv, timeout=timeout)

    def link(self, output: Path, objects: Sequence[Path]) -> None:
        """Link objects into a shared library."""
        _link(self, output, objects)

    def describe(self) -> Description:
        """Ask the compiler who it is."""
        return Description(_version_line(self))


@dataclass(frozen=True)
class ContainerCross:
    """A compiler in an image of docker/, run without network, as the calling user, on the same paths as here.

    Attributes:
        triple: GNU triple of the board.
        image: Name of the image.
        driver: Another compiler driver than `<triple>-g++`.
    """

    triple: str
    image: str
    driver: str = ""

    @property
    def compiler(self) -> str:
        """Program in the image that compiles and links C++ for the triple."""
        if self.driver:
            return self.driver
        if _is_android(self.triple) and (named := containers.environment(self.image).get(NDK_VARIABLE)):
            return named
        return _gnu_driver(self.triple)

    def run(self, argv: Words, *, writable: Sequence[Path] = (), timeout: float = 600.0) -> process.Result:
        """Run a build command in a container that sees the given folders and those of the command's own files."""
        words = [os.fspath(word) for word in argv]
        return containers.run(self.image, words, writable=writable, readable=_folders_of(words), timeout=timeout)

    def link(self, output: Path, objects: Sequence[Path]) -> None:
        """Link objects into a shared library."""
        _link(self, output.resolve(), [path.resolve() for path in objects])

    def describe(self) -> Description:
        """Ask the compiler who it is, and Docker which image it came from."""
        return Description(_version_line(self), containers.identity(self.image))


def choose(board: Board, where: str = "") -> Cross:
    """Return the compiler for a board.

    Args:
        board: The board type, resolved.
        where: `container` or `host`; the board file's choice if empty.

    Raises:
        InputError: The board has no image to compile in.
    """
    if (where or board.toolchain) == "host":
        return HostCross(board.triple, board.compiler)
    if not board.image:
        raise InputError(
            f"board {board.name} has no image to compile in",
            hint=f"use --toolchain host, or set `image` in boards/{board.name}.toml",
        )
    return ContainerCross(board.triple, board.image, board.compiler)


def _is_android(triple: str) -> bool:
    return _ANDROID in triple


def _gnu_driver(triple: str) -> str:
    """Name the GNU compiler for a triple; for Android's, the one that stands in where there is no NDK."""
    gnu = f"{triple.partition(_ANDROID)[0]}-linux-gnu" if _is_android(triple) else triple
    return f"{gnu}-g++"


def _version_line(cross: Cross) -> str:
    first = cross.run([cross.compiler, "--version"], timeout=60.0).stdout.splitlines()
    if not first:
        raise BuildError(f"{cross.compiler} does not say its version")
    return first[0]


def _link(cross: Cross, output: Path, objects: Sequence[Path]) -> None:
    argv: list[str | Path] = [
        cross.compiler,
        "-shared",
        "-fPIC",
        "-o",
        output,
        *objects,
        *_REPRODUCIBLE,
        _SELF_CONTAINED,
    ]
    if not _is_android(cross.triple):
        cross.run([*argv, "-lm"], writable=[output.parent], timeout=_LINK_TIMEOUT_S)
        return
    argv += [*_ANDROID_PAGES, f"-Wl,-soname,{output.name}"]
    if cross.compiler != _gnu_driver(cross.triple):  # an NDK's brings Android's libraries
        cross.run([*argv, "-lm"], writable=[output.parent], timeout=_LINK_TIMEOUT_S)
        return
    with tempfile.TemporaryDirectory(prefix=".stubs-", dir=output.parent) as folder:
        stubs = _android_stubs(cross, Path(folder))
        argv += ["-nostdlib", f"-L{folder}", "-Wl,--no-as-needed", *stubs]
        cross.run(argv, writable=[output.parent], timeout=_LINK_TIMEOUT_S)


def _android_stubs(cross: Cross, folder: Path) -> list[str]:
    """Make empty libraries of Android's names, so that a GNU linker writes those and no GNU version into the result."""
    empty = folder / "empty.c"
    empty.touch()
    for name in _ANDROID_LIBRARIES:
        target = folder / f"lib{name}.so"
        argv: list[str | Path] = [cross.compiler, "-shared", "-nostdlib", "-x", "c", empty, "-o", target]
        cross.run([*argv, f"-Wl,-soname,{target.name}"], writable=[folder], timeout=_LINK_TIMEOUT_S)
    return [f"-l{name}" for name in _ANDROID_LIBRARIES]


def _folders_of(words: Sequence[str]) -> list[Path]:
    """Name the folders of those words that are absolute paths of files here."""
    return sorted({Path(word).parent for word in words if Path(word).is_absolute() and Path(word).is_file()})
