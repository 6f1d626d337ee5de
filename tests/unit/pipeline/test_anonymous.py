from __future__ import annotations

import getpass
import platform
from pathlib import Path

import pytest

from toolchain.pipeline import anonymous


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("me@10.0.0.7 is busy", "... is busy"),
        ("u0_a123@127.0.0.1:8022: no answer", "... no answer"),
        ("someone@board-7.lab is deploying", "... is deploying"),
        ("me@[fe80::1]:22 is gone", "... is gone"),
        ("nobody listens at 10.0.0.7:22.", "nobody listens at ...:22."),
        ("fe80::1 and 2001:db8::7", "... and ..."),
        ("at 12:30:45 with TVM 0.27.0.post1, glibc 2.36", "at 12:30:45 with TVM 0.27.0.post1, glibc 2.36"),
        ("std::foo in libm.so.6: undefined", "std::foo in libm.so.6: undefined"),
        ("10.0.0.7 and 10.0.0.70", "... and ..."),
        ("", ""),
    ],
)
def test_logins_and_addresses_go_and_the_rest_stays(text, redacted):
    assert anonymous.redact((), text) == redacted


def test_known_names_go_where_they_are_whole_words():
    names = {"pi-lab", "/home/someone"}
    text = "pi-lab has /home/someone/models, and pi-labs is another word"
    assert anonymous.redact(names, text) == "... has .../models, and pi-labs is another word"


def test_the_longest_name_goes_first():
    assert anonymous.redact({"board", "board-7"}, "board-7, board") == "..., ..."


def test_what_is_known_of_a_device():
    names = anonymous.identifying_names("pilot@board-7.lab:2222")
    assert {"pilot", "board-7.lab", "board-7.lab:2222", "pilot@board-7.lab:2222"} <= names
    ours = {name for name in (platform.node(), getpass.getuser(), str(Path.home())) if len(name) >= 4}
    assert ours - {"local", "root", "/root"} <= names


def test_words_that_are_everywhere_are_no_names():
    assert not {"", "pi", "local", "root"} & anonymous.identifying_names("pi@local")


def test_the_serial_of_adb_stays_out():
    names = anonymous.identifying_names("adb:R58M123456")
    assert anonymous.redact(names, "adb:R58M123456: device R58M123456 not found") == "...: device ... not found"


def test_the_host_of_a_device_in_a_network_stays_out():
    names = anonymous.identifying_names("adb:phone.lab:5555")
    assert anonymous.redact(names, "phone.lab:5555 or phone.lab") == "... or ..."
