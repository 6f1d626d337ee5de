"""The RPC server on a device: pushed where it is missing or outdated, started over a shell, ended with it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from toolchain import deploy
from toolchain.deploy import Progress, Shipment
from toolchain.device_runtime import BOARD_SERVER, Program
from toolchain.errors import DeviceError
from toolchain.shell import RemoteProcess, Shell
from toolchain.store import Store

_START_S = 30.0
_LISTENING = re.compile(r"listening on (\S+):(\d+)\n")


@dataclass(frozen=True)
class Server:
    """A board server that runs on a device. It ends when `stop` is called, or with the connection to the device.

    Attributes:
        address: Where it listens on the device, loopback unless it was told otherwise.
        port: Its TCP port there.
        process: Its process.
    """

    address: str
    port: int
    process: RemoteProcess

    def stop(self) -> None:
        """End it, and the session that it serves."""
        self.process.close()


def push(program: Program, store: Store, progress: Progress | None = None) -> str:
    """Bring the server to a device, unless this very program is there.

    Returns:
        The program's path on the device.

    Raises:
        VerificationError: The device is another machine or has too old a C library; nothing was sent.
        DeviceError: The device is lost, busy or full.
    """
    facts = store.facts()
    deploy.check_runs(program, facts)
    shipment = Shipment(
        blobs={program.sha256: program.path},
        folders={"servers": (program.sha256, {BOARD_SERVER: program.sha256})},
        programs=(program.sha256,),
    )
    with store.lock(deploy.owner()):
        deploy.send(shipment, store, facts, progress)
        return f"{deploy.install(shipment, store)['servers']}/{BOARD_SERVER}"


def start(shell: Shell, path: str, options: Sequence[str] = ("--port", "0")) -> Server:
    """Start the server on a device and wait until it listens.

    Args:
        shell: The device.
        path: What `push` returned.
        options: Its command line; `--port 0` lets it choose a free port.

    Raises:
        DeviceError: It does not start; its own words are in the details.
    """
    process = shell.start(f"exec {shlex.join([path, *options])}")
    try:
        return _listening(process, shell.name)
    except BaseException:
        process.close()
        raise


def _listening(process: RemoteProcess, device: str) -> Server:
    line = process.readline(_START_S)
    found = _LISTENING.fullmatch(line)
    if found is None:
        details = process.stderr.strip() or line.strip()
        raise DeviceError(f"the board server does not start on {device}", details=details)
    return Server(found[1], int(found[2]), process)
