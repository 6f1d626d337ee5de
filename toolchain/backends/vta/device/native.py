"""The host's library of the boards' C++ code: the simulator and the check of streams; compiled once."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import platform
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from toolchain import files, process, resources, temporary
from toolchain.architecture import MACHINES
from toolchain.errors import BuildError, VerificationError, reason

Tell = Callable[[str], None]
"""Called with one line before something that takes a while."""

_SOURCES = resources.RUNTIME / "vta"
_NEEDS_TVM = "functions.cc"
_TIMEOUT_S = 900.0
_ERROR_BYTES = 2048
_FLAGS = ("-std=c++17", "-O3", "-g0", "-s", "-shared", "-fPIC", "-fvisibility=hidden", "-D_FILE_OFFSET_BITS=64")


def library(tell: Tell | None = None) -> Path:
    """Return the library, compiling it if the cache has none of these sources and this compiler.

    Args:
        tell: Called before a build, which takes ten seconds with g++ and a minute with zig.

    Raises:
        BuildError: There is no compiler for this machine, or it refuses the sources.
    """
    command, identity = _compiler()
    # Another compiler or another source makes another library, so both are in its name.
    digests = [files.sha256_file(path) for path in sorted(_SOURCES.glob("*")) if path.suffix in {".cc", ".h"}]
    key = files.sha256_bytes(files.canonical_json([digests, list(command), identity]))
    path = files.cache_root() / "vta" / f"libvta-{key[:16]}.so"
    if not path.is_file():
        if tell:
            tell("building the VTA simulator (once, a minute at most)")
        # All sources are compiled as one file: a third of the time of one by one.
        path.parent.mkdir(parents=True, exist_ok=True)
        sources = sorted(source.name for source in _SOURCES.glob("*.cc") if source.name != _NEEDS_TVM)
        with temporary.folder() as work, files.atomic_path(path) as target:
            unity = Path(work) / "all.cc"
            unity.write_text("".join(f'#include "{name}"\n' for name in sources), encoding="utf-8")
            env = {
                "ZIG_GLOBAL_CACHE_DIR": str(files.cache_root() / "zig"),
                "ZIG_LOCAL_CACHE_DIR": str(Path(work) / "zig"),
            }
            process.run([*command, f"-I{_SOURCES}", str(unity), "-o", str(target)], env=env, timeout=_TIMEOUT_S)
    return path


@lru_cache(maxsize=1)
def loaded() -> ctypes.CDLL:
    """Return the library, loaded into this process.

    Raises:
        BuildError: It cannot be built or cannot be loaded.
    """
    path = library()
    try:
        return ctypes.CDLL(str(path))
    except OSError as fault:
        raise BuildError(
            f"{path} cannot be loaded", details=reason(fault), hint="remove that file, and it is built anew"
        ) from fault


def _compiler() -> tuple[tuple[str, ...], str]:
    """Return the command of g++, which is ten times faster, or else of zig, and the identity of that compiler."""
    if gxx := shutil.which("g++"):
        return (gxx, *_FLAGS), process.run([gxx, "-dumpfullversion", "-dumpmachine"], timeout=60.0).stdout
    machine = platform.machine()
    spec = importlib.util.find_spec("ziglang")
    own = MACHINES.get(machine)
    if own is None or spec is None or spec.origin is None:
        raise BuildError(f"there is no compiler for the VTA simulator on {machine}", hint="apt-get install g++")
    # The same promise as for the programs on boards: older than every C library in use.
    target = ("-target", own.zig_target, f"-mcpu={own.zig_cpu}", "-fno-sanitize=undefined")
    return (str(Path(spec.origin).parent / "zig"), "c++", *target, *_FLAGS), importlib.metadata.version("ziglang")


def verify(data: bytes) -> None:
    """Check a stream's bytes as a board does before it runs them; `runtime/vta/verify.h` lists the checks.

    Args:
        data: What `Stream.encoded` returns.

    Raises:
        VerificationError: It may not run: the message names the instruction and the cause.
        BuildError: The library that checks cannot be built.
    """
    error, checker = ctypes.create_string_buffer(_ERROR_BYTES), loaded()
    checker.vta_stream_verify.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
    if checker.vta_stream_verify(data, len(data), error, _ERROR_BYTES):
        raise VerificationError(
            f"the VTA stream may not run: {error.value.decode(errors='replace')}", hint="build the kernel again"
        )
