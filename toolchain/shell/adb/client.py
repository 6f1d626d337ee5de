"""The `adb` client of this host: which devices its server knows, and the one that is meant.

The server is shared by all who use this host's port for it. It is started where there is none, as by any client, and
never ended from here.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from toolchain import process
from toolchain.errors import DeviceError
from toolchain.shell.adb import faults
from toolchain.shell.adb.address import PREFIX, alike, checked, is_network
from toolchain.shell.adb.faults import PASSING, READY, Attached
from toolchain.tables import printable

SHELL_V2 = "shell_v2"
_SERIAL_VARIABLE = "ANDROID_SERIAL"
_ANSWER_S = 30.0  # to start a server takes some seconds on a slow machine
_CONNECT_S = 15.0  # adb itself gives up after ten
_SETTLE_S = 2.0  # a device that was just plugged in is offline, then authorizing, before it is there
_LOOK_S = 0.1
_LINE = re.compile(r"(\S[^\t]{0,200})\t(.{1,300})")


def program() -> str:
    """Return the path of the client.

    Raises:
        DeviceError: There is none.
    """
    asked = os.environ.get(faults.VARIABLE) or "adb"
    if found := shutil.which(asked):
        return found
    raise faults.not_installed(asked)


def devices(client: str) -> tuple[Attached, ...]:
    """Return the devices that the server knows; it is started where there is none.

    Raises:
        DeviceError: It cannot be.
    """
    return listed(_said(client, ["devices"]).stdout)


def listed(text: str) -> tuple[Attached, ...]:
    """Read what `adb devices` says."""
    found = (_LINE.fullmatch(line) for line in text.splitlines())
    return tuple(Attached(printable(one[1]), printable(one[2].strip())) for one in found if one)


def find(client: str, serial: str) -> Attached:
    """Return a device that takes commands.

    Args:
        client: What `program` returned.
        serial: Its serial; empty for the one that ANDROID_SERIAL names, or the only one.

    Raises:
        InputError: ANDROID_SERIAL has no serial, or the server says one that is none.
        DeviceError: There is none, there are several and none is named, or it takes no commands.
    """
    serial = serial or checked(os.environ.get(_SERIAL_VARIABLE, ""), f"{_SERIAL_VARIABLE} in the environment")
    deadline = time.monotonic() + _SETTLE_S
    found = _known(client, serial)
    while found.state in PASSING and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        found = _known(client, serial)
    if found.state != READY:
        raise faults.unusable(found)
    checked(found.serial, PREFIX + found.serial)  # whoever has the server's port may have written it
    return found


def _known(client: str, serial: str) -> Attached:
    """Return the device that is meant, whatever its state; one in a network is connected to."""
    known = devices(client)
    words = ""
    if is_network(serial) and not _of(known, serial):
        told = _said(client, ["connect", serial], _CONNECT_S)
        words, known = told.stdout + told.stderr, devices(client)
    fitting = _of(known, serial) if serial else known
    if not fitting:
        raise faults.unknown(serial, known, f"{words}\n{_asked(client)}")
    if len(fitting) > 1:
        raise faults.unnamed(known)
    return fitting[0]


def _of(known: Sequence[Attached], serial: str) -> list[Attached]:
    return [one for one in known if alike(one.serial, serial)]


def features(client: str, serial: str) -> frozenset[str]:
    """Return what both the client and a device can do, in adb's words.

    Raises:
        DeviceError: It does not say.
    """
    told = _said(client, ["-s", serial, "features"])
    if told.returncode != 0:
        doing, words = "asking what its adb can do", told.stderr or told.stdout
        raise faults.gone(Attached(serial, state(client, serial)), doing, printable(words))
    return frozenset(told.stdout.split())


def version(client: str) -> str:
    """Return the client's version; empty if it says none."""
    found = re.search(r"(?m)^Version (\S{1,40})$", _said(client, ["version"]).stdout)
    return found[1] if found else ""


def state(client: str, serial: str) -> str:
    """Return what the server says of a device; empty if it knows none such."""
    return next((one.state for one in devices(client) if one.serial == serial), "")


def server_address() -> str:
    """Return where the client looks for its server, by the variables of this process."""
    host = os.environ.get("ANDROID_ADB_SERVER_ADDRESS") or "localhost"
    port = os.environ.get("ANDROID_ADB_SERVER_PORT") or "5037"
    return os.environ.get("ADB_SERVER_SOCKET") or f"tcp:{host}:{port}"


def keep_program() -> None:
    """Let a path in TOOLCHAIN_ADB hold in any folder, for a process that is about to leave this one."""
    asked = os.environ.get(faults.VARIABLE, "")
    if os.sep in asked:
        os.environ[faults.VARIABLE] = str(Path(asked).absolute())


def _asked(client: str) -> str:
    """Name the client and its server, which a farm has from whoever started it."""
    return f"asked by {client}, of the server at {server_address()}"


def _said(client: str, words: Sequence[str], timeout: float | None = None) -> process.Result:
    try:
        told = process.run([client, *words], timeout=timeout or _ANSWER_S, check=False, error=DeviceError)
    except DeviceError as fault:
        raise faults.no_server(f"{fault.message}\n{fault.details}\n{_asked(client)}") from fault
    if told.returncode != 0 and "features" not in words and "connect" not in words:
        raise faults.no_server(f"{told.stderr or told.stdout}\n{_asked(client)}")
    return told
