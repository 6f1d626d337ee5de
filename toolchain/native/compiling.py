"""Compiles the device programs with CMake, in a folder that is kept after an interruption."""

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
"""Called with each step and line of progress."""

_UNFINISHED = ".unfinished-"
_CONFIGURED, _RESUMABLE = "configured", "resumable"
_BUILD_TIMEOUT_S = 3600.0
_LOOK_S = 0.5


@dataclass(frozen=True)
class Compiler:
    """The compiler for a triple, and its options."""

    command: tuple[str, ...]  # the driver, and its first arguments
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]  # in addition to `flags`, for linking
    identity: tuple[str, ...]  # versions of everything that determines the output
    target: str = ""  # CMAKE_CXX_COMPILER_TARGET; empty if the compiler needs none
    zig_lib: Path | None = None  # zig's folder of sources; None for other compilers


@dataclass(frozen=True)
class Workspace:
    """The folders in which the programs of one triple are compiled."""

    root: Path
    triple: str
    key: str  # digest of everything that determines the output

    def find(self, inner: str) -> Path | None:
        """Return a path below one of the folders; None if it does not exist."""
        return next(self.root.glob(f"{self._prefix}*/{inner}"), None)

    def make(self) -> Path:
        """Make one more folder."""
        self.root.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=self._prefix, dir=self.root))

    def remove(self, keep: Path | None = None) -> None:
        """Remove all folders of this triple, also those of other sources, except one."""
        for path in set(self.root.glob(f"{_UNFINISHED}{self.triple}-*")) - {keep}:
            shutil.rmtree(path, ignore_errors=True)

    @property
    def _prefix(self) -> str:
        return f"{_UNFINISHED}{self.triple}-{self.key}-"


@contextlib.contextmanager
def build_folder(workspace: Workspace) -> Iterator[Path]:
    """Yield a folder to build in. An interrupted build is resumed: its objects take a minute, and most are shared.

    The folder is removed after a failure. After a kill, compilers may still write to it, so a new one is used.
    """
    # The mark of a resumable build is renamed while it runs, so that a killed build has none.
    resumable = workspace.find(_RESUMABLE)
    work = resumable.parent if resumable else workspace.make()
    if resumable:
        resumable.rename(work / _CONFIGURED)
    workspace.remove(keep=work)
    try:
        yield work
    except Exception:  # a failed build is not resumed; its caller reports the fault
        shutil.rmtree(work)
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):  # nothing was configured, so there is nothing to keep
            (work / _CONFIGURED).rename(work / _RESUMABLE)


@contextlib.contextmanager
def report_progress(workspace: Workspace, program: str, tell: Tell | None) -> Iterator[None]:
    """Report how many of a program's objects exist; this or another process builds them."""
    finished = threading.Event()

    def watch(tell: Tell) -> None:
        while not finished.wait(_LOOK_S):
            with contextlib.suppress(OSError):  # the build has ended and moved its files
                if step := _step(workspace, program):
                    tell(step)

    watcher = threading.Thread(target=watch, args=[tell], daemon=True)
    if tell:
        watcher.start()
    try:
        yield
    finally:
        finished.set()
        if tell:
            watcher.join()


def _step(workspace: Workspace, program: str) -> Step | None:
    build = workspace.find("build")
    link = next(build.rglob(f"{program}.dir/link.txt"), None) if build else None
    if link is None:  # it is not configured yet
        return None
    arguments = shlex.split(link.read_text(encoding="utf-8"))  # some paths are quoted
    objects = {link.parents[2] / argument for argument in arguments if argument.endswith(".o")}
    compiled = sum(path.exists() for path in objects)
    return Step(f"compiling the {program.replace('_', ' ')}", compiled, len(objects), "objects")


def run(compiler: Compiler, sources: Path, program: str, work: Path, definitions: Mapping[str, str]) -> None:
    """Compile and link one program with every core, and install it in `staged`."""
    tool, build = Path(cmake.CMAKE_BIN_DIR) / "cmake", work / "build"
    # The global cache keeps zig's C libraries for later builds after a change.
    env = {"ZIG_GLOBAL_CACHE_DIR": str(files.cache_root() / "zig"), "ZIG_LOCAL_CACHE_DIR": str(work / "zig")}
    if not (work / _CONFIGURED).exists():
        configure = [f"-D{name}={value}" for name, value in {**_definitions(compiler), **definitions}.items()]
        process.run(
            [tool, "-S", sources, "-B", build, "-G", "Unix Makefiles", *configure], env=env, timeout=_BUILD_TIMEOUT_S
        )
        (work / _CONFIGURED).touch()
    # clang renames complete objects, but a linker writes in place: after a kill its output may be truncated.
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
        # With a target, CMake identifies the compiler by compiling; without one, by linking, and zig's first link
        # without optimization takes a minute.
        **({"CMAKE_CXX_COMPILER_TARGET": compiler.target} if compiler.target else {}),
        "CMAKE_CXX_FLAGS": " ".join(compiler.flags),
        "CMAKE_EXE_LINKER_FLAGS": " ".join(compiler.link_flags),  # instead of the caller's LDFLAGS
        "CMAKE_SHARED_LINKER_FLAGS": " ".join(compiler.link_flags),
        "CMAKE_CXX_COMPILER_WORKS": "TRUE",  # otherwise CMake would test these by linking, too
        "CMAKE_CXX_ABI_COMPILED": "TRUE",
        **({"ZIG_LIB": str(compiler.zig_lib)} if compiler.zig_lib else {}),
    }
