"""Where a compiler for a board runs, and what it is."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain import process
from toolchain.errors import BuildError

_LINK_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Description:
    """What built a library: the compiler's own version line, and the image it ran in, if any."""

    compiler: str
    image: str = ""


@dataclass(frozen=True)
class HostCross:
    """The compiler of this machine for one GNU triple.

    Attributes:
        triple: GNU triple of the board. The machine's own triple takes `c++`, any other `<triple>-g++`.
    """

    triple: str

    @property
    def compiler(self) -> str:
        """Program that compiles and links C++ for the triple."""
        return "c++" if self.triple == f"{platform.machine()}-linux-gnu" else f"{self.triple}-g++"

    def run(self, argv: Sequence[str | Path], *, timeout: float = 600.0) -> process.Result:
        """Run a build command where the compiler is."""
        return process.run(argv, timeout=timeout)

    def link(self, output: Path, objects: Sequence[Path]) -> None:
        """Link objects into a shared library that is the same bytes wherever it is built.

        Raises:
            BuildError: The compiler is missing or refuses the objects.
        """
        argv: list[str | Path] = [self.compiler, "-shared", "-fPIC", "-o", output, *objects]
        # A build id would be the digest of paths too; nothing reads it here.
        argv += ["-Wl,--build-id=none", "-Wl,--as-needed", "-lm"]
        self.run(argv, timeout=_LINK_TIMEOUT_S)

    def describe(self) -> Description:
        """Ask the compiler who it is."""
        first = self.run([self.compiler, "--version"], timeout=30.0).stdout.splitlines()
        if not first:
            raise BuildError(f"{self.compiler} does not say its version")
        return Description(first[0])
