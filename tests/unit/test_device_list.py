"""A devices.toml is added to, and what else stands in it stays as it is."""

from __future__ import annotations

import pytest

from toolchain import device_list
from toolchain.devices import Device, load_devices
from toolchain.errors import InputError

BENCH = Device(board="rpi4", host="me@10.0.0.7")
LIST = """# our lab
[devices.old]   # the first one
board = "pynq"
host = "me@10.0.0.1"

[devices.old.run]
unit = "detector.service"
# the end
"""


@pytest.mark.parametrize(
    "before",
    [
        "",
        "# nothing yet\n",
        LIST,
        "\ufeff" + LIST,
        LIST.replace("\n", "\r\n"),
        LIST.rstrip("\n"),
        '[old]\nboard = "pynq"\nhost = "me@10.0.0.1"\n',
        'devices = { old = { board = "pynq", host = "me@10.0.0.1" } }\n',
        'devices.old.board = "pynq"\ndevices.old.host = "me@10.0.0.1"\n',
    ],
)
def test_a_device_is_added_once(before, tmp_path):
    path = tmp_path / "devices.toml"
    path.write_bytes(before.encode())
    old = load_devices(path) if before else {}
    assert device_list.add(path, "bench-1", BENCH)
    assert load_devices(path) == {**old, "bench-1": BENCH}
    once = path.read_bytes()
    for line in before.splitlines():
        assert "devices = {" in line or line.strip("\ufeff") in once.decode(), line
    assert not device_list.add(path, "bench-1", BENCH)
    assert path.read_bytes() == once


@pytest.mark.parametrize(
    "before", [LIST, LIST.replace("devices.", ""), "[old]\nboard = 'x'\nhost = 'y'", "\ufeff" + LIST]
)
def test_line_ends_are_the_files_own(before, tmp_path):
    path = tmp_path / "devices.toml"
    path.write_bytes(before.replace("\n", "\r\n").encode())
    assert device_list.add(path, "bench-1", BENCH)
    assert load_devices(path)["bench-1"] == BENCH
    content = path.read_bytes()
    assert content.startswith(before.rstrip("\n").replace("\n", "\r\n").encode())
    assert content.count(b"\n") == content.count(b"\r\n") == content.count(b"\r")


def test_mixed_line_ends_stay_as_they_are(tmp_path):
    path = tmp_path / "devices.toml"
    before = LIST.replace("\n", "\r\n", 2).encode()
    path.write_bytes(before)
    assert device_list.add(path, "bench-1", BENCH)
    assert path.read_bytes().startswith(before.rstrip())


def test_a_mark_of_an_emulator_is_taken_away(tmp_path):
    path = tmp_path / "devices.toml"
    emulated = Device(board="rpi4", host="me@10.0.0.7", emulated=True)
    assert device_list.add(path, "bench-1", emulated)
    assert not device_list.add(path, "bench-1", emulated)
    assert device_list.add(path, "bench-1", BENCH)
    assert load_devices(path)["bench-1"] == BENCH
    assert not device_list.add(path, "bench-1", BENCH)


def test_a_new_list_is_the_users_alone(tmp_path):
    path = tmp_path / "a" / "b" / "devices.toml"
    assert device_list.add(path, "10.0.0.7", BENCH)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_devices(path) == {"10.0.0.7": BENCH}


def test_an_entry_is_corrected_and_keeps_its_application(tmp_path):
    path = tmp_path / "devices.toml"
    path.write_text(LIST)
    path.chmod(0o640)
    old = load_devices(path)["old"]
    assert device_list.add(
        path, "old", Device(board="rpi4", host="me@10.0.0.1", root="/data/x", emulated=True, run=old.run)
    )
    device = load_devices(path)["old"]
    assert (device.board, device.root, device.emulated, device.run) == ("rpi4", "/data/x", True, old.run)
    assert "# the first one" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("text", ["not toml", '[devices.x]\nbord = "rpi4"\n', "\xff", "[devices\n", "devices = 4\n"])
def test_a_list_with_faults_stays_as_it_is(text, tmp_path):
    path = tmp_path / "devices.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError):
        device_list.add(path, "bench-1", BENCH)
    assert path.read_bytes() == text.encode("latin-1")
    assert [path.name for path in tmp_path.iterdir()] == ["devices.toml"]


def test_a_link_stays_one(tmp_path):
    real = tmp_path / "real.toml"
    real.write_text(LIST)
    link = tmp_path / "devices.toml"
    link.symlink_to(real)
    assert device_list.add(link, "bench-1", BENCH)
    assert link.is_symlink()
    assert "bench-1" in real.read_text()
