"""How a device is addressed."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolchain.errors import InputError
from toolchain.shell import Address, SshOptions, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("board", Address("board")),
        ("root@board", Address("board", "root")),
        ("root@10.0.0.5:2222", Address("10.0.0.5", "root", 2222)),
        ("[::1]:22", Address("::1", None, 22)),
        ("[::1]", Address("::1")),
        ("::1", Address("::1")),
        ("user@[fe80::1%eth0]:2222", Address("fe80::1%eth0", "user", 2222)),
        ("fe80::1%br-lan.2", Address("fe80::1%br-lan.2")),
        ("first.last@board_1.lab", Address("board_1.lab", "first.last")),
        ("me@corp.example@board:22", Address("board", "me@corp.example", 22)),
        ("CORP\\me@board", Address("board", "CORP\\me")),
        ("me+x@board", Address("board", "me+x")),
        ("m$@board", Address("board", "m$")),
    ],
)
def test_addresses(text, expected):
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "@board",
            "root@",
            "a b",
            "board:",
            "board:0",
            "board:65536",
            "board:ssh",
            f"board:{'1' * 5000}",
            "board:²",
            "-oX=x",
            "-oX=x@board",
            "a b@board",
            "a;b@board",
            "me\\@board",
            "a`b@board",
            "a\nb@board",
        ),
        *(
            "[board]:22",
            "[::1",
            "[::1]22",
            "[::1]:",
            "a:b:c",
            "x@-y",
            "root@board;reboot",
            "$(id)@board",
            "a\nb",
            "fe80::1%$(id)",
            "::1%a;b",
        ),
    ],
)
def test_wrong_addresses_are_refused(text):
    with pytest.raises(InputError) as caught:
        parse_address(text)
    assert caught.value.details
    assert "user@host" in caught.value.hint


def test_a_configuration_that_the_user_names_goes_before_the_devices_own():
    mine = SshOptions(config_file=Path("mine"), agent=False)
    assert mine.before(Path("its")) is mine
    assert SshOptions(agent=False).before(None) == SshOptions(agent=False)
    its = SshOptions(config_file=Path("its"), agent=False)
    assert SshOptions(agent=False).before(Path("its")) == its


def test_password_is_not_shown():
    assert "secret" not in repr(SshOptions(password="secret"))  # noqa: S106
