"""TVM's RPC client as a child process, which is ended whenever its state is in doubt."""

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
from toolchain.rpc.handshake import Terms, readable

_MODULE = "toolchain.rpc.child"
# What the child needs of the environment; nothing secret.
_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR", "XDG_CACHE_HOME")
_MAX_ANSWER = 4 << 20
_MAX_TEXT = 2000
_START_S = 60.0  # a machine that compiles on every core may need that


class CallError(RuntimeError):
    """An error that TVM's client raised in the child; `kind` is its class, such as `RPCError`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Client:
    """A child process with TVM's client; it starts when it is first needed, and again after it was ended.

    It ends with this process, however that ends, and serves one session at a time. `environment` replaces the few
    variables of this process that it gets by default.
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
                default = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
                default["TVM_USE_RUNTIME_LIB"] = "1"
                self._child = process.serve(
                    [sys.executable, "-P", "-m", _MODULE],
                    log=Path(os.devnull),
                    env=self._environment or default,
                    inherit=False,
                )
                self._end = weakref.finalize(self, process.kill_group, self._child)

    def kill(self) -> None:
        """End the child, from any thread; a call that waits for its answer fails at once."""
        with self._lock:
            if self._child is not None and self._end is not None:
                self._end()
                self._child = None

    def _ask(self, message: dict[str, Any], terms: Terms | None = None) -> Any:
        """Send the child a request and return its answer.

        Raises:
            CallError: TVM's client raised an error.
            ToolchainError: The called function raised one.
            OSError: The function could not read a file.
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
            kind, text, details, hint = (answer["fault"][name] for name in ("kind", "message", "details", "hint"))
            error = getattr(errors, kind, None)
            if isinstance(error, type) and issubclass(error, ToolchainError):
                raise error(text, details=details, hint=hint)
            if kind in {"FileNotFoundError", "PermissionError", "IsADirectoryError", "OSError"}:
                raise OSError(text)
            raise CallError(kind, text)
        return answer["ok"]

    def load(self) -> None:
        """Wait until the child has loaded TVM, or raise a DeviceError."""
        try:
            self._ask({"load": True}, Terms(_START_S))
        except (CallError, TimeoutError) as fault:
            self.kill()
            raise DeviceError(
                "TVM's RPC client process does not start", details=str(fault), hint=resources.REPAIR
            ) from fault

    def open(self, port: int, key: str, terms: Terms) -> None:
        """Let TVM connect to a port of this host's loopback address. Raises as `_ask` does."""
        self._ask({"open": {"port": port, "key": key}}, terms)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function of a toolchain module in the child, with the session's `child.Visit` before `args`.

        Arguments and result are what JSON can hold.

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


def error_text(fault: Exception) -> str:
    """Return a board's error without TVM's frame around it."""
    text = str(fault).replace("RPCError: Error caught from RPC call:\n", "").strip()
    return process.tail(text)[-_MAX_TEXT:] or type(fault).__name__


def _line(stream: int, terms: Terms | None) -> bytes:
    """Read a line of bounded length; the child only writes answers."""
    data = b""
    while not data.endswith(b"\n"):
        if terms is not None and not terms.wait(functools.partial(readable, stream)):
            raise TimeoutError
        block = os.read(stream, 1 << 16)
        data += block
        if not block or len(data) > _MAX_ANSWER:
            raise _ended()
    return data


def _ended() -> DeviceError:
    return DeviceError("the session was cut", details="the process of TVM's RPC client has ended")
