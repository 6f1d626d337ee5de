"""What adb's client says, read: a script stands for it where no device can be brought into a state."""

from __future__ import annotations

import os

import pytest

from toolchain.errors import DeviceError, InputError
from toolchain.shell.adb import client
from toolchain.shell.adb.client import Attached


@pytest.fixture
def fake_adb(tmp_path, monkeypatch):
    """Return a function that makes a client which says something, and ends with a code."""

    def make(text, code=0):
        path = tmp_path / "adb"
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
        path.chmod(0o755)
        monkeypatch.setenv("TOOLCHAIN_ADB", str(path))
        monkeypatch.delenv("ANDROID_SERIAL", raising=False)
        return str(path)

    return make


def test_a_list_of_devices():
    text = "List of devices attached\nR58M\tdevice\n10.0.0.7:5555\toffline\n* daemon started\n\n"
    assert client.parse_devices(text) == (Attached("R58M", "device"), Attached("10.0.0.7:5555", "offline"))


def test_a_list_steers_no_terminal():
    assert client.parse_devices("a\x1b[2J\tdevice\n") == (Attached("a\\x1b[2J", "device"),)


def test_a_login_without_rights_is_told_how_to_get_them(fake_adb):
    state = "no permissions (user in plugdev group; are your udev rules wrong?); see [http://developer.android.com]"
    with pytest.raises(DeviceError, match="may not access the USB device adb:R58M") as caught:
        client.find(fake_adb(f"List of devices attached\nR58M\t{state}"), "R58M")
    assert state in caught.value.details
    assert "plugdev" in caught.value.hint


@pytest.mark.parametrize("state", ["recovery", "sideload", "bootloader"])
def test_a_device_that_does_not_run_android(fake_adb, state):
    with pytest.raises(DeviceError, match=f"not running Android: its state is {state}") as caught:
        client.find(fake_adb(f"List of devices attached\nR58M\t{state}"), "")
    assert "adb -s R58M reboot" in caught.value.hint


def test_a_serial_that_no_command_may_have_is_refused(fake_adb):
    with pytest.raises(InputError, match="is not a valid adb address"):
        client.find(fake_adb("List of devices attached\n-x;reboot\tdevice"), "")


def test_a_device_is_found_by_another_spelling_of_its_address(fake_adb):
    attached = client.find(fake_adb("List of devices attached\nphone.lan:5555\tdevice"), "Phone.LAN:05555")
    assert attached.serial == "phone.lan:5555"


def test_who_was_asked_is_told(fake_adb, monkeypatch):
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "5099")
    monkeypatch.delenv("ADB_SERVER_SOCKET", raising=False)
    path = fake_adb("List of devices attached")
    with pytest.raises(DeviceError, match="has no device R58M") as caught:
        client.find(path, "R58M")
    assert f"asked by {path}, of the server at tcp:localhost:5099" in caught.value.details


def test_features_that_are_not_told_are_no_old_device(fake_adb, tmp_path):
    path = fake_adb("")
    (tmp_path / "adb").write_text(
        "#!/bin/sh\ncase $1 in devices) printf 'R58M\\tdevice\\n';; *) echo error: closed >&2; exit 1;; esac\n"
    )
    with pytest.raises(DeviceError, match="was lost while reading the features of its adb") as caught:
        client.features(path, "R58M")
    assert "error: closed" in caught.value.details


def test_a_server_that_does_not_start(fake_adb):
    with pytest.raises(DeviceError, match="cannot be reached or started") as caught:
        client.devices(fake_adb("error: cannot connect to daemon", 1))
    assert "cannot connect to daemon" in caught.value.details


def test_a_server_that_never_answers(fake_adb, monkeypatch, tmp_path):
    path = fake_adb("")
    (tmp_path / "adb").write_text("#!/bin/sh\nsleep 100\n")
    monkeypatch.setattr(client, "_ANSWER_S", 0.3)
    with pytest.raises(DeviceError, match="cannot be reached or started") as caught:
        client.devices(path)
    assert "did not finish" in caught.value.details


def test_the_environments_serial_is_checked_too(fake_adb, monkeypatch):
    path = fake_adb("List of devices attached")
    monkeypatch.setenv("ANDROID_SERIAL", "-d")
    with pytest.raises(InputError, match="ANDROID_SERIAL in the environment"):
        client.find(path, "")


def test_no_client(monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_ADB", "/nowhere/adb")
    with pytest.raises(DeviceError, match="/nowhere/adb is not installed here") as caught:
        client.program()
    assert "apt-get install adb" in caught.value.hint


def test_the_version(fake_adb):
    assert client.version(fake_adb("Android Debug Bridge version 1.0.41\nVersion 29.0.6-debian")) == "29.0.6-debian"
    assert client.version(fake_adb("something else")) == ""


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "tcp:localhost:5037"),
        ({"ANDROID_ADB_SERVER_PORT": "5099"}, "tcp:localhost:5099"),
        ({"ANDROID_ADB_SERVER_ADDRESS": "10.0.0.7"}, "tcp:10.0.0.7:5037"),
        ({"ADB_SERVER_SOCKET": "tcp:host:1", "ANDROID_ADB_SERVER_PORT": "5099"}, "tcp:host:1"),
    ],
)
def test_where_the_server_is_asked(variables, address, monkeypatch):
    for name in ("ADB_SERVER_SOCKET", "ANDROID_ADB_SERVER_ADDRESS", "ANDROID_ADB_SERVER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert client.server_address() == address


def test_a_path_of_the_client_holds_in_any_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLCHAIN_ADB", "./adb")
    client.keep_program()
    assert os.environ["TOOLCHAIN_ADB"] == str(tmp_path / "adb")
    monkeypatch.setenv("TOOLCHAIN_ADB", "adb")
    client.keep_program()
    assert os.environ["TOOLCHAIN_ADB"] == "adb"
