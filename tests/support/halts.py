"""Work on a store that stands still at one step of its scripts, so that a test meets the state that it is about.

The step is a call of one of the device's tools, such as the `mv` that makes a release current. A program in front of
that tool waits at the call, before it or after it, until the test lets it go on or ends everything.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from toolchain.errors import ToolchainError

# A copy to the device is a `cat` without arguments, so its target counts as one.
_SHIM = """#!/bin/sh
words=$*
[ {tool} != cat ] || words="$words > $(readlink /proc/$$/fd/1)"
case $words in
  {pattern})
    mkdir {folder}/{tool}-$(($(ls {folder} | grep -c '^{tool}-[0-9]') + 1))
    if [ -e {folder}/{tool}-{count} ] && mkdir {folder}/here 2>/dev/null; then
      {after}
      until [ -e {folder}/go ]; do sleep 0.02; done
    fi ;;
esac
exec {real} "$@"
"""
_AFTER = '{real} "$@"; code=$?; : >{folder}/there; until [ -e {folder}/go ]; do sleep 0.02; done; exit $code'
_BEFORE = ": >{folder}/there"
_FORKS = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Halt:
    """A step: the `count`-th call of a tool whose words match a shell pattern, or the moment after that call."""

    tool: str
    pattern: str
    after: bool = False
    count: int = 1

    def path(self, folder: Path) -> str:
        """Write a program into an empty folder that stands in front of the tool; return the PATH for the work."""
        folder.mkdir()
        real = shutil.which(self.tool)
        more = (_AFTER if self.after else _BEFORE).format(real=real, folder=folder)
        pattern = "*".join(map(shlex.quote, self.pattern.split("*")))
        text = _SHIM.format(tool=self.tool, pattern=pattern, folder=folder, count=self.count, after=more, real=real)
        (folder / self.tool).write_text(text)
        (folder / self.tool).chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"


class Halted:
    """Work that has been started, and may stand still."""

    def __init__(self, process: BaseProcess, folder: Path) -> None:
        self._process, self._folder = process, folder

    def reached(self, seconds: float = 60.0) -> bool:
        """Wait until it stands still; return False if it ended first."""
        deadline = time.monotonic() + seconds
        while not (self._folder / "there").exists():
            if not self._process.is_alive():
                return (self._folder / "there").exists()
            if time.monotonic() > deadline:
                raise TimeoutError("the work neither reached its step nor ended")
            time.sleep(0.01)
        return True

    def go_on(self, seconds: float = 60.0) -> int:
        """Let it go on; return its exit code."""
        (self._folder / "go").touch()
        return self.wait(seconds)

    def wait(self, seconds: float = 60.0) -> int:
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise TimeoutError("the work does not end")
        return self._process.exitcode

    def kill(self) -> None:
        """End it with everything that it started, at once: also what its parents have left, and its application."""
        self._process.kill()
        while pids := self._processes():
            for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none of them sees another one end
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            time.sleep(0.01)
        self._process.join()

    def _processes(self) -> list[int]:
        """Return the processes that find the tools of this work; those that have ended have no environment."""
        marker, pids = f"PATH={self._folder}:".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if marker in path.read_bytes():
                    pids.append(int(path.parent.name))
        return pids


@contextlib.contextmanager
def started(act: Callable[..., None], *words: object, halt: Halt, folder: Path) -> Iterator[Halted]:
    """Start a function of a module in another process, whose tools stand still at a step; end it after the block.

    Args:
        act: The function; a ToolchainError of it is an exit code.
        words: Its arguments.
        halt: Where it stands still.
        folder: Does not exist yet; for what makes it stand still.
    """
    _FORKS.set_forkserver_preload([act.__module__])
    process = _FORKS.Process(target=_run, args=(halt.path(folder), f"{folder}.log", act, words), daemon=False)
    process.start()
    work = Halted(process, folder)
    try:
        yield work
    finally:
        work.kill()


def _run(path: str, log: str, act: Callable[..., None], arguments: tuple[object, ...]) -> None:
    os.environ["PATH"] = path
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    try:
        act(*arguments)
    except ToolchainError as fault:
        os.write(2, f"error: {fault.message}\n{fault.details}\n".encode())
        sys.exit(fault.exit_code)
