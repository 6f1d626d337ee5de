"""The parent of a test session: it ends every process that the session leaves behind, however the session ends.

Daemons leave the session and the process group of who starts them. But the kernel gives a process whose parent has
ended to the nearest ancestor that declared itself a subreaper, so all of them can be found from here: also those of
a worker that crashed, and those that tests had running when somebody pressed Ctrl-C.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # of <linux/prctl.h>
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_GRACE_S = 3.0
"""How long processes have that end by themselves once the session ended."""
_FARMS = "farms"
FARM_LABEL = "edge-toolchain.farm.folder"
"""Label of the container of a virtual board that names the folder of its farm."""
LEFT_BEHIND = 1
"""Exit code of a session that passed, but for processes that it left behind."""


@dataclass(frozen=True)
class Process:
    """A process, as the kernel describes it.

    Attributes:
        pid: Its number.
        command: Its command line.
        test: The test that started it, or an ancestor of it, where its environment tells.
    """

    pid: int
    command: str
    test: str


def supervise(folder: Path) -> None:
    """Go on in a child process; this process waits for its end, ends what it left, and removes a folder.

    Args:
        folder: The folder of the session.
    """
    _prctl(_SET_CHILD_SUBREAPER, 1)
    signals = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _prctl(_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if os.getppid() != parent:
            os._exit(1)
        return
    code = 1
    try:
        code = _code(_wait(child, signals))
        remains = [f"ended: {process.command} (pid {process.pid}, started in {process.test})" for process in _end_all()]
        remains += [f"removed: container {name}" for name in _remove_containers(folder)]
        if remains and code == 0:
            code = LEFT_BEHIND
        sys.stderr.write("".join(f"left behind and {line}\n" for line in remains))
        sys.stderr.flush()
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(code)  # what Python does at exit is the child's


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _wait(child: int, signals: set[signal.Signals]) -> int:
    """Wait for the child, passing signals on and reaping orphans; return the child's status."""
    while True:
        info = signal.sigwaitinfo(signals)
        # A terminal sends Ctrl-C to the child, too.
        if info.si_signo in _PASSED_ON and info.si_code <= 0:
            os.kill(child, info.si_signo)
        for pid, status in _reaped():
            if pid == child:
                return status


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _reaped() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while (status := os.waitpid(-1, os.WNOHANG))[0]:
            yield status


def _end_all() -> list[Process]:
    """Wait a moment for all processes below this one, then kill them; return those that did not end by themselves."""
    deadline = time.monotonic() + _GRACE_S
    while _below() and time.monotonic() < deadline:
        for _ in _reaped():
            pass
        time.sleep(0.02)
    ended: dict[int, Process] = {}
    deadline = time.monotonic() + _GRACE_S  # the kernel may hold one back, for a disk that does not answer
    while (pids := _below()) and time.monotonic() < deadline:  # while they are killed, some may still start others
        for pid in pids:
            ended.setdefault(pid, _described(pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for _ in _reaped():
            pass
        time.sleep(0.02)
    return list(ended.values())


def note_farm(folder: Path, farm: Path) -> None:
    """Remember a folder of virtual boards: containers are children of Docker's daemon, and found by their label."""
    with (folder / _FARMS).open("a", encoding="utf-8") as stream:
        stream.write(f"{farm}\n")


def _remove_containers(folder: Path) -> list[str]:
    """Remove the containers of all farms of a session; return their names."""
    removed: list[str] = []
    docker = os.environ.get("TOOLCHAIN_DOCKER") or "docker"
    farms = (folder / _FARMS).read_text(encoding="utf-8").splitlines() if (folder / _FARMS).is_file() else []
    for farm in dict.fromkeys(farms):
        command = [docker, "ps", "--all", "--quiet", "--filter", f"label={FARM_LABEL}={farm}"]
        names = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        if names:
            subprocess.run([docker, "rm", "--force", "--volumes", *names], capture_output=True, check=False)
        removed += names
    return removed


def _below() -> list[int]:
    """Return the processes below this one that still run."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    pids, waiting = [], [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        pids += below
        waiting += below
    return pids


def _described(pid: int) -> Process:
    def read(name: str) -> list[str]:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace").split("\0")
        return []

    variables = dict(line.partition("=")[::2] for line in read("environ"))
    return Process(pid, " ".join(read("cmdline")).strip(), variables.get("PYTEST_CURRENT_TEST", "an unknown test"))
