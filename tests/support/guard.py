"""Notices when a test touches the user's home, or connects to somebody else's machine."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support import session
from tests.support.paths import ROOT

_PATHS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod"), (0,)
    ),
    **dict.fromkeys(("os.chown", "os.utime", "os.chdir", "os.setxattr", "sqlite3.connect", "ctypes.dlopen"), (0,)),
    **dict.fromkeys(("os.rename", "os.link", "os.symlink"), (0, 1)),
}
"""Which arguments of an event of Python are paths."""
_DOWNLOADS = str(Path("backends", "mali", "cost", "packages.py"))
"""Brings Debian packages that are pinned by their digests, from Debian's mirror: Mesa's compiler, for several tests."""
_RESERVED = (".invalid", ".test", ".example", ".localhost")  # names that nobody can own, by RFC 2606
_NOBODY = tuple(map(ipaddress.ip_network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")))


class Guard:
    """Collects what must not happen, as a hook of Python's audit events.

    Attributes:
        violations: What happened since somebody looked, one line each.
    """

    def __init__(self, homes: Iterable[Path], allowed: Iterable[Path]) -> None:
        self.violations: list[str] = []
        self._homes = tuple(f"{home}{os.sep}" for home in {*homes, *(home.resolve() for home in homes)})
        below = (f"{path}{os.sep}" for path in allowed)
        self._allowed = tuple(path for path in below if path.startswith(self._homes))
        self._state = threading.local()

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Look at one event. What is raised here would end the test in the middle, so it is only noted."""
        if event in _PATHS:
            for number in _PATHS[event]:
                self._look_at_path(event, args[number])
        elif event == "subprocess.Popen":
            self._look_at_process(*args)
        elif event in {"socket.connect", "socket.sendto"}:
            self._look_at_address(event, *args[:2])
        elif event == "socket.getaddrinfo":
            self._look_at_name(args[0])

    def _look_at_path(self, event: str, path: Any) -> None:
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        elif isinstance(path, os.PathLike):
            path = os.fspath(path)
        if isinstance(path, str) and path and self._is_users(path):
            self._note(f"{event} {path}")

    def _is_users(self, path: str) -> bool:
        try:
            absolute = os.path.abspath(path) + os.sep  # noqa: PTH100 - called for each file that Python opens
        except FileNotFoundError:  # the working folder was removed
            return False
        return absolute.startswith(self._homes) and not absolute.startswith(self._allowed)

    def _look_at_process(self, program: Any, argv: Any, folder: Any, variables: Mapping[Any, Any] | None) -> None:
        homes = [text for name, text in (variables or {}).items() if os.fsdecode(name) == "HOME"]
        if any(f"{os.fsdecode(home)}{os.sep}".startswith(self._homes) for home in homes):
            self._note(f"HOME of the user for {program} {argv}")
        if folder is not None:
            self._look_at_path("working folder", folder)

    def _look_at_address(self, event: str, channel: socket.socket, address: Any) -> None:
        if channel.family == socket.AF_UNIX:
            self._look_at_path(event, address)
        elif channel.family in {socket.AF_INET, socket.AF_INET6} and not _is_here(address[0]):
            self._note_connection(f"{event} {address}")

    def _look_at_name(self, name: Any) -> None:
        text = os.fsdecode(name) if isinstance(name, (str, bytes)) else ""
        if text and text not in {"localhost", socket.gethostname()} and not text.endswith(_RESERVED):
            try:
                ipaddress.ip_address(text.partition("%")[0])
            except ValueError:
                self._note_connection(f"looked up {text}")

    def _note_connection(self, operation: str) -> None:
        if not any(frame.filename.endswith(_DOWNLOADS) for frame in traceback.extract_stack()):
            self._note(operation)

    def _note(self, operation: str) -> None:
        if getattr(self._state, "noting", False):
            return
        self._state.noting = True
        try:
            frames = traceback.extract_stack()
            ours = [frame for frame in frames if "site-packages" not in frame.filename and frame.filename != __file__]
            where = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(ours[-3:]))
            self.violations.append(f"{operation}, in {os.environ.get('PYTEST_CURRENT_TEST', 'no test')}, at {where}")
        finally:
            self._state.noting = False


def _is_here(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # a name, which is looked up first
        return True
    return address.is_loopback or address.is_unspecified or any(address in network for network in _NOBODY)


def begin() -> Guard:
    """Watch this process until its end: a hook cannot be taken out again."""
    python = {Path(text) for text in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    plain = {ROOT, *python, session.folder(), Path(os.environ["PYTEST_DEBUG_TEMPROOT"]), *session.shared_folders()}
    guard = Guard(session.real_homes(), plain | {path.resolve() for path in plain})
    sys.addaudithook(guard)
    return guard
