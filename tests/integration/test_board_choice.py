"""Which board type commands use for a real SSH device without --board: its entry's, or the one that a probe chooses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support import bundles, sshd
from tests.support.commands import toolchain
from tests.support.sshd import Server
from toolchain import board
from toolchain.adoption import choice
from toolchain.device import probe
from toolchain.shell import LocalShell

COMMANDS = (
    "status",
    "status --releases",
    "rollback",
    "bench",
    "trust floor 3",
    "run -o {w}/out.npz --image {w}/x.png",
    "profile",
    "gate current --base 1",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    sshd.require_sshd()
    with sshd.running(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def login(server, tmp_path, monkeypatch):
    """How a device with a store of its own is reached by a user without lists and board files."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TOOLCHAIN_DEVICES", "TOOLCHAIN_BOARDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return ["-i", server.key_file, "--known-hosts", server.known_hosts, "--root", tmp_path / "device"]


def expected() -> str:
    """Return the board type that this machine has as a device."""
    with LocalShell() as shell:
        return choice.choose(probe.ask(shell, ""), "", "").board.name


@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_without_an_entry_is_probed_and_that_is_told(server, login, command, tmp_path):
    (tmp_path / "x.png").write_bytes(b"")
    outcome = toolchain(*command.format(w=tmp_path).split(), "--host", server.host, *login)
    assert f"board {expected()}: the device's CPU " in outcome.err
    assert "takes no host" not in outcome.err
    assert not (tmp_path / "config").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_named_device_is_of_its_entrys_type(server, login, command, tmp_path):
    Path("devices.toml").write_text(f'[devices.bench]\nboard = "x86_64"\nhost = "{server.host}"\n')
    (tmp_path / "x.png").write_bytes(b"")
    outcome = toolchain(*command.format(w=tmp_path).split(), "--host", "bench", *login)
    assert f"device {server.host} of devices.toml" in outcome.err
    assert "the device's CPU" not in outcome.err
    assert "takes no host" not in outcome.err
    other = toolchain(*command.format(w=tmp_path).split(), "--host", "bench", "--board", "x86_64-v2", *login)
    assert other.code == 2
    assert "device bench is a x86_64, not a x86_64-v2" in other.err


def test_a_package_goes_to_a_device_as_what_it_was_built_for(server, login, tiny_for_ssh, tmp_path):
    outcome = toolchain("deploy", tiny_for_ssh.folder, "--host", server.host, *login, "--budget", 0, "--json", "-")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert (report["board"], report["board_reason"]) == ("x86_64", None)
    best = board.load(expected())
    if best.name != "x86_64":
        (warning,) = [text for text in report["warnings"] if "leaves unused" in text]
        assert f"board {best.name} runs" in warning or best.name == "x86_64-v2"
    assert bundles.whole_release(tmp_path / "device") == tiny_for_ssh.digest
    again = toolchain("bench", "--host", server.host, "--board", "x86_64", *login, "--budget", 0, "--json", "-")
    assert [text for text in json.loads(again.out)["warnings"] if "leaves unused" in text] == [
        text for text in report["warnings"] if "leaves unused" in text
    ]


def test_a_model_is_built_for_what_the_probe_chooses(server, login, tmp_path):
    outcome = toolchain("deploy", "zoo:mlp", "--host", server.host, *login, "--budget", 0, "--json", "-")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert report["board"] == expected()
    assert f"board {report['board']}: {report['board_reason']}" in outcome.err
    assert not [text for text in report["warnings"] if "leaves unused" in text]
    assert not (tmp_path / "config").exists()


def test_a_folder_of_the_zoos_name_is_told_apart(login, tiny_for_ssh, tmp_path):
    bundles.variant(tiny_for_ssh, tmp_path / "mlp", {}, board="x86_64")
    outcome = toolchain("deploy", "mlp", "--root", tmp_path / "here")
    assert outcome.code == 5
    assert "mlp is the folder ./mlp here; zoo:mlp names the zoo's network" in outcome.err
    assert "the bundle ./mlp was built for board x86_64, not for board local" in outcome.err


# --- doctor ----------------------------------------------------------------------------------------------------------


def examined(name: object, server: Server, *login: object) -> dict[str, dict[str, str]]:
    outcome = toolchain("doctor", "--board", name, "--host", server.host, *login, "--json")
    return {row["what"]: row for row in json.loads(outcome.out)}


def test_doctor_reports_on_a_device(server, login):
    rows = examined(expected(), server, *login)
    assert rows[f"device {server.host}"]["found"].startswith(os.uname().machine)
    assert rows["C library"]["found"].startswith("glibc ")
    assert {rows[name]["board"] for name in ("system", "programs of the store", "free space")} == {expected()}
    assert all(rows[name]["found"] for name in ("folder for programs", "file locks", "atomic links", "board type"))
    assert not any(name.startswith("hardware") for name in rows), "there is no accelerator"


def test_doctor_names_what_a_device_lacks_for_a_board(server, login):
    rows = examined("rk3399", server, *login)
    assert not rows["board type"]["found"]
    assert "leave --board out" in rows["board type"]["remedy"]
    assert not any(name.startswith("hardware") for name in rows), "there is nothing to compare"
