"""Board types, and what this machine has for them."""

from __future__ import annotations

import json

from tests.support.commands import done, parsed, toolchain
from toolchain.cli.boards import AddOptions


def test_boards_are_listed():
    assert {"local", "x86_64"} <= {board["name"] for board in parsed("board", "list")}
    assert "any x86-64 Linux" in done("board", "list").out


def test_a_board_file_is_checked(tmp_path):
    good = tmp_path / "good.toml"
    good.write_text(
        'description="d"\nconnection="ssh"\nmachine="x86_64"\ntriple="x86_64-linux-gnu"\n[target]\nmcpu="skylake"\n'
    )
    assert "valid" in done("board", "check", good).out
    assert parsed("board", "check", good) == []


def test_the_schema_is_json():
    assert json.loads(done("board", "schema").out)["title"] == "Board file"


def test_doctor_names_what_is_there():
    checks = parsed("doctor")
    assert {"apache-tvm 0.27.0.post1", "apache-tvm-ffi 0.1.14.post1"} <= {check["what"] for check in checks}
    assert all(check["found"] for check in checks if check["board"] == "local")


def test_a_device_that_is_busy_may_be_waited_for():
    assert "--wait" in done("board", "add", "--help").out
    assert AddOptions(wait_s=5.0).address("me@h").wait_s == 5.0
    assert "--no-deploy --wait 5 --json" in AddOptions(wait_s=5.0, no_deploy=True).request("me@h", ["--json"]).command()


def test_a_board_type_that_is_a_path_is_none(tmp_path):
    """Or it would be written over; nothing is asked of the device before."""
    mine = tmp_path / "mine.toml"
    mine.write_text("mine")
    result = toolchain("board", "add", "me@192.0.2.1", "--board", tmp_path / "mine")
    assert result.code == 2, result.err
    assert "not a valid name of a board type" in result.err
    assert mine.read_text() == "mine"
