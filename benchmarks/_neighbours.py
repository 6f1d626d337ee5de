"""Processes that disturb a measurement, and a limit of the CPU time of the one that is measured."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_PERIOD_US = 100_000


@contextlib.contextmanager
def kept(words: Sequence[str], count: int) -> Iterator[None]:
    """Keep so many processes of a command running."""
    started = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def loops(count: int) -> contextlib.AbstractContextManager[None]:
    """Keep so many CPUs busy."""
    return kept([sys.executable, "-c", "while True: pass"], count)


@contextlib.contextmanager
def quota(process: int, percent: int) -> Iterator[None]:
    """Limit a process to some percent of one CPU's time, by a cgroup of its own of either version.

    Raises:
        OSError: This process may make no cgroup.
    """
    of_version_1 = Path("/sys/fs/cgroup/cpu")
    parent = of_version_1 if of_version_1.is_dir() else Path("/sys/fs/cgroup")
    folder = parent / f"benchmark-{os.getpid()}-{process}"
    folder.mkdir()
    try:
        limit = percent * _PERIOD_US // 100
        if parent == of_version_1:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(limit))
        else:
            (folder / "cpu.max").write_text(f"{limit} {_PERIOD_US}")
        (folder / "cgroup.procs").write_text(str(process))
        yield
        (parent / "cgroup.procs").write_text(str(process))
    finally:
        with contextlib.suppress(OSError):  # the process has not left yet; an empty folder of a cgroup does no harm
            folder.rmdir()
