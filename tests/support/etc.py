"""A machine whose /etc is its own: what is written there is gone with the process, and nobody else sees it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.parts import require

_SETUP = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work" /etc
mkdir -p /etc/edge-toolchain
cp -R "$2/." /etc/edge-toolchain/
[ -z "$3" ] || mount --bind "$3" /root
shift 3
exec "$@"
"""


def require_own() -> None:
    """Leave the test out where nobody may have a machine like that."""
    completed = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True)
    require("mount namespaces", "util-linux, and run as root", completed.returncode == 0)


def within(scratch: Path, trust: Path, argv: Sequence[object], home: Path | None = None) -> list[str]:
    """Return the command that runs another one on such a machine.

    Args:
        scratch: An empty folder.
        trust: What /etc/edge-toolchain holds there.
        argv: The command.
        home: What root has at home there.
    """
    scratch.mkdir(exist_ok=True)
    command = ["unshare", "--mount", "sh", "-c", _SETUP, "sh", scratch, trust, home or "", *argv]
    return [str(argument) for argument in command]
