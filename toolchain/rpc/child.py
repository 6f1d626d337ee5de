"""TVM's RPC client, in a process of its own: `python -m toolchain.rpc.child`, started by `client.Client`.

Reads a line of JSON from standard input for each thing to do, and answers with one on standard output. Only the runtime
of TVM is loaded. What a board says comes out as JSON alone, so that a board that takes this process over gains nothing
but to lie.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
from pathlib import Path
from typing import IO, Any

from toolchain import worker

_LOOPBACK = "127.0.0.1"


class Visit:
    """A session, with all that it has on the board; functions that `Session.run` runs here get one.

    TVM frees what a variable holds on the board by a call that waits for the board. So everything is kept until the
    session is closed; only then do these last calls fail at once in place of waiting.

    Args:
        rpc: TVM's session, a `tvm.rpc.RPCSession`.
    """

    def __init__(self, rpc: Any) -> None:
        self.rpc = rpc
        self._kept: list[Any] = []

    def keep(self, thing: Any) -> Any:
        """Keep something on the board until the session is closed."""
        self._kept.append(thing)
        return thing

    def function(self, name: str) -> Any:
        """Return a function of the server; None if it has none of that name."""
        try:
            return self.keep(self.rpc.get_function(name))
        except AttributeError:
            return None

    def facts(self, name: str) -> dict[str, Any]:
        """Return what a function of the server says in JSON; empty if there is none, or it is no JSON."""
        function = self.function(name)
        try:
            found = json.loads(function()) if function else {}
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def close(self) -> None:
        """End the session, and only then let everything go."""
        with contextlib.suppress(RuntimeError):  # the connection is lost
            self.rpc.get_function("CloseRPCConnection")()
        self._kept.clear()


def text(visit: Visit, name: str, *args: str | float) -> str | None:
    """Call a function of the server that returns a text; None if it has none of that name."""
    function = visit.function(name)
    return None if function is None else str(function(*args))


def _opened(port: int, key: str) -> Visit:
    visit = Visit(_rpc().connect(_LOOPBACK, port, key))
    _hasten(port)
    return visit


def _rpc() -> Any:
    from tvm import rpc  # noqa: PLC0415 - an error while it is loaded must come as an answer

    return rpc


def _hasten(port: int) -> None:
    """RPC is many small messages, each of which is waited for; TVM itself lets the kernel collect them."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if not path.is_socket():
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as link:
                if link.family == socket.AF_INET and link.getpeername()[1] == port:
                    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _answers(lines: IO[bytes]) -> Any:
    """Do what each line says and yield the answers."""
    visit: Visit | None = None
    for line in lines:
        message = json.loads(line)
        try:
            if "load" in message:
                _rpc()
                yield {"ok": None}
            elif "open" in message:
                visit = _opened(**message["open"])
                yield {"ok": None}
            elif "close" in message:
                if visit:
                    visit.close()
                visit = None
                yield {"ok": None}
            else:
                function = getattr(importlib.import_module(message["module"]), message["run"])
                yield {"ok": function(visit, *message["args"])}
        except Exception as fault:  # noqa: BLE001 - whatever it is, it is the answer
            yield {"fault": _described(fault)}


def _described(fault: Exception) -> dict[str, str]:
    told = {name: str(getattr(fault, name, "")) for name in ("details", "hint")}
    return {"kind": type(fault).__name__, "message": str(fault), **told}


def main() -> None:
    """Serve until standard input ends, which it does with the process that holds its other end."""
    worker.leave_no_core()
    questions, out = worker.streams()
    worker.end_with_input(questions)
    for answer in _answers(questions):
        out.write(json.dumps(answer).encode() + b"\n")
        out.flush()
    # Without destructors: those of TVM would ask the board for a last time.
    os._exit(0)


if __name__ == "__main__":
    main()
