"""The farm's daemon: the process in the background that holds board servers and leases, and brings clients to boards.

It is started by `client`, as `python -m toolchain.farm.daemon FOLDER [attached]`. One that is attached ends
with the process that started it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import logging.handlers
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from toolchain import process
from toolchain.errors import InputError, ToolchainError
from toolchain.farm import protocol
from toolchain.farm.asks import Ask
from toolchain.farm.holds import Client
from toolchain.farm.pool import Pool
from toolchain.farm.protocol import Link, Message, Served
from toolchain.shell.adb import client as adb
from toolchain.tables import printable

ATTACHED = "attached"

_LOG = logging.getLogger("toolchain.daemon")  # this module has the name __main__
_TICK_S = 0.5
_IDLE_S = 60.0
_LOCK_S = 12.0
_SETTLE_S = 75.0
_LONGEST_WAIT_S = 600.0
_LOG_BYTES = 1 << 20


class Daemon:
    """Answers the farm's clients.

    Args:
        place: The daemon's folder.
        shared: Whether it serves all of its user's commands, and not just the one that started it.
    """

    def __init__(self, place: Path, *, shared: bool) -> None:
        self._place = place
        self.ending = threading.Event()
        self._pool = Pool(shared)
        self._listener: socket.socket | None = None

    def run(self, gone: Callable[[], bool]) -> None:
        """Serve until someone says that it is enough, or `gone` does."""
        self._listener = protocol.listen(self._place)
        threading.Thread(target=self._accept, args=(self._listener,), name="socket", daemon=True).start()
        _LOG.info("serving")
        idle_until = time.monotonic() + _IDLE_S  # whoever started us may have been killed before it said what for
        while not self.ending.wait(_TICK_S) and not gone() and (self._pool.names() or time.monotonic() < idle_until):
            self._pool.expire()

    def end(self) -> None:
        """End the servers."""
        _LOG.info("ending")
        if self._listener:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            (self._place / protocol.SOCKET).unlink(missing_ok=True)
        self._pool.remove(self._pool.names())

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was shut down
            while True:
                sock, _ = listener.accept()
                threading.Thread(target=self._serve, args=(Link(sock),), name="client", daemon=True).start()

    def _serve(self, link: Link) -> None:
        """Answer one client."""
        with link:
            if not link.is_ours:
                _LOG.warning("a process of another user was turned away")
                return
            try:
                message = link.receive()
                if message is not None:
                    self._answer(link, message)
            except ToolchainError as fault:
                self._tell(link, {"error": protocol.fault_message(fault)})
            except OSError:
                _LOG.info("a client is gone before its answer")
            except Exception as fault:  # noqa: BLE001 - one odd client must not end the service for all
                _LOG.exception("a client's request")
                words = {"kind": "DeviceError", "message": f"the daemon failed: {fault}", "details": "", "hint": ""}
                self._tell(link, {"error": words})

    def _tell(self, link: Link, message: Message) -> None:
        with contextlib.suppress(OSError):  # it does not want to know any more
            link.send(message)

    def _answer(self, link: Link, message: Message) -> None:
        do = message.get("do")
        conversations = {"lease": self._lease, "session": self._session}
        if do in conversations:
            return conversations[do](link, message)
        actions: dict[object, Callable[[], object]] = {
            "up": lambda: self._up(link, message),
            "down": lambda: self._down(message["names"]),
            "status": self._pool.status,
            "lock": lambda: self._pool.lock(message["board"], _client(link, message), float(message["seconds"])),
            "release": lambda: self._pool.release(message["board"]),
        }
        if do not in actions:
            raise InputError(
                f"the farm daemon does not support {do!r}", hint="toolchain farm down, then toolchain farm up"
            )
        return link.send({"ok": actions[do]()})

    def _up(self, link: Link, message: Message) -> Message:
        devices = [_reachable(Served.of(one)) for one in message["devices"]]
        for one in devices:
            self._pool.add(one)
        names = [one.name for one in devices]
        self._pool.await_settled(names, _SETTLE_S, lambda text: self._tell(link, {"tell": text}))
        return self._pool.status()

    def _down(self, names: Sequence[str]) -> list[str]:
        """Stop to serve boards; the daemon itself ends with the last of them."""
        known = self._pool.names()
        gone = [name for name in known if not names or name in names]
        self._pool.remove(gone)
        if not self._pool.names():
            self.ending.set()
        return gone

    def _lease(self, link: Link, message: Message) -> None:
        client, wait, line = _client(link, message), float(message["wait"]), float(message.get("line", 0.0))
        names, most = tuple(map(str, message["names"])), max(0, int(message.get("most", 0)))
        ask = Ask(client, str(message["board"]), names, most, bool(message.get("shares")))
        threading.Thread(target=self._hear, args=(link, ask), name="ear", daemon=True).start()
        above = process.ancestors(client.pid)
        with self._pool.leases.lease(ask, wait, above, line, lambda said: self._tell(link, said)) as boards:
            taken = ", ".join(board["name"] for board in boards)
            _LOG.info("%s leased by %s", taken, client.who)
            link.send({"ok": {"boards": boards}})
            while (said := ask.outbox.get()) is not None:
                link.send(said)
        _LOG.info("%s given back by %s: %s", taken, client.who, ask.ended)

    def _hear(self, link: Link, ask: Ask) -> None:
        """Hear the client of a lease to its end."""
        try:
            while (said := link.receive()) is not None:
                self._pool.leases.hear(ask, said)
        except Exception:  # noqa: BLE001 - one odd client must not keep its boards
            _LOG.exception("what the client of a lease says")
        finally:
            self._pool.leases.over(ask, "its client ended")

    def _session(self, link: Link, message: Message) -> None:
        """Connect a client with its board; from the answer on the link carries what those two say to each other."""
        wait = min(float(message["wait"]), _LONGEST_WAIT_S)
        board, stream = self._pool.session(str(message["board"]), str(message["key"]), wait)
        with stream:
            link.send({"ok": {}})
            board.carry(link.raw(), stream)


def _reachable(served: Served) -> Served:
    """Refuse a device of another server of adb than this process asks: a serial there may be another device's here."""
    if served.adb_server in {"", adb.server_address()}:
        return served
    raise InputError(
        f"{served.name} belongs to the adb server at {served.adb_server}, but this farm uses the one at "
        f"{adb.server_address()}",
        details="a farm keeps the ADB_SERVER_SOCKET and ANDROID_ADB_SERVER_PORT that it was started with",
        hint="unset them, or restart the farm with them: `toolchain farm down`, then `toolchain farm up`",
    )


