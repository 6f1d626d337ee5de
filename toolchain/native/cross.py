"""The cross compiler for a board, on this host or in a container."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from toolchain import files, process, resources, temporary
from toolchain.architecture import MACHINES, TRIPLES, is_android
from toolchain.board import Board
from toolchain.containers import images
from toolchain.errors import BuildError, EngineError, InputError
from toolchain.native.linker import EMPTY, Argv, Batch, Linker, Pair, gnu_driver

__all__ = ["LINK_TIMEOUT_S", "NDK_VARIABLE", "ContainerCross", "Cross", "Description", "HostCross", "Pair", "choose"]

NDK_VARIABLE = "TVM_NDK_CC"  # names the NDK's compiler driver, as in TVM's own tools

LINK_TIMEOUT_S = 300.0  # until a linker counts as hanging


@dataclass(frozen=True)
class Description:
    """The compiler's version line, and the digest of the image it ran in, if any."""

    compiler: str
    image: str = ""


class Cross(Protocol):
    """The compiler driver for one board type, on this machine or in a container."""

    @property
    def triple(self) -> str: ...

    @property
    def command(self) -> tuple[str, ...]:
        """The compiler driver, and its first arguments."""

    def run(self, argv: Argv, *, writable: Sequence[Path] = (), timeout: float = 600.0) -> process.Result:
        """Run a build command beside the compiler; paths are the same as on this machine.

        It can write to `writable` folders, and maybe to others.

        Raises:
            BuildError: It is missing, failed, or ran out of time.
        """

    def link(self, output: Path, objects: Sequence[Path]) -> None:
        """Link objects into a shared library, reproducibly.

        Raises:
            BuildError: The compiler is missing or refuses the objects.
        """

    def link_all(self, pairs: Sequence[Pair], *, timeout: float = LINK_TIMEOUT_S) -> list[BuildError | None]:
        """Link many libraries in parallel, each as `link` does.

        `timeout` is for one link. Returns each library's error in order, None if it succeeded.
        """

    def describe(self) -> Description: ...


@dataclass(frozen=True)
class HostCross:
    """A compiler of this machine; where none is installed for a GNU triple, the one of our device programs: zig."""

    triple: str
    driver: str = ""  # by default `c++` for this machine's triple, `<triple>-g++` for any other
    zig: bool = False  # whether zig links even if there is another compiler: it is the same one on every machine

    @property
    def compiler(self) -> str:
        if self.driver:
            return self.driver
        if is_android(self.triple) and (driver := os.environ.get(NDK_VARIABLE)):
            return driver
        own = MACHINES.get(platform.machine())
        return "c++" if own and self.triple == own.triple else gnu_driver(self.triple)

    @property
    def command(self) -> tuple[str, ...]:
        target = TRIPLES.get(self.triple)
        if target is None or (not self.zig and (self.driver or shutil.which(self.compiler))):
            return (self.compiler,)
        # Without what zig has from its own library, whose debugging information names the folder of the cache.
        return (str(_zig()), "cc", "-target", target.zig_target, f"-mcpu={target.zig_cpu}", "-Wl,--strip-debug")

    def run(self, argv: Argv, *, writable: Sequence[Path] = (), timeout: float = 600.0) -> process.Result:
        del writable  # on this machine it may write anywhere
        if os.fspath(argv[0]) != str(_zig()):
            return process.run(argv, timeout=timeout)
        with temporary.folder() as work:  # what zig keeps of a single link would fill the cache
            env = {"ZIG_GLOBAL_CACHE_DIR": str(files.cache_root() / "zig"), "ZIG_LOCAL_CACHE_DIR": str(work)}
            return process.run(argv, env=env, timeout=timeout)

    def link(self, output: Path, objects: Sequence[Path]) -> None:
        _link(self, output, objects)

    def link_all(self, pairs: Sequence[Pair], *, timeout: float = LINK_TIMEOUT_S) -> list[BuildError | None]:
        """Link many libraries, one on each CPU at a time."""
        if not pairs:
            return []
        try:
            with _stubs(self, pairs[0][0].parent) as (linker, stubs), ThreadPoolExecutor(os.cpu_count()) as pool:

                def attempt(pair: Pair) -> BuildError | None:
                    try:
                        self.run(linker.link_command(*pair, stubs), timeout=timeout)
                    except BuildError as fault:
                        return _clean_up(fault, pair[0])
                    return None

                return list(pool.map(attempt, pairs))
        except BuildError as fault:
            return [fault] * len(pairs)

    def describe(self) -> Description:
        return Description(_version_line(self))


