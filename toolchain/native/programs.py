"""Our C++ code for devices: the programs `runner` and `board_server`, and the library `edge_model`.

Each is built once for each triple with CMake, in a folder that is kept after an interruption, and cached.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import cmake

import toolchain
from toolchain import files, locks, process, resources
from toolchain.architecture import PROGRAM_TRIPLES, TRIPLES, is_android, is_musl
from toolchain.errors import BuildError
from toolchain.native import elf, prebuilt
from toolchain.native.cross import NDK_VARIABLE, HostCross
from toolchain.native.linker import ANDROID_PAGES
from toolchain.progress import Step
from toolchain.versions import tvm

Tell = Callable[[str], None]
"""Called with each step and line of progress."""

_UNFINISHED = ".unfinished-"
_CONFIGURED, _RESUMABLE = "configured", "resumable"
_BUILD_TIMEOUT_S = 3600.0
_LOOK_S = 0.5

RUNNER = "runner"
BOARD_SERVER = "board_server"
LIBRARY = "edge_model"
PROGRAMS = (RUNNER, BOARD_SERVER)
_RECORD = "program.json"
_BUILD_S = 3600.0  # a build takes minutes on a small machine, and others may wait for the same lock
_SOURCES = resources.RUNTIME
# A static program could not load a model's library. musl gives a thread 128 KiB of stack, unless the program names its
# size; that is the most that musl takes from it.
_MUSL_LINK = ("-dynamic", "-Wl,-z,stack-size=8388608")
_SUFFIXES = {".cc", ".h", ".txt", ".map", ".zig"}
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "ziglang")
# The child handles SIGINT, which `building` sends, even if our parent made us ignore it.
_BUILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from toolchain.native import programs
programs.build(*sys.argv[1:])
"""
SUPPORTED = f"supported: {', '.join(sorted(TRIPLES))}, Android's with its NDK"


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


def run_cmake(compiler: Compiler, sources: Path, program: str, work: Path, definitions: Mapping[str, str]) -> None:
    """Compile and link one program with every core, and install it in `staged`."""
    tool, build = Path(cmake.CMAKE_BIN_DIR) / "cmake", work / "build"
    # The global cache keeps zig's C libraries for later builds after a change.
    env = {"ZIG_GLOBAL_CACHE_DIR": str(files.cache_root() / "zig"), "ZIG_LOCAL_CACHE_DIR": str(work / "zig")}
    if not (work / _CONFIGURED).exists():
        configure = [f"-D{name}={value}" for name, value in {**_compiler_definitions(compiler), **definitions}.items()]
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


def _compiler_definitions(compiler: Compiler) -> dict[str, str]:
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


@dataclass(frozen=True)
class Program:
    """One built program, or the library. It needs only the device's C library."""

    path: Path  # on this machine
    sha256: str  # also the name of its folder on a device
    glibc: str  # oldest version that it runs with
    machine: str  # `uname -m` of the device
    versions: Mapping[str, str]  # of `device` (these programs), `tvm` and `tvm_ffi`
    musl: bool = False  # whether it runs with musl, and not with glibc or Android's C library


@dataclass(frozen=True)
class _CacheEntry:
    """The location of one program in the cache."""

    name: str  # `runner`, `board_server` or `edge_model`
    triple: str
    key: str  # digest of everything that determines the program

    @classmethod
    def of(cls, name: str, triple: str, compiler: Compiler) -> _CacheEntry:
        return cls(name, triple, _origin(compiler).key[:16])

    @property
    def root(self) -> Path:
        return files.cache_root() / "device"

    @property
    def folder(self) -> Path:
        return self.root / f"{self.name}-{self.triple}-{self.key}"

    @property
    def workspace(self) -> Workspace:
        """The folders where all programs of the triple are compiled: they share most objects."""
        # Resolved: CMake does not resume a build under another path of the same folder, such as a link.
        return Workspace(self.root.resolve(), self.triple, self.key)


def build(name: str, triple: str, machine: str, tell: Tell | None = None) -> Program:
    """Return a program for a triple; it is built unless the cache has it for these sources and this compiler.

    Args:
        name: `RUNNER`, `BOARD_SERVER` or `LIBRARY`.
        triple: GNU triple of the device.
        machine: `uname -m` there.
        tell: Called before a build, which takes a minute on two cores, and for each step.

    Raises:
        BuildError: It cannot be built for this triple, or the compiler refuses the sources.
        VerificationError: The installed package brings it, and it is not the one that was packed.
    """
    compiler = _compiler(triple)
    entry = _CacheEntry.of(name, triple, compiler)
    program = _load(entry, machine)
    if program is None:
        with _builder_lock(entry, tell):
            program = _load(entry, machine) or _take_prebuilt(compiler, entry, machine, tell)
            if program is None:
                if tell:
                    tell(f"building {_title(name)} for {triple} (once; it takes up to some minutes)")
                program = _build_into(compiler, entry, machine, tell)
    return program


