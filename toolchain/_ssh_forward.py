"""TCP connections through an SSH connection, in both directions, between the loopback addresses of host and device."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import paramiko

from toolchain._ssh_connect import words_of
from toolchain.errors import DeviceError

LOOPBACK = "127.0.0.1"

_OPEN_S = 15.0
_PACKET = (1 << 15) - 64  # what one SSH packet holds; more would only be cut, and copied for it
_PROHIBITED = 1
_ATTEMPTS = 3
# Below the ports that Linux gives to outgoing connections by itself.
_PORTS = range(20000, 32000)
_NO_FORWARDING = "set `AllowTcpForwarding yes` in the device's sshd_config (dropbear: start it without -j and -k)"


class _Link:
    """One connection: a socket here and a channel to the device, and what is on its way between them."""

    def __init__(self, sock: socket.socket, channel: Any) -> None:
        self._sock = sock
        self._channel = channel
        # RPC is many small messages, each of which the other side waits for.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(None)
        channel.settimeout(None)

    def carry(self) -> None:
        """Carry data both ways until both ends have said all, or one is gone."""
        upward = threading.Thread(target=self._up, name="forward-up", daemon=True)
        upward.start()
        self._pump(self._channel.recv, self._sock.sendall, self._end_of_answers)
        upward.join()
        self.close()

    def _up(self) -> None:
        self._pump(self._sock.recv, self._channel.sendall, self._channel.shutdown_write)

    def _end_of_answers(self) -> None:
        if self._channel.closed:  # nobody is left who would read
            self.close()
        else:
            self._sock.shutdown(socket.SHUT_WR)

    def _pump(self, receive: Callable[[int], bytes], send: Callable[[bytes], None], end: Callable[[], None]) -> None:
        try:
            while data := receive(_PACKET):
                send(data)
            end()
        except (OSError, EOFError, paramiko.SSHException):  # one end is gone, so the other has to go
            self.close()

    def close(self) -> None:
        """End it, and wake up whoever waits for its data."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


class _Links:
    """The connections that a forward carries just now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[_Link] = set()
        self._ended = False

    def carry(self, sock: socket.socket, channel: Any) -> None:
        link = _Link(sock, channel)
        with self._lock:
            self._all.add(link)
        try:
            if self._ended:
                link.close()
            else:
                link.carry()
        finally:
            with self._lock:
                self._all.discard(link)

    def cut(self) -> None:
        with self._lock:
            links = list(self._all)
        for link in links:
            link.close()

    def end(self) -> None:
        """Cut all, and what is still about to come."""
        self._ended = True
        self.cut()

    def __len__(self) -> int:
        return len(self._all)


class Forward:
    """A port of this host that leads to a port of the device.

    Args:
        transport: The SSH connection.
        name: The device's name, for errors.
        here: Address and port on this host; port 0 takes a free one.
        there: Address and port as the device sees them; port 0 is the same number as here.

    Raises:
        DeviceError: The device forwards nothing, or the port here is taken.
    """

    def __init__(self, transport: Any, name: str, here: tuple[str, int], there: tuple[str, int]) -> None:
        self._transport, self._name = transport, name
        self._links = _Links()
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._bind(here)
            self.address: tuple[str, int] = self._listener.getsockname()[:2]
            self._there = (there[0], there[1] or self.address[1])
            # Not before: where the device is this very host, a connection to the port there might be one to us.
            self._try()
            self._listener.listen()
        except BaseException:
            self._listener.close()
            raise
        self._thread = threading.Thread(target=self._accept, name="forward", daemon=True)
        self._thread.start()

    def _bind(self, here: tuple[str, int]) -> None:
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind(here)
        except OSError as fault:
            raise DeviceError(f"{here[0]}:{here[1]} cannot lead to {self._name}: {fault.strerror}") from fault

    def _try(self) -> None:
        """Find out whether the device forwards at all; that nobody listens there yet is fine."""
        try:
            self._open(("127.0.0.1", 0)).close()
        except paramiko.ChannelException as fault:
            if fault.code == _PROHIBITED:
                raise DeviceError(
                    f"{self._name} does not allow TCP forwarding", details=fault.text, hint=_NO_FORWARDING
                ) from fault
        except (paramiko.SSHException, EOFError, OSError) as fault:
            raise DeviceError(
                f"{self._name} opens no connection to a port of its own", details=words_of(fault)
            ) from fault

    def _open(self, origin: tuple[str, int]) -> Any:
        return self._transport.open_channel("direct-tcpip", self._there, origin, timeout=_OPEN_S)

    def _accept(self) -> None:
        while True:
            try:
                sock, origin = self._listener.accept()
            except OSError:  # it was closed
                return
            threading.Thread(target=self._serve, args=(sock, origin[:2]), name="forward-down", daemon=True).start()

    def _serve(self, sock: socket.socket, origin: tuple[str, int]) -> None:
        try:
            channel = self._open(origin)
        except (paramiko.SSHException, EOFError, OSError):  # as if nobody listened here
            sock.close()
            return
        self._links.carry(sock, channel)

    @property
    def connections(self) -> int:
        """How many connections it carries."""
        return len(self._links)

    def cut(self) -> None:
        """End the connections that it carries; it takes new ones."""
        self._links.cut()

    def close(self) -> None:
        """End it and all its connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._links.end()


class BackForwards:
    """The ports of a device that lead to ports of this host; one of these for each SSH connection.

    Args:
        transport: The SSH connection.
        name: The device's name, for errors.
    """

    def __init__(self, transport: Any, name: str) -> None:
        self._transport, self._name = transport, name
        self._targets: dict[int, tuple[str, int]] = {}
        self._links = _Links()

    def add(self, target: tuple[str, int]) -> int:
        """Let a port of the device's loopback address lead to an address of this host.

        Returns:
            The port.

        Raises:
            DeviceError: The device does not allow that.
        """
        refusal: Exception = EOFError()
        # The system there chooses; old dropbear cannot let it.
        for port in (0, *random.sample(_PORTS, _ATTEMPTS)):
            try:
                with self._bounded():
                    found = int(self._transport.request_port_forward(LOOPBACK, port, self._on_connection))
            except (paramiko.SSHException, EOFError, OSError) as fault:
                refusal = fault
                continue
            if found:
                self._targets[found] = target
                return found
        raise DeviceError(
            f"{self._name} does not let one of its ports lead here", details=words_of(refusal), hint=_NO_FORWARDING
        ) from refusal

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """Paramiko waits without limit for the answer; without a connection it stops to."""
        alarm = threading.Timer(_OPEN_S, self._transport.close)
        alarm.daemon = True
        alarm.start()
        try:
            yield
        finally:
            alarm.cancel()

    def _on_connection(self, channel: Any, _origin: tuple[str, int], server: tuple[str, int]) -> None:
        """Paramiko's own thread calls this, and carries nothing until it returns."""
        threading.Thread(target=self._serve, args=(channel, server[1]), name="forward-back", daemon=True).start()

    def _serve(self, channel: Any, port: int) -> None:
        try:
            sock = socket.create_connection(self._targets[port], timeout=_OPEN_S)
        except (OSError, KeyError):  # as if nobody listened there
            channel.close()
            return
        self._links.carry(sock, channel)
