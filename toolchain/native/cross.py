"""Where the cross compiler runs, on this host or in a container, and what it is; in the shape of TVM's fcompile."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from toolchain import process
from toolchain.board import Board
from toolchain.containers import images
from toolchain.errors import BuildError, EngineError, InputError
from toolchain.native.linker import EMPTY, Batch, Linker, Pair, Words, gnu_driver, is_android

__all__ = ["LINK_TIMEOUT_S", "NDK_VARIABLE", "ContainerCross", "Cross", "Description", "HostCross", "Pair", "choose"]

NDK_VARIABLE = "TVM_NDK_CC"
"""Names the NDK's compiler driver, as in TVM's own tools."""

LINK_TIMEOUT_S = 300.0
"""Seconds until a linker counts as hanging."""


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

    def link_all(self, pairs: Sequence[Pair], *, timeout: float = LINK_TIMEOUT_S) -> list[BuildError | None]:
        """Link many libraries in the time of a few: each is the same bytes as from `link`.

        Args:
            pairs: The libraries, each in a folder that exists, and their objects.
            timeout: Seconds until one link is ended.

        Returns:
            For each in its turn, why it is not there; None where it is.
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
        if is_android(self.triple) and (named := os.environ.get(NDK_VARIABLE)):
            return named
        return "c++" if self.triple == f"{platform.machine()}-linux-gnu" else gnu_driver(self.triple)

    def run(self, argv: Words, *, writable: Sequence[Path] = (), timeout: float = 600.0) -> process.Result:
        """Run a build command on this machine, where it may write anywhere."""
        del writable
        return process.run(argv, timeout=timeout)

    def link(self, output: Path, objects: Sequence[Path]) -> None:
        """Link objects into a shared library."""
        _link(self, output, objects)

    def link_all(self, pairs: Sequence[Pair], *, timeout: float = LINK_TIMEOUT_S) -> list[BuildError | None]:
        """Link many libraries, as many at a time as there are CPUs."""
        if not pairs:
            return []
        try:
            with _stubs(self, pairs[0][0].parent) as (linker, stubs), ThreadPoolExecutor(os.cpu_count()) as pool:

                def attempt(pair: Pair) -> BuildError | None:
                    return _attempt(lambda: self.run(linker.words(*pair, stubs), timeout=timeout), pair[0])

                return list(pool.map(attempt, pairs))
        except BuildError as fault:
            return [fault] * len(pairs)

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
        if is_android(self.triple) and (named := images.environment(self.image).get(NDK_VARIABLE)):
            return named
        return gnu_driver(self.triple)

    def run(self, argv: Words, *, writable: Sequence[Path] = (), timeout: float = 600.0) -> process.Result:
        """Run a build command in a container that sees the given folders and those of the command's own files."""
        words = [os.fspath(word) for word in argv]
        with self._or_on_this_machine():
            return images.run(self.image, words, writable=writable, readable=_folders_of(words), timeout=timeout)

    def link(self, output: Path, objects: Sequence[Path]) -> None:
        """Link objects into a shared library."""
        _link(self, output.resolve(), [path.resolve() for path in objects])

    def link_all(self, pairs: Sequence[Pair], *, timeout: float = LINK_TIMEOUT_S) -> list[BuildError | None]:
        """Link many libraries in one container."""
        if not pairs:
            return []
        whole = [(output.resolve(), [path.resolve() for path in objects]) for output, objects in pairs]
        try:
            linker = Linker(self.compiler, self.triple)
        except BuildError as fault:
            return [fault] * len(pairs)
        with tempfile.TemporaryDirectory(prefix=".link-", dir=whole[0][0].parent) as name:
            batch = Batch(linker, whole, Path(name), timeout)
            batch.write()
            failure = self._run_batch(batch, whole)
            return [
                _settled(batch.outcome(number, self.image, failure), output) for number, (output, _) in enumerate(whole)
            ]

    def _run_batch(self, batch: Batch, pairs: Sequence[Pair]) -> BuildError | None:
        writable = _outermost(output.parent for output, _ in pairs)
        # An object that is missing with its folder is that link's failure, not the container's.
        sources = _outermost(path.parent for _, objects in pairs for path in objects if path.parent.is_dir())
        readable = [path for path in sources if not any(path.is_relative_to(one) for one in writable)]
        words = ["sh", os.fspath(batch.script)]
        try:
            images.run(self.image, words, writable=writable, readable=readable, timeout=batch.timeout)
        except BuildError as fault:
            return fault
        return None

    def describe(self) -> Description:
        """Ask the compiler who it is, and Docker which image it came from."""
        with self._or_on_this_machine():
            return Description(_version_line(self), images.identity(self.image))

    @contextlib.contextmanager
    def _or_on_this_machine(self) -> Iterator[None]:
        """Add to an error about Docker how the same is done without it."""
        try:
            yield
        except EngineError as fault:
            compiler = HostCross(self.triple, self.driver).compiler
            first = "" if shutil.which(compiler) else process.installing(compiler)
            other = f"{first} and use --toolchain host" if first else "use --toolchain host"
            hint = fault.hint if other in fault.hint else f"{fault.hint}; or {other}"
            raise EngineError(fault.message, details=fault.details, hint=hint) from fault


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
            f"board {board.name} has no image with a compiler",
            hint=f"use --toolchain host, or set `image` in boards/{board.name}.toml",
        )
    return ContainerCross(board.triple, board.image, board.compiler)


def _version_line(cross: Cross) -> str:
    first = cross.run([cross.compiler, "--version"], timeout=60.0).stdout.splitlines()
    if not first:
        raise BuildError(f"{cross.compiler} does not print its version")
    return first[0]


def _link(cross: Cross, output: Path, objects: Sequence[Path]) -> None:
    with _stubs(cross, output.parent) as (linker, stubs):
        cross.run(linker.words(output, objects, stubs), writable=[output.parent], timeout=LINK_TIMEOUT_S)


@contextlib.contextmanager
def _stubs(cross: Cross, parent: Path) -> Iterator[tuple[Linker, Path]]:
    """Yield the linker, and a folder of the libraries that it lacks, if it lacks some."""
    linker = Linker(cross.compiler, cross.triple)
    if not linker.needs_stubs:
        yield linker, parent
        return
    with tempfile.TemporaryDirectory(prefix=".stubs-", dir=parent) as name:
        stubs = Path(name)
        (stubs / EMPTY).touch()
        for argv in linker.stub_words(stubs):
            cross.run(argv, writable=[stubs], timeout=LINK_TIMEOUT_S)
        yield linker, stubs


def _attempt(step: Callable[[], object], output: Path) -> BuildError | None:
    try:
        step()
    except BuildError as fault:
        return _settled(fault, output)
    return None


def _settled(fault: BuildError | None, output: Path) -> BuildError | None:
    """Remove what a linker that was ended has left of its library."""
    if fault is not None:
        output.unlink(missing_ok=True)
    return fault


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Leave out the folders that lie in others of them."""
    found = set(folders)
    return sorted(path for path in found if found.isdisjoint(path.parents))


def _folders_of(words: Sequence[str]) -> list[Path]:
    """Name the folders of those words that are absolute paths of files here."""
    return sorted({Path(word).parent for word in words if Path(word).is_absolute() and Path(word).is_file()})