@dataclass(frozen=True)
class Origin:
    """What a program is built from."""

    key: str  # digest of everything that determines it
    parts: Mapping[str, str]  # the digest of our sources, and the packages with their versions


def origin(triple: str) -> Origin:
    """Return what the programs for a triple are built from here.

    Raises:
        BuildError: As `check`.
    """
    return _origin(_compiler(triple))


@contextlib.contextmanager
def building(name: str, triple: str, machine: str) -> Iterator[None]:
    """Build a program in the background during a block, so that a later `build` takes less time.

    A failure is not reported here: `build` tries again. If the block ends first, the finished objects are kept for the
    next build. If this process is killed, the background build continues.

    Raises:
        BuildError: It cannot be built for this triple.
    """
    if _load(_CacheEntry.of(name, triple, _compiler(triple)), machine):
        yield
        return
    argv = [sys.executable, "-P", "-c", _BUILD, name, triple, machine]
    child = process.spawn_background(argv, Path(os.devnull), attached=False)
    try:
        yield
    finally:
        child.send_signal(signal.SIGINT)
        child.wait()


def _title(name: str) -> str:
    """Return a program's name for messages."""
    return f"lib{name}" if name == LIBRARY else name.replace("_", " ")


@contextlib.contextmanager
def _builder_lock(entry: _CacheEntry, tell: Tell | None) -> Iterator[None]:
    """Wait while another process builds for the same triple: two builds at once only slow each other down."""
    path = files.cache_root() / f".device-{entry.triple}.lock"
    files.check_cache()
    purpose = f"the build of the device programs for {entry.triple}"
    lock = locks.open_lock(path, follow=True)
    try:
        if not locks.attempt(lock):
            with report_progress(entry.workspace, entry.name, tell):
                locks.acquire(lock, purpose, _BUILD_S, tell)
        yield
    finally:
        os.close(lock)


def supports(triple: str) -> bool:
    """Whether there can be programs for a triple, given the right compiler."""
    return triple in PROGRAM_TRIPLES or is_android(triple)


def check(triple: str) -> None:
    """Raise a BuildError if there are no programs for a triple, or the compiler for it is not here."""
    _compiler(triple)


def versions() -> dict[str, str]:
    """Return the versions of the sources and packages that the programs are built from."""
    return {"device": toolchain.__version__, **tvm()}


def _compiler(triple: str) -> Compiler:
    """Choose the compiler for a triple: zig, which has a C library for each; for Android, its NDK."""
    if target := PROGRAM_TRIPLES.get(triple):
        packages = tuple(importlib.metadata.version(name) for name in _PACKAGES)
        # By default zig adds checks for undefined behaviour, which TVM's sources do not pass.
        flags = (f"-mcpu={target.zig_cpu}", "-fno-sanitize=undefined")
        zig = resources.package_folder("ziglang")
        link_flags, name = (_MUSL_LINK, triple) if is_musl(triple) else ((), target.zig_target)
        return Compiler((str(zig / "zig"), "c++"), flags, link_flags, packages, name, zig / "lib")
    if is_android(triple):
        return _ndk(triple)
    raise BuildError(
        f"device programs cannot be built for {triple}",
        details=SUPPORTED,
        hint="set the board's `triple` to one of these",
    )


def _ndk(triple: str) -> Compiler:
    """Return the NDK's compiler; BuildError if none is named, it does not start, or it is for other machines."""
    driver = os.environ.get(NDK_VARIABLE)
    expected = f"{triple}-clang++, in toolchains/llvm/prebuilt/*/bin of an unpacked NDK"
    if not driver:
        raise BuildError(
            f"the device programs for {triple} need Android's NDK, which is not part of this toolchain",
            details="only Android's NDK can link with Android's C library",
            hint=f"set {NDK_VARIABLE} to {expected}: see {resources.manual('android')}",
        )
    version = HostCross(triple, driver).describe().compiler
    target = process.run([driver, "-dumpmachine"], timeout=60.0).stdout.strip()
    if target.partition("-")[0] != triple.partition("-")[0]:
        raise BuildError(f"{driver} compiles for {target}, not for {triple}", hint=f"set {NDK_VARIABLE} to {expected}")
    packages = tuple(importlib.metadata.version(name) for name in _PACKAGES)
    return Compiler((driver,), (), ("-static-libstdc++", *ANDROID_PAGES), (*packages, version, target))


