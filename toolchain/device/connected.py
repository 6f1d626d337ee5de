"""A device with an open connection, which every stage on it takes, and how to connect to one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from toolchain.board import Board
from toolchain.device.store import Store
from toolchain.device.waiting import Patience
from toolchain.devices import Device
from toolchain.errors import DeviceError, InputError, did_you_mean
from toolchain.shell import Shell, SshOptions, open_shell


@dataclass(frozen=True)
class ConnectedDevice:
    """A device's board type, its entry in the list of devices, the connection to it, and its store."""

    board: Board
    entry: Device
    shell: Shell
    store: Store

    @property
    def name(self) -> str:
        return self.shell.name

    @property
    def emulated(self) -> bool:
        """Whether its times are an emulator's."""
        return self.board.emulated or self.entry.emulated

    @property
    def triple(self) -> str:
        """The triple of our programs there: its board type's, or musl's where the device has musl."""
        return self.store.known_facts.program_triple(self.board.triple)

    def in_slot(self, slot: str) -> ConnectedDevice:
        """Return the same device with another slot of its store.

        Raises:
            InputError: There is no such slot.
        """
        return replace(self, entry=self.entry.for_slot(slot), store=self.store.in_slot(slot))

    def threads(self, requested: int, cpus: int) -> int:
        """Return the threads of a model there; 0 requested ones stand for the board file's number, or all `cpus`."""
        return requested or min(self.board.threads, cpus)


@dataclass(frozen=True)
class Connection:
    """How to reach a device.

    Attributes:
        board: Its board type, resolved.
        entry: Its entry in the list of devices, or what a user wrote as the host.
        ssh: How the user wants it to be reached; the entry's own SSH configuration comes second.
        root: Folder on it; empty for the entry's, or the board type's.
        progress: Called with what had to be repaired on the device.
        patience: How long others may use it; by default it must be free.
        host: What the user wrote as the host; empty where nothing was written.
        names: The devices that the user may have meant with it.
        slot: The slot of its store; empty for the store's own releases.
    """

    board: Board
    entry: Device
    ssh: SshOptions
    root: str = ""
    progress: Callable[[str], None] = lambda _line: None
    patience: Patience | None = None
    host: str = ""
    names: Mapping[str, Device] = field(default_factory=dict)
    slot: str = ""

    @contextlib.contextmanager
    def open(self) -> Iterator[ConnectedDevice]:
        """Connect for the time of a block.

        Raises:
            InputError: The host is neither a device of the list nor the name of a machine.
            DeviceError: The device cannot be reached.
        """
        address = None if self.board.connection == "local" else self.entry.host
        root = self.root or self.entry.root or self.board.root
        with (
            explain_host(self.host, self.names),
            open_shell(address, config=self.ssh.before(self.entry.ssh_config)) as shell,
        ):
            store = Store(shell, root, self.progress, self.patience, self.slot)
            yield ConnectedDevice(self.board, self.entry.for_slot(self.slot), shell, store)


@contextlib.contextmanager
def explain_host(host: str, names: Mapping[str, Device]) -> Iterator[None]:
    """Explain a host that cannot be resolved: it may be the misspelt name of a device.

    Raises:
        InputError: The host is a plain name, but not that of a device or a host.
    """
    try:
        yield
    except DeviceError as fault:
        if not host or set(host) & set("@.:") or host in names or "cannot be resolved" not in fault.message:
            raise
        raise InputError(
            f"there is no device {host!r}, and no host of that name",
            details=f"devices: {', '.join(names) or 'none'}\n{fault.message}: {fault.details}",
            hint=did_you_mean(host, names) or "write user@host, user@host:port, or a name in devices.toml",
        ) from fault
