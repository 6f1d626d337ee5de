"""The farm commands, as far as they need no board; tests/integration/test_farm_serving.py has some."""

from __future__ import annotations

import dataclasses
import json
import re
import time

import pytest

from tests.support.commands import toolchain
from toolchain.cli import farm as commands
from toolchain.errors import InputError
from toolchain.report import plain
from toolchain.virtual.fleet import VirtualBoard

BOARD = {
    "name": "bench-1",
    "board": "rpi4",
    "host": "pi@bench-1",
    "emulated": False,
    "state": "free",
    "hold": None,
    "session_since": None,
    "trial": None,
    "celsius": None,
    "failures": 0,
    "fault": None,
}


@pytest.fixture(autouse=True)
def lab(tmp_path, monkeypatch):
    """A folder without devices, and a cache without a farm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLCHAIN_DEVICES", raising=False)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path


def shown(boards=(), virtual=(), queue=()) -> commands.Result:
    return commands._status_result({"boards": list(boards), "queue": list(queue)}, list(virtual), as_json=False)


def cells(result, name) -> list[str]:
    """Return the words of a board's row by the columns' places."""
    lines = plain(result.text).splitlines()
    row = next(line for line in lines if line.startswith(name))
    starts = [lines[0].index(head) for head in commands._HEADS]
    return [row[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86400), ("0.5", 0.5)]
)
def test_time_spans(text, expected):
    assert commands.parse_span(text) == expected


@pytest.mark.parametrize("text", ["", "h", "-1", "2 h", "2w", "0", "0h", "1e3", "inf", "nan"])
def test_no_time_spans(text):
    with pytest.raises(InputError, match="not a valid time span"):
        commands.parse_span(text)


def test_a_free_board():
    assert cells(shown([BOARD]), "bench-1") == ["bench-1", "rpi4", "free", "", "", "", "", "0", ""]


def test_a_leased_board():
    hold = {"who": "me@here pid 7: tune", "kind": "leased", "since": time.time(), "until": None, "heard_s": 3.2}
    trial = {"what": "conv", "ok": False, "seconds": 1.25, "time": time.time() - 5}
    row = cells(shown([{**BOARD, "state": "leased", "hold": hold, "trial": trial, "celsius": 61.7}]), "bench-1")
    assert row[2:4] == ["leased", "me@here pid 7: tune"]
    assert re.fullmatch(r"since [\d:]+, alive 3 s ago", row[4])
    assert row[5] == "conv: failed, 1.2 s, 5 s ago"
    assert row[6] == "62 C"


def test_a_locked_board():
    hold = {"who": "me", "kind": "locked", "since": time.time(), "until": time.time() + 60, "heard_s": None}
    span = cells(shown([{**BOARD, "state": "locked", "hold": hold}]), "bench-1")[4]
    assert re.fullmatch(r"since [\d:]+ until [\d:]+", span)


def test_who_waits():
    entry = {"since": time.time(), "names": [], "board": "rpi4", "most": 0}
    queue = [
        {**entry, "place": 1, "who": "ann@desk pid 7: tune mlp"},
        {**entry, "place": 2, "who": "bob", "most": 2},
        {**entry, "place": 3, "who": "me", "names": ["bench-1"], "board": ""},
    ]
    result = shown([BOARD], queue=queue)
    lines = [line.partition(", since")[0] for line in plain(result.text).splitlines()[2:]]
    assert lines == [
        "waiting, 1: ann@desk pid 7: tune mlp for any rpi4",
        "waiting, 2: bob for 2 rpi4",
        "waiting, 3: me for bench-1",
    ]
    assert result.document["queue"] == queue


def test_a_daemon_of_an_earlier_toolchain():
    hold = {"who": "me", "kind": "leased", "since": time.time(), "until": None}
    result = commands._status_result({"boards": [{**BOARD, "hold": hold}]}, [], as_json=False)
    assert (cells(result, "bench-1")[3], result.document["queue"]) == ("me", [])


def test_a_lost_and_an_emulated_board():
    fault = {"kind": "DeviceError", "message": "it does not answer", "details": "", "hint": ""}
    text = shown([{**BOARD, "state": "lost", "fault": fault, "emulated": True}])
    assert "emulated, it does not answer" in plain(text.text)


def test_virtual_boards_that_are_not_served():
    virtual_board = VirtualBoard("rpi4-1", "rpi4", "docker", 2201, running=True, client="key")
    result = shown([BOARD], virtual=[virtual_board, dataclasses.replace(virtual_board, name="bench-1")])
    assert cells(result, "rpi4-1")[2] == "running"
    assert "emulated, docker, SSH port 2201, not served" in plain(result.text)
    assert [virtual["name"] for virtual in result.document["virtual"]] == ["rpi4-1"]


def test_a_farm_that_does_not_exist(lab):
    result = toolchain("farm", "status", "--json")
    assert (result.code, json.loads(result.out)) == (0, {"boards": [], "queue": [], "virtual": []})
    assert "farm up" in result.err
    assert toolchain("farm", "down").code == 0
    assert json.loads(toolchain("farm", "down", "--json").out) == []
    assert not (lab / "cache").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["up"], 2, "there are no devices to serve"),
        (["up", "nobody"], 2, "there is no device 'nobody'"),
        (["up", "a", "--virtual", "rpi4=1"], 2, "--virtual starts boards"),
        (["up", "--kernel"], 2, "--kernel is only for virtual boards"),
        (["down", "nobody"], 2, "no board 'nobody'"),
        (["lock", "a"], 4, "the farm is not running"),
        (["lock", "a", "--for", "soon"], 2, "not a valid time span"),
        (["lock", "a", "--for", "1h", "--", "true"], 2, "cannot be combined"),
        (["lock", "a", "--", "true"], 4, "the farm is not running"),
        (["release", "a"], 4, "the farm is not running"),
    ],
)
def test_refusals(arguments, code, message):
    result = toolchain("farm", *arguments)
    assert (result.code, message in result.err) == (code, True), result.err


def test_a_device_that_is_this_machine(lab):
    (lab / "devices.toml").write_text('[devices.here]\nboard = "local"\nhost = "local"\n')
    for arguments in ([], ["here"]):
        result = toolchain("farm", "up", *arguments)
        assert (result.code, "here is this machine" in result.err) == (2, True), result.err