@dataclass(frozen=True)
class ContainerCross:
    """A compiler in an image of docker/, run without network, as the calling user, on the same paths as here."""

    triple: str
    image: str
    driver: str = ""  # by default `<triple>-g++`

    @property
    def compiler(self) -> str:
        if self.driver:
            return self.driver
        if is_android(self.triple) and (driver := images.environment(self.image).get(NDK_VARIABLE)):
            return driver
        return gnu_driver(self.triple)

    @property
    def command(self) -> tuple[str, ...]:
        return (self.compiler,)

    def run(self, argv: Argv, *, writable: Sequence[Path] = (), timeout: float = 600.0) -> process.Result:
        """Run a build command in a container that sees the given folders and those of files in the command."""
        command = [os.fspath(argument) for argument in argv]
        files = [Path(argument) for argument in command if Path(argument).is_absolute() and Path(argument).is_file()]
        readable = sorted({file.parent for file in files})
        with self._or_on_this_machine():
            return images.run(self.image, command, writable=writable, readable=readable, timeout=timeout)

    def link(self, output: Path, objects: Sequence[Path]) -> None:
        _link(self, output.resolve(), [path.resolve() for path in objects])

    def link_all(self, pairs: Sequence[Pair], *, timeout: float = LINK_TIMEOUT_S) -> list[BuildError | None]:
        """Link many libraries in one container."""
        if not pairs:
            return []
        links = [(output.resolve(), [path.resolve() for path in objects]) for output, objects in pairs]
        try:
            linker = Linker(self.command, self.triple)
        except BuildError as fault:
            return [fault] * len(pairs)
        with tempfile.TemporaryDirectory(prefix=".link-", dir=links[0][0].parent) as name:
            batch = Batch(linker, links, Path(name), timeout)
            batch.write()
            writable = _outermost(output.parent for output, _ in links)
            # An object that is missing with its folder is that link's failure, not the container's.
            sources = _outermost(path.parent for _, paths in links for path in paths if path.parent.is_dir())
            readable = [path for path in sources if not any(path.is_relative_to(parent) for parent in writable)]
            failure: BuildError | None = None
            try:
                command = ["sh", os.fspath(batch.script)]
                images.run(self.image, command, writable=writable, readable=readable, timeout=batch.timeout)
            except BuildError as fault:
                failure = fault  # some of the links may have been finished
            outcomes = [batch.outcome(number, self.image, failure) for number in range(len(links))]
            return [_clean_up(fault, output) for fault, (output, _) in zip(outcomes, links, strict=True)]

    def describe(self) -> Description:
        """Return the compiler's version, and its image's digest."""
        with self._or_on_this_machine():
            return Description(_version_line(self), images.identity(self.image))

    @contextlib.contextmanager
    def _or_on_this_machine(self) -> Iterator[None]:
        """Add to the hint of Docker's errors how to compile without it."""
        try:
            yield
        except EngineError as fault:
            on_host = HostCross(self.triple, self.driver)
            compiler = on_host.command[0]
            installation = "" if shutil.which(compiler) else process.installing(compiler)
            alternative = f"{installation} and use --toolchain host" if installation else "use --toolchain host"
            hint = fault.hint if alternative in fault.hint else f"{fault.hint}; or {alternative}"
            raise EngineError(fault.message, details=fault.details, hint=hint) from fault


def choose(board: Board, where: str = "") -> Cross:
    """Return the compiler for a resolved board; `where` is `container`, `host` or `zig`, by default the board file's.

    Raises:
        InputError: The board has no image to compile in, or zig has no C library for its triple.
    """
    if where == "zig":
        if board.triple not in TRIPLES:
            raise InputError(
                f"zig has no C library for the triple {board.triple} of board {board.name}",
                hint=f"use --toolchain host, or a board with one of {', '.join(TRIPLES)}",
            )
        return HostCross(board.triple, zig=True)
    if (where or board.toolchain) == "host":
        return HostCross(board.triple, board.compiler)
    if not board.image:
        raise InputError(
            f"board {board.name} has no image with a compiler",
            hint=f"use --toolchain host, or set `image` in boards/{board.name}.toml",
        )
    return ContainerCross(board.triple, board.image, board.compiler)


def _version_line(cross: Cross) -> str:
    driver = cross.command[0]
    is_zig = driver == str(_zig())
    lines = cross.run([driver, *(["cc"] if is_zig else []), "--version"], timeout=60.0).stdout.splitlines()
    if not lines:
        raise BuildError(f"{driver} does not print its version")
    return f"zig {importlib.metadata.version('ziglang')}, {lines[0]}" if is_zig else lines[0]


def _zig() -> Path:
    return resources.package_folder("ziglang") / "zig"


def _link(cross: Cross, output: Path, objects: Sequence[Path]) -> None:
    with _stubs(cross, output.parent) as (linker, stubs):
        cross.run(linker.link_command(output, objects, stubs), writable=[output.parent], timeout=LINK_TIMEOUT_S)


@contextlib.contextmanager
def _stubs(cross: Cross, parent: Path) -> Iterator[tuple[Linker, Path]]:
    """Yield the linker, and the folder with stubs of the libraries that it lacks, if any."""
    linker = Linker(cross.command, cross.triple)
    if not linker.needs_stubs:
        yield linker, parent
        return
    with tempfile.TemporaryDirectory(prefix=".stubs-", dir=parent) as name:
        stubs = Path(name)
        (stubs / EMPTY).touch()
        for argv in linker.stub_commands(stubs):
            cross.run(argv, writable=[stubs], timeout=LINK_TIMEOUT_S)
        yield linker, stubs


def _clean_up(fault: BuildError | None, output: Path) -> BuildError | None:
    """Remove the partial output of a failed link; return the fault."""
    if fault is not None:
        output.unlink(missing_ok=True)
    return fault


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Return the folders that lie in none of the others."""
    unique = set(folders)
    return sorted(path for path in unique if unique.isdisjoint(path.parents))
