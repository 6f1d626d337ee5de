"""A client of its own that deploys one bundle, for tests that kill it on the way.

`python -m tests.support.deploy_client ROOT SLOT BUNDLE [HOST SSH_CONFIG]` says "ready", waits for a line, deploys, and
says "done". SLOT is empty for the store's own releases.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support import deploys
from tests.support.paths import ROOT
from toolchain import bundle
from toolchain.bundle import Bundle
from toolchain.device.store import Store
from toolchain.errors import ToolchainError
from toolchain.native import programs
from toolchain.native.programs import Program
from toolchain.shell import SshOptions, open_shell

KEEP = 1  # what another release replaces is removed, so that every deploy has something to send


def plain_deploy(release: Bundle, program: Program, root: Path, ssh: tuple[str, ...] = (), slot: str = "") -> None:
    """Deploy from this process; `ssh` is empty, or a host and an ssh_config that knows it."""
    options = SshOptions(config_file=Path(ssh[1])) if ssh else SshOptions()
    with open_shell(ssh[0] if ssh else None, config=options) as shell:
        deploys.deploy(release, program, shell, Store(shell, str(root), slot=slot), keep=KEEP, threads=1)


@contextlib.contextmanager
def started(made: Bundle, root: Path, ssh: tuple[str, ...] = (), slot: str = "") -> Iterator[subprocess.Popen[str]]:
    """Start a client that is about to deploy; it begins when it is told so by `begin`."""
    argv = [sys.executable, "-m", "tests.support.deploy_client", str(root), slot, str(made.folder), *ssh]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # Who is killed cannot clean up: its temporary files go where pytest cleans up.
    environment = {**os.environ, "TMPDIR": str(made.folder.parent)}
    with subprocess.Popen(argv, text=True, cwd=ROOT, env=environment, **pipes) as client:
        try:
            assert client.stdout.readline() == "ready\n"
            yield client
        finally:
            client.kill()


def begin(client: subprocess.Popen[str]) -> None:
    client.stdin.write("\n")
    client.stdin.flush()


def duration(release: Bundle, root: Path, ssh: tuple[str, ...] = (), slot: str = "") -> float:
    """Deploy with a client that nobody kills; return how many seconds it took."""
    with started(release, root, ssh, slot) as client:
        start = time.monotonic()
        begin(client)
        assert client.stdout.readline() == "done\n"
        return time.monotonic() - start


def main(root: str, slot: str, folder: str, *ssh: str) -> int:
    release = bundle.load(Path(folder))
    program = programs.build(programs.RUNNER, release.manifest.triple, release.manifest.machine)
    print("ready", flush=True)  # noqa: T201 - the protocol above
    sys.stdin.readline()
    try:
        plain_deploy(release, program, Path(root), ssh, slot)
    except ToolchainError as fault:
        print(f"error: {fault.message}\n{fault.details}", file=sys.stderr)  # noqa: T201
        return fault.exit_code
    print("done", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
