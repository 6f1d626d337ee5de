from __future__ import annotations

from pathlib import Path

import pytest

from toolchain import devices
from toolchain.board import Board, Target
from toolchain.devices import Application, Device
from toolchain.errors import InputError

FOLDER = r"should match pattern '^(~/|/)[^\s'\"\\$`]+$'"

DEVICES = """
[devices.desk]
board = "pi"
host = "pi@10.0.0.5:2222"

[devices.shelf]
board = "pi"
host = "10.0.0.6"
root = "/opt/models"
emulated = true

[devices.farm]
board = "arm"
host = "arm"
"""
RUN = "[a]\nboard = 'pi'\nhost = 'h'\n[a.run]\n"
KEYS = "board, host, root, ssh_config, emulated, run, power"
DESK = Device("pi", "pi@10.0.0.5:2222")
SHELF = Device("pi", "10.0.0.6", root="/opt/models", emulated=True)
FARM = Device("arm", "arm")
LAB = {"desk": DESK, "shelf": SHELF, "farm": FARM}


def kind(name: str, connection: str = "ssh") -> Board:
    return Board(name=name, description="d", connection=connection, machine="m", triple="t", target=Target())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("TOOLCHAIN_DEVICES", raising=False)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", [DEVICES, DEVICES.replace("devices.", "")], ids=["table", "top level"])
def test_devices(folder, text):
    (folder / "lab.toml").write_text(text)
    assert devices.load_devices(folder / "lab.toml") == LAB


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("[a]\nboard = 'pi'", ["a.host: is missing (every device must set it)"]),
        ("[a]\nboard = 'pi'\nhost = ''", ["a.host: '' should have at least 1 character"]),
        ("[a]\nboard = 'a pi'\nhost = 'h'", ["a.board: 'a pi' should match pattern"]),
        ("[a]\nboard = 'pi'\nhost = 'h'\nrot = '/x'", ["a.rot: unknown key (did you mean root?)"]),
        ("[a]\nboard = 'pi'\nhost = 'h'\nroot = 'models'", [f"a.root: 'models' {FOLDER}"]),
        (
            "[a]\nboard = 'pi'\nhost = 'h'\nx = 1",
            ["a.x: unknown key (known keys: board, host, root, ssh_config, emulated, run, power, tags, slots)"],
        ),
        ("[a]\nboard = 'pi'\nhost = 'h'\nemulated = 'yes'", ["a.emulated: 'yes' should be a valid boolean"]),
        ("[a]\nboard = 'pi'\nhost = 5\n[b]\nhost = 'h'", ["a.host: 5 should", "b.board: is missing"]),
        (RUN + "unit = 'a.service'\nhealt = 'x'", ["a.run.healt: unknown key (did you mean health?)"]),
        (RUN + "unit = 'a'", ["a.run.unit: 'a' should match pattern"]),
        (RUN + "unit = '--now.service'", ["a.run.unit: '--now.service' should match pattern"]),
        (RUN + "unit = 'a.service; reboot #.service'", ["a.run.unit: 'a.service; reboot #.service' should match"]),
        (RUN + "unit = 'a.service'\nscope = 'sytem'", ["a.run.scope: 'sytem' should be 'user' or 'system' (did you"]),
        (RUN + "unit = 'a.service'\nwithin = 30", ["a.run.within: 30 should be a valid string"]),
        (RUN + "unit = 'a.service'\nwithin = '0s'", ["a.run.within: '0s' should match pattern"]),
        *(
            (RUN + f"unit = 'a.service'\nhealth = \"{text}\"", ["a.run.health: should be one line of shell"])
            for text in ("a\\nb", "", " ", "a\\u0000", "a \\u001b[2J", "a\\u009b2J", "a\\u2028b", "a" * 4097)
        ),
        (RUN + "unit = 'a.service'\nrestart = 'x'", ["a.run: names either a unit of systemd or a restart command"]),
        (RUN + "health = 'x'", ["a.run: names either a unit of systemd or a restart command"]),
        (RUN + "restart = 'x'", ["a.run: has a restart command and no health command"]),
        (RUN + "restart = 'x'\nhealth = 'y'\nscope = 'system'", ["a.run: has a scope, which is a unit's"]),
        ("a = 'pi@10.0.0.5'", ["a: 'pi@10.0.0.5' should be an object"]),
        ("devices = 3", [": 3 should be an object"]),
    ],
)
def test_faults_of_devices(folder, text, faults):
    (folder / "lab.toml").write_text(text)
    with pytest.raises(InputError, match=rf"lab\.toml has {len(faults)} fault") as caught:
        devices.load_devices(folder / "lab.toml")
    texts = caught.value.details.splitlines()
    assert len(texts) == len(faults)
    assert all(text.startswith(start) for text, start in zip(texts, faults, strict=True)), texts


