"""A session on a board: opened within a deadline, checked, and cut from any thread."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from toolchain.errors import DeviceError, VerificationError
from toolchain.rpc import greeting
from toolchain.rpc.client import CallError, Client
from toolchain.rpc.greeting import Dial, KeyRefusedError, silent, stranger
from toolchain.rpc.relay import Relay
from toolchain.rpc.terms import Terms

_LOOPBACK = "127.0.0.1"
_GOODBYE_S = 3.0
_KNOCK_S = 5.0
_WELCOME = b"server:board"


class Session:
    """A session on a board.

    Args:
        place: Where it is, for messages.
        dial: Opens further streams to its server.
        client: TVM's client, which holds the session.
        relay: What stands between the two.
        stock: Whether TVM's own server is there, which cannot say its versions.
    """

    def __init__(self, place: str, dial: Dial, client: Client, relay: Relay, *, stock: bool) -> None:
        self.place = place
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
            CallError: TVM's client raised an error: what the board told, or that the connection is lost.
            ToolchainError: The function raised it, or the session was cut (DeviceError).
        """
        try:
            return self._client.run(function, *args)
        except (CallError, DeviceError) as fault:
            if verdict := self.verdict():
                raise verdict from fault
            raise

    def verdict(self) -> VerificationError | None:
        """Return what there is to say of a board that tried to make this host do something; None if it did not."""
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
            self._client.kill()  # first, so that nobody takes what it makes of the end for the board's word
            self._relay.cut()

    def close(self) -> None:
        """End the session, which frees the board for the next one. It may be called twice, and after `cut`."""
        if not (self._cut or self._closed):
            self._client.close_session(_GOODBYE_S)
        with self._lock:
            self._closed = True
        self._relay.close()

    def answers(self, timeout_s: float) -> bool:
        """Ask the server itself for a sign of life, over a connection of its own.

        TVM's own server gives one only while it serves nobody.
        """
        try:
            greeting.ask(self._dial, self.place, Terms(timeout_s))
        except (DeviceError, VerificationError):
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def deadline(session: Session, seconds: float) -> Iterator[None]:
    """Cut a session if the block lasts longer than so many seconds.

    Raises:
        DeviceError: It did; also where the block noticed nothing of it.
    """
    done, expired = threading.Event(), threading.Event()

    def watch() -> None:
        if not done.wait(max(seconds, 0.0)):
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
        done.set()
        thread.join()
    if expired.is_set():
        raise _late(session, seconds)


def _late(session: Session, seconds: float) -> DeviceError:
    return DeviceError(
        f"the board at {session.place} has not answered for {seconds:g} s",
        hint="read the board server's log, and check the board",
    )


def connect(  # noqa: PLR0913 - a session has these independent parts
    dial: Dial,
    place: str,
    client: Client,
    *,
    key: str = "",
    timeout_s: float,
    expected: Mapping[str, str],
    session_s: float = 0.0,
    stock_allowed: bool = False,
    stop: threading.Event | None = None,
) -> Session:
    """Open a session with a board server and check its versions.

    Args:
        dial: Opens a stream to it.
        place: Where it is, for messages.
        client: Holds the session.
        key: The server's key; from a tracker, the match key.
        timeout_s: Seconds for all of this. A server that is busy with another session uses them up as well.
        expected: What the server must say of itself, see `versions`.
        session_s: Seconds after which the server ends the session; 0 for no limit.
        stock_allowed: Also take TVM's own server, which cannot be asked for its versions.
        stop: Ends the waiting when it is set, as if the time were over.

    Returns:
        The session. Its `close` frees the board.

    Raises:
        DeviceError: Nobody answers there, the server does not open a session in time, or the key is not its own.
        VerificationError: The server is of another version, or for another machine.
    """
    terms = Terms(timeout_s, session_s, expected, stock_allowed=stock_allowed, stop=stop)
    try:
        return connected(dial, place, client, key, terms)
    except KeyRefusedError as fault:
        raise DeviceError(
            f"the board server at {place} does not accept this key",
            details="the lease of this key has ended, or another client has the board",
            hint="run the command again; `toolchain farm status` shows who uses each board",
        ) from fault


def connected(dial: Dial, place: str, client: Client, key: str, terms: Terms) -> Session:
    """Do what `connect` does.

    Raises:
        KeyRefusedError: The server does not accept this key.
    """
    client.start()  # it loads TVM meanwhile
    stock = greeting.check(dial, place, terms)
    client.load()
    board = greeting.open_session(dial, place, key, terms)
    try:
        relay = _relayed(client, board, place, terms)
    except BaseException:
        board.close()
        client.kill()
        raise
    session = Session(place, dial, client, relay, stock=stock)
    fault = session.verdict()
    if fault:
        session.cut()
        session.close()
        raise fault
    return session


def _relayed(client: Client, board: socket.socket, place: str, terms: Terms) -> Relay:
    """Let TVM connect to this end of a stream.

    TVM's client can only connect to a port. Whoever else does so must show a key that is made for this one time.
    """
    with socket.create_server((_LOOPBACK, 0)) as listener, contextlib.ExitStack() as stack:
        key = secrets.token_hex(32)
        doorman = _Doorman(listener, f"client:{key}", board)
        stack.callback(doorman.end)
        doorman.start()
        try:
            client.open(listener.getsockname()[1], key, terms)
        except TimeoutError as fault:
            raise _given_up(doorman, silent(place, terms)) from fault
        except CallError as fault:
            if doorman.relay is None or not doorman.relay.forged:
                raise _given_up(doorman, _cannot_begin(place, fault)) from fault
        if doorman.relay is None:
            raise DeviceError("TVM's RPC client did not open a session", hint="run the command again")
        return doorman.relay


def _given_up(doorman: _Doorman, fault: DeviceError) -> DeviceError:
    if doorman.relay is not None:
        doorman.relay.close()
    return fault


def _cannot_begin(place: str, fault: CallError) -> DeviceError:
    words = (str(fault).strip().splitlines() or [fault.kind])[-1].strip()
    if fault.kind == "RPCError":  # told in the protocol's own way
        return DeviceError(f"{place} cannot start a session", details=words, hint="read the board server's log")
    return stranger(place, words)


class _Doorman:
    """Lets TVM's own client in at a port of the loopback address, and nobody else.

    Args:
        listener: The port.
        key: What the client says.
        board: Where its words go.
    """

    def __init__(self, listener: socket.socket, key: str, board: socket.socket) -> None:
        self.relay: Relay | None = None
        self._listener, self._key, self._board = listener, key.encode(), board
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="rpc-door", daemon=True)

    def start(self) -> None:
        """Begin to wait for the client."""
        self._thread.start()

    def end(self) -> None:
        """Wait for nobody any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the door was closed
            while self.relay is None:
                link, _ = self._listener.accept()
                # Each in a thread of its own: a stranger who says nothing must not keep the client waiting.
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
                link.sendall(struct.pack("<ii", greeting.MAGIC, len(_WELCOME)) + _WELCOME)
            self.relay.start()

    def _is_client(self, link: socket.socket) -> bool:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        terms = Terms(_KNOCK_S)
        try:
            magic, size = struct.unpack("<ii", terms.receive(link, 8))
            known = magic == greeting.MAGIC and size == len(self._key)
            return known and hmac.compare_digest(terms.receive(link, size), self._key)
        except OSError:
            return False
