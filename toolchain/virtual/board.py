"""Virtual boards, and the interface of the two kinds of emulation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from toolchain.architecture import ARCHITECTURES, MACHINES, Architecture, Qemu, is_android
from toolchain.board import Board
from toolchain.device.probe import hardware_tables
from toolchain.errors import InputError

Tell = Callable[[str], None]
"""Called with a line about progress."""

USER = "board"
"""The login of every virtual board."""


@dataclass(frozen=True)
class VirtualBoard:
    name: str  # in devices.toml and in the farm's ssh_config, such as `rpi4-1`
    board: str  # board type
    # a user land in a container, with glibc or with musl, or a whole machine with its own kernel
    kind: Literal["docker", "musl", "kernel"]
    port: int  # of its SSH server, on this machine's loopback address
    running: bool
    client: str  # fingerprint of the accepted client key

    @property
    def order(self) -> tuple[str, int, str]:
        """Sorts by board type, then by number: `pynq-9` stands before `pynq-10`."""
        prefix, _, number = self.name.rpartition("-")
        return prefix, int(number) if number.isdecimal() else 0, self.name


@dataclass(frozen=True)
class Login:
    """The key that may log in to a board."""

    public: str  # as in authorized_keys
    fingerprint: str  # identifies the key in labels and settings


class Kind(Protocol):
    """A kind of emulation. Its boards outlive this process; later processes list them again."""

    def boards(self) -> tuple[VirtualBoard, ...]:
        """List this farm's boards, running or not, by name.

        Raises:
            DeviceError: The Docker engine does not answer.
        """

    def prepare(self, board: Board, tell: Tell) -> None:
        """Prepare the emulation and the image for a board type.

        Raises:
            DeviceError: This machine cannot emulate it.
            BuildError: The image cannot be made.
        """

    def create(self, board: Board, login: Login, used_names: Collection[str]) -> VirtualBoard:
        """Make and start a new board with a name that is not in `used_names`, or raise a DeviceError."""

    def start(self, device: VirtualBoard) -> None:
        """Start a stopped board, which keeps its files, port and host key, or raise a DeviceError."""

    def stop(self, device: VirtualBoard) -> None:
        """Stop a board at once, as a power cut would; it keeps its files."""

    def remove(self, device: VirtualBoard) -> None:
        """End a board, and remove it with all its files."""

    def log(self, device: VirtualBoard) -> str:
        """Return the last lines of a board's console."""

    def host_key(self, device: VirtualBoard) -> str:
        """Return a running board's public host key, as type and Base64 text; empty if it cannot be read.

        It is not read over the network, where any program on the board's port could pretend to be the board.
        """


def architecture(board: Board) -> Architecture:
    """Return the architecture of a board.

    Raises:
        InputError: There are no virtual boards of that type.
    """
    row = MACHINES.get(board.machine)
    if row and row.qemu and board.connection == "ssh" and not is_android(board.triple):
        return row
    emulated = [row.machine for row in ARCHITECTURES if row.qemu]
    raise InputError(
        f"there are no virtual boards of type {board.name}: its target is {board.triple} on {board.machine}",
        details=f"virtual boards run GNU/Linux on {' or '.join(emulated)}",
        hint="`toolchain board list` lists the board types",
    )


def qemu(architecture: Architecture) -> Qemu:
    """Return how QEMU emulates an architecture, or raise an InputError."""
    if architecture.qemu is None:
        raise InputError(f"there are no virtual boards with {architecture.machine}")
    return architecture.qemu


def cpu(board: Board) -> str:
    """Return QEMU's name of a board's CPU, so that an instruction that the board lacks fails in the emulation, too.

    It is `max`, which has every feature, for a CPU that QEMU's user mode does not emulate.
    """
    name = board.target.mcpu
    return name if name in qemu(architecture(board)).user_cpus else "max"


def system_cpu(board: Board) -> str:
    """Return the CPU of a whole emulated machine: the board's, else the first one that has its CPU's features."""
    cpus = qemu(architecture(board)).system_cpus
    if board.target.mcpu in cpus:
        return board.target.mcpu
    features = {part.mcpu: {*part.uses} for part in hardware_tables.cpus().parts.values()}
    needed = features.get(board.target.mcpu, set())
    return next((cpu for cpu in cpus if needed <= features.get(cpu, set())), cpus[0])


def next_name(kind: str, used_names: Collection[str]) -> str:
    """Return the first unused name for a board of a type."""
    number = 1
    while f"{kind}-{number}" in used_names:
        number += 1
    return f"{kind}-{number}"
