"""Answers are read with care: a device may say anything."""

from __future__ import annotations

import pytest

from toolchain.device.probe.answer import Answer, number
from toolchain.errors import DeviceError

TOKEN = "0123456789abcdef"  # noqa: S105 - it keeps nothing secret


def answer(*lines: str) -> Answer:
    return Answer("\n".join([f"begin={TOKEN}", *lines, f"end={TOKEN}", ""]), TOKEN, "board")


def test_what_stands_around_it_is_left_out():
    output = f"Welcome!\nmachine=toaster\nbegin={TOKEN}\nmachine=aarch64\nend={TOKEN}\nmachine=kettle\n"
    assert Answer(output, TOKEN, "board").texts("machine") == ("aarch64",)


@pytest.mark.parametrize("output", ["", f"begin={TOKEN}\nmachine=aarch64\n", f"end={TOKEN}\n", "begin=0\nend=0\n"])
def test_one_that_breaks_off_is_none(output):
    with pytest.raises(DeviceError, match="ended the connection while"):
        Answer(output, TOKEN, "board")


def test_values_are_short_and_steer_no_terminal():
    parsed = answer("model=\x1b[31mred\u202e" + "x" * 10_000)
    assert parsed.text("model").startswith("\\x1b[31mred\\u202e")
    assert len(parsed.text("model")) < 400
    assert parsed.text("model").isprintable()


@pytest.mark.parametrize(
    "line", ["", "noequals", "=value", "KEY\x00=1", "a b=c", "x" * 200 + "=1", "../etc=1", "key.=1", "key..1=2"]
)
def test_lines_that_are_none_are_left_out(line):
    parsed = answer(line, "machine=aarch64")
    assert parsed.text("machine") == "aarch64"
    assert not parsed.cpus


@pytest.mark.parametrize(
    ("text", "expected"),
    [("12", 12), ("", 0), ("-1", 0), ("1e9", 0), ("nan", 0), ("9" * 16, 0), ("٣", 0), ("0x10", 0)],
)
def test_numbers_are_whole_and_not_huge(text, expected):
    assert number(text) == expected
    assert answer(f"cpus={text.strip()}").number("cpus", 100) == (expected if expected <= 100 else 0)


def test_as_many_cpus_and_values_as_there_can_be():
    lines = [f"cpu processor={cpu}\ncpu CPU part=0xd03" for cpu in range(5000)]
    parsed = answer(*lines, *(f"thermal=zone {count}" for count in range(5000)))
    assert len(parsed.cpus) <= 1024
    assert len(parsed.texts("thermal")) <= 128


def test_values_by_cpu():
    parsed = answer("max_khz.0=1400000", "max_khz.12=1800000", "max_khz.x=1", "max_khz.99999=5", "cache.0=1 Data 32K")
    assert dict(parsed.by_cpu("max_khz")) == {0: ("1400000",), 12: ("1800000",)}


def test_flags_may_be_long():
    flags = " ".join(f"flag{count}" for count in range(300))
    assert answer("cpu processor=0", f"cpu flags={flags}").cpus[0]["flags"] == flags
