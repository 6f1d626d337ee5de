"""The only user of subprocess: a command's output, its time limit, and an error that carries both."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from toolchain.architecture import ARCHITECTURES
from toolchain.errors import BuildError, InputError, ToolchainError, reason

_TAIL_LINES, _TAIL_LETTERS = 30, 1 << 14
_COMPILER = re.compile(r"(?P<triple>\w+-linux-\w+)-(?P<driver>g\+\+|gcc)")
# Debian's and Ubuntu's packages of programs with another name than their package.
_PACKAGES = {
    "c++": "g++",
    "docker": "docker.io",
    "docker-buildx": "docker-buildx",
    "mount": "mount",
    "sh": "dash",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "timeout": "coreutils",
    **{row.qemu.system: row.qemu.package for row in ARCHITECTURES if row.qemu},
}
_SAME_NAME = frozenset({"adb", "g++", "gcc", "make", "cmake"})
_GRACE_S = 2.0
_SECRETS = frozenset({"TOOLCHAIN_SSH_PASSWORD"})


Serving = subprocess.Popen[bytes]  # the process that `serve` returns


@dataclass(frozen=True)
class Result:
    """The result of a finished command."""

    returncode: int  # negative for the signal that ended it
    stdout: str  # decoded as UTF-8 with replacement characters
    stderr: str


def tail(text: str, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a long output, which is where tools put the cause."""
    last = text.strip()[-_TAIL_LETTERS:].splitlines()[-lines:]
    return "\n".join(last)