def _origin(compiler: Compiler) -> Origin:
    paths = sorted(path for path in _SOURCES.rglob("*") if path.is_file() and path.suffix in _SUFFIXES)
    sources = {str(path.relative_to(_SOURCES)): files.sha256_file(path) for path in paths}
    flags = [compiler.flags, compiler.link_flags, compiler.identity, compiler.target]
    key = files.sha256_bytes(files.canonical_json([sources, flags, versions()]))
    packages = dict(zip(_PACKAGES, compiler.identity, strict=False))  # an NDK's versions follow
    return Origin(key, {"sources": files.sha256_bytes(files.canonical_json(sources)), **packages})


def _load(entry: _CacheEntry, machine: str) -> Program | None:
    """Read a program from the cache; None if it is missing or damaged."""
    folder = entry.folder
    try:
        record = json.loads((folder / _RECORD).read_bytes())
        path = folder / record["name"]
        digests = {name: files.sha256_file(folder / name) for name in record["files"]}
        glibc, musl = elf.minimum_glibc(path), is_musl(entry.triple)
        program = Program(path, digests[path.name], glibc, machine, record["versions"], musl)
        is_complete = record["files"] == digests
    except (OSError, ValueError, KeyError, TypeError, BuildError):  # a power cut or a full disk leaves any of these
        return None
    return program if is_complete else None


def _take_prebuilt(compiler: Compiler, entry: _CacheEntry, machine: str, tell: Tell | None) -> Program | None:
    """Copy a program of the installed package into the cache; None if there is none for these sources."""
    packed = prebuilt.find(entry.name, entry.triple)
    expected = _origin(compiler)
    if packed is None or not packed.is_for(expected.key, expected.parts, tell):
        return None
    entry.root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".packed-", dir=entry.root) as work:
        staged = Path(work) / "staged"
        staged.mkdir()
        packed.copy(staged / entry.name)
        return _publish(staged, entry, machine)


def _build_into(compiler: Compiler, entry: _CacheEntry, machine: str, tell: Tell | None) -> Program:
    """Build in a separate folder, then rename the result into the cache: concurrent builders do no harm."""
    with build_folder(entry.workspace) as work:
        staged = work / "staged"
        for leftover in (staged, work / "damaged"):  # of an earlier build in the same folder
            shutil.rmtree(leftover, ignore_errors=True)
        with report_progress(entry.workspace, entry.name, tell):
            run_cmake(compiler, _SOURCES, entry.name, work, _definitions(entry.triple))
        program = _publish(staged, entry, machine)
    if all(_load(_CacheEntry(name, entry.triple, entry.key), machine) for name in PROGRAMS):
        entry.workspace.remove()  # its objects would only serve the library, which is rarely built
    return program


def _publish(staged: Path, entry: _CacheEntry, machine: str) -> Program:
    """Move the files of a program into the cache."""
    digests = {path.name: files.sha256_file(path) for path in staged.iterdir()}
    (name,) = [name for name in digests if not name.endswith(".o")]  # the library comes with an object
    record = {"name": name, "files": digests, "versions": versions()}
    (staged / _RECORD).write_text(json.dumps(record, sort_keys=True) + "\n", encoding="utf-8")
    os.sync()  # otherwise a power cut after the rename could leave a truncated program in the cache
    try:
        staged.replace(entry.folder)
    except OSError:  # the folder exists: another builder's, which is as good, or a damaged one, which is replaced
        if entry.folder.is_dir() and _load(entry, "") is None:
            with contextlib.suppress(OSError):  # another builder replaced it first
                entry.folder.rename(staged.with_name("damaged"))
                staged.replace(entry.folder)
    program = _load(entry, machine)
    if program is None:
        raise BuildError(
            f"the built {_title(entry.name)} cannot be moved to {entry.folder}",
            hint="set TOOLCHAIN_CACHE to a folder of yours",
        )
    return program


def _definitions(triple: str) -> dict[str, str]:
    """Return CMake's definitions for a triple."""
    current, target = versions(), PROGRAM_TRIPLES.get(triple)  # Android's are compiled by its NDK
    return {
        "DEVICE_VERSION": current["device"],
        "TVM_ROOT": str(resources.package_folder("tvm")),
        "TVM_VERSION": current["tvm"],
        "TVM_FFI_ROOT": str(resources.package_folder("tvm_ffi")),
        "TVM_FFI_VERSION": current["tvm_ffi"],
        "FOR_ANDROID": "ON" if is_android(triple) else "OFF",
        "ZIG": str(resources.package_folder("ziglang") / "zig"),
        "ZIG_TARGET": re.sub(r"[0-9]+$", "", triple),  # Android's triples end with an API level
        "ZIG_CPU": target.zig_cpu + target.zig_mode if target else "baseline",
    }
