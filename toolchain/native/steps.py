"""The steps of devices for pictures and sounds, compiled for this machine as one library.

It computes the reference of what a device makes of a picture or a sound.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import architecture, files, locks, process, resources, temporary
from toolchain.errors import InputError

_ROOMS = ("steps", "pictures", "sounds")
# Without contraction, as on devices: all processors round alike.
_FLAGS = (
    *("-std=c++17", "-O2", "-g0", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fno-sanitize=undefined"),
    *("-fPIC", "-fvisibility=hidden"),
)
_BUILD_S = 600.0
REASON_BYTES = 192
OBJECT = np.dtype([("label", "<i4"), *((name, "<f4") for name in ("score", "left", "top", "right", "bottom"))])
"""One object: a class with its score, and a box in pixels of a picture, or the seconds from left to right, or zeros."""


def address(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class Handle:
    """What a room of the library made for a plan; not for use by two threads at once.

    Args:
        room: `pictures` or `sounds`, how its functions begin.
        manual: Path of the documentation page that errors name.
        progress: Called when the library has to be compiled.
    """

    def __init__(self, room: str, manual: str, progress: Callable[[str], None] | None) -> None:
        self._handle, self._reason = ctypes.c_void_p(), ctypes.create_string_buffer(REASON_BYTES)
        self._functions, self._room, self._manual = library(progress), room, manual

    def __del__(self) -> None:
        if self._handle:
            getattr(self._functions, f"{self._room}_close")(self._handle)

    def make(self, function: str, plan: ctypes.Structure, *arguments: Any) -> None:
        """Make it by a function that takes the plan, and perhaps more.

        Raises:
            InputError: The plan is wrong.
        """
        self._check(function, ctypes.byref(plan), *arguments, ctypes.byref(self._handle))

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function on it.

        Raises:
            InputError: The function refuses the arguments.
        """
        self._check(function, self._handle, *arguments)

    def read(self, function: str, *results: Any) -> None:
        """Call a function on it that cannot fail."""
        getattr(self._functions, f"{self._room}_{function}")(self._handle, *results)

    def find(self, *place: Any, output: NDArray[np.float32]) -> NDArray[Any]:
        """Return the objects that an output has, as an array of `OBJECT`; `place` are the arguments before the output.

        Raises:
            InputError: The output has another size.
        """
        values = np.ascontiguousarray(output, np.float32)
        objects, count = ctypes.c_void_p(), ctypes.c_size_t()
        results = ctypes.byref(objects), ctypes.byref(count)
        self.call("find", *place, address(values), ctypes.c_size_t(values.size), *results)
        if not count.value:
            return np.empty(0, OBJECT)
        return np.frombuffer(ctypes.string_at(objects, count.value * OBJECT.itemsize), OBJECT)

    def _check(self, function: str, *arguments: Any) -> None:
        if getattr(self._functions, f"{self._room}_{function}")(*arguments, self._reason):
            raise InputError(self._reason.value.decode(), hint=f"{self._manual} describes {self._room}")


@functools.cache
def library(progress: Callable[[str], None] | None) -> ctypes.CDLL:
    """Return the library of this machine, built if there is none.

    Raises:
        BuildError: The compiler refuses the sources.
    """
    return ctypes.CDLL(str(_build(progress)))


def _build(progress: Callable[[str], None] | None) -> Path:
    """Return the library's path; it is compiled unless the cache has it for these sources and this compiler."""
    target = architecture.of_machine(platform.machine())
    sources = [
        path for room in _ROOMS for path in sorted((resources.RUNTIME / room).iterdir()) if path.suffix in {".cc", ".h"}
    ]
    digests = {f"{path.parent.name}/{path.name}": files.sha256_file(path) for path in sources}
    identity = [digests, _FLAGS, importlib.metadata.version("ziglang"), target.zig_target]
    key = files.sha256_bytes(files.canonical_json(identity))[:16]
    built = files.check_cache() / f"steps-{key}.so"
    if built.is_file():
        return built
    with locks.hold(files.cache_root() / ".steps.lock", "the build of the library of steps", _BUILD_S, progress):
        if not built.is_file():
            if progress:
                progress("compiling the steps for pictures and sounds for this machine (once; it takes some seconds)")
            _compile([path for path in sources if path.suffix == ".cc"], target, built)
    return built


def _compile(sources: list[Path], target: architecture.Architecture, built: Path) -> None:
    # As two commands: the first has the headers of C++, the second does not link its library, which zig would compile
    # first, for minutes.
    zig = resources.package_folder("ziglang") / "zig"
    with temporary.folder() as work, files.atomic_path(built) as made:
        source = Path(work) / "steps.cc"
        source.write_text("".join(f'#include "{path}"\n' for path in sources), encoding="utf-8")
        env = {"ZIG_GLOBAL_CACHE_DIR": str(files.cache_root() / "zig"), "ZIG_LOCAL_CACHE_DIR": str(Path(work) / "zig")}
        machine = ["-target", target.zig_target, f"-mcpu={target.zig_cpu}"]
        compiled = Path(work) / "steps.o"
        process.run([zig, "c++", *machine, *_FLAGS, "-c", source, "-o", compiled], env=env, timeout=_BUILD_S)
        process.run(
            [zig, "cc", *machine, "-shared", "-s", compiled, "-lm", "-ldl", "-o", made], env=env, timeout=_BUILD_S
        )
