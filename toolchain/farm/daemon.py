"""The farm's daemon: the background process that runs board servers, grants leases, and connects clients with boards.

`client` starts it as `python -m toolchain.farm.daemon FOLDER [attached]`. An attached one ends with the process that
started it.
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
from toolchain.errors import DeviceError, InputError, ToolchainError
from toolchain.farm import protocol
from toolchain.farm.grants import Client
from toolchain.farm.lease_queue import LeaseRequest
from toolchain.farm.pool import Pool
from toolchain.farm.protocol import Link, Message, ServedDevice
from toolchain.printable import printable
from toolchain.shell.adb import client as adb

ATTACHED = "attached"

_LOG = logging.getLogger("toolchain.daemon")  # this module's own name is __main__
_TICK_S = 0.5
_IDLE_S = 60.0
_LOCK_S = 12.0
_SETTLE_S = 75.0
_LONGEST_WAIT_S = 600.0
_LOG_BYTES = 1 << 20


class Daemon:
    """Answers the clients of the farm in `folder`; `shared` if it serves all commands of its user."""

    def __init__(self, folder: Path, *, shared: bool) -> None:
        self._folder = folder
        self.ending = threading.Event()
        self._pool = Pool(shared)
        self._listener: socket.socket | None = None

    def run(self, gone: Callable[[], bool]) -> None:
        """Serve until `farm down`, a signal, or until `gone` returns true."""
        self._listener = protocol.listen(self._folder)
        threading.Thread(target=self._accept, args=(self._listener,), name="socket", daemon=True).start()
        _LOG.info("serving")
        idle_until = time.monotonic() + _IDLE_S  # our parent may have been killed before it sent its `up`
        while not self.ending.wait(_TICK_S) and not gone() and (self._pool.names() or time.monotonic() < idle_until):
            self._pool.expire()

    def end(self) -> None:
        _LOG.info("ending")
        if self._listener:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            (self._folder / protocol.SOCKET).unlink(missing_ok=True)
        self._pool.remove(self._pool.names())

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was shut down
            while True:
                sock, _ = listener.accept()
                threading.Thread(target=self._serve, args=(Link(sock),), name="client", daemon=True).start()

    def _serve(self, link: Link) -> None:
        with link:
            if not link.is_same_user:
                _LOG.warning("refused a process of another user")
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
                self._tell(link, {"error": protocol.fault_message(DeviceError(f"the daemon failed: {fault}"))})

    def _tell(self, link: Link, message: Message) -> None:
        with contextlib.suppress(OSError):  # the client is gone
            link.send(message)

    def _answer(self, link: Link, message: Message) -> None:
        action = message.get("do")
        conversations = {"lease": self._lease, "session": self._session}
        if action in conversations:
            return conversations[action](link, message)
        actions: dict[object, Callable[[], object]] = {
            "up": lambda: self._up(link, message),
            "down": lambda: self._down(message["names"]),
            "status": self._pool.status,
            "lock": lambda: self._pool.lock(message["board"], _client(link, message), float(message["seconds"])),
            "release": lambda: self._pool.release(message["board"]),
        }
        if action not in actions:
            raise InputError(
                f"the farm daemon does not support {action!r}", hint="toolchain farm down, then toolchain farm up"
            )
        return link.send({"ok": actions[action]()})

    def _up(self, link: Link, message: Message) -> Message:
        devices = [_reachable(ServedDevice.of(device)) for device in message["devices"]]
        for device in devices:
            self._pool.add(device)
        names = [device.name for device in devices]
        self._pool.await_settled(names, _SETTLE_S, lambda text: self._tell(link, {"tell": text}))
        return self._pool.status()

    def _down(self, names: Sequence[str]) -> list[str]:
        """Stop serving boards; the daemon itself ends with the last of them."""
        removed = [name for name in self._pool.names() if not names or name in names]
        self._pool.remove(removed)
        if not self._pool.names():
            self.ending.set()
        return removed

    def _lease(self, link: Link, message: Message) -> None:
        client, wait, queue_s = _client(link, message), float(message["wait"]), float(message.get("line", 0.0))
        names, limit = tuple(map(str, message["names"])), max(0, int(message.get("most", 0)))
        request = LeaseRequest(client, str(message["board"]), names, limit, bool(message.get("shares")))
        # Another thread reads the client's messages from the start: it may end, or give signs of life, while it waits.
        threading.Thread(target=self._read, args=(link, request), name="lease reader", daemon=True).start()
        ancestors = process.ancestors(client.pid)
        with self._pool.leases.lease(request, wait, ancestors, queue_s, lambda text: self._tell(link, text)) as boards:
            leased = ", ".join(board["name"] for board in boards)
            _LOG.info("%s leased by %s", leased, client.who)
            link.send({"ok": {"boards": boards}})
            while (news := request.outbox.get()) is not None:
                link.send(news)
        _LOG.info("%s given back by %s: %s", leased, client.who, request.end_reason)

    def _read(self, link: Link, request: LeaseRequest) -> None:
        try:
            while (message := link.receive()) is not None:
                self._pool.leases.handle(request, message)
        except Exception:  # noqa: BLE001 - one odd client must not keep its boards
            _LOG.exception("a message of a lease's client")
        finally:
            self._pool.leases.end(request, "its client ended")

    def _session(self, link: Link, message: Message) -> None:
        """Connect a client with its board; after the answer the link carries only their bytes."""
        wait = min(float(message["wait"]), _LONGEST_WAIT_S)
        board, stream = self._pool.session(str(message["board"]), str(message["key"]), wait)
        with stream:
            link.send({"ok": {}})
            board.connect(link.raw(), stream)


def _reachable(served: ServedDevice) -> ServedDevice:
    # At another adb server the same serial may be another device.
    if served.adb_server in {"", adb.server_address()}:
        return served
    raise InputError(
        f"{served.name} belongs to the adb server at {served.adb_server}, but this farm uses the one at "
        f"{adb.server_address()}",
        details="a farm keeps the ADB_SERVER_SOCKET and ANDROID_ADB_SERVER_PORT that it was started with",
        hint="unset them, or restart the farm with them: `toolchain farm down`, then `toolchain farm up`",
    )


def _client(link: Link, message: Message) -> Client:
    return Client(str(message["who"]), link.peer_pid)


@contextlib.contextmanager
def _only_daemon(folder: Path) -> Iterator[bool]:
    """Lock the folder, or yield False if another daemon serves it. The kernel ends the lock with this process."""
    handle = os.open(folder / protocol.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_S  # the previous daemon may be about to end
    is_only = False
    try:
        while not is_only and time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_only = True
            except BlockingIOError:
                if link := protocol.connect(folder):
                    link.close()
                    break
                time.sleep(0.05)
        yield is_only
    finally:
        os.close(handle)


def _gone(parent: int, pipe: int) -> Callable[[], bool]:
    """Return a function that tells whether our parent has ended: our input is closed, or we have another parent."""
    os.set_blocking(pipe, False)

    def gone() -> bool:
        with contextlib.suppress(BlockingIOError):
            if os.read(pipe, 1) == b"":
                return True
        return os.getppid() != parent

    return gone


class _PrintableFormatter(logging.Formatter):
    # A device's output must not control the terminal on which the log is read.

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _log_to(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("toolchain")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def main(argv: Sequence[str]) -> None:
    """Run the daemon of a folder until SIGTERM, SIGINT, `farm down`, or, if attached, the end of its parent."""
    folder, attached = Path(argv[0]), ATTACHED in argv[1:]
    gone = _gone(os.getppid(), sys.stdin.fileno()) if attached else lambda: False
    _log_to(folder / protocol.LOG)
    adb.keep_program()
    os.chdir("/")
    with _only_daemon(folder) as is_only:
        if not is_only:
            return
        daemon = Daemon(folder, shared=not attached)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, lambda _signum, _frame: daemon.ending.set())
        try:
            daemon.run(gone)
        except ToolchainError as fault:
            _LOG.error("%s %s", fault.message, fault.details)
        finally:
            daemon.end()
            if attached:  # the process that made the folder may have been killed
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