def run(  # noqa: PLR0913 - each is an independent property of one command
    argv: Sequence[str | os.PathLike[str]],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    check: bool = True,
    input_text: str | None = None,
    error: type[ToolchainError] = BuildError,
) -> Result:
    """Run a command to its end, in a process group that is killed after `timeout` seconds; no shell is involved.

    `env` is added to this process's environment; standard input is empty unless `input_text` is given.

    Raises:
        ToolchainError: Of class `error`: the program is missing, ran out of time, or failed under `check`.
    """
    command = [os.fspath(argument) for argument in argv]
    with _start_group(command, cwd, env, error) as process:
        try:
            out, err = process.communicate(input_text, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise error(
                f"{command[0]} did not finish within {timeout:g} s and was ended", details=shlex.join(command)
            ) from None
    result = Result(process.returncode, out, err)
    if check and result.returncode != 0:
        raise error(
            f"{command[0]} failed with exit code {result.returncode}",
            details=f"{shlex.join(command)}\n{tail(err or out)}",
        )
    return result


@contextlib.contextmanager
def _start_group(
    argv: list[str], cwd: Path | None, env: Mapping[str, str] | None, error: type[ToolchainError]
) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a group of its own, and end the whole group if the block fails."""
    process = None
    try:
        with signals_later():
            process = spawn(argv, cwd=cwd, env=env)
        yield process
    except BaseException as fault:  # a child may outlive the command that started it and hold its output open
        if process is not None:
            kill_group(process)
        elif isinstance(fault, OSError):
            raise _start_error(argv, fault, error) from fault
        raise


@contextlib.contextmanager
def signals_later() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM to the end of a block: while a child is being started, they would orphan it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in before.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, _frame: received.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for signal_number in received:
            signal.raise_signal(signal_number)


def _start_error(argv: list[str], fault: OSError, error: type[ToolchainError]) -> ToolchainError:
    # A missing working folder, or a script's missing interpreter, raises FileNotFoundError too.
    # And a name without a folder is searched in PATH only, even if the working folder has such a file.
    exists = os.sep in argv[0] and Path(argv[0]).exists()
    if isinstance(fault, FileNotFoundError) and fault.filename == argv[0] and not exists:
        return error(
            f"{argv[0]} is not installed here",
            details=shlex.join(argv),
            hint=installing(argv[0]) or f"install {argv[0]}, or add its folder to PATH",
        )
    return error(f"{argv[0]} could not be started: {reason(fault)}", details=shlex.join(argv))


def installing(program: str) -> str:
    """Return the command that installs a program on Debian and Ubuntu; empty for an unknown package."""
    if compiler := _COMPILER.fullmatch(program):
        return f"apt-get install {compiler['driver']}-{compiler['triple'].replace('_', '-')}"
    package = program if program in _SAME_NAME else _PACKAGES.get(program)
    return f"apt-get install {package}" if package else ""


def _child_environment() -> dict[str, str]:
    """Return the environment for children: without passwords, which none of them needs.

    A user's command that `attend` runs gets all of it, since it may be a command of this toolchain.
    """
    return {name: value for name, value in os.environ.items() if name not in _SECRETS}


def spawn(
    argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a command with piped text streams, as the leader of a process group of its own."""
    return subprocess.Popen(  # noqa: S603 - an argument list, never a shell string
        list(argv),
        cwd=cwd,
        env={**_child_environment(), **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def serve(
    argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, inherit: bool = True
) -> subprocess.Popen[bytes]:
    """Start a worker with piped binary streams, as the leader of a process group of its own.

    Its standard error replaces the file `log`. `inherit` gives it the variables of this process beside `env`.
    """
    with log.open("wb") as stream:
        return subprocess.Popen(  # noqa: S603 - as above
            list(argv),
            env={**(_child_environment() if inherit else {}), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            start_new_session=True,
        )


def spawn_background(argv: Sequence[str], log: Path, *, attached: bool) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, which Ctrl-C does not reach.

    Args:
        argv: The program and its arguments.
        log: File that its outputs are appended to.
        attached: Whether its standard input is a pipe, which closes when this process ends; it is empty otherwise.
    """
    with log.open("ab") as stream:
        return subprocess.Popen(  # noqa: S603 - an argument list, never a shell string
            list(argv),
            env=_child_environment(),
            stdin=subprocess.PIPE if attached else subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )


def attach(argv: Sequence[str], log: IO[bytes] | None = None) -> socket.socket:
    """Start a command whose standard input and output are one stream; return our end of it.

    When that is closed, or the command ends, the rest of its process group is ended. `log` is a file for its standard
    error, which is discarded by default.
    """
    ours, theirs = socket.socketpair()
    try:
        child = subprocess.Popen(  # noqa: S603 - as above
            list(argv),
            env=_child_environment(),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=log or subprocess.DEVNULL,
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        theirs.close()
        raise
    threading.Thread(target=_end_with, args=(theirs, child), name="stream", daemon=True).start()
    return ours


def _end_with(stream: socket.socket, child: subprocess.Popen[bytes]) -> None:
    """Wait until the far end of a stream is closed or its command has ended, and clean up both."""
    with stream:
        life = os.pidfd_open(child.pid)
        try:
            poller = select.poll()
            poller.register(stream, 0)  # a hang-up is always reported
            poller.register(life, select.POLLIN)
            poller.poll()
        finally:
            os.close(life)
        with contextlib.suppress(subprocess.TimeoutExpired):  # most commands end with their input
            child.wait(_GRACE_S)
        kill_group(child)


def attend(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command with this process's terminal to its end; return its exit code, as a shell would report it."""
    try:
        child = subprocess.Popen(list(argv), env={**os.environ, **env})  # noqa: S603 - as above
    except OSError as fault:
        raise InputError(
            f"{argv[0]} cannot be started: {fault.strerror}", details=shlex.join(argv), hint=installing(argv[0])
        ) from fault
    try:
        code = child.wait()
    except BaseException:  # Ctrl-C reaches the command too, and it may have to clean up
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)
        end(child, _GRACE_S)
        raise
    return code if code >= 0 else 128 - code


def ancestors(pid: int) -> tuple[int, ...]:
    """Return the parent of a process, its parent, and so on; none for a process that is gone."""
    parents: list[int] = []
    with contextlib.suppress(OSError):
        while pid:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            pid = int(stat.rpartition(")")[2].split()[1])
            parents += [pid] if pid else []
    return tuple(parents)


def ended(child: subprocess.Popen[str], timeout: float) -> bool:
    """Wait for a command's end; return whether it has ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout)
    return child.poll() is not None


def end(child: subprocess.Popen[bytes], grace: float) -> None:
    """Ask a command to end, and kill it if it has not ended after `grace` seconds."""
    child.terminate()
    try:
        child.wait(grace)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def kill_group(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a process that `spawn`, `serve` or `attach` started, together with its children, and reap it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
