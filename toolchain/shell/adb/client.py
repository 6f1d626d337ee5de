"""The `adb` client of this host: lists the devices of its server, and finds the one of an address, `adb:SERIAL`.

All users of this host's port share the server. It is started if there is none, and never ended from here. A device that
cannot be used is an error, by adb's state of it, that names the next command.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain import process
from toolchain.errors import DeviceError, InputError, UnreachableError
from toolchain.printable import printable
from toolchain.shell.address import SshOptions

PREFIX = "adb:"  # what the address of such a device begins with

# Serials of USB devices and emulators, `usb:1-4`, HOST:PORT and [IPv6]:PORT, and names that network devices announce.
# None begins with a hyphen, so no serial can be read as an option.
_SERIAL = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:%\[\]()-]{0,126}")
_NETWORK = re.compile(r"(\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[A-Za-z0-9][A-Za-z0-9.-]*):[0-9]{1,5}")
_PORTLESS = re.compile(r"\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")

VARIABLE = "TOOLCHAIN_ADB"  # names the client, instead of the `adb` in PATH
READY = "device"  # the state of a device that takes commands
PASSING = frozenset({"offline", "authorizing", "connecting"})  # the states of a device that is coming, or going
_NO_ANDROID = {"bootloader", "host", "recovery", "rescue", "sideload"}
_SHOWN = 20
_AGAIN = "then run the same command again"
SHELL_V2 = "shell_v2"
_SERIAL_VARIABLE = "ANDROID_SERIAL"
_ANSWER_S = 30.0  # to start a server takes some seconds on a slow machine
_CONNECT_S = 15.0  # adb itself gives up after ten
_SETTLE_S = 2.0  # a device that was just plugged in is first offline, then authorizing
_LOOK_S = 0.1
_LINE = re.compile(r"(\S[^\t]{0,200})\t(.{1,300})")


def is_adb(host: str | None) -> bool:
    return host is not None and host.startswith(PREFIX)


def serial_of(host: str) -> str:
    """Return the serial of an address; empty for the only device."""
    return check_serial(host.removeprefix(PREFIX), host)


def check_serial(serial: str, where: str) -> str:
    """Return a serial, which may be empty, or refuse one that is not valid; `where` is what the user wrote."""
    if serial and not _SERIAL.fullmatch(serial):
        raise InputError(
            f"{where!r:.200} is not a valid adb address",
            details="a serial has letters, digits and . : _ - and begins with a letter, a digit or _",
            hint="write adb:SERIAL with a serial that `adb devices` lists, or adb: if only one device is attached",
        )
    return serial


def is_network(serial: str) -> bool:
    """Whether a serial is the address of a network device, to which adb's server can connect."""
    return bool(_NETWORK.fullmatch(serial)) and not serial.startswith("usb:")


def lacks_port(serial: str) -> bool:
    """Whether a serial looks like the address of a network device without the port that adb needs."""
    return bool(_PORTLESS.fullmatch(serial))


def is_same_device(serial: str, other: str) -> bool:
    """Whether two serials denote one device: network names ignore case, and ports leading zeros."""
    return _normalized(serial) == _normalized(other)


def _normalized(serial: str) -> str:
    if not is_network(serial):
        return serial
    host, _, port = serial.rpartition(":")
    return f"{host.lower()}:{int(port)}"


def refuse_ssh(host: str, options: SshOptions) -> None:
    """Refuse options of SSH, which adb has no use for: a device accepts our key on its screen."""
    settings = [
        ("-i / --identity", options.identity),
        ("--known-hosts", options.known_hosts),
        ("--ssh-config", options.config_file),
    ]
    if used := [name for name, value in settings if value]:
        raise InputError(
            f"{host} is reached over adb, so {' and '.join(used)} do not apply",
            details="adb uses keys of its own, which the user accepts on the device's screen, and no host keys",
            hint="leave these options out, or pass the device's SSH address with --host",
        )


@dataclass(frozen=True)
class Attached:
    """A device that adb's server knows."""

    serial: str
    state: str  # `device`, `offline`, `unauthorized`, `no permissions (...)` and others; empty if it is gone


def not_installed(name: str) -> UnreachableError:
    return UnreachableError(
        f"{name} is not installed here",
        details="the toolchain reaches adb devices through the adb client",
        hint=f"apt-get install adb, or set {VARIABLE} to the path of the adb client of Android's platform tools",
    )


def no_server(output: str) -> UnreachableError:
    return UnreachableError(
        "the adb server cannot be reached or started",
        details=process.tail(printable(output)),
        hint="run `adb start-server` to see why; check ANDROID_ADB_SERVER_PORT and ADB_SERVER_SOCKET, if set",
    )


def unnamed(attached: Sequence[Attached]) -> UnreachableError:
    """Several devices, and none is named."""
    return UnreachableError(
        f"{len(attached)} devices are attached to adb, and adb: does not say which to use",
        details=_listed(attached),
        hint=f"name one: --host {shlex.quote(PREFIX + attached[0].serial)} (HOST= with make)",
    )


