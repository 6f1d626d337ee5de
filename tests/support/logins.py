"""Test accounts with a login shell and a profile of their own, on a real OpenSSH server."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support import sshd
from tests.support.parts import require
from toolchain.shell import SshOptions

PASSWORD = "correct horse"  # noqa: S105 - of an account that lives as long as one test


@dataclass(frozen=True)
class Login:
    """An account on a running server.

    Attributes:
        host: The account and the server, as users write them.
        options: How it is reached.
        home: Its home folder.
        server: The server.
        lines: What the connection reported so far.
    """

    host: str
    options: SshOptions
    home: Path
    server: sshd.Server
    lines: list[str]


@contextlib.contextmanager
def account(
    shell: str = "/bin/sh", name: str = "", files: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Path]]:
    """Make an account for the time of a block; give its name and its home folder.

    Args:
        shell: Its login shell; looked for in PATH without a folder.
        name: Its name; a new one by default.
        files: Contents of files in its home.
    """
    require("a test account", "passwd and openssl, and run as root", os.geteuid() == 0)
    path = shutil.which(shell)
    require(f"the login shell {shell}", shell, path is not None)
    name = name or f"tc{os.getpid()}"
    hashed = subprocess.run(["openssl", "passwd", "-6", PASSWORD], capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="login-", ignore_cleanup_errors=True) as folder:
        options = ["--badname", "--no-create-home", "--home-dir", folder, "--shell", str(path), "-p", hashed.strip()]
        subprocess.run(["useradd", *options, name], check=True, capture_output=True)
        try:
            for file, text in (files or {}).items():
                target = Path(folder, file)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            subprocess.run(["chown", "-R", name, folder], check=True)
            yield name, Path(folder)
        finally:
            subprocess.run(["userdel", "--force", name], check=True, capture_output=True)


@contextlib.contextmanager
def serving(
    folder: Path, shell: str = "/bin/sh", *, name: str = "", files: Mapping[str, str] | None = None, options: str = ""
) -> Iterator[Login]:
    """Make an account and serve it, for the time of a block.

    Args:
        folder: For the server's files.
        shell: As `account`.
        name: As `account`.
        files: As `account`.
        options: Lines for sshd_config.
    """
    with account(shell, name, files) as (user, home):
        lines = f"{options}\nSetEnv HOME={home}\nPasswordAuthentication yes\n"
        with sshd.running(folder, options=lines) as server:
            reported: list[str] = []
            config = SshOptions(
                known_hosts=(server.known_hosts,),
                password=PASSWORD,
                agent=False,
                connect_timeout=10,
                stall_timeout=10,
                report=reported.append,
            )
            yield Login(f"{user}@127.0.0.1:{server.port}", config, home, server, reported)
