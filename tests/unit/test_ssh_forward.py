"""Connections through SSH: real ones, through a real OpenSSH server."""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import sshd
from toolchain.errors import DeviceError
from toolchain.shell import SshOptions, open_shell


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with sshd.running(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def shell(server):
    with open_shell("board", config=options_of(server)) as opened:
        yield opened


def options_of(server) -> SshOptions:
    return SshOptions(config_file=server.config, agent=False)


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve on a loopback port, each connection in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answer(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def echo(connection: socket.socket) -> None:
    while data := connection.recv(1 << 16):
        connection.sendall(data)


def tell_the_size(connection: socket.socket) -> None:
    """Answer only once the client has ended its side."""
    size = 0
    while data := connection.recv(1 << 16):
        size += len(data)
    connection.sendall(f"{size}".encode())


def connected(address: tuple[str, int]) -> socket.socket:
    link = socket.create_connection(address, timeout=20)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def received(link: socket.socket, size: int = -1) -> bytes:
    data = b""
    while size < 0 or len(data) < size:
        part = link.recv(1 << 16)
        if not part:
            break
        data += part
    return data


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)


@pytest.fixture(params=["there", "back"])
def through(request, shell):
    """Make a way to a port: through a port of this host, or through one of the device."""

    def way(port: int) -> tuple[str, int]:
        if request.param == "back":
            return "127.0.0.1", shell.forward_back(("127.0.0.1", port))
        return shell.forward(("127.0.0.1", 0), port).address

    return way


def test_many_bytes_both_ways_at_once(through):
    data = os.urandom(8 << 20)
    with serving(echo) as port, connected(through(port)) as link:
        sender = threading.Thread(target=link.sendall, args=(data,), daemon=True)
        sender.start()
        assert received(link, len(data)) == data
        sender.join()


def test_each_side_may_end_first(through):
    with serving(tell_the_size) as port, connected(through(port)) as link:
        link.sendall(bytes(300_000))
        link.shutdown(socket.SHUT_WR)
        assert received(link) == b"300000"


def test_what_the_server_says_last_arrives(through):
    with serving(lambda connection: connection.sendall(bytes(500_000))) as port, connected(through(port)) as link:
        assert len(received(link)) == 500_000


def test_a_client_that_vanishes_is_noticed(through):
    gone = threading.Event()

    def wait_for_the_end(connection: socket.socket) -> None:
        connection.sendall(b"here")
        with contextlib.suppress(OSError):
            while connection.recv(1):
                pass
        gone.set()

    with serving(wait_for_the_end) as port:
        link = connected(through(port))
        assert received(link, 4) == b"here"
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, as after SIGKILL
        link.close()
        assert gone.wait(10)


def test_many_connections_at_once(through):
    with serving(echo) as port, contextlib.ExitStack() as stack:
        address = through(port)
        links = [stack.enter_context(connected(address)) for _ in range(20)]
        for number, link in enumerate(links):
            link.sendall(f"{number:04}".encode())
        assert [received(link, 4) for link in links] == [f"{number:04}".encode() for number in range(20)]


def test_a_round_trip_costs_little(through):
    """The mean of an idle machine is near 0.4 ms; a loaded one gets much slack, Nagle's 40 ms would not pass."""
    with serving(echo) as port, connected(through(port)) as link:
        times = []
        for _ in range(200):
            started = time.perf_counter()
            link.sendall(b"x" * 64)
            received(link, 64)
            times.append(time.perf_counter() - started)
    assert statistics.median(times) < 0.01


def test_nobody_listens_there_yet(shell):
    port = sshd.free_port()
    forward = shell.forward(("127.0.0.1", 0), port)
    with connected(forward.address) as link:
        assert received(link) == b""
    until(lambda: forward.connections == 0)


def test_it_listens_on_the_loopback_address_alone(shell, server):
    with serving(echo) as port:
        forward, back = shell.forward(("127.0.0.1", 0), port), shell.forward_back(("127.0.0.1", port))
        for one in (forward.address[1], back):
            assert listeners(one) == {"0100007F"}


def listeners(port: int) -> set[str]:
    """Name the addresses, as the kernel writes them, that are listened on at a port."""
    found = set()
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
        found |= {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}
    return found


def test_a_taken_port(shell):
    with serving(echo) as port, pytest.raises(DeviceError, match="in use"):
        shell.forward(("127.0.0.1", port), port)


def test_cut_and_close(shell):
    with serving(echo) as port:
        forward = shell.forward(("127.0.0.1", 0), port)
        with connected(forward.address) as first, connected(forward.address) as second:
            second.sendall(b"there")
            assert received(second, 5) == b"there"
            until(lambda: forward.connections == 2)
            forward.cut()
            assert received(first) == received(second) == b""
        with connected(forward.address) as again:
            again.sendall(b"again")
            assert received(again, 5) == b"again"
            forward.close()
            assert received(again) == b""
        until(lambda: forward.connections == 0)
        with pytest.raises(OSError, match="refused"):
            connected(forward.address)


def test_a_lost_connection_ends_what_went_through_it(server):
    with serving(echo) as port, open_shell("board", config=options_of(server)) as shell:
        forward = shell.forward(("127.0.0.1", 0), port)
        with connected(forward.address) as link:
            link.sendall(b"there")
            assert received(link, 5) == b"there"
            server.kill_sessions()
            assert received(link) == b""
        until(lambda: forward.connections == 0)


@pytest.mark.parametrize("allowed", ["no", "local", "remote"])
def test_a_device_that_forwards_nothing(tmp_path, allowed):
    with (
        sshd.running(tmp_path / "sshd", options=f"AllowTcpForwarding {allowed}") as server,
        open_shell("board", config=options_of(server)) as shell,
    ):
        if allowed != "local":
            with pytest.raises(DeviceError, match="does not allow TCP forwarding") as caught:
                shell.forward(("127.0.0.1", 0), 9)
            assert "AllowTcpForwarding" in caught.value.hint
        if allowed != "remote":
            with pytest.raises(DeviceError, match="lead here") as caught:
                shell.forward_back(("127.0.0.1", 9))
            assert "AllowTcpForwarding" in caught.value.hint
        assert shell.run("echo well").stdout == "well\n"
