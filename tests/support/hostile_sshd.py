"""An SSH server that lets everybody in and then breaks the protocol; beside the real ones of `sshd`."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko

from toolchain.shell import SshOptions

Attack = Callable[[paramiko.Channel], None]
_MARKER = re.compile(rb"echo ([0-9a-f]{16})")


class _Everybody(paramiko.ServerInterface):
    """Accepts whoever comes and whatever they want, and does something else."""

    def __init__(self, attack: Attack) -> None:
        self._attack = attack

    def get_allowed_auths(self, _username: str) -> str:
        return "none"

    def check_auth_none(self, _username: str) -> int:
        return int(paramiko.common.AUTH_SUCCESSFUL)

    def check_channel_request(self, _kind: str, _number: int) -> int:
        return int(paramiko.common.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._run, args=(channel, command), daemon=True).start()
        return True

    def _run(self, channel: paramiko.Channel, command: bytes) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):  # the client has had enough
            if (marker := _MARKER.search(command)) and self._attack not in LOGINS:
                channel.sendall_stderr(marker[1] + b"\n")
                channel.sendall(marker[1] + b"\n")
            self._attack(channel)


@contextlib.contextmanager
def running(folder: Path, attack: Attack) -> Iterator[tuple[str, SshOptions]]:
    """Serve for the time of a block.

    Args:
        folder: For its known_hosts.
        attack: What is done with the channel of each command.

    Yields:
        Its address and how to reach it.
    """
    key = paramiko.ECDSAKey.generate()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        (folder / "known").write_text(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")
        served: list[paramiko.Transport] = []
        threading.Thread(target=_serve, args=(listening, key, attack, served), daemon=True).start()
        try:
            options = SshOptions(known_hosts=(folder / "known",), agent=False, connect_timeout=20, stall_timeout=2)
            yield f"me@127.0.0.1:{port}", options
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for transport in served:
                transport.close()


def _serve(listening: socket.socket, key: Any, attack: Attack, served: list[paramiko.Transport]) -> None:
    with contextlib.suppress(OSError):  # it was closed
        while True:
            transport = paramiko.Transport(listening.accept()[0])
            served.append(transport)
            transport.add_server_key(key)
            transport.start_server(server=_Everybody(attack))


def flood(channel: paramiko.Channel) -> None:
    """Write without an end, and without regard to what the client takes."""
    _flood(channel, channel.sendall)


def flood_errors(channel: paramiko.Channel) -> None:
    """The same on standard error, which nobody may be reading."""
    _flood(channel, channel.sendall_stderr)


def _flood(channel: paramiko.Channel, send: Callable[[bytes], None]) -> None:
    while not channel.closed:
        channel.out_window_size = 1 << 30
        send(b"x" * 30_000)


def silence(channel: paramiko.Channel) -> None:
    """Say nothing, and do not end."""
    while channel.recv(1 << 16):
        pass


def vanish(channel: paramiko.Channel) -> None:
    """End without an exit code."""
    channel.close()


def huge_code(channel: paramiko.Channel) -> None:
    """End with the largest exit code that fits into a message."""
    channel.send_exit_status((1 << 32) - 1)
    channel.close()


def login_flood(channel: paramiko.Channel) -> None:
    """Print without an end in place of running a command, as a profile with a loop would."""
    flood(channel)


def login_flood_errors(channel: paramiko.Channel) -> None:
    """The same on standard error."""
    flood_errors(channel)


LOGINS = (login_flood, login_flood_errors)
"""What is done before the marker of a command; all else comes after it."""
