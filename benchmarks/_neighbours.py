"""Processes that disturb a measurement, and a limit of the CPU time of the one that is measured."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# It ends with the benchmark, however that ends.
_LOOP = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""

_PERIOD_US = 100_000
_VERSION_1, _VERSION_2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextlib.contextmanager
def running(command: Sequence[str], count: int) -> Iterator[None]:
    """Keep so many processes of a command running."""
    started = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def loops(count: int) -> contextlib.AbstractContextManager[None]:
    """Keep so many CPUs busy."""
    return running([sys.executable, "-c", _LOOP], count)


def quota(process: int, percent: int) -> contextlib.AbstractContextManager[None]:
    """Limit a process to some percent of one CPU's time, by a cgroup of its own of either version.

    Raises:
        OSError: This process may make no cgroup.
    """
    return _limited("cgroup.procs", [process], percent, f"{process}")


def slow(process: int, percent: int) -> contextlib.AbstractContextManager[None]:
    """Limit all threads of a process but its first to some percent of one CPU's time, as if they had slower cores.

    Raises:
        OSError: This process may make no cgroup of version 1; those of version 2 take whole processes.
    """
    if not _VERSION_1.is_dir():
        raise OSError(f"there is no {_VERSION_1}, which limits single threads")
    threads = [int(path.name) for path in Path(f"/proc/{process}/task").iterdir()]
    return _limited("tasks", [thread for thread in threads if thread != process], percent, f"{process}-threads")


@contextlib.contextmanager
def _limited(members: str, numbers: Sequence[int], percent: int, name: str) -> Iterator[None]:
    parent = _VERSION_1 if _VERSION_1.is_dir() else _VERSION_2
    folder = parent / f"benchmark-{os.getpid()}-{name}"
    folder.mkdir()
    try:
        limit = percent * _PERIOD_US // 100
        if parent == _VERSION_1:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(limit))
        else:
            (folder / "cpu.max").write_text(f"{limit} {_PERIOD_US}")
        for number in numbers:
            (folder / members).write_text(str(number))
        yield
        for number in numbers:
            (parent / members).write_text(str(number))
    finally:
        with contextlib.suppress(OSError):  # the process has not left yet; an empty folder of a cgroup does no harm
            folder.rmdir()