def _client(link: Link, message: Message) -> Client:
    return Client(str(message["who"]), link.peer)


@contextlib.contextmanager
def _only_daemon(place: Path) -> Iterator[bool]:
    """Hold the folder, or learn that another daemon serves it. The kernel frees it when we end, however we end."""
    handle = os.open(place / protocol.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _locked(handle, place)
    finally:
        os.close(handle)


def _locked(handle: int, place: Path) -> bool:
    deadline = time.monotonic() + _LOCK_S  # the one before may be about to end
    while time.monotonic() < deadline:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            link = protocol.connect(place)
            if link:
                link.close()
                return False
            time.sleep(0.05)
        else:
            return True
    return False


def _gone(parent: int, pipe: int) -> Callable[[], bool]:
    """Tell whether the process that started this one is gone: its end of our input closes, or we are inherited."""
    os.set_blocking(pipe, False)

    def gone() -> bool:
        with contextlib.suppress(BlockingIOError):
            if os.read(pipe, 1) == b"":
                return True
        return os.getppid() != parent

    return gone


class _Lines(logging.Formatter):
    """Lines in which no device's words steer the terminal of who reads them."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _log_to(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(message)s"))
    own = logging.getLogger("toolchain")
    own.addHandler(handler)
    own.setLevel(logging.INFO)


def main(argv: Sequence[str]) -> None:
    """Keep the farm of a folder until SIGTERM, SIGINT, `farm down`, or the end of who it is attached to."""
    place, attached = Path(argv[0]), ATTACHED in argv[1:]
    gone = _gone(os.getppid(), sys.stdin.fileno()) if attached else lambda: False
    _log_to(place / protocol.LOG)
    adb.keep_program()
    os.chdir("/")
    with _only_daemon(place) as alone:
        if not alone:
            return
        daemon = Daemon(place, shared=not attached)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: daemon.ending.set())
        try:
            daemon.run(gone)
        except ToolchainError as fault:
            _LOG.error("%s %s", fault.message, fault.details)
        finally:
            daemon.end()
            if attached:  # whoever made the folder may have been killed
                shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
