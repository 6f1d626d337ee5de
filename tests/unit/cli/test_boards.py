"""Board types, and what this machine has for them."""

from __future__ import annotations

import json

from tests.support.commands import done, parsed


def test_boards_are_listed():
    assert {"local", "x86_64"} <= {board["name"] for board in parsed("boards")}
    assert "any x86-64 Linux" in done("boards").out


def test_a_board_file_is_checked(tmp_path):
    good = tmp_path / "good.toml"
    good.write_text(
        'description="d"\nconnection="ssh"\nmachine="x86_64"\ntriple="x86_64-linux-gnu"\n[target]\nmcpu="skylake"\n'
    )
    assert "valid" in done("boards", "check", good).out
    assert parsed("boards", "check", good) == []


def test_the_schema_is_json():
    assert json.loads(done("boards", "schema").out)["title"] == "Board file"


def test_doctor_names_what_is_there():
    checks = parsed("doctor")
    assert {"apache-tvm 0.27.0.post1", "apache-tvm-ffi 0.1.14.post1"} <= {check["what"] for check in checks}
    assert all(check["found"] for check in checks if check["board"] == "local")
