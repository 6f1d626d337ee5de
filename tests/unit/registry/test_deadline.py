"""A registry whose answers never end."""

from __future__ import annotations

import contextlib
import socketserver
import threading
import time

import pytest

from toolchain.bundle.oci import Descriptor
from toolchain.errors import RegistryError
from toolchain.registry import Access, client, parse
from toolchain.registry.client import Client
from toolchain.registry.repository import Repository

OK = frozenset({200})


@contextlib.contextmanager
def trickling(start: bytes):
    """A registry that sends the start of an answer, and then one byte after the other for ever."""
    ended = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            with contextlib.suppress(OSError):
                self.rfile.readline()
                self.wfile.write(start)
                while not ended.wait(0.005):
                    self.wfile.write(b"x")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            ended.set()
            server.shutdown()
            thread.join()


OK_HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "start",
    [b"", OK_HEAD, OK_HEAD + b"X: ", OK_HEAD + b"Content-Length: 99999\r\n\r\n", OK_HEAD + b"\r\n"],
    ids=["nothing", "status", "header", "body", "body without a length"],
)
def test_an_answer_that_comes_byte_by_byte_has_an_end(monkeypatch, start):
    monkeypatch.setattr(client, "_WHOLE_ANSWER_S", 0.3)
    monkeypatch.setattr(client, "_SLOWEST", 1 << 30)
    with trickling(start) as host:
        address = parse(f"oci://{host}/x:1")
        with (
            Client(address, Access()) as registry_client,
            pytest.raises(RegistryError, match="did not complete an answer"),
        ):
            Repository(registry_client, address).read(Descriptor(f"sha256:{'0' * 64}", 9, "x"))


def test_the_body_of_an_error_may_have_no_end(monkeypatch):
    monkeypatch.setattr(client, "_WORDS_S", 0.2)
    started = time.monotonic()
    with trickling(b"HTTP/1.1 503 Busy\r\nContent-Length: 99999999\r\n\r\n") as host:
        address = parse(f"oci://{host}/x:1")
        with Client(address, Access()) as registry_client, pytest.raises(RegistryError, match="answered 503"):
            registry_client.ask("GET", "/v2/x", expected=OK)
    assert time.monotonic() - started < client._WHOLE_ANSWER_S / 2
