"""TVM's RPC client as this process sees it: a child that is asked, and ended whenever it may be in doubt."""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolchain import errors, process, resources
from toolchain.errors import DeviceError, ToolchainError
from toolchain.rpc.terms import Terms, readable

_MODULE = "toolchain.rpc.child"
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR", "XDG_CACHE_HOME")
"""What it needs of the environment; nothing secret."""
_MOST_ANSWER = 4 << 20
_MOST_WORDS = 2000
_START_S = 60.0  # a machine that compiles on every core may need that


class CallError(RuntimeError):
    """What TVM's client raised in the child.

    Attributes:
        kind: The name of its class, such as `RPCError`.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Client:
    """A child process with TVM's client; it is started when it is first needed, and again after it was ended.

    It ends with this process, however that ends. It serves one session at a time.

    Args:
        environment: All variables of the child; by default those few of this process that it needs.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._child: process.Serving | None = None
        self._lock = threading.Lock()
        self._end: Callable[[], object] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id; None if there is none."""
        child = self._child
        return child.pid if child else None

    def start(self) -> None:
        """Let the child begin to load TVM, without waiting for it."""
        with self._lock:
            if self._child is None:
                self._child = process.serve(
                    [sys.executable, "-P", "-m", _MODULE],
                    log=Path(os.devnull),
                    env=self._environment or _environment(),
                    inherit=False,
                )
                self._end = weakref.finalize(self, process.kill_group, self._child)

    def kill(self) -> None:
        """End the child, from any thread; whoever waits for its answer learns it at once."""
        with self._lock:
            if self._child is not None and self._end is not None:
                self._end()
                self._child = None

    def _ask(self, message: dict[str, Any], terms: Terms | None = None) -> Any:
        """Let the child do something and return its answer.

        Raises:
            CallError: TVM's client raised an error.
            ToolchainError: What runs there raised one.
            OSError: It cannot read a file.
            DeviceError: The child ended.
            TimeoutError: It did not answer in time.
        """
        self.start()
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            raise _ended()
        try:
            child.stdin.write(json.dumps(message).encode() + b"\n")
            child.stdin.flush()
            line = _line(child.stdout.fileno(), terms)
        except TimeoutError:
            raise
        except (OSError, ValueError) as fault:  # it was killed, and its pipes closed
            raise _ended() from fault
        answer = json.loads(line)
        if "fault" in answer:
            raise _fault_of(**answer["fault"])
        return answer["ok"]

    def load(self) -> None:
        """Wait until the child has loaded TVM.

        Raises:
            DeviceError: It cannot.
        """
        try:
            self._ask({"load": True}, Terms(_START_S))
        except (CallError, TimeoutError) as fault:
            self.kill()
            raise DeviceError(
                "TVM's RPC client process does not start", details=str(fault), hint=resources.REPAIR
            ) from fault

    def open(self, port: int, key: str, terms: Terms) -> None:
        """Let TVM connect to a port of this host's loopback address.

        Raises:
            CallError: It cannot.
            TimeoutError: It does not in time.
            DeviceError: The child ended.
        """
        self._ask({"open": {"port": port, "key": key}}, terms)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function of the toolchain's in the child, with the session there as its first argument.

        Args:
            function: A function of a module, which takes a `child.Visit` and returns what JSON can hold.
            *args: Its further arguments; what JSON can hold.

        Raises:
            CallError: TVM's client raised an error.
            ToolchainError: The function raised it, or the child has ended (DeviceError).
            OSError: The function could not read a file.
        """
        return self._ask({"module": function.__module__, "run": function.__name__, "args": args})

    def close_session(self, timeout_s: float) -> None:
        """Let TVM end its session; end the child if that does not work."""
        try:
            self._ask({"close": True}, Terms(timeout_s))
        except (CallError, DeviceError, TimeoutError):
            self.kill()


def words(fault: Exception) -> str:
    """Return what a board says without TVM's way of saying it."""
    text = str(fault).replace("RPCError: Error caught from RPC call:\n", "").strip()
    return process.tail(text)[-_MOST_WORDS:] or type(fault).__name__


def _environment() -> dict[str, str]:
    return {**{name: os.environ[name] for name in _KEPT if name in os.environ}, "TVM_USE_RUNTIME_LIB": "1"}


def _line(stream: int, terms: Terms | None) -> bytes:
    """Read a line of bounded length; the child writes nothing that it was not asked for."""
    data = b""
    while not data.endswith(b"\n"):
        if terms is not None and not terms.wait(functools.partial(readable, stream)):
            raise TimeoutError
        part = os.read(stream, 1 << 16)
        data += part
        if not part or len(data) > _MOST_ANSWER:
            raise _ended()
    return data


def _ended() -> DeviceError:
    return DeviceError("the session was cut", details="the process of TVM's RPC client has ended")


def _fault_of(kind: str, message: str, details: str, hint: str) -> Exception:
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, ToolchainError):
        return known(message, details=details, hint=hint)
    if kind in {"FileNotFoundError", "PermissionError", "IsADirectoryError", "OSError"}:
        return OSError(message)
    return CallError(kind, message)
