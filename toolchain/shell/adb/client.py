"""The `adb` client of this host: lists the devices of its server, and finds the requested one.

All users of this host's port share the server. It is started if there is none, and never ended from here.
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
from toolchain.printable import printable
from toolchain.shell.adb import faults
from toolchain.shell.adb.address import PREFIX, check_serial, is_network, is_same_device
from toolchain.shell.adb.faults import PASSING, READY, Attached

SHELL_V2 = "shell_v2"
_SERIAL_VARIABLE = "ANDROID_SERIAL"
_ANSWER_S = 30.0  # to start a server takes some seconds on a slow machine
_CONNECT_S = 15.0  # adb itself gives up after ten
_SETTLE_S = 2.0  # a device that was just plugged in is first offline, then authorizing
_LOOK_S = 0.1
_LINE = re.compile(r"(\S[^\t]{0,200})\t(.{1,300})")


def program() -> str:
    """Return the path of the client, or raise a DeviceError if it is not installed."""
    name = os.environ.get(faults.VARIABLE) or "adb"
    if path := shutil.which(name):
        return path
    raise faults.not_installed(name)


def devices(client: str) -> tuple[Attached, ...]:
    """Return the devices of the server, which is started if there is none."""
    return parse_devices(_run(client, ["devices"]).stdout)


def parse_devices(text: str) -> tuple[Attached, ...]:
    """Parse the output of `adb devices`."""
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    return tuple(Attached(printable(match[1]), printable(match[2].strip())) for match in matches if match)


def find(client: str, serial: str) -> Attached:
    """Return a device that takes commands; an empty serial is the one that ANDROID_SERIAL names, or the only one.

    Raises:
        InputError: ANDROID_SERIAL or the server names a serial that is not valid.
        DeviceError: There is no such device, several match, or it takes no commands.
    """
    serial = serial or check_serial(os.environ.get(_SERIAL_VARIABLE, ""), f"{_SERIAL_VARIABLE} in the environment")
    deadline = time.monotonic() + _SETTLE_S
    device = _matching_device(client, serial)
    while device.state in PASSING and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        device = _matching_device(client, serial)
    if device.state != READY:
        raise faults.unusable(device)
    check_serial(device.serial, PREFIX + device.serial)  # another program may listen at the server's port
    return device


def _matching_device(client: str, serial: str) -> Attached:
    """Return the requested device, in any state; connect to a network device first."""
    attached = devices(client)
    output = ""
    if is_network(serial) and not _of(attached, serial):
        result = _run(client, ["connect", serial], _CONNECT_S)
        output, attached = result.stdout + result.stderr, devices(client)
    fitting = _of(attached, serial) if serial else attached
    if not fitting:
        raise faults.unknown(serial, attached, f"{output}\n{_origin(client)}")
    if len(fitting) > 1:
        raise faults.unnamed(attached)
    return fitting[0]


def _of(attached: Sequence[Attached], serial: str) -> list[Attached]:
    return [device for device in attached if is_same_device(device.serial, serial)]


def features(client: str, serial: str) -> frozenset[str]:
    """Return the features that both the client and a device support, by adb's names."""
    result = _run(client, ["-s", serial, "features"])
    if result.returncode != 0:
        doing, output = "reading the features of its adb", result.stderr or result.stdout
        raise faults.gone(Attached(serial, state(client, serial)), doing, printable(output))
    return frozenset(result.stdout.split())


def version(client: str) -> str:
    """Return the client's version; empty if it is unknown."""
    match = re.search(r"(?m)^Version (\S{1,40})$", _run(client, ["version"]).stdout)
    return match[1] if match else ""


def state(client: str, serial: str) -> str:
    """Return the server's state of a device; empty for an unknown device."""
    return next((device.state for device in devices(client) if device.serial == serial), "")


def server_address() -> str:
    """Return where the client expects its server, by the variables of this process."""
    host = os.environ.get("ANDROID_ADB_SERVER_ADDRESS") or "localhost"
    port = os.environ.get("ANDROID_ADB_SERVER_PORT") or "5037"
    return os.environ.get("ADB_SERVER_SOCKET") or f"tcp:{host}:{port}"


def keep_program() -> None:
    """Make a relative path in TOOLCHAIN_ADB absolute, for a process that is about to change its folder."""
    name = os.environ.get(faults.VARIABLE, "")
    if os.sep in name:
        os.environ[faults.VARIABLE] = str(Path(name).absolute())


def _origin(client: str) -> str:
    """Name the client and its server: those of a farm depend on its environment."""
    return f"asked by {client}, of the server at {server_address()}"


def _run(client: str, arguments: Sequence[str], timeout: float | None = None) -> process.Result:
    try:
        result = process.run([client, *arguments], timeout=timeout or _ANSWER_S, check=False, error=DeviceError)
    except DeviceError as fault:
        raise faults.no_server(f"{fault.message}\n{fault.details}\n{_origin(client)}") from fault
    if result.returncode != 0 and "features" not in arguments and "connect" not in arguments:
        raise faults.no_server(f"{result.stderr or result.stdout}\n{_origin(client)}")
    return result
