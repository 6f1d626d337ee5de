"""Errors for adb devices that cannot be used, by adb's state of them, each with the next command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from toolchain import process
from toolchain.errors import DeviceError, UnreachableError
from toolchain.printable import printable
from toolchain.shell.adb.address import PREFIX, is_network, lacks_port

VARIABLE = "TOOLCHAIN_ADB"  # names the client, instead of the `adb` in PATH
READY = "device"  # the state of a device that takes commands
PASSING = frozenset({"offline", "authorizing", "connecting"})  # the states of a device that is coming, or going
_NO_ANDROID = {"bootloader", "host", "recovery", "rescue", "sideload"}
_SHOWN = 20
_AGAIN = "then run the same command again"


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
    return _in_another_state(device.state, name, serial)


def _in_another_state(state: str, name: str, serial: str) -> UnreachableError:
    if state in _NO_ANDROID:
        cause, remedy = "is not running Android", f"start Android on it, for example with `adb -s {serial} reboot`"
    elif state == "detached":
        cause, remedy = "is detached, so that other programs can use it", f"adb -s {serial} attach"
    else:
        cause, remedy = "takes no commands", f"plug it in again, or run `adb -s {serial} reconnect`"
    return UnreachableError(
        f"{name} {cause}: its state is {state}", details=f"adb: {state}", hint=f"{remedy}, {_AGAIN}"
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
