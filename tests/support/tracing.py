"""What a process and its children ask of the kernel, by strace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.parts import require

_ADDRESS = re.compile(r"sa_family=AF_INET6?, sin6?_port=htons\((\d+)\).*?\"([0-9a-f.:]+)\"")


def traced(
    command: Sequence[object], log: Path, calls: str, environment: Mapping[str, str] | None = None
) -> tuple[str, list[str]]:
    """Run a command to its end; return what it printed, and its system calls of some kinds.

    Args:
        words: The command.
        seen: File for the calls.
        calls: Which calls, in strace's words.
        environment: All of its variables; those of this process by default.
    """
    require("strace", "strace", shutil.which("strace") is not None)
    tracer = ["strace", "-f", "-qq", "-e", f"trace={calls}", "-e", "signal=none", "-o", log]
    argv = [str(argument) for argument in (*tracer, *command)]
    completed = subprocess.run(argv, env=environment or os.environ, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout, log.read_text().splitlines()


def peers(calls: Sequence[str]) -> set[tuple[str, int]]:
    """Return the addresses and ports of the Internet's kind that calls connect to or send to."""
    outward = [line for line in calls if re.search(r"\b(connect|sendto|sendmsg|sendmmsg)\(", line)]
    return {(host, int(port)) for line in outward for port, host in _ADDRESS.findall(line)}