def test_an_application(folder):
    (folder / "lab.toml").write_text(RUN + "unit = 'a@1.service'\nscope = 'system'\nhealth = 'x'\nwithin = '90s'\n")
    application = devices.load_devices(folder / "lab.toml")["a"].run
    assert application == Application(unit="a@1.service", scope="system", health="x", within="90s")
    assert (application.name, application.seconds) == ("a@1.service", 90)
    assert Application(restart="/etc/init.d/app restart", health="x").name == "/etc/init.d/app restart"


@pytest.mark.parametrize("content", [b"desk: pi", b"\xff"])
def test_devices_that_are_not_toml(folder, content):
    (folder / "lab.toml").write_bytes(content)
    with pytest.raises(InputError, match=r"lab\.toml is not TOML"):
        devices.load_devices(folder / "lab.toml")


def test_devices_of_an_editor_of_windows(folder):
    (folder / "lab.toml").write_bytes(b"\xef\xbb\xbf" + DEVICES.replace("\n", "\r\n").encode())
    assert devices.load_devices(folder / "lab.toml") == LAB


def test_named_devices_must_exist(folder):
    with pytest.raises(InputError, match=r"cannot read .*lab\.toml"):
        devices.load_devices(folder / "lab.toml")


def test_no_devices_here_and_none_named(folder):
    assert devices.load_devices() == {}
    assert not list(folder.iterdir())


@pytest.mark.parametrize("variable", [None, ""])
def test_devices_of_this_folder(folder, monkeypatch, variable):
    (folder / "devices.toml").write_text(DEVICES)
    if variable is not None:
        monkeypatch.setenv("TOOLCHAIN_DEVICES", variable)
    assert devices.load_devices() == LAB


def test_devices_of_the_project_and_of_the_user_are_known_from_any_folder(folder, monkeypatch):
    users_file = folder / "config" / "edge-toolchain" / "devices.toml"
    users_file.parent.mkdir(parents=True)
    users_file.write_text(
        '[devices.desk]\nboard = "pi"\nhost = "elsewhere"\n[devices.mine]\nboard = "pi"\nhost = "m"\n'
    )
    (folder / "devices.toml").write_text(DEVICES)
    (folder / "deep" / "down").mkdir(parents=True)
    monkeypatch.chdir(folder / "deep" / "down")
    entries = devices.load_devices()
    assert entries == LAB | {"mine": Device("pi", "m")}, "and the project's own entry wins"
    assert devices.source_of(entries["desk"]) == folder / "devices.toml"
    assert devices.source_of(entries["mine"]) == users_file
    assert devices.source_of(Device("pi", "an address")) is None


COMMANDS = {
    "ssh_config": 'ssh_config = "config"\n',
    "run.health": "[pi.run]\nunit = 'a.service'\nhealth = 'x'\n",
    "run.restart and run.health": "[pi.run]\nrestart = 'y'\nhealth = 'x'\n",
    "power.command": "[pi.power]\ncommand = 'read-watts'\n",
    "run.scope": "[pi.run]\nunit = 'a.service'\nscope = 'system'\n",
}


@pytest.mark.parametrize("key", COMMANDS)
def test_a_list_that_nobody_named_may_run_no_commands(folder, monkeypatch, key):
    """It is in a checkout of anybody's; `status` there would run what stands in it."""
    (folder / "devices.toml").write_text(f'[pi]\nboard = "pi"\nhost = "h"\n{COMMANDS[key]}')
    (folder / "deep").mkdir()
    for current in (folder, folder / "deep"):
        monkeypatch.chdir(current)
        with pytest.raises(InputError, match=rf"device pi of .*devices\.toml has {key}, which runs commands") as caught:
            devices.load_devices()
        assert "--devices" in caught.value.hint
    monkeypatch.chdir(folder)
    entries = devices.load_devices(Path("devices.toml"))
    assert entries["pi"].ssh_config or entries["pi"].run or entries["pi"].power, "who names it has looked at it"
    monkeypatch.setenv("TOOLCHAIN_DEVICES", "devices.toml")
    assert devices.load_devices() == entries


def test_the_users_own_list_may_run_commands_and_a_units_name_is_none(folder):
    users_file = folder / "config" / "edge-toolchain" / "devices.toml"
    users_file.parent.mkdir(parents=True)
    users_file.write_text(f'[pi]\nboard = "pi"\nhost = "h"\n{COMMANDS["run.health"]}')
    (folder / "devices.toml").write_text("[a]\nboard = 'pi'\nhost = 'h'\n[a.run]\nunit = 'a.service'\n")
    entries = devices.load_devices()
    assert (entries["pi"].run.health, entries["a"].run.unit) == ("x", "a.service")


def test_devices_of_the_variable(folder, monkeypatch):
    (folder / "devices.toml").write_text("not TOML")
    (folder / "lab.toml").write_text(DEVICES)
    monkeypatch.setenv("TOOLCHAIN_DEVICES", "lab.toml")
    assert devices.load_devices() == LAB


