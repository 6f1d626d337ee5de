"""What we write in C++ for a device: the programs `runner` and `board_server`, and the library `edge_model`.

Each is built once for a triple, and cached.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import toolchain
from toolchain import files, locks, process, resources
from toolchain.errors import BuildError
from toolchain.native import compiling, elf
from toolchain.native.compiling import Compiler
from toolchain.native.cross import NDK_VARIABLE, HostCross
from toolchain.native.linker import ANDROID_PAGES, is_android
from toolchain.versions import tvm

Tell = Callable[[str], None]
"""Called with one line before something that takes a while."""

RUNNER = "runner"
BOARD_SERVER = "board_server"
LIBRARY = "edge_model"
PROGRAMS = (RUNNER, BOARD_SERVER)
_RECORD = "program.json"
_BUILD_S = 3600.0  # a build takes some minutes on a small machine, and others may be before this one
_SOURCES = resources.RUNTIME
_SUFFIXES = {".cc", ".h", ".txt", ".map", ".zig"}
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "ziglang")
# The child has an ear for Ctrl-C even where who started us had none.
_BUILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from toolchain.native import programs
programs.build(*sys.argv[1:])
"""
# Older than every C library in use on boards.
GLIBC = "2.28"
"""The C library of a device must be of this version or later."""


_TARGETS = {"x86_64-linux-gnu": "baseline", "aarch64-linux-gnu": "generic", "arm-linux-gnueabihf": "generic+v7a"}
"""Of each triple that zig compiles for, the CPUs that a program may count on."""
TRIPLES = (*sorted(_TARGETS), "Android's with its NDK")
"""What there are device programs for, in words."""


