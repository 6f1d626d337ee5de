"""What a virtual board is, whichever way it is emulated."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from toolchain.board import Board
from toolchain.errors import InputError

Tell = Callable[[str], None]
"""Who is told what happens."""

USER = "board"
"""The login of every virtual board."""

_ARCHITECTURES = {"aarch64": "arm64", "armv7l": "armhf"}
_GNU = "-linux-gnu"
# What QEMU knows of each architecture; a board with another CPU gets one with every feature.
_CPUS = {
    "arm64": {"cortex-a35", "cortex-a53", "cortex-a57", "cortex-a72", "cortex-a76", "neoverse-n1"},
    "armhf": {"cortex-a7", "cortex-a8", "cortex-a9", "cortex-a15"},
}


@dataclass(frozen=True)
class VirtualBoard:
    """One virtual board.

    Attributes:
        name: Its name in devices.toml and in the farm's ssh_config, such as `rpi4-1`.
        board: Its board type.
        kind: `docker` for a user land in a container, `kernel` for a whole machine with a kernel of its own.
        port: Port of its SSH server on this machine's loopback address.
        running: Whether it runs.
        client: Fingerprint of the client key that it lets in.
    """

    name: str
    board: str
    kind: Literal["docker", "kernel"]
    port: int
    running: bool
    client: str


@dataclass(frozen=True)
class Login:
    """Who may log in to a board.

    Attributes:
        public: The public key, as in authorized_keys.
        fingerprint: A word that stands for it.
    """

    public: str
    fingerprint: str


class Kind(Protocol):
    """A way to emulate boards. Everything it does is seen again by the next process."""

    def found(self) -> tuple[VirtualBoard, ...]:
        """List the boards of this farm, whether they run or not, in the order of their names.

        Raises:
            DeviceError: What runs them does not answer.
        """

    def prepare(self, wanted: Board, tell: Tell) -> None:
        """Make ready what boards of a type need: the emulation and the image.

        Raises:
            DeviceError: This machine cannot emulate it.
            BuildError: The image cannot be made.
        """

    def create(self, wanted: Board, login: Login, taken: Collection[str]) -> VirtualBoard:
        """Make and start a new board.

        Args:
            wanted: Its type.
            login: Who may log in.
            taken: Names of other boards.

        Raises:
            DeviceError: It cannot be started.
        """

    def start(self, one: VirtualBoard) -> None:
        """Start a board that was stopped; it keeps its files, its port and its host key.

        Raises:
            DeviceError: It cannot be started.
        """

    def stop(self, one: VirtualBoard) -> None:
        """Stop a board at once, as a power cut would; it keeps its files."""

    def remove(self, one: VirtualBoard) -> None:
        """End a board, and remove everything of it."""

    def log(self, one: VirtualBoard) -> str:
        """Return the last lines of what a board says at its console."""

    def host_key(self, one: VirtualBoard) -> str:
        """Return a running board's public host key as it says it itself, not as its network does; empty if it cannot.

        A key is its type and its Base64 text, with a space between.
        """


def architecture(wanted: Board) -> str:
    """Return Debian's name of a board's architecture.

    Raises:
        InputError: There are no virtual boards of that type.
    """
    found = _ARCHITECTURES.get(wanted.machine, "")
    if found and wanted.connection == "ssh" and _GNU in wanted.triple:
        return found
    raise InputError(
        f"there are no virtual boards of type {wanted.name}: its target is {wanted.triple} on {wanted.machine}",
        details=f"virtual boards run GNU/Linux on {' or '.join(_ARCHITECTURES)}",
        hint="`toolchain boards` lists the board types",
    )


def cpu(wanted: Board) -> str:
    """Return QEMU's name of a board's CPU, so that an instruction that the board lacks fails here too."""
    name = wanted.target.mcpu
    return name if name in _CPUS[architecture(wanted)] else "max"


def next_name(kind: str, taken: Collection[str]) -> str:
    """Return the first name of a board of a type that is not taken."""
    number = 1
    while f"{kind}-{number}" in taken:
        number += 1
    return f"{kind}-{number}"
