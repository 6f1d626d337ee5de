"""Why a device of adb cannot be used, by what adb says of it, each with the next command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from toolchain import process
from toolchain.errors import DeviceError, UnreachableError
from toolchain.shell.adb.address import PREFIX, is_network, lacks_port
from toolchain.tables import printable

VARIABLE = "TOOLCHAIN_ADB"  # names the client, instead of the `adb` in PATH
READY = "device"  # the state of a device that takes commands
PASSING = frozenset({"offline", "authorizing", "connecting"})  # the states of a device that is coming, or going
_NO_ANDROID = {"bootloader", "host", "recovery", "rescue", "sideload"}
_SHOWN = 20
_AGAIN = "then run the same command again"


@dataclass(frozen=True)
class Attached:
    """A device that adb's server knows."""

    serial: str  # its serial
    state: str  # what adb says of it: `device`, `offline`, `unauthorized`, `no permissions (...)` and others


def not_installed(asked: str) -> UnreachableError:
    """There is no client."""
    return UnreachableError(
        f"{asked} is not installed here",
        details="the toolchain reaches adb devices through the adb client",
        hint=f"apt-get install adb, or set {VARIABLE} to the path of the adb client of Android's platform tools",
    )


def no_server(words: str) -> UnreachableError:
    """Its server cannot be reached or started."""
    return UnreachableError(
        "the adb server cannot be reached or started",
        details=process.tail(printable(words)),
        hint="run `adb start-server` to see why; check ANDROID_ADB_SERVER_PORT and ADB_SERVER_SOCKET, if set",
    )


def unnamed(known: Sequence[Attached]) -> UnreachableError:
    """Several devices, and no serial."""
    return UnreachableError(
        f"{len(known)} devices are attached to adb, and adb: does not say which to use",
        details=_listed(known),
        hint=f"name one: --host {shlex.quote(PREFIX + known[0].serial)} (HOST= with make)",
    )


def unknown(serial: str, known: Sequence[Attached], words: str) -> UnreachableError:
    """No such serial, or no device at all.

    Args:
        serial: The serial; empty for the only device.
        known: The devices that are there.
        words: What adb said when it was to connect to it, and who was asked.
    """
    network = f"run `adb connect {serial}` to see the cause; the device must be on and must listen on that port"
    cable = f"check the cable and that USB debugging is on in its developer options, {_AGAIN}"
    if lacks_port(serial):
        cable = f"add the port for a device in the network, such as {PREFIX}{serial}:5555"
    elif known and not is_network(serial):
        cable = f"choose one of these devices, or check the cable, {_AGAIN}"
    return UnreachableError(
        f"adb has no device {serial}" if serial else "no device is attached to adb",
        details="\n".join(filter(None, (process.tail(printable(words)), _listed(known)))),
        hint=network if is_network(serial) else cable,
    )


def unusable(one: Attached) -> UnreachableError:
    """A device that takes no commands."""
    name, serial = PREFIX + one.serial, shlex.quote(one.serial)
    if one.state in {"unauthorized", "authorizing"}:
        return UnreachableError(
            f"{name} has not accepted this computer's key",
            details=f"adb: {one.state}",
            hint=f"unlock the device and accept the key on its screen, {_AGAIN}; `adb reconnect offline` asks again",
        )
    if one.state.startswith("no permissions"):
        return UnreachableError(
            f"this user may not access the USB device {name}",
            details=f"adb: {one.state}",
            hint="apt-get install android-sdk-platform-tools-common (udev rules), sudo usermod -aG plugdev $USER, log "
            f"in anew and plug the device in again, {_AGAIN}",
        )
    if one.state in PASSING:
        way = f"adb disconnect {serial}; adb connect {serial}" if is_network(one.serial) else "plug it in again"
        return UnreachableError(
            f"{name} is offline: it is attached but does not answer",
            details=f"adb: {one.state}",
            hint=f"{way}, {_AGAIN}",
        )
    return _in_another_state(one.state, name, serial)


def _in_another_state(state: str, name: str, serial: str) -> UnreachableError:
    if state in _NO_ANDROID:
        cause, way = "is not running Android", f"start Android on it, for example with `adb -s {serial} reboot`"
    elif state == "detached":
        cause, way = "is detached, so that other programs can use it", f"adb -s {serial} attach"
    else:
        cause, way = "takes no commands", f"plug it in again, or run `adb -s {serial} reconnect`"
    return UnreachableError(f"{name} {cause}: its state is {state}", details=f"adb: {state}", hint=f"{way}, {_AGAIN}")


def gone(one: Attached, doing: str, words: str) -> UnreachableError:
    """A device that took commands, and does not take one now.

    Args:
        one: The device; its state is empty if the server knows it no more.
        doing: What was asked of it.
        words: The client's last words.
    """
    if one.state and one.state != READY and one.state not in PASSING:
        return unusable(one)
    return lost(PREFIX + one.serial, doing, f"adb: {one.state or 'gone'}\n{process.tail(words)}".strip())


def not_started(client: str, fault: OSError) -> UnreachableError:
    """The client was there, and is not now, or cannot be started."""
    return not_installed(client) if isinstance(fault, FileNotFoundError) else no_server(f"{client}: {fault.strerror}")


def too_old(name: str) -> DeviceError:
    """A device whose commands have no exit codes."""
    return DeviceError(
        f"{name} does not support version 2 of the adb shell protocol",
        details="without it, adb does not return a command's exit code and mixes its errors with its output",
        hint="use Android 7.0 or newer, or reach the device over SSH",
    )


def lost(name: str, doing: str, why: str) -> UnreachableError:
    """A device that was there."""
    return UnreachableError(
        f"the connection to {name} was lost while {doing}",
        details=why,
        hint="check the cable and that the device is on, then run the same command again",
    )


def _listed(known: Sequence[Attached]) -> str:
    rows = [f"{one.serial}: {one.state}" for one in known[:_SHOWN]]
    return "\n".join([*rows, *(["..."] if len(known) > _SHOWN else [])])