def test_devices_of_the_variable_must_exist(folder, monkeypatch):
    (folder / "devices.toml").write_text(DEVICES)
    monkeypatch.setenv("TOOLCHAIN_DEVICES", "lab.toml")
    with pytest.raises(InputError, match=r"cannot read lab\.toml"):
        devices.load_devices()


@pytest.fixture
def farm(folder):
    """The devices file of a farm of virtual boards."""
    path = devices.farm_devices()
    path.parent.mkdir(parents=True)
    entry = 'board = "pi"\nhost = "virtual"\nssh_config = "ssh_config"\nemulated = true\n'
    path.write_text(f"[devices.desk]\n{entry}[devices.pi-1]\n{entry}")
    return path


def test_virtual_boards_are_devices_like_any_other(farm):
    device = devices.load_devices()["pi-1"]
    assert device == Device("pi", "virtual", ssh_config=farm.parent / "ssh_config", emulated=True)


def test_the_labs_own_device_wins_over_a_virtual_one(folder, farm):
    (folder / "devices.toml").write_text(DEVICES)
    entries = devices.load_devices()
    assert entries["desk"] == DESK
    assert entries["pi-1"].emulated


def test_a_named_file_stands_alone(folder, farm):
    (folder / "lab.toml").write_text(DEVICES)
    assert devices.load_devices(folder / "lab.toml") == LAB


def test_the_named_path_goes_before_the_variable(folder, monkeypatch):
    (folder / "lab.toml").write_text(DEVICES)
    monkeypatch.setenv("TOOLCHAIN_DEVICES", "missing.toml")
    assert devices.load_devices(Path("lab.toml")) == LAB


@pytest.mark.parametrize(
    ("name", "host", "expected"),
    [
        ("pi", "desk", DESK),
        ("pi", "shelf", SHELF),
        ("pi", "root@10.0.0.9", Device("pi", "root@10.0.0.9")),
        ("arm", None, FARM),
    ],
    ids=["by name", "another name", "by address", "the only one"],
)
def test_which_device(name, host, expected):
    assert devices.find_device(kind(name), host, LAB) == expected


def test_which_of_several_devices():
    with pytest.raises(InputError, match=r"which pi device\? There are 2: desk, shelf") as caught:
        devices.find_device(kind("pi"), None, LAB)
    assert "--host" in caught.value.hint


@pytest.mark.parametrize("lab", [LAB, {}])
def test_no_device_of_this_type(lab):
    with pytest.raises(InputError, match=r"which s390 device\?$"):
        devices.find_device(kind("s390"), None, lab)


def test_a_device_of_another_type():
    with pytest.raises(InputError, match="device farm is a arm, not a pi") as caught:
        devices.find_device(kind("pi"), "farm", LAB)
    assert "--board arm" in caught.value.hint


def test_this_machine_takes_no_host():
    with pytest.raises(InputError, match="takes no host"):
        devices.find_device(kind("local", "local"), "desk", LAB)


@pytest.mark.parametrize("host", [None, ""])
def test_this_machine_is_its_own_device(host):
    assert devices.find_device(kind("local", "local"), host, LAB) == Device("local", "local")


def test_an_entry_does_not_follow_whatever_device_is_attached(folder):
    (folder / "lab.toml").write_text("[phone]\nboard = 'pi'\nhost = 'adb:'\n")
    with pytest.raises(InputError, match=r"device phone of .* has the host adb:") as caught:
        devices.load_devices(folder / "lab.toml")
    assert "adb:SERIAL" in caught.value.hint


SLOTS = """
[kitchen]
board = "rpi4"
host = "me@10.0.0.7"
[kitchen.run]
unit = "main.service"
[kitchen.slots.detector.run]
restart = "restart"
health = "check"
"""


def test_each_slot_has_its_own_application(folder):
    (folder / "lab.toml").write_text(SLOTS)
    kitchen = devices.load_devices(folder / "lab.toml")["kitchen"]
    assert kitchen.for_slot("").run.unit == "main.service"
    assert kitchen.for_slot("detector").run.restart == "restart"
    assert kitchen.for_slot("classifier").run is None


@pytest.mark.parametrize("name", ["Detector", "a b", "..", "-x", "x" * 33])
def test_the_names_of_slots_are_checked(folder, name):
    (folder / "lab.toml").write_text(SLOTS.replace("slots.detector", f'slots."{name}"'))
    with pytest.raises(InputError) as caught:
        devices.load_devices(folder / "lab.toml")
    assert "kitchen.slots" in caught.value.details
    with pytest.raises(InputError, match="not the name of a slot"):
        devices.check_slot(name)


def test_the_commands_of_a_slot_are_commands_too(folder):
    (folder / "devices.toml").write_text(SLOTS)
    with pytest.raises(InputError, match=r"has slots.detector.run.restart and slots.detector.run.health, which runs"):
        devices.load_devices()
