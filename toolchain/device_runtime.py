"""The C++ programs that run on a device, `runner` and `board_server`: built once for a triple, and cached."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import cmake

import toolchain
from toolchain import elf, files, process
from toolchain._linker import ANDROID_PAGES, is_android
from toolchain.cross import NDK_VARIABLE, HostCross
from toolchain.errors import BuildError

Tell = Callable[[str], None]
"""Called with one line before something that takes a while."""

RUNNER = "runner"
BOARD_SERVER = "board_server"
_PROGRAMS = (RUNNER, BOARD_SERVER)
_RECORD = "programs.json"
_SOURCES = Path(__file__).parent / "runtime"
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "ziglang")
_BUILD_TIMEOUT_S = 3600.0
# Older than every C library in use on boards; the programs run on this one and all later ones.
_GLIBC = "2.28"


_TARGETS = {"x86_64-linux-gnu": "baseline", "aarch64-linux-gnu": "generic", "arm-linux-gnueabihf": "generic+v7a"}
"""Of each triple that zig compiles for, the CPUs that a program may count on."""


@dataclass(frozen=True)
class _Compiler:
    """What compiles for a triple.

    Attributes:
        command: The compiler driver, and what always follows it.
        flags: Its options.
        link_flags: More of them where it links.
        identity: What else decides what it makes.
    """

    command: tuple[str, ...]
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    identity: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """One built executable, which needs nothing else on a device than its C library.

    Attributes:
        path: Where it is on this machine.
        sha256: Its digest, which names its folder on a device.
        glibc: Lowest glibc version that it loads on.
        machine: What `uname -m` must say on the device.
        versions: Versions of `device` (these programs' own), `tvm` and `tvm_ffi`.
    """

    path: Path
    sha256: str
    glibc: str
    machine: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class DeviceRuntime:
    """The programs for one triple."""

    runner: Program
    board_server: Program


def build(triple: str, machine: str, tell: Tell | None = None) -> DeviceRuntime:
    """Return the programs for a triple, building them if the cache has none of these sources and this compiler.

    Args:
        triple: GNU triple of the device.
        machine: What `uname -m` says there.
        tell: Called before a build, which takes two minutes on two cores.

    Raises:
        BuildError: They cannot be built for this triple, or the compiler refuses the sources.
    """
    compiler = _compiler(triple)
    folder = files.cache_root() / "device" / f"{triple}-{_cache_key(compiler)[:16]}"
    found = _load(folder, machine)
    if found is None:
        with _only_builder(triple, tell):
            if (found := _load(folder, machine)) is None:
                if tell:
                    tell(f"building the device programs for {triple} (once, about two minutes)")
                found = _made(compiler, machine, folder)
    return found


def _made(compiler: _Compiler, machine: str, folder: Path) -> DeviceRuntime:
    _build_into(compiler, folder)
    found = _load(folder, machine)
    if found is None:
        raise BuildError(
            f"the built device programs cannot be moved to {folder}", hint="set TOOLCHAIN_CACHE to a folder of yours"
        )
    return found


@contextlib.contextmanager
def _only_builder(triple: str, tell: Tell | None) -> Iterator[None]:
    """Wait while another process builds for the same triple: two at a time only slow each other down."""
    path = files.cache_root() / f".device-{triple}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if tell:
                tell(f"waiting for another build of the device programs for {triple}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def check(triple: str) -> None:
    """Refuse a triple that there are no programs for.

    Raises:
        BuildError: There are none, or the compiler for it is not here.
    """
    _compiler(triple)


def versions() -> dict[str, str]:
    """Return the versions of what the programs are made of."""
    return {
        "device": toolchain.__version__,
        "tvm": importlib.metadata.version("apache-tvm"),
        "tvm_ffi": importlib.metadata.version("apache-tvm-ffi"),
    }


def _compiler(triple: str) -> _Compiler:
    """Choose what compiles for a triple: zig, which has a C library for each; for Android, its NDK."""
    if triple in _TARGETS:
        packages = tuple(importlib.metadata.version(name) for name in _PACKAGES)
        # zig checks for undefined behaviour unless told otherwise, which TVM's sources are not written for.
        flags = ("-target", f"{triple}.{_GLIBC}", f"-mcpu={_TARGETS[triple]}", "-fno-sanitize=undefined")
        return _Compiler((str(_package_folder("ziglang") / "zig"), "c++"), flags, (), packages)
    if is_android(triple):
        return _ndk(triple)
    raise BuildError(
        f"there are no device programs for {triple}",
        details=f"supported: {', '.join(sorted(_TARGETS))}, and Android's with its NDK",
        hint="name one of these as the board's `triple`",
    )


def _ndk(triple: str) -> _Compiler:
    """Find the NDK's compiler.

    Raises:
        BuildError: None is named, it does not start, or it compiles for other machines.
    """
    driver = os.environ.get(NDK_VARIABLE)
    wanted = f"{triple}-clang++, in toolchains/llvm/prebuilt/*/bin of an unpacked NDK"
    if not driver:
        raise BuildError(
            f"the device programs for {triple} need Android's NDK, which is not part of this toolchain",
            details="Android has a C library of its own, and only its NDK links with that",
            hint=f"set {NDK_VARIABLE} to {wanted}: see docs/android.md",
        )
    version = HostCross(triple, driver).describe().compiler
    target = process.run([driver, "-dumpmachine"], timeout=60.0).stdout.strip()
    if target.partition("-")[0] != triple.partition("-")[0]:
        raise BuildError(f"{driver} compiles for {target}, not for {triple}", hint=f"set {NDK_VARIABLE} to {wanted}")
    packages = tuple(importlib.metadata.version(name) for name in _PACKAGES if name != "ziglang")
    return _Compiler((driver,), (), ("-static-libstdc++", *ANDROID_PAGES), (*packages, version, target))


def _cache_key(compiler: _Compiler) -> str:
    """Digest everything that decides the result: our sources, the packages they are built with, and the flags."""
    sources = {str(path.relative_to(_SOURCES)): files.sha256_file(path) for path in _source_files()}
    flags = [compiler.flags, compiler.link_flags, compiler.identity]
    return files.sha256_bytes(files.canonical_json([sources, flags, versions()]))


def _source_files() -> list[Path]:
    return sorted(path for path in _SOURCES.rglob("*") if path.is_file() and path.suffix in {".cc", ".h", ".txt"})


def _load(folder: Path, machine: str) -> DeviceRuntime | None:
    """Read a folder of the cache; None if it is missing or is not what a build left there."""
    try:
        record = json.loads((folder / _RECORD).read_bytes())
        made = {name: _program(folder / name, machine, record["versions"]) for name in _PROGRAMS}
        whole = record["sha256"] == {name: program.sha256 for name, program in made.items()}
    except (OSError, ValueError, KeyError, TypeError, BuildError):  # a power cut or a full disk leaves any of these
        return None
    return DeviceRuntime(made[RUNNER], made[BOARD_SERVER]) if whole else None


def _program(path: Path, machine: str, made_of: Mapping[str, str]) -> Program:
    return Program(path, files.sha256_file(path), elf.minimum_glibc(path), machine, made_of)


def _build_into(compiler: _Compiler, folder: Path) -> None:
    """Build aside, then put the result in place by one rename: a second builder does no harm."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder.parent) as work:
        staged = Path(work) / "staged"
        _compile(compiler, Path(work), staged)
        digests = {name: files.sha256_file(staged / name) for name in _PROGRAMS}
        record = json.dumps({"sha256": digests, "versions": versions()}, sort_keys=True)
        (staged / _RECORD).write_text(record + "\n", encoding="utf-8")
        os.sync()  # or a power cut after the rename would leave truncated programs in the cache
        _put(staged, folder, Path(work))


def _put(staged: Path, folder: Path, work: Path) -> None:
    try:
        staged.replace(folder)
    except OSError:  # there is one: another builder's, which is as good, or a damaged one, which has to go
        if folder.is_dir() and _load(folder, "") is None:
            with contextlib.suppress(OSError):  # a third builder was here in between
                folder.rename(work / "damaged")
                staged.replace(folder)


def _compile(compiler: _Compiler, work: Path, staged: Path) -> None:
    program = Path(cmake.CMAKE_BIN_DIR) / "cmake"
    # zig keeps the C++ library of each triple, a third of the work, for the next build after a change.
    env = {"ZIG_GLOBAL_CACHE_DIR": str(files.cache_root() / "zig"), "ZIG_LOCAL_CACHE_DIR": str(work / "zig")}
    jobs = str(len(os.sched_getaffinity(0)))
    configure = ["-S", str(_SOURCES), "-B", str(work / "build"), "-G", "Unix Makefiles"]
    for arguments in (
        configure + [f"-D{name}={value}" for name, value in _definitions(compiler).items()],
        ["--build", str(work / "build"), "--parallel", jobs],
        ["--install", str(work / "build"), "--prefix", str(staged)],
    ):
        process.run([program, *arguments], env=env, timeout=_BUILD_TIMEOUT_S)


def _definitions(compiler: _Compiler) -> dict[str, str]:
    made_of = versions()
    return {
        "CMAKE_CXX_COMPILER": ";".join(compiler.command),
        "CMAKE_CXX_FLAGS": " ".join(compiler.flags),
        "CMAKE_EXE_LINKER_FLAGS": " ".join(compiler.link_flags),  # and not the caller's LDFLAGS
        # CMake would find these out by linking programs, and the first link is the longest step of all.
        "CMAKE_CXX_COMPILER_WORKS": "TRUE",
        "CMAKE_CXX_ABI_COMPILED": "TRUE",
        "DEVICE_VERSION": made_of["device"],
        "TVM_ROOT": str(_package_folder("tvm")),
        "TVM_VERSION": made_of["tvm"],
        "TVM_FFI_ROOT": str(_package_folder("tvm_ffi")),
        "TVM_FFI_VERSION": made_of["tvm_ffi"],
    }


def _package_folder(name: str) -> Path:
    """Find an installed package's folder without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise BuildError(f"the Python package {name} is not installed", hint="make setup")
    return Path(spec.origin).parent
