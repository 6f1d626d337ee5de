"""Leaves out of a text whose device it is about: names, addresses and folders of the people and machines involved."""

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
_SHORTEST = 4  # a name of fewer letters is part of too many words
_EVERYWHERE = {"local", "root", "/root", "/tmp"}  # noqa: S108 - names that say nothing of anybody
_GONE = "..."


def names_of(host: str) -> set[str]:
    """Name what says where this is.

    Args:
        host: The device as the command line names it: user, address or alias, and port; or adb's serial.

    Returns:
        This machine, its user and their folders, and the device's address in its parts.
    """
    user, _, place = host.rpartition("@")
    found = {platform.node(), str(Path.home()), tempfile.gettempdir(), host, user, place, place.partition(":")[0]}
    if is_adb(host):
        serial = host.partition(":")[2]
        found |= {serial, serial.rpartition(":")[0]}  # of one in a network, its host
    found.add(state.user_name())
    return {name for name in found - _EVERYWHERE if len(name) >= _SHORTEST}


def without(names: Iterable[str], text: str) -> str:
    """Remove names, whatever looks like a login, and Internet addresses from a text."""
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", _GONE, text)
    return _ADDRESS.sub(_without_address, _LOGIN.sub(_GONE, text))


def _without_address(found: re.Match[str]) -> str:
    """Replace an address, with or without a port; other things with points or colons stay."""
    text = found[0].rstrip(".:")
    address, colon, port = text.rpartition(":")
    for candidate, rest in ((text, ""), (address, colon + port)):
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(candidate)
            return _GONE + rest + found[0][len(text) :]
    return found[0]
