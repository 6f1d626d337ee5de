"""The protocol of worker processes of the toolchain, which answer over their standard streams."""

from __future__ import annotations

import json
import os
import resource
import select
import struct
import threading
from typing import Any, BinaryIO

_LENGTH = struct.Struct(">Q")


def send(stream: BinaryIO, message: Any) -> None:
    """Write one message: a length, and JSON of that many bytes."""
    data = json.dumps(message).encode()
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read one message; None at the end of the stream, even within a message."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    size = int(_LENGTH.unpack(head)[0])
    data = stream.read(size)
    return json.loads(data) if len(data) == size else None


def streams() -> tuple[BinaryIO, BinaryIO]:
    """Reserve standard input and output for messages; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return os.fdopen(os.dup(0), "rb"), answers


def end_with_input(stream: BinaryIO) -> None:
    """End this process at once when the other end of the input is closed, even within a job."""
    threading.Thread(target=_await_hang_up, args=(stream.fileno(),), daemon=True).start()


def _await_hang_up(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # hang-ups are reported unasked
    poll.poll()
    os._exit(0)


def leave_no_core() -> None:
    """Write no core file, however this process ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