@dataclass(frozen=True)
class Program:
    """One built program, or the library, which needs nothing else on a device than its C library.

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
class _Place:
    """Where one program is kept.

    Attributes:
        name: `runner`, `board_server` or `edge_model`.
        triple: GNU triple of the device.
        key: Digest of all that decides what it is.
    """

    name: str
    triple: str
    key: str

    @property
    def root(self) -> Path:
        return files.cache_root() / "device"

    @property
    def folder(self) -> Path:
        return self.root / f"{self.name}-{self.triple}-{self.key}"

    @property
    def workplace(self) -> compiling.Workplace:
        """Where all are compiled: most of their objects are the same.

        CMake does not go on under another path of the same folder, such as one through a link.
        """
        return compiling.Workplace(self.root.resolve(), self.triple, self.key)


def build(name: str, triple: str, machine: str, tell: Tell | None = None) -> Program:
    """Return a program for a triple, building it if the cache has none of these sources and this compiler.

    Args:
        name: `RUNNER`, `BOARD_SERVER` or `LIBRARY`.
        triple: GNU triple of the device.
        machine: What `uname -m` says there.
        tell: Called before a build, which takes a minute on two cores, and with its steps.

    Raises:
        BuildError: It cannot be built for this triple, or the compiler refuses the sources.
    """
    compiler = _compiler(triple)
    place = _Place(name, triple, _cache_key(compiler)[:16])
    found = _load(place.folder, machine)
    if found is None:
        with _only_builder(place, tell):
            if (found := _load(place.folder, machine)) is None:
                if tell:
                    tell(f"building {_words(name)} for {triple} (once; it takes up to some minutes)")
                found = _build_into(compiler, place, machine, tell)
    return found


@contextlib.contextmanager
def building(name: str, triple: str, machine: str) -> Iterator[None]:
    """Build a program in the background for the time of a block, where `build` asks for it: with less to wait for.

    A failure is told by `build`, which tries again. If the block raises, or ends before, what is compiled so far is
    kept for the next build. If this process is killed, the build goes on to its end, and the next one finds it.

    Raises:
        BuildError: It cannot be built for this triple.
    """
    if _load(_Place(name, triple, _cache_key(_compiler(triple))[:16]).folder, machine):
        yield
        return
    words = [sys.executable, "-P", "-c", _BUILD, name, triple, machine]
    child = process.spawn_background(words, Path(os.devnull), attached=False)
    try:
        yield
    finally:
        child.send_signal(signal.SIGINT)
        child.wait()


def _words(name: str) -> str:
    """Call a program as people and the documents do."""
    return f"lib{name}" if name == LIBRARY else name.replace("_", " ")


@contextlib.contextmanager
def _only_builder(place: _Place, tell: Tell | None) -> Iterator[None]:
    """Wait while another process builds for the same triple: two at a time only slow each other down."""
    path = files.cache_root() / f".device-{place.triple}.lock"
    files.check_cache()
    what = f"the build of the device programs for {place.triple}"
    lock = locks.open_lock(path, follow=True)
    try:
        if not locks.attempt(lock):
            with compiling.watched(place.workplace, place.name, tell):
                locks.acquire(lock, what, _BUILD_S, tell)
        yield
    finally:
        os.close(lock)


def supports(triple: str) -> bool:
    """Whether there are programs for a triple, given what they are built with."""
    return triple in _TARGETS or is_android(triple)


def check(triple: str) -> None:
    """Refuse a triple that there are no programs for.

    Raises:
        BuildError: There are none, or the compiler for it is not here.
    """
    _compiler(triple)


def versions() -> dict[str, str]:
    """Return the versions of what the programs are made of."""
    return {"device": toolchain.__version__, **tvm()}


def _compiler(triple: str) -> Compiler:
    """Choose what compiles for a triple: zig, which has a C library for each; for Android, its NDK."""
    if triple in _TARGETS:
        packages = tuple(importlib.metadata.version(name) for name in _PACKAGES)
        # zig checks for undefined behaviour unless told otherwise, which TVM's sources are not written for.
        flags = (f"-mcpu={_TARGETS[triple]}", "-fno-sanitize=undefined")
        zig = resources.package_folder("ziglang")
        return Compiler((str(zig / "zig"), "c++"), flags, (), packages, f"{triple}.{GLIBC}", zig / "lib")
    if is_android(triple):
        return _ndk(triple)
    raise BuildError(
        f"device programs cannot be built for {triple}",
        details="supported: " + ", ".join(TRIPLES),
        hint="set the board's `triple` to one of these",
    )


def _ndk(triple: str) -> Compiler:
    """Find the NDK's compiler.

    Raises:
        BuildError: None is named, it does not start, or it compiles for other machines.
    """
    driver = os.environ.get(NDK_VARIABLE)
    wanted = f"{triple}-clang++, in toolchains/llvm/prebuilt/*/bin of an unpacked NDK"
    if not driver:
        raise BuildError(
            f"the device programs for {triple} need Android's NDK, which is not part of this toolchain",
            details="only Android's NDK can link with Android's C library",
            hint=f"set {NDK_VARIABLE} to {wanted}: see {resources.manual('android')}",
        )
    version = HostCross(triple, driver).describe().compiler
    target = process.run([driver, "-dumpmachine"], timeout=60.0).stdout.strip()
    if target.partition("-")[0] != triple.partition("-")[0]:
        raise BuildError(f"{driver} compiles for {target}, not for {triple}", hint=f"set {NDK_VARIABLE} to {wanted}")
    packages = tuple(importlib.metadata.version(name) for name in _PACKAGES)
    return Compiler((driver,), (), ("-static-libstdc++", *ANDROID_PAGES), (*packages, version, target))


def _cache_key(compiler: Compiler) -> str:
    """Digest everything that decides the result: our sources, the packages they are built with, and the flags."""
    sources = {str(path.relative_to(_SOURCES)): files.sha256_file(path) for path in _source_files()}
    flags = [compiler.flags, compiler.link_flags, compiler.identity, compiler.target]
    return files.sha256_bytes(files.canonical_json([sources, flags, versions()]))


def _source_files() -> list[Path]:
    return sorted(path for path in _SOURCES.rglob("*") if path.is_file() and path.suffix in _SUFFIXES)


def _load(folder: Path, machine: str) -> Program | None:
    """Read a folder of the cache; None if it is missing or is not what a build left there."""
    try:
        record = json.loads((folder / _RECORD).read_bytes())
        path = folder / record["name"]
        digests = {name: files.sha256_file(folder / name) for name in record["files"]}
        found = Program(path, digests[path.name], elf.minimum_glibc(path), machine, record["versions"])
        whole = record["files"] == digests
    except (OSError, ValueError, KeyError, TypeError, BuildError):  # a power cut or a full disk leaves any of these
        return None
    return found if whole else None


def _build_into(compiler: Compiler, place: _Place, machine: str, tell: Tell | None) -> Program:
    """Build aside, then put the result in place by one rename: a second builder does no harm."""
    with compiling.opened(place.workplace) as work:
        staged = work / "staged"
        for left in (staged, work / "damaged"):  # by the build of another one
            shutil.rmtree(left, ignore_errors=True)
        with compiling.watched(place.workplace, place.name, tell):
            compiling.run(compiler, _SOURCES, place.name, work, _definitions(place.triple))
        digests = {path.name: files.sha256_file(path) for path in staged.iterdir()}
        (name,) = [name for name in digests if not name.endswith(".o")]  # beside the library lies an object
        record = {"name": name, "files": digests, "versions": versions()}
        (staged / _RECORD).write_text(json.dumps(record, sort_keys=True) + "\n", encoding="utf-8")
        os.sync()  # or a power cut after the rename would leave a truncated program in the cache
        _put(staged, place.folder, work)
        found = _load(place.folder, machine)
        if found is None:
            raise BuildError(
                f"the built {_words(place.name)} cannot be moved to {place.folder}",
                hint="set TOOLCHAIN_CACHE to a folder of yours",
            )
    if all(_load(_Place(name, place.triple, place.key).folder, machine) for name in PROGRAMS):
        place.workplace.remove()  # few want the library as well
    return found


def _put(staged: Path, folder: Path, work: Path) -> None:
    try:
        staged.replace(folder)
    except OSError:  # there is one: another builder's, which is as good, or a damaged one, which has to go
        if folder.is_dir() and _load(folder, "") is None:
            with contextlib.suppress(OSError):  # a third builder was here in between
                folder.rename(work / "damaged")
                staged.replace(folder)


def _definitions(triple: str) -> dict[str, str]:
    """Say what the sources want to know of what they are made of, and for."""
    made_of = versions()
    return {
        "DEVICE_VERSION": made_of["device"],
        "TVM_ROOT": str(resources.package_folder("tvm")),
        "TVM_VERSION": made_of["tvm"],
        "TVM_FFI_ROOT": str(resources.package_folder("tvm_ffi")),
        "TVM_FFI_VERSION": made_of["tvm_ffi"],
        "FOR_ANDROID": "ON" if is_android(triple) else "OFF",
        "ZIG": str(resources.package_folder("ziglang") / "zig"),
        "ZIG_TARGET": re.sub(r"[0-9]+$", "", triple),  # Android's triples end with an interface's number
        "ZIG_CPU": _TARGETS.get(triple, "baseline") + ("+thumb_mode" if triple.startswith("arm-") else ""),
    }
