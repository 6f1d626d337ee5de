"""A session on a board: opened within a deadline, checked, and cut from any thread."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

from toolchain.errors import DeviceError, VerificationError
from toolchain.rpc import handshake
from toolchain.rpc.client import CallError, Client
from toolchain.rpc.handshake import Dial, KeyRefusedError, Terms, silent, stranger
from toolchain.rpc.relay import Relay

_LOOPBACK = "127.0.0.1"
_GOODBYE_S = 3.0
_KNOCK_S = 5.0
_WELCOME = b"server:board"


class Session:
    """A session on a board; `stock` if TVM's own server is there, which cannot report its versions."""

    # `dial` opens further streams to the server, `client` holds the session, `relay` stands between the two.
    def __init__(self, name: str, dial: Dial, client: Client, relay: Relay, *, stock: bool) -> None:
        self.place = name  # for messages
        self.stock = stock
        self._dial = dial
        self._client = client
        self._relay = relay
        self._lock = threading.Lock()
        self._cut = self._closed = False

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function in the process that holds the session; see `Client.run`.

        Raises:
            VerificationError: The board tried to make this host do something.
            CallError: TVM's client raised an error: the board's, or that the connection is lost.
            ToolchainError: The function raised it, or the session was cut (DeviceError).
        """
        try:
            return self._client.run(function, *args)
        except (CallError, DeviceError) as fault:
            if verdict := self.verdict():
                raise verdict from fault
            raise

    def verdict(self) -> VerificationError | None:
        """Return the error for a board that tried to make this host do something; None if it did not."""
        if not self._relay.forged:
            return None
        return VerificationError(
            f"{self.place} tried to make this host run code: {self._relay.forged}",
            details="a board server only answers calls; the session was closed and nothing was run",
            hint="take the board out of service: it does not run this toolchain's board server",
        )

    def cut(self) -> None:
        """End the session, from any thread: calls that wait for the board fail at once, and all later ones."""
        with self._lock:
            if self._closed:
                return
            self._cut = True
            self._client.kill()  # first, so that its view of the end is not taken for the board's answer
            self._relay.cut()

    def close(self) -> None:
        """End the session, which frees the board for the next one. May be called twice, and after `cut`."""
        if not (self._cut or self._closed):
            self._client.close_session(_GOODBYE_S)
        with self._lock:
            self._closed = True
        self._relay.close()

    def answers(self, timeout_s: float) -> bool:
        """Check over a connection of its own that the server answers; TVM's own does so only while it is idle."""
        try:
            handshake.ask(self._dial, self.place, Terms(timeout_s))
        except (DeviceError, VerificationError):
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def deadline(session: Session, seconds: float) -> Iterator[None]:
    """Cut a session if the block takes longer than `seconds`; then raise a DeviceError, whatever the block did."""
    finished, expired = threading.Event(), threading.Event()

    def watch() -> None:
        if not finished.wait(max(seconds, 0.0)):
            expired.set()
            session.cut()

    thread = threading.Thread(target=watch, name="rpc-deadline", daemon=True)
    thread.start()
    try:
        yield
    except Exception as fault:
        if not expired.is_set():
            raise
        raise _late(session, seconds) from fault
    finally:
        finished.set()
        thread.join()
    if expired.is_set():
        raise _late(session, seconds)


def _late(session: Session, seconds: float) -> DeviceError:
    return DeviceError(
        f"the board at {session.place} has not answered for {seconds:g} s",
        hint="read the board server's log, and check the board",
    )


def connect(dial: Dial, name: str, client: Client, key: str, terms: Terms) -> Session:
    """Open a session with a board server and check its versions; closing it frees the board.

    `name` is the board's name or address, for messages. A server that is busy with another session uses up the time
    of `terms`, too.

    Raises:
        DeviceError: Nobody answers there, the server does not open a session in time, or the key is not its own.
        VerificationError: The server is of another version, or for another machine.
    """
    try:
        return start_session(dial, name, client, key, terms)
    except KeyRefusedError as fault:
        raise DeviceError(
            f"the board server at {name} does not accept this key",
            details="the lease of this key has ended, or another client has the board",
            hint="run the command again; `toolchain farm status` shows who uses each board",
        ) from fault


def start_session(dial: Dial, name: str, client: Client, key: str, terms: Terms) -> Session:
    """Open a session as `connect` does, but raise KeyRefusedError for a refused key."""
    client.start()  # it loads TVM meanwhile
    stock = handshake.check(dial, name, terms)
    client.load()
    board = handshake.open_session(dial, name, key, terms)
    try:
        relay = _start_relay(client, board, name, terms)
    except BaseException:
        board.close()
        client.kill()
        raise
    session = Session(name, dial, client, relay, stock=stock)
    fault = session.verdict()
    if fault:
        session.cut()
        session.close()
        raise fault
    return session


def _start_relay(client: Client, board: socket.socket, name: str, terms: Terms) -> Relay:
    """Let TVM connect to this end of a stream."""
    # TVM's client can only connect to a port. Any other process that does so would need a key that is used once.
    with socket.create_server((_LOOPBACK, 0)) as listener, contextlib.ExitStack() as stack:
        key = secrets.token_hex(32)
        gate = _ClientGate(listener, f"client:{key}", board)
        stack.callback(gate.end)
        gate.start()
        try:
            client.open(listener.getsockname()[1], key, terms)
        except TimeoutError as fault:
            raise _abandon(gate, silent(name, terms)) from fault
        except CallError as fault:
            if gate.relay is None or not gate.relay.forged:
                raise _abandon(gate, _start_error(name, fault)) from fault
        if gate.relay is None:
            raise DeviceError("TVM's RPC client did not open a session", hint="run the command again")
        return gate.relay


def _abandon(gate: _ClientGate, fault: DeviceError) -> DeviceError:
    if gate.relay is not None:
        gate.relay.close()
    return fault


def _start_error(name: str, fault: CallError) -> DeviceError:
    message = (str(fault).strip().splitlines() or [fault.kind])[-1].strip()
    if fault.kind == "RPCError":  # the server's own answer
        return DeviceError(f"{name} cannot start a session", details=message, hint="read the board server's log")
    return stranger(name, message)


class _ClientGate:
    """Admits TVM's own client, which sends `key`, at a loopback port, and relays it to a board."""

    def __init__(self, listener: socket.socket, key: str, board: socket.socket) -> None:
        self.relay: Relay | None = None
        self._listener, self._key, self._board = listener, key.encode(), board
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="rpc-door", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while self.relay is None:
                link, _ = self._listener.accept()
                # Each in a thread of its own: a stranger that sends nothing must not keep the client waiting.
                threading.Thread(target=self._answer, args=(link,), name="rpc-knock", daemon=True).start()

    def _answer(self, link: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(link)
            if not self._is_client(link):
                return
            with self._lock:
                if self.relay is not None:
                    return
                self.relay = Relay(link, self._board)
            stack.pop_all()
            with contextlib.suppress(OSError):  # it is gone, as the relay will find
                link.sendall(struct.pack("<ii", handshake.MAGIC, len(_WELCOME)) + _WELCOME)
            self.relay.start()

    def _is_client(self, link: socket.socket) -> bool:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        terms = Terms(_KNOCK_S)
        try:
            magic, size = struct.unpack("<ii", terms.receive(link, 8))
            is_greeting = magic == handshake.MAGIC and size == len(self._key)
            return is_greeting and hmac.compare_digest(terms.receive(link, size), self._key)
        except OSError:
            return False
