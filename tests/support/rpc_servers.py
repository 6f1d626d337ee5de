"""Servers that speak TVM's RPC protocol as they are told to: silent ones, broken ones, and some that attack."""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import struct
import threading
import time
from pathlib import Path

from toolchain.rpc import tracker

RPC_MAGIC, TRACKER_MAGIC = 0xFF271, 0x2F271
RETURN, EXCEPTION, COPY_ACK = 4, 5, 8
RAW_STR = 8


@contextlib.contextmanager
def server(talk):
    """Listen on loopback, and let `talk` have every connection until the client has closed it."""

    def serve():
        with contextlib.suppress(OSError):  # the listener is closed at the end
            while True:
                link, _ = listener.accept()
                threading.Thread(target=speak, args=(link,), daemon=True).start()

    def speak(link):
        with link, contextlib.suppress(OSError):
            talk(link)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def to(port: int):
    """Return what dials a port."""
    return functools.partial(tracker.dial, ("127.0.0.1", port))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextlib.contextmanager
def leaving_nothing():
    """See that a block leaves no socket and no thread; the end of a server above takes a moment."""
    before, threads = descriptors(), threading.active_count()
    yield
    end = time.monotonic() + 30
    while descriptors() > before or threading.active_count() > threads:
        assert time.monotonic() < end, (before, descriptors(), threads, threading.active_count())
        time.sleep(0.01)


def silent(link):
    """Read what comes and say nothing, until the client has gone."""
    while link.recv(4096):
        pass


def closes(link):
    link.close()


def says(*chunks: bytes, pause: float = 0.0):
    def talk(link):
        link.recv(4096)
        for chunk in chunks:
            link.sendall(chunk)
            time.sleep(pause)
        silent(link)

    return talk


def versions_then(talk, versions=None):
    """Answer the question for the versions, and then `talk`."""
    text = json.dumps(versions or {}).encode()

    def first(link):
        if b"edge-toolchain:version" in link.recv(4096, socket.MSG_PEEK):
            link.sendall(struct.pack("<ii", RPC_MAGIC, len(text)) + text)
            silent(link)
        else:
            talk(link)

    return first


def received(link, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = link.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError
        data += chunk
    return data


def board(*answers: bytes, versions=None):
    """Open a session as a board server does, and answer each packet in turn; the last answer again and again."""

    def talk(link):
        _, size = struct.unpack("<ii", received(link, 8))
        received(link, size)
        link.sendall(struct.pack("<ii", RPC_MAGIC, 6) + b"server")
        for answer in [*answers, *([answers[-1]] * 100)]:
            received(link, struct.unpack("<Q", received(link, 8))[0])
            link.sendall(answer)

    return versions_then(talk, versions)


# --- packets ---------------------------------------------------------------------------------------------------------


def packet(code: int, body: bytes = b"") -> bytes:
    return struct.pack("<QI", 4 + len(body), code) + body


def values(*each: bytes) -> bytes:
    return struct.pack("<i", len(each)) + b"".join(each)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<iQ", RAW_STR, len(data)) + data


NOTHING = struct.pack("<i", 0)
DONE = packet(RETURN, values(NOTHING))
"""What a board returns when a session begins, and for a call without a result."""


def program_to_run(*argv: str) -> bytes:
    """Make a request that begins a session by running a program: a client of TVM's that gets it does that."""
    constructor = [text(argument) for argument in ("rpc.CreatePipeClient", *argv)]
    version = b"0.8.0"
    return packet(2, struct.pack("<Q", len(version)) + version + values(*constructor))
