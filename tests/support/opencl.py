"""A real OpenCL device for tests: PoCL, which runs kernels on the CPU, with a counting library in between."""

from __future__ import annotations

import contextlib
import ctypes.util
import fcntl
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import te

from tests.support import session
from tests.support.parts import require
from tests.support.paths import DATA
from toolchain import board, tvm_plugins
from toolchain.backends.mali.backend import Mali

SHIM = DATA / "opencl_shim.c"
HOST = {"kind": "llvm", "mcpu": "x86-64"}
LOCAL_LIMIT = 32768


def require_opencl() -> None:
    """Leave a test out, or fail it, where there is no OpenCL."""
    present = ctypes.util.find_library("OpenCL") is not None and any(Path("/etc/OpenCL/vendors").glob("*.icd"))
    require("OpenCL", "pocl-opencl-icd", present)


def plugin(cache: Path) -> dict[str, str]:
    """Put the OpenCL runtime for Python into a cache.

    Returns:
        The variables by which another process's TVM finds it.
    """
    library = _built()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLCHAIN_CACHE", str(cache))
        tvm_plugins.folder().mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library, tvm_plugins.folder() / library.name)
    return {"TOOLCHAIN_CACHE": str(cache)}


def _built() -> Path:
    """Return the OpenCL runtime for Python, which a session of tests builds once."""
    folder = session.folder() / "opencl"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("TOOLCHAIN_CACHE", str(folder))
        there = sorted(tvm_plugins.folder().glob("*.so"))
        return there[0] if there else Mali(board.load("opencl-local").resolved()).python_runtime(lambda _line: None)


@contextlib.contextmanager
def device(cache: Path) -> Iterator[Any]:
    """This machine's OpenCL device, in this process, which keeps no kernels."""
    require_opencl()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLCHAIN_CACHE", str(cache))
        patch.setenv("EDGE_OPENCL_CACHE", "")
        if not tvm.runtime.device("opencl", 0).exist:
            ctypes.CDLL(str(_built()))
        yield tvm.runtime.device("opencl", 0)


def target() -> tvm.target.Target:
    """Return a target for Mali whose host is this machine."""
    return tvm.target.Target({"kind": "opencl", "device": "mali"}, host=HOST)


@dataclass(frozen=True)
class Counts:
    """What a program asked of OpenCL, as `opencl_shim.c` counts it."""

    buffers: int
    buffers_freed: int
    programs: int
    programs_freed: int
    kernels: int
    kernels_freed: int
    sources: int
    launches: int
    maps: int
    unmaps: int
    copies: int
    flushes: int
    images: int
    calls: int


class Shim:
    """The counting library, in a folder of its own; an old one is of OpenCL 1.1."""

    def __init__(self, folder: Path, *, old: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._library, self._counts = folder / "libshim.so", folder / "counts"
        argv = [
            "cc",
            "-shared",
            "-fPIC",
            "-O1",
            "-o",
            str(self._library),
            str(SHIM),
            "-ldl",
            *(["-DOLD"] if old else []),
        ]
        subprocess.run(argv, check=True)

    def env(self, **faults: int | str) -> dict[str, str]:
        """Return the environment of a program that is to use it, with a fresh count, and what is to fail.

        It hands calls on to the library `library`; by default, to this machine's.
        """
        self._counts.unlink(missing_ok=True)
        variables = {"EDGE_OPENCL_LIBRARY": str(self._library), "SHIM_COUNTS": str(self._counts)}
        return variables | {f"SHIM_{name.upper()}": str(value) for name, value in faults.items()}

    def counts(self) -> Counts:
        """Return what has been counted so far."""
        return Counts(*struct.unpack("14q", self._counts.read_bytes()))


def export(module: tvm.IRModule, path: Path) -> Path:
    """Compile a module for OpenCL and link it for this machine."""
    tvm.compile(module, target=target()).export_library(str(path))
    return path


def thread_extents(function: Any) -> list[tuple[str, int]]:
    """List the thread axes that a kernel's loops are bound to, with the loops' extents."""
    extents: list[tuple[str, int]] = []

    def visit(loop: Any) -> None:
        if loop.thread_binding is not None:
            extents.append((str(loop.thread_binding.thread_tag), int(loop.extent)))

    tvm_ffi.structural_walk(function.body, (tvm.tirx.For, visit))
    return extents


def doubled(size: int = 1024, group: int = 64) -> tvm.IRModule:
    """Return a kernel y = 2 * x, in work-groups of so many work-items."""
    x = te.placeholder((size,), name="x")
    y = te.compute((size,), lambda i: x[i] * 2.0, name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    outer, inner = schedule.split(*schedule.get_loops(schedule.get_sblock("y")), factors=[None, group])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    return schedule.mod


def unknown_function(size: int = 64) -> tvm.IRModule:
    """Return a kernel that calls a function which no OpenCL compiler knows."""
    x = te.placeholder((size,), name="x")
    call = tvm.tirx.call_pure_extern
    y = te.compute((size,), lambda i: call("float32", "no_such_function", x[i]), name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.bind(loop, "threadIdx.x")
    return schedule.mod


def much_local_memory(bytes_wanted: int) -> tvm.IRModule:
    """Return a kernel whose work-groups want so much local memory."""
    size = bytes_wanted // 4
    x = te.placeholder((size,), name="x")
    y = te.compute((size,), lambda i: x[size - 1 - i] * 2.0, name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    block = schedule.get_sblock("y")
    (loop,) = schedule.get_loops(block)
    outer, inner = schedule.split(loop, factors=[1, size])
    schedule.bind(outer, "blockIdx.x")
    staged = schedule.cache_read(block, 0, "shared")
    schedule.compute_at(staged, outer)
    threads = schedule.split(inner, factors=[None, 64])[1]
    schedule.bind(threads, "threadIdx.x")
    fused = schedule.fuse(*schedule.get_loops(staged)[1:])
    schedule.bind(schedule.split(fused, factors=[None, 64])[1], "threadIdx.x")
    return schedule.mod
