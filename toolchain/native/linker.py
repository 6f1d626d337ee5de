"""What is passed to a compiler driver so that it links a library, and one script for many such commands."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain import process
from toolchain.errors import BuildError

Words = Sequence[str | Path]
"""A command and its arguments."""
Pair = tuple[Path, Sequence[Path]]
"""A shared library that is to be made, and its objects."""

_ANDROID = "-linux-android"
# A build id would be the digest of paths too; nothing reads it here.
_REPRODUCIBLE = ("-Wl,--build-id=none", "-Wl,--as-needed")
# A board may lack libgcc_s, from which 32-bit code takes its integer division.
_SELF_CONTAINED = "-static-libgcc"
# Android loads only libraries whose segments fit its pages, which new devices have in 16 KiB.
ANDROID_PAGES = ("-Wl,--hash-style=gnu", "-Wl,-z,max-page-size=16384", "-Wl,-z,relro,-z,now")
"""Options that everything for Android is linked with."""
_ANDROID_LIBRARIES = ("m", "c", "dl")
EMPTY = "empty.c"
"""Source, in the folder of the stubs, that each of them is made from."""


def is_android(triple: str) -> bool:
    """Whether a triple is one of Android's."""
    return _ANDROID in triple


def gnu_driver(triple: str) -> str:
    """Name the GNU compiler for a triple; for Android's, the one that stands in where there is no NDK."""
    gnu = f"{triple.partition(_ANDROID)[0]}-linux-gnu" if is_android(triple) else triple
    return f"{gnu}-g++"


@dataclass(frozen=True)
class Linker:
    """A compiler driver and the options that libraries for its triple are linked with."""

    compiler: str
    triple: str

    @property
    def needs_stubs(self) -> bool:
        """Whether it lacks Android's libraries, which an NDK's brings."""
        return is_android(self.triple) and self.compiler == gnu_driver(self.triple)

    def words(self, output: Path, objects: Sequence[Path], stubs: Path) -> list[str | Path]:
        """Return the command that makes a library."""
        argv: list[str | Path] = [self.compiler, "-shared", "-fPIC", "-o", output, *objects]
        argv += [*_REPRODUCIBLE, _SELF_CONTAINED]
        if is_android(self.triple):
            argv += [*ANDROID_PAGES, f"-Wl,-soname,{output.name}"]
        if not self.needs_stubs:
            return [*argv, "-lm"]
        names = [f"-l{name}" for name in _ANDROID_LIBRARIES]
        return [*argv, "-nostdlib", f"-L{stubs}", "-Wl,--no-as-needed", *names]

    def stub_words(self, stubs: Path) -> list[list[str | Path]]:
        """Return the commands that make empty libraries of Android's names from an empty source.

        With them a GNU linker writes those names, and no GNU version, into what it makes.
        """
        argv: list[str | Path] = [self.compiler, "-shared", "-nostdlib", "-x", "c", stubs / EMPTY]
        libraries = [f"lib{name}.so" for name in _ANDROID_LIBRARIES]
        return [[*argv, "-o", stubs / name, f"-Wl,-soname,{name}"] for name in libraries]


class Batch:
    """The links of one container: a script for them, and what it left behind about each in a folder.

    Args:
        linker: What links.
        pairs: Libraries, and the objects of each; absolute paths.
        folder: An empty folder that the container may write to.
        timeout: Seconds until one link is ended.
    """

    def __init__(self, linker: Linker, pairs: Sequence[Pair], folder: Path, timeout: float) -> None:
        self.links = [linker.words(output, objects, folder) for output, objects in pairs]
        self._first = linker.stub_words(folder) if linker.needs_stubs else []
        self._folder = folder
        self._limit = ["timeout", "--signal=KILL", f"{timeout:g}"]
        self._lanes = min(os.cpu_count() or 1, len(self.links))
        self.script = folder / "link.sh"
        self.timeout = timeout * (len(self._first) + -(-len(self.links) // self._lanes)) + timeout

    def write(self) -> None:
        """Write the script: as many links at a time as there are CPUs."""
        (self._folder / EMPTY).touch()
        lines = [f"cd {shlex.quote(str(self._folder))} || exit"]
        lines += [f"{_shell([*self._limit, *argv])} || exit" for argv in self._first]
        for lane in range(self._lanes):
            numbers = range(lane, len(self.links), self._lanes)
            lines += ["(", *(self._step(number) for number in numbers), ") &"]
        self.script.write_text("\n".join([*lines, "wait", ""]), encoding="utf-8")

    def _step(self, number: int) -> str:
        return f"{_shell([*self._limit, *self.links[number]])} >{number}.said 2>&1; echo $? >{number}.code"

    def outcome(self, number: int, image: str, whole: BuildError | None) -> BuildError | None:
        """Say what became of one link; `whole` is what became of the container, if it failed."""
        code = _text(self._folder / f"{number}.code").strip()
        if code == "0":
            return None
        words = _shell(self.links[number])
        if not code:
            return whole or BuildError(f"the container of {image} ended before linking was finished", details=words)
        return BuildError(
            f"{self.links[number][0]} failed with exit code {code} in the image {image}",
            details=f"{words}\n{process.tail(_text(self._folder / f'{number}.said'))}",
        )


def _shell(words: Words) -> str:
    return shlex.join(os.fspath(word) for word in words)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
