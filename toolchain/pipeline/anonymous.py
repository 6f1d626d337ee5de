"""Remove from a text the names, addresses and folders of the people and machines that it is about."""

from __future__ import annotations

import contextlib
import ipaddress
import platform
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from toolchain import state
from toolchain.shell import is_adb

_LOGIN = re.compile(r"[\w.+-]+@[\w.:\[\]-]+")
_ADDRESS = re.compile(r"(?<![\w.:])[0-9A-Fa-f.:]{3,}(?!\w)")
_MIN_LETTERS = 4  # shorter names are part of too many words
_COMMON = {"local", "root", "/root", "/tmp"}  # noqa: S108 - names that identify nobody
_REDACTED = "..."


def identifying_names(host: str) -> set[str]:
    """Return the names, folders and addresses that identify this machine, its user and a device.

    `host` is the device as the command line names it: user, address or alias, and port; or adb's serial.
    """
    user, _, address = host.rpartition("@")
    names = {platform.node(), str(Path.home()), tempfile.gettempdir(), host, user, address, address.partition(":")[0]}
    if is_adb(host):
        serial = host.partition(":")[2]
        names |= {serial, serial.rpartition(":")[0]}  # the host of a device in a network
    names.add(state.user_name())
    return {name for name in names - _COMMON if len(name) >= _MIN_LETTERS}


def redact(names: Iterable[str], text: str) -> str:
    """Remove names, everything that looks like a login, and Internet addresses from a text."""
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", _REDACTED, text)
    return _ADDRESS.sub(_redact_address, _LOGIN.sub(_REDACTED, text))


def _redact_address(match: re.Match[str]) -> str:
    """Replace an address, with or without a port; other texts with points or colons stay."""
    text = match[0].rstrip(".:")
    address, colon, port = text.rpartition(":")
    for candidate, rest in ((text, ""), (address, colon + port)):
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(candidate)
            return _REDACTED + rest + match[0][len(text) :]
    return match[0]
