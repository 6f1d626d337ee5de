"""The commands that link a library, and a script that links many."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain import process
from toolchain.architecture import is_android, of_triple
from toolchain.errors import BuildError

Argv = Sequence[str | Path]
Pair = tuple[Path, Sequence[Path]]
"""A shared library to make, and its objects."""

# A build id would depend on paths, and nothing reads it here.
_REPRODUCIBLE = ("-Wl,--build-id=none", "-Wl,--as-needed")
# A board may lack libgcc_s, which has the integer division of 32-bit code.
_SELF_CONTAINED = "-static-libgcc"
# Android loads only libraries whose segments are aligned to its pages, which have 16 KiB on new devices.
ANDROID_PAGES = ("-Wl,--hash-style=gnu", "-Wl,-z,max-page-size=16384", "-Wl,-z,relro,-z,now")
_ANDROID_LIBRARIES = ("m", "c", "dl")
EMPTY = "empty.c"  # the source of each stub


def gnu_driver(triple: str) -> str:
    """Return the GNU compiler for a triple; for Android, the one that is used without an NDK."""
    return f"{of_triple(triple).triple if is_android(triple) else triple}-g++"


@dataclass(frozen=True)
class Linker:
    """A compiler driver that links libraries for a triple."""

    command: tuple[str, ...]  # the driver, and its first arguments
    triple: str

    @property
    def needs_stubs(self) -> bool:
        """Whether it lacks Android's libraries, which an NDK has."""
        return is_android(self.triple) and self.command == (gnu_driver(self.triple),)

    def link_command(self, output: Path, objects: Sequence[Path], stubs: Path) -> list[str | Path]:
        argv: list[str | Path] = [*self.command, "-shared", "-fPIC", "-o", output, *objects]
        argv += [*_REPRODUCIBLE, _SELF_CONTAINED]
        if is_android(self.triple):
            argv += [*ANDROID_PAGES, f"-Wl,-soname,{output.name}"]
        if not self.needs_stubs:
            return [*argv, "-lm"]
        names = [f"-l{name}" for name in _ANDROID_LIBRARIES]
        return [*argv, "-nostdlib", f"-L{stubs}", "-Wl,--no-as-needed", *names]

    def stub_commands(self, stubs: Path) -> list[list[str | Path]]:
        """Return the commands that make empty libraries with the names of Android's.

        A GNU linker then writes these names into its output, and no symbol versions of glibc.
        """
        argv: list[str | Path] = [*self.command, "-shared", "-nostdlib", "-x", "c", stubs / EMPTY]
        libraries = [f"lib{name}.so" for name in _ANDROID_LIBRARIES]
        return [[*argv, "-o", stubs / name, f"-Wl,-soname,{name}"] for name in libraries]


class Batch:
    """The links of one container: a script, and its results in an empty folder that it may write to.

    Paths are absolute; `timeout` is for one link.
    """

    def __init__(self, linker: Linker, pairs: Sequence[Pair], folder: Path, timeout: float) -> None:
        self.links = [linker.link_command(output, objects, folder) for output, objects in pairs]
        self._first = linker.stub_commands(folder) if linker.needs_stubs else []
        self._folder = folder
        self._limit = ["timeout", "--signal=KILL", f"{timeout:g}"]
        self._lanes = min(os.cpu_count() or 1, len(self.links))
        self.script = folder / "link.sh"
        self.timeout = timeout * (len(self._first) + -(-len(self.links) // self._lanes)) + timeout

    def write(self) -> None:
        """Write the script, which runs one lane of links for each CPU."""
        (self._folder / EMPTY).touch()
        lines = [f"cd {shlex.quote(str(self._folder))} || exit"]
        lines += [f"{_shell([*self._limit, *argv])} || exit" for argv in self._first]
        for lane in range(self._lanes):
            numbers = range(lane, len(self.links), self._lanes)
            links = (
                f"{_shell([*self._limit, *self.links[number]])} >{number}.said 2>&1; echo $? >{number}.code"
                for number in numbers
            )
            lines += ["(", *links, ") &"]
        self.script.write_text("\n".join([*lines, "wait", ""]), encoding="utf-8")

    def outcome(self, number: int, image: str, container_fault: BuildError | None) -> BuildError | None:
        """Return the error of a failed link, else None; `container_fault` is the container's error."""
        code = _text(self._folder / f"{number}.code").strip()
        if code == "0":
            return None
        command = _shell(self.links[number])
        if not code:  # the container ended before this link did
            return container_fault or BuildError(
                f"the container of {image} ended before linking was finished", details=command
            )
        return BuildError(
            f"{self.links[number][0]} failed with exit code {code} in the image {image}",
            details=f"{command}\n{process.tail(_text(self._folder / f'{number}.said'))}",
        )


def _shell(argv: Argv) -> str:
    return shlex.join(os.fspath(argument) for argument in argv)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
