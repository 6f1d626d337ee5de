"""Another user of the same machine: code that runs as one who owns nothing of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.parts import require

UID = 65534

# Everything is imported before the change: the interpreter may lie where only its owner can read.
_BECOME = """
import json, os, pathlib, socket, stat, struct, sys, time
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
exec(sys.argv.pop(1))
"""


def run(code: str, *arguments: object, timeout: float = 60.0) -> str:
    """Run Python code as another user, and return what it prints. json, os, pathlib, socket and time are imported."""
    completed = subprocess.run(_argv(code, arguments), capture_output=True, text=True, check=False, timeout=timeout)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip()


@contextmanager
def running(code: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    """Run code as `run` does for the time of a block, which begins when the code has printed a line."""
    with subprocess.Popen(_argv(code, words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def _argv(code: str, arguments: tuple[object, ...]) -> list[str]:
    require("another user", "nothing: run as root", os.geteuid() == 0)
    return [sys.executable, "-c", _BECOME.format(uid=UID), code, *map(str, arguments)]


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Yield a folder that everybody can write to, as /tmp is; pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory(prefix="shared-") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder
