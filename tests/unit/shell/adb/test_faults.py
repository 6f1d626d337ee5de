"""Errors of adb name the cause and the next command."""

from __future__ import annotations

import pytest

from toolchain.shell.adb import client
from toolchain.shell.adb.client import Attached


@pytest.mark.parametrize(
    ("serial", "state", "cause", "command"),
    [
        ("R58M", "unauthorized", "has not accepted this computer's key", "accept the key on its screen"),
        ("R58M", "offline", "is offline", "plug it in again"),
        ("10.0.0.7:5555", "offline", "is offline", "adb connect 10.0.0.7:5555"),
        ("R58M", "no permissions (...)", "may not access the USB device", "udev"),
        ("R58M", "authorizing", "has not accepted this computer's key", "accept the key on its screen"),
        ("10.0.0.7:5555", "connecting", "is offline", "adb connect 10.0.0.7:5555"),
        ("R58M", "detached", "is detached, so that other programs can use it", "adb -s R58M attach"),
        ("R58M", "something new", "takes no commands", "adb -s R58M reconnect"),
        ("R58M", "recovery", "is not running Android", "adb -s R58M reboot"),
    ],
)
def test_states(serial, state, cause, command):
    fault = client.unusable(Attached(serial, state))
    assert cause in fault.message
    assert f"adb:{serial}" in fault.message
    assert state in fault.details
    assert command in fault.hint


def test_a_long_list_is_cut():
    attached = [Attached(f"device{number}", "device") for number in range(50)]
    fault = client.unnamed(attached)
    assert fault.message.startswith("50 devices are attached")
    assert len(fault.details.splitlines()) == 21
    assert "adb:device0" in fault.hint


@pytest.mark.parametrize("state", ["", "offline", "connecting", "authorizing", "device"])
def test_a_device_that_is_going_or_coming_back_was_lost(state):
    fault = client.gone(Attached("R58M", state), "running a command", "error: closed")
    assert "connection to adb:R58M was lost while running a command" in fault.message
    assert "error: closed" in fault.details


def test_a_device_that_came_back_as_another_system_is_told_so():
    assert "not running Android" in client.gone(Attached("R58M", "recovery"), "running a command", "").message


def test_a_serial_in_a_hint_is_quoted():
    assert "'adb:a;reboot'" in client.unnamed([Attached("a;reboot", "device")]).hint
    assert "adb -s 'a;reboot' reboot" in client.unusable(Attached("a;reboot", "recovery")).hint


def test_an_unknown_device_is_searched_where_it_may_be():
    assert "adb connect 10.0.0.7:5555" in client.unknown("10.0.0.7:5555", (), "failed to connect").hint
    assert "choose one of these" in client.unknown("R58M", (Attached("other", "device"),), "").hint
    assert "adb:10.0.0.7:5555" in client.unknown("10.0.0.7", (), "").hint
    assert "USB debugging" in client.unknown("", (), "").hint
