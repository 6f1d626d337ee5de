"""TVM's RPC client, in a process of its own: `python -m toolchain.rpc.child`, started by `client.Client`.

Reads a line of JSON for each request, and answers with one. Only the runtime of TVM is loaded. A board's answers come
out as nothing but JSON, so that a board that takes this process over can only lie.
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
    """A session, with all objects that it has on the board; functions that `Session.run` runs here get one.

    TVM frees what a variable holds on the board by a call that waits for the board. So all objects are kept until the
    session is closed; only then do these last calls fail at once instead of waiting.
    """

    def __init__(self, rpc: Any) -> None:  # a `tvm.rpc.RPCSession`
        self.rpc = rpc
        self._objects: list[Any] = []

    def keep(self, remote: Any) -> Any:
        self._objects.append(remote)
        return remote

    def function(self, name: str) -> Any:
        """Return a function of the server; None if it has none of that name."""
        try:
            return self.keep(self.rpc.get_function(name))
        except AttributeError:
            return None

    def facts(self, name: str) -> dict[str, Any]:
        """Return the JSON object that a function of the server returns; empty if there is no such function."""
        function = self.function(name)
        try:
            answer = json.loads(function()) if function else {}
        except (ValueError, RecursionError):
            return {}
        return answer if isinstance(answer, dict) else {}

    def close(self) -> None:
        """End the session, and only then free all objects."""
        with contextlib.suppress(RuntimeError):  # the connection is lost
            self.rpc.get_function("CloseRPCConnection")()
        self._objects.clear()


def text(visit: Visit, name: str, *args: str | float) -> str | None:
    """Call a function of the server that returns a text; None if it has none of that name."""
    function = visit.function(name)
    return None if function is None else str(function(*args))


def accelerator(visit: Visit, kind: str) -> dict[str, Any]:
    """Return what a board reports about its accelerator, by the names of `hardware.Accelerator`."""
    device = visit.rpc.device(kind, 0)
    float16 = visit.function(f"edge_toolchain.{kind}.float16")
    return {
        "name": str(device.device_name),
        "units": int(device.multi_processor_count),
        "max_threads_per_block": int(device.max_threads_per_block),
        "max_shared_memory_per_block": int(device.max_shared_memory_per_block),
        "driver": str(device.driver_version or ""),
        "float16": float16 is not None and bool(float16(0)),
    }


def _rpc() -> Any:
    from tvm import rpc  # noqa: PLC0415 - an error while it is loaded must come as an answer

    return rpc


def _set_nodelay(port: int) -> None:
    # RPC is many small messages, each of which is waited for; TVM itself lets the kernel collect them.
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if not path.is_socket():
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as link:
                if link.family == socket.AF_INET and link.getpeername()[1] == port:
                    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _answers(lines: IO[bytes]) -> Any:
    """Do what each line requests and yield the answers."""
    visit: Visit | None = None
    for line in lines:
        message = json.loads(line)
        try:
            if "load" in message:
                _rpc()
                yield {"ok": None}
            elif "open" in message:
                port, key = message["open"]["port"], message["open"]["key"]
                visit = Visit(_rpc().connect(_LOOPBACK, port, key))
                _set_nodelay(port)
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
            more = {name: str(getattr(fault, name, "")) for name in ("details", "hint")}
            yield {"fault": {"kind": type(fault).__name__, "message": str(fault), **more}}


def main() -> None:
    """Serve until standard input ends, which it does with our parent."""
    worker.leave_no_core()
    questions, out = worker.streams()
    worker.end_with_input(questions)
    for answer in _answers(questions):
        out.write(json.dumps(answer).encode() + b"\n")
        out.flush()
    # Without destructors: those of TVM would call the board a last time, and wait for it.
    os._exit(0)


if __name__ == "__main__":
    main()
