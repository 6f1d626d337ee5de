"""How the device programs are compiled: with CMake, in a folder that outlives an interruption."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import cmake

from toolchain import files, process
from toolchain.progress import Step

Tell = Callable[[str], None]
"""Called with each step."""

_UNFINISHED = ".unfinished-"
_CONFIGURED, _RESUMABLE = "configured", "resumable"
_BUILD_TIMEOUT_S = 3600.0
_LOOK_S = 0.5


@dataclass(frozen=True)
class Compiler:
    """What compiles for a triple.

    Attributes:
        command: The compiler driver, and what always follows it.
        flags: Its options.
        link_flags: More of them where it links.
        identity: What else decides what it makes.
        target: What it compiles for, where it has to be told.
        zig_lib: Where it is zig, its folder of sources.
    """

    command: tuple[str, ...]
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    identity: tuple[str, ...]
    target: str = ""
    zig_lib: Path | None = None


@dataclass(frozen=True)
class Workplace:
    """Where the programs of one triple are compiled.

    Attributes:
        root: What it lies in.
        triple: GNU triple of the device.
        key: Digest of all that decides what they are.
    """

    root: Path
    triple: str
    key: str

    def found(self, inner: str) -> Path | None:
        """Return the path of a file or folder in it; None if there is none."""
        return next(self.root.glob(f"{self._prefix}*/{inner}"), None)

    def make(self) -> Path:
        """Make its folder, beside any other."""
        self.root.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=self._prefix, dir=self.root))

    def remove(self, but: Path | None = None) -> None:
        """Remove all there is of this triple, also of other sources, but one folder."""
        for path in set(self.root.glob(f"{_UNFINISHED}{self.triple}-*")) - {but}:
            shutil.rmtree(path, ignore_errors=True)

    @property
    def _prefix(self) -> str:
        return f"{_UNFINISHED}{self.triple}-{self.key}-"


@contextlib.contextmanager
def opened(workplace: Workplace) -> Iterator[Path]:
    """Yield a folder to build in, which is gone on with: objects are a minute's work, also for the other program.

    After a failure it is removed. After a kill there may be compilers at work that nobody ended; then it is another
    folder.
    """
    resumable = workplace.found(_RESUMABLE)
    work = resumable.parent if resumable else workplace.make()
    if resumable:
        resumable.rename(work / _CONFIGURED)
    workplace.remove(but=work)
    try:
        yield work
    except Exception:  # what failed is not gone on with; it is told by whoever asked for the build
        shutil.rmtree(work)
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):  # then there is nothing to keep
            (work / _CONFIGURED).rename(work / _RESUMABLE)


@contextlib.contextmanager
def watched(workplace: Workplace, program: str, tell: Tell | None) -> Iterator[None]:
    """Tell how far a build is, whoever builds: how many of the program's objects are there."""
    done = threading.Event()

    def watch(tell: Tell) -> None:
        while not done.wait(_LOOK_S):
            with contextlib.suppress(OSError):  # it has come to its end
                if step := _step(workplace, program):
                    tell(step)

    watcher = threading.Thread(target=watch, args=[tell], daemon=True)
    if tell:
        watcher.start()
    try:
        yield
    finally:
        done.set()
        if tell:
            watcher.join()


def _step(workplace: Workplace, program: str) -> Step | None:
    build = workplace.found("build")
    link = next(build.rglob(f"{program}.dir/link.txt"), None) if build else None
    if link is None:  # it is not configured yet
        return None
    words = shlex.split(link.read_text(encoding="utf-8"))  # some paths are quoted
    objects = {link.parents[2] / word for word in words if word.endswith(".o")}
    compiled = sum(path.exists() for path in objects)
    return Step(f"compiling the {program.replace('_', ' ')}", compiled, len(objects), "objects")


def run(compiler: Compiler, sources: Path, program: str, work: Path, definitions: Mapping[str, str]) -> None:
    """Compile what one program needs, with every core, and put it into `staged`.

    Raises:
        BuildError: The compiler refuses something.
    """
    tool, build = Path(cmake.CMAKE_BIN_DIR) / "cmake", work / "build"
    # zig keeps what each triple is linked with for the next build after a change.
    env = {"ZIG_GLOBAL_CACHE_DIR": str(files.cache_root() / "zig"), "ZIG_LOCAL_CACHE_DIR": str(work / "zig")}
    if not (work / _CONFIGURED).exists():
        configure = [f"-D{name}={value}" for name, value in {**_definitions(compiler), **definitions}.items()]
        process.run(
            [tool, "-S", sources, "-B", build, "-G", "Unix Makefiles", *configure], env=env, timeout=_BUILD_TIMEOUT_S
        )
        (work / _CONFIGURED).touch()
    # clang moves an object into place when it is whole; a linker writes where it is told to
    for name in (program, f"lib{program}.so*"):
        for linked in [path for path in build.rglob(name) if path.is_file()]:
            linked.unlink()
    jobs = str(len(os.sched_getaffinity(0)))
    making: list[str | Path] = ["--build", build, "--parallel", jobs, "--target", program]
    for arguments in (making, ["--install", build, "--prefix", work / "staged", "--component", program]):
        process.run([tool, *arguments], env=env, timeout=_BUILD_TIMEOUT_S)


def _definitions(compiler: Compiler) -> dict[str, str]:
    return {
        "CMAKE_CXX_COMPILER": ";".join(compiler.command),
        # With its target, CMake tells what compiler it is by compiling; without, by linking, and zig's first link
        # without optimization would be a minute's work of its own.
        **({"CMAKE_CXX_COMPILER_TARGET": compiler.target} if compiler.target else {}),
        "CMAKE_CXX_FLAGS": " ".join(compiler.flags),
        "CMAKE_EXE_LINKER_FLAGS": " ".join(compiler.link_flags),  # and not the caller's LDFLAGS
        "CMAKE_SHARED_LINKER_FLAGS": " ".join(compiler.link_flags),
        "CMAKE_CXX_COMPILER_WORKS": "TRUE",  # it would find these out by linking, too
        "CMAKE_CXX_ABI_COMPILED": "TRUE",
        **({"ZIG_LIB": str(compiler.zig_lib)} if compiler.zig_lib else {}),
    }
