"""Devices are added by one command: this machine through SSH, and devices that have something in the way."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import sshd, userlands
from tests.support.commands import Outcome, toolchain
from tests.support.parts import require
from tests.support.sshd import Server
from toolchain.devices import load_devices

DEVICE, VERIFICATION = 4, 5
COMMENT = "# our lab\n"


@dataclasses.dataclass(frozen=True)
class User:
    """Whoever adds a device: with lists and known hosts of their own, in a folder of their own.

    Attributes:
        home: The folder of all that.
    """

    home: Path

    @property
    def known_hosts(self) -> Path:
        return self.home / "known_hosts"

    @property
    def config(self) -> Path:
        return self.home / "config" / "edge-toolchain"

    @property
    def root(self) -> Path:
        """Where releases go on the device."""
        return self.home / "device" / "store"

    def add(self, server: Server, *more: object, host: str = "") -> Outcome:
        return toolchain("board", "add", host or server.host, *self.login(server), *more)

    def login(self, server: Server) -> list[object]:
        return ["-i", server.key_file, "--known-hosts", self.known_hosts]

    def trust(self, server: Server) -> None:
        self.known_hosts.write_text(server.known_hosts.read_text())

    def files(self) -> dict[str, str]:
        """Return what there is of lists, board files and known hosts."""
        files = [path for path in [*self.config.rglob("*"), self.known_hosts] if path.is_file()]
        return {path.relative_to(self.home).as_posix(): path.read_text() for path in files}


@pytest.fixture
def user(tmp_path, monkeypatch) -> User:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TOOLCHAIN_DEVICES", "TOOLCHAIN_BOARDS", "SSH_AUTH_SOCK", "TOOLCHAIN_SSH_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "work").mkdir()
    (tmp_path / "device").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return User(tmp_path)


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., Server]]:
    """Start SSH servers on this machine, with lines for their sshd_config."""
    with contextlib.ExitStack() as stack:
        yield lambda options="", name="sshd": stack.enter_context(sshd.running(tmp_path / name, options=options))


def fingerprint(server: Server) -> str:
    command = ["ssh-keygen", "-lf", server.host_key]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[1]


# --- devices that can be added ---------------------------------------------------------------------------------------


def test_this_machine(user, serve):
    """One command, and then a deploy works with no edit; the same command again changes nothing."""
    server = serve()
    outcome = user.add(server, "--fingerprint", fingerprint(server), "--root", user.root, "--json")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert report["written"] is True
    assert report["deploy"]["outputs"]["ok"] is True
    assert report["device"]["machine"] == os.uname().machine
    assert report["name"] == "127-0-0-1"
    board = Path(report["board_file"]) if report["board_file"] else None
    assert board is None or toolchain("board", "check", board).code == 0
    options = ["--board", report["board"]["name"], "--host", report["name"], *user.login(server)]
    deployed = toolchain("deploy", "mlp", *options, "--budget", 0)
    assert deployed.code == 0, deployed.err
    before = user.files()
    again = user.add(server, "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["written"] is False
    assert json.loads(again.out)["running"] == "mlp"
    assert user.files() == before


def test_a_list_of_the_projects_keeps_its_comments(user, serve):
    server = serve()
    user.trust(server)
    Path("devices.toml").write_text(f'{COMMENT}[devices.old]\nboard = "pynq"  # the first\nhost = "me@10.0.0.1"\n')
    outcome = user.add(server, "--no-deploy", "--name", "bench-1", "--root", user.root, "--board", "x86_64")
    assert outcome.code == 0, outcome.err
    assert "bench-1 added to devices.toml" in outcome.out
    assert Path("devices.toml").read_text().startswith(f'{COMMENT}[devices.old]\nboard = "pynq"  # the first\n')
    assert load_devices()["bench-1"].root == str(user.root)
    assert "x86_64.toml" not in str(user.files())


def test_a_person_confirms_the_key(user, serve, monkeypatch):
    server = serve()
    monkeypatch.setattr("toolchain.cli.boards.sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("toolchain.cli.boards.click.confirm", lambda *_words, **_options: False)
    refused = user.add(server, "--no-deploy", "--root", user.root)
    assert (refused.code, user.files()) == (VERIFICATION, {})
    assert fingerprint(server) in refused.err
    assert "not confirmed" in refused.err
    assert "Accepted publickey" not in server.log()
    monkeypatch.setattr("toolchain.cli.boards.click.confirm", lambda *_words, **_options: True)
    outcome = user.add(server, "--no-deploy", "--root", user.root)
    assert outcome.code == 0, outcome.err
    assert user.known_hosts.read_text() == server.known_hosts.read_text()


@pytest.mark.parametrize("tools", [userlands.busybox, userlands.toybox], ids=["busybox", "toybox"])
def test_small_user_lands(user, serve, tools):
    path = tools(user.home / "bin")
    server = serve(f"SetEnv PATH={path}")
    user.trust(server)
    outcome = user.add(server, "--no-deploy", "--root", user.root, "--board", "x86_64")
    assert outcome.code == 0, outcome.err
    assert not user.root.exists()
    assert not list(user.root.parent.iterdir())


# --- devices that have something in the way --------------------------------------------------------------------------


@pytest.fixture
def mount(user):
    """Mount a small file system where releases would go."""
    mounted = []

    def mount(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", user.root.parent]
        possible = os.geteuid() == 0 and shutil.which("mount") is not None
        succeeded = possible and subprocess.run(command, capture_output=True, check=False).returncode == 0
        require("a small file system", "root and a kernel that lets it mount", succeeded)
        mounted.append(user.root.parent)

    yield mount
    for point in mounted:
        subprocess.run(["umount", "--lazy", point], check=True)


def refused(user: User, outcome: Outcome, code: int, message: str, hint: str) -> None:
    """See that a device was refused by name, with the next command, and that nothing was written."""
    assert outcome.code == code, outcome.err
    lines = outcome.err.splitlines()
    error = next(line for line in lines if line.startswith("error: "))
    assert message in error
    assert hint in outcome.err.partition("hint: ")[2]
    assert not [name for name in user.files() if name != "known_hosts"]
    assert not user.root.exists()


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ("size=1m", "is full", "--root /FOLDER/edge-toolchain -i "),
        ("noexec", "mounted noexec", "--root /FOLDER/edge-toolchain -i "),
        ("ro", "mounted read-only", "remount,rw"),
    ],
    ids=["full", "noexec", "read-only"],
)
def test_folders(user, serve, mount, options, message, hint):
    server = serve()
    user.trust(server)
    mount(options)
    refused(user, user.add(server, "--root", user.root), DEVICE, message, hint)


@pytest.mark.parametrize(
    ("program", "says", "code", "message", "hint"),
    [
        ("flock", None, DEVICE, "lacks flock", "apt-get install util-linux"),
        ("getconf", "glibc 2.17", VERIFICATION, "glibc 2.17, and glibc 2.28", "newer glibc"),
    ],
    ids=["no-flock", "old-glibc"],
)
def test_systems(user, serve, program, says, code, message, hint):
    tools = userlands.busybox(user.home / "bin")
    (tools / program).unlink(missing_ok=True)
    if says:
        (tools / program).write_text(f"#!/bin/sh\necho '{says}'\n")
        (tools / program).chmod(0o755)
    server = serve(f"SetEnv PATH={tools}")
    user.trust(server)
    refused(user, user.add(server, "--root", user.root), code, message, hint)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ("ForceCommand /usr/sbin/nologin", "ended without running a command", "usermod -s /bin/sh"),
        ("ForceCommand internal-sftp", "allows SFTP only", "ForceCommand"),
        ("PubkeyAuthentication no\nPasswordAuthentication yes", "login to ", "ssh-copy-id"),
    ],
    ids=["no-shell", "sftp-only", "password"],
)
def test_logins(user, serve, options, message, hint):
    server = serve(options)
    user.trust(server)
    refused(user, user.add(server, "--root", user.root), DEVICE, message, hint)


def test_an_unknown_key(user, serve):
    """Nobody is there to confirm it, and no fingerprint was given: nothing is sent to it."""
    server = serve()
    outcome = user.add(server, "--root", user.root)
    command = f"toolchain board add {server.host} --fingerprint {fingerprint(server)} --root {user.root} "
    command += shlex.join(map(str, user.login(server)))
    refused(user, outcome, VERIFICATION, "not in a known_hosts file", command)
    assert not user.known_hosts.exists()
    assert "Accepted publickey" not in server.log()


def test_another_fingerprint(user, serve):
    server = serve()
    outcome = user.add(server, "--root", user.root, "--fingerprint", "SHA256:" + "A" * 43)
    refused(user, outcome, VERIFICATION, "another fingerprint", "ssh-keygen -lf")
    assert not user.known_hosts.exists()
    user.trust(server)  # one that is trusted already is held against it, too
    outcome = user.add(server, "--root", user.root, "--fingerprint", "SHA256:" + "A" * 43)
    refused(user, outcome, VERIFICATION, "another fingerprint", "ssh-keygen -lf")


def test_a_changed_key(user, serve):
    server = serve()
    other = sshd.keygen(user.home / "other")
    line = f"[127.0.0.1]:{server.port} {' '.join(Path(f'{other}.pub').read_text().split()[:2])}\n"
    user.known_hosts.write_text(line)
    outcome = user.add(server, "--root", user.root, "--fingerprint", fingerprint(server))
    refused(user, outcome, VERIFICATION, "not the known key", "ssh-keygen -f")
    assert user.known_hosts.read_text() == line


def test_jump_hosts(user, serve):
    """One whose key nobody knows, and one that forwards nothing."""
    server, jump = serve(), serve("AllowTcpForwarding no", "jump")
    config = user.home / "ssh_config"
    config.write_text(
        f"Host jump\n  HostName 127.0.0.1\n  Port {jump.port}\n  IdentityFile {jump.key_file}\n"
        f"Host device\n  HostName 127.0.0.1\n  Port {server.port}\n  ProxyJump jump\n  IdentityFile {server.key_file}\n"
        f"Host *\n  User {server.user}\n  IdentitiesOnly yes\n"
    )
    command = ["board", "add", "device", "--ssh-config", config, "--known-hosts", user.known_hosts, "--root", user.root]
    refused(user, toolchain(*command), VERIFICATION, f"[127.0.0.1]:{jump.port}", "ssh-keyscan")
    user.known_hosts.write_text(jump.known_hosts.read_text())
    refused(user, toolchain(*command), DEVICE, "cannot reach", "TCP forwarding")


def test_a_jump_host_that_works(user, serve):
    server, jump = serve(), serve(name="jump")
    config = user.home / "ssh_config"
    config.write_text(
        f"Host jump\n  HostName 127.0.0.1\n  Port {jump.port}\n  IdentityFile {jump.key_file}\n"
        f"Host device\n  HostName 127.0.0.1\n  Port {server.port}\n  ProxyJump jump\n  IdentityFile {server.key_file}\n"
        f"Host *\n  User {server.user}\n  IdentitiesOnly yes\n"
    )
    user.known_hosts.write_text(jump.known_hosts.read_text())
    options = ["--ssh-config", config, "--known-hosts", user.known_hosts, "--root", user.root, "--no-deploy"]
    outcome = toolchain("board", "add", "device", *options, "--fingerprint", fingerprint(server), "--board", "x86_64")
    assert outcome.code == 0, outcome.err
    assert load_devices()["device"].ssh_config == config
    assert server.known_hosts.read_text() in user.known_hosts.read_text()
