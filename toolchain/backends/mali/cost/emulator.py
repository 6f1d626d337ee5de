"""What runs the compiler's program, which is for 64-bit ARM: this machine itself, its qemu, or that of an image."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from toolchain import process
from toolchain.architecture import AARCH64
from toolchain.containers import images
from toolchain.errors import BuildError

IMAGE = "mali"
LABEL = "edge-toolchain.emulator"
"""By which an image names the emulator that it brings."""

_QEMU = (f"{AARCH64.qemu_user}-static", AARCH64.qemu_user)


class Emulator(Protocol):
    """Runs programs of the compiler's tree."""

    def run(
        self, command: Sequence[str], tree: Path, environment: Mapping[str, str], folders: Folders, timeout: float
    ) -> process.Result:
        """Run a program of the tree to its end, whatever its exit code.

        Args:
            command: The program and its arguments.
            tree: The unpacked packages, with its libraries.
            environment: Variables of the program, and of nothing else.
            folders: What it reads and writes.
            timeout: Seconds until it is ended.

        Raises:
            BuildError: It cannot be started, or takes too long.
        """


@dataclass(frozen=True)
class Folders:
    """What a program works on: folders that it reads, and those that it writes to."""

    readable: tuple[Path, ...]
    writable: tuple[Path, ...]


@dataclass(frozen=True)
class LocalEmulator:
    """This machine: by its qemu, or by itself where that is None."""

    qemu: str | None

    def run(
        self, command: Sequence[str], tree: Path, environment: Mapping[str, str], folders: Folders, timeout: float
    ) -> process.Result:
        """Run a program of the tree to its end, whatever its exit code."""
        del folders  # this machine sees all of them
        if self.qemu is None:
            return process.run(list(command), env=dict(environment), timeout=timeout, check=False)
        return process.run([self.qemu, *_told(tree, environment), *command], timeout=timeout, check=False)


@dataclass(frozen=True)
class ImageEmulator:
    """The qemu of an image of docker/, without network, on a file system that is read-only but for what it writes."""

    image: str
    qemu: str

    def run(
        self, command: Sequence[str], tree: Path, environment: Mapping[str, str], folders: Folders, timeout: float
    ) -> process.Result:
        """Run a program of the tree to its end, whatever its exit code."""
        return images.run(
            self.image,
            [self.qemu, *_told(tree, environment), *command],
            writable=folders.writable,
            readable=(tree.parent, *folders.readable),
            timeout=timeout,
            check=False,
        )


def _told(tree: Path, environment: Mapping[str, str]) -> list[str]:
    return [
        "-L",
        os.fspath(tree),
        *(argument for name, value in environment.items() for argument in ("-E", f"{name}={value}")),
    ]


def emulator() -> Emulator:
    """Return what runs the compiler here: this machine before an image.

    Raises:
        BuildError: There is neither qemu nor an image that has it.
    """
    if platform.machine() == AARCH64.machine:
        return LocalEmulator(None)
    for name in _QEMU:
        if path := shutil.which(name):
            return LocalEmulator(path)
    try:
        contained = images.labels(IMAGE).get(LABEL, "")
    except BuildError as fault:
        raise _none(fault.message) from fault
    if not contained:
        raise _none(f"the image {IMAGE} is too old to include it")
    return ImageEmulator(IMAGE, contained)


def _none(cause: str) -> BuildError:
    return BuildError(
        "Mesa's compiler for Mali GPUs needs qemu on this machine, or the image that includes it",
        details=f"neither {' nor '.join(_QEMU)} is installed; {cause}",
        hint=f"apt-get install qemu-user-static, or toolchain containers build {IMAGE}",
    )
