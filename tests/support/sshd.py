"""A real OpenSSH server on this host, for the time of a test."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.parts import require

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def require_sshd() -> None:
    """Leave the test out where OpenSSH's server and tools are not installed."""
    present = SSHD is not None and shutil.which("ssh-keygen") is not None
    require("an SSH server", "openssh-server", present)


@dataclass(frozen=True)
class Server:
    """A running sshd.

    Attributes:
        address: Where it listens, always 127.0.0.1.
        port: Its TCP port.
        user: The only user that can log in: the calling one.
        key_file: A private key that is let in.
        known_hosts: A file that holds the server's key.
        config: An ssh_config with an alias `board` for the server.
        host_key: The server's public key file.
        log_file: What sshd writes, in detail.
        process: The server's process.
    """

    address: str
    port: int
    user: str
    key_file: Path
    known_hosts: Path
    config: Path
    host_key: Path
    log_file: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def host(self) -> str:
        return f"{self.user}@{self.address}:{self.port}"

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def kill_sessions(self) -> None:
        """End every connection with SIGKILL, as a crash or a power cut would; the server goes on."""
        self._signal_sessions(signal.SIGKILL)

    def freeze_sessions(self) -> None:
        """Halt every connection, as a server that hangs would: the sockets stay open, and nobody answers."""
        self._signal_sessions(signal.SIGSTOP)

    def _signal_sessions(self, number: int) -> None:
        # A login's unprivileged helper ends when it has done its work, which may be now.
        for pid in descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        sessions = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return the process ids below one, children before grandchildren."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    pids, pending = [], [pid]
    while pending:
        children = parents.get(pending.pop(), [])
        pids += children
        pending += children
    return pids


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    require_sshd()
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", path], check=True)
    return path


def free_port() -> int:
    """Return a port that nothing uses, and that the kernel gives to no outgoing connection of another worker."""
    while True:
        port = 10_000 + secrets.randbelow(22_768)  # outgoing connections start at 32,768
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextlib.contextmanager
def running(
    folder: Path, *, port: int | None = None, host_key: Path | None = None, options: str = ""
) -> Iterator[Server]:
    """Start an sshd whose files live in `folder`; end it and its sessions afterwards.

    Args:
        folder: An empty folder, or the one of an earlier server whose keys are used again.
        port: The port; a free one by default.
        host_key: The private host key; a new Ed25519 key by default.
        options: Lines for sshd_config that come before, and so win over, those here.
    """
    require_sshd()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    server = _start(folder, port or free_port(), host_key, options)
    try:
        _wait_for_banner(server)
        yield server
    finally:
        server.stop()


def _start(folder: Path, port: int, host_key: Path | None, options: str) -> Server:
    host_key = host_key or keygen(folder / "host_key")
    key = folder / "id"
    if not key.exists():
        keygen(key)
        (folder / "authorized_keys").write_text(Path(f"{key}.pub").read_text())
    known_hosts = folder / "known_hosts"
    fields = Path(f"{host_key}.pub").read_text().split()
    known_hosts.write_text(f"[127.0.0.1]:{port} {fields[0]} {fields[1]}\n")
    config = folder / "ssh_config"
    user = getpass.getuser()
    config.write_text(
        f"Host board\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  IdentityFile {key}\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {known_hosts}\n  GlobalKnownHostsFile none\n"
    )
    log = folder / "sshd.log"
    (folder / "sshd_config").write_text(_sshd_config(folder, port, host_key, options))
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    return Server("127.0.0.1", port, user, key, known_hosts, config, Path(f"{host_key}.pub"), log, process)


def _sshd_config(folder: Path, port: int, host_key: Path, options: str) -> str:
    # A home of its own, and no ~/.ssh/rc: what the tester's shell does at login is neither a board's business nor
    # safe to kill. Of several lines of MaxStartups the last one wins.
    return f"""{options}
SetEnv HOME={folder}
ListenAddress 127.0.0.1:{port}
HostKey {host_key}
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/sshd.pid
StrictModes no
PermitUserRC no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
LogLevel VERBOSE
{"" if "MaxStartups" in options else "MaxStartups 100"}
Subsystem sftp internal-sftp
"""


def _wait_for_banner(server: Server) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and server.process.poll() is None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((server.address, server.port), timeout=2) as probe,
        ):
            if probe.recv(4) == b"SSH-":
                return
        time.sleep(0.02)
    raise RuntimeError(f"sshd did not start:\n{server.log()}")