def unknown(serial: str, attached: Sequence[Attached], output: str) -> UnreachableError:
    """No such serial, or no device at all; `output` is what adb printed on connecting, and names the server."""
    network = f"run `adb connect {serial}` to see the cause; the device must be on and must listen on that port"
    cable = f"check the cable and that USB debugging is on in its developer options, {_AGAIN}"
    if lacks_port(serial):
        cable = f"add the port for a device in the network, such as {PREFIX}{serial}:5555"
    elif attached and not is_network(serial):
        cable = f"choose one of these devices, or check the cable, {_AGAIN}"
    return UnreachableError(
        f"adb has no device {serial}" if serial else "no device is attached to adb",
        details="\n".join(filter(None, (process.tail(printable(output)), _listed(attached)))),
        hint=network if is_network(serial) else cable,
    )


def unusable(device: Attached) -> UnreachableError:
    """A device that takes no commands."""
    name, serial = PREFIX + device.serial, shlex.quote(device.serial)
    if device.state in {"unauthorized", "authorizing"}:
        return UnreachableError(
            f"{name} has not accepted this computer's key",
            details=f"adb: {device.state}",
            hint=f"unlock the device and accept the key on its screen, {_AGAIN}; `adb reconnect offline` asks again",
        )
    if device.state.startswith("no permissions"):
        return UnreachableError(
            f"this user may not access the USB device {name}",
            details=f"adb: {device.state}",
            hint="apt-get install android-sdk-platform-tools-common (udev rules), sudo usermod -aG plugdev $USER, log "
            f"in anew and plug the device in again, {_AGAIN}",
        )
    if device.state in PASSING:
        remedy = f"adb disconnect {serial}; adb connect {serial}" if is_network(device.serial) else "plug it in again"
        return UnreachableError(
            f"{name} is offline: it is attached but does not answer",
            details=f"adb: {device.state}",
            hint=f"{remedy}, {_AGAIN}",
        )
    if device.state in _NO_ANDROID:
        cause, remedy = "is not running Android", f"start Android on it, for example with `adb -s {serial} reboot`"
    elif device.state == "detached":
        cause, remedy = "is detached, so that other programs can use it", f"adb -s {serial} attach"
    else:
        cause, remedy = "takes no commands", f"plug it in again, or run `adb -s {serial} reconnect`"
    return UnreachableError(
        f"{name} {cause}: its state is {device.state}", details=f"adb: {device.state}", hint=f"{remedy}, {_AGAIN}"
    )


def gone(device: Attached, doing: str, output: str) -> UnreachableError:
    """A device that took commands, and does not any more."""
    if device.state and device.state != READY and device.state not in PASSING:
        return unusable(device)
    return lost(PREFIX + device.serial, doing, f"adb: {device.state or 'gone'}\n{process.tail(output)}".strip())


def not_started(client: str, fault: OSError) -> UnreachableError:
    """The client has disappeared, or cannot be started."""
    return not_installed(client) if isinstance(fault, FileNotFoundError) else no_server(f"{client}: {fault.strerror}")


def too_old(name: str) -> DeviceError:
    """A device whose commands have no exit codes."""
    return DeviceError(
        f"{name} does not support version 2 of the adb shell protocol",
        details="without it, adb does not return a command's exit code and mixes its errors with its output",
        hint="use Android 7.0 or newer, or reach the device over SSH",
    )


def lost(name: str, doing: str, why: str) -> UnreachableError:
    return UnreachableError(
        f"the connection to {name} was lost while {doing}",
        details=why,
        hint="check the cable and that the device is on, then run the same command again",
    )


def _listed(attached: Sequence[Attached]) -> str:
    rows = [f"{device.serial}: {device.state}" for device in attached[:_SHOWN]]
    return "\n".join([*rows, *(["..."] if len(attached) > _SHOWN else [])])


def program() -> str:
    """Return the path of the client, or raise a DeviceError if it is not installed."""
    name = os.environ.get(VARIABLE) or "adb"
    if path := shutil.which(name):
        return path
    raise not_installed(name)


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
        raise unusable(device)
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
        raise unknown(serial, attached, f"{output}\n{_origin(client)}")
    if len(fitting) > 1:
        raise unnamed(attached)
    return fitting[0]


def _of(attached: Sequence[Attached], serial: str) -> list[Attached]:
    return [device for device in attached if is_same_device(device.serial, serial)]


def features(client: str, serial: str) -> frozenset[str]:
    """Return the features that both the client and a device support, by adb's names."""
    result = _run(client, ["-s", serial, "features"])
    if result.returncode != 0:
        doing, output = "reading the features of its adb", result.stderr or result.stdout
        raise gone(Attached(serial, state(client, serial)), doing, printable(output))
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
    name = os.environ.get(VARIABLE, "")
    if os.sep in name:
        os.environ[VARIABLE] = str(Path(name).absolute())


def _origin(client: str) -> str:
    """Name the client and its server: those of a farm depend on its environment."""
    return f"asked by {client}, of the server at {server_address()}"


def _run(client: str, arguments: Sequence[str], timeout: float | None = None) -> process.Result:
    try:
        result = process.run([client, *arguments], timeout=timeout or _ANSWER_S, check=False, error=DeviceError)
    except DeviceError as fault:
        raise no_server(f"{fault.message}\n{fault.details}\n{_origin(client)}") from fault
    if result.returncode != 0 and "features" not in arguments and "connect" not in arguments:
        raise no_server(f"{result.stderr or result.stdout}\n{_origin(client)}")
    return result
