"""Runtimes of devices for this machine's Python, built from the sources of those that run on boards."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from toolchain import files, process, resources, temporary, tvm_plugins

_TIMEOUT_S = 600.0
# What the runtimes of devices ask for beside their own.
_SHARED = ("model/json.cc",)
# The folders from which TVM's sources find each other: see runtime/CMakeLists.txt.
_SHIMS = ("tvm/include", "tvm/include/tvm", "tvm/include/tvm/support/cuda", "")


def build_plugin(device: str, tell: Callable[[str], None]) -> Path:
    """Build a plug-in and put it where every later `import tvm` loads it from.

    It is compiled by g++, not by the compiler of the boards' programs: exceptions of TVM's wheel pass through it.

    Args:
        device: Folder of the runtime's sources, which names the plug-in too.
        tell: Called before the build, which takes some seconds.

    Raises:
        BuildError: There is no compiler, or it refuses the sources.
    """
    target = tvm_plugins.folder() / f"libedge_{device}.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    tell(f"building {target.name}")
    with temporary.folder() as name:
        unity = Path(name) / "plugin.cc"
        sources = [*sorted((resources.RUNTIME / device).glob("*.cc")), *(resources.RUNTIME / name for name in _SHARED)]
        unity.write_text("".join(f'#include "{path}"\n' for path in sources), encoding="utf-8")
        library = Path(name) / target.name
        process.run(_command(unity, library), timeout=_TIMEOUT_S)
        files.write_atomic(target, library.read_bytes())
    return target


def _command(source: Path, library: Path) -> list[str]:
    tvm, ffi = resources.package_folder("tvm"), resources.package_folder("tvm_ffi")
    shims = [f"-I{resources.RUNTIME / 'shims' / shim}" for shim in _SHIMS]
    includes = [f"-I{tvm / 'include'}", f"-I{ffi / 'include'}", f"-I{tvm / 'src' / 'runtime'}", *shims]
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
    libraries = [f"-L{tvm / 'lib'}", f"-L{ffi / 'lib'}", "-ltvm_runtime", "-ltvm_ffi", "-ldl", "-Wl,-z,defs"]
    return [os.environ.get("CXX", "g++"), *flags, *includes, str(source), "-o", str(library), *libraries]
