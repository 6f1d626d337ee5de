"""What a farm writes, refuses and says, without a board; tests/integration/test_farm.py has real ones."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat

import pytest

from toolchain import board, resources
from toolchain import devices as lab
from toolchain.architecture import AARCH64, ARMV7L
from toolchain.errors import DeviceError, InputError
from toolchain.shell import SshOptions, open_shell
from toolchain.virtual import board as boards
from toolchain.virtual import container, emulation, fleet
from toolchain.virtual import image as images
from toolchain.virtual import machine as machines
from toolchain.virtual.board import Login, VirtualBoard

ROOT = resources.ROOT
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE8E4eAv2pBnHfdh"


class FakeBoards:
    """A kind of boards without containers or machines: a test sets the host key that they report."""

    def __init__(self):
        self.devices: dict[str, VirtualBoard] = {}
        self.reported_key = HOST_KEY + "\n"
        self.calls: list[str] = []

    def boards(self):
        return tuple(self.devices[name] for name in sorted(self.devices))

    def prepare(self, board, tell):
        tell(f"preparing {board.name}")
        self.calls.append(f"prepare {board.name}")

    def create(self, board, login, used_names):
        name = boards.next_name(board.name, used_names)
        self.devices[name] = VirtualBoard(
            name, board.name, "docker", port=2200 + len(self.devices), running=True, client=login.fingerprint
        )
        self.calls.append(f"create {name}")
        return self.devices[name]

    def start(self, device):
        self.devices[device.name] = dataclasses.replace(device, running=True)
        self.calls.append(f"start {device.name}")

    def stop(self, device):
        self.devices[device.name] = dataclasses.replace(device, running=False)
        self.calls.append(f"stop {device.name}")

    def remove(self, device):
        del self.devices[device.name]
        self.calls.append(f"remove {device.name}")

    def log(self, device):
        return f"last words of {device.name}"

    def host_key(self, device):
        return self.reported_key if device.running else ""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path))
    return tmp_path / "farm"


@pytest.fixture
def fake_boards(folder, monkeypatch):
    kind = FakeBoards()
    monkeypatch.setattr(fleet, "_kinds", lambda _folder: {"docker": kind, "kernel": FakeBoards(), "musl": FakeBoards()})
    monkeypatch.setattr(fleet, "_has_banner", lambda _port: True)
    return kind


# --- what is asked for ---


@pytest.mark.parametrize(
    ("text", "counts"),
    [("rpi4=2,pynq=1", {"rpi4": 2, "pynq": 1}), ("rpi4", {"rpi4": 1}), (" rpi4=1 , pynq ", {"rpi4": 1, "pynq": 1})],
)
def test_wanted(text, counts):
    assert fleet.parse_counts(text) == counts


@pytest.mark.parametrize("text", ["", ",", "=2", "rpi4=", "rpi4=two", "rpi4=-1", "rpi4=1,rpi4=2", "rpi4=1,", "a=1=2"])
def test_wanted_wrongly(text):
    with pytest.raises(InputError) as caught:
        fleet.parse_counts(text)
    assert "--virtual rpi4=2,pynq=1" in caught.value.hint


@pytest.mark.parametrize("count", [0, -1, fleet.MAX_PER_TYPE + 1])
def test_number_that_makes_no_sense(fake_boards, count):
    with pytest.raises(InputError, match="is not a valid number of virtual boards"):
        fleet.up({"rpi4": count})
    assert fake_boards.calls == []


def test_unknown_board_type(fake_boards):
    with pytest.raises(InputError) as caught:
        fleet.up({"rpi4": 1, "pinq": 1})
    assert caught.value.hint == "did you mean pynq?"
    assert fake_boards.calls == []


@pytest.mark.parametrize("name", ["local", "x86_64", "android-arm64"])
def test_boards_that_cannot_be_virtual(fake_boards, name):
    with pytest.raises(InputError, match="no virtual boards of type"):
        fleet.up({name: 1})
    assert fake_boards.calls == []


@pytest.mark.parametrize(
    ("name", "architecture", "cpu"),
    [("rpi4", "arm64", "cortex-a72"), ("rpi3b", "arm64", "cortex-a53"), ("pynq", "armhf", "cortex-a9")],
)
def test_architecture_and_cpu(name, architecture, cpu):
    assert boards.architecture(board.load(name)).debian == architecture
    assert boards.cpu(board.load(name)) == cpu


def test_cpu_that_qemu_does_not_know():
    rpi4 = board.load("rpi4")
    other = dataclasses.replace(rpi4, target=dataclasses.replace(rpi4.target, mcpu="cortex-x99"))
    assert boards.cpu(other) == "max"


@pytest.mark.parametrize(
    ("name", "cpu", "file"),
    [
        ("rpi4", "cortex-a72", "cpuinfo.arm64"),
        ("rpi5", "cortex-a76", "cpuinfo.arm64-v82"),
        ("rk3566", "cortex-a76", "cpuinfo.arm64-v82"),
        ("jetson-orin", "cortex-a76", "cpuinfo.arm64-v82"),
        ("imx8mp", "cortex-a53", "cpuinfo.arm64"),
        ("stm32mp25", "cortex-a35", "cpuinfo.arm64"),
        ("odroid-n2", "cortex-a53", "cpuinfo.arm64"),
        ("pynq", "cortex-a15", "cpuinfo.armhf"),
    ],
)
def test_an_emulated_cpu_has_what_the_board_file_needs(name, cpu, file):
    assert boards.system_cpu(board.load(name)) == cpu
    assert container.cpu_info_of(board.load(name)) == images.FOLDER / file


def test_names():
    assert boards.next_name("rpi4", []) == "rpi4-1"
    assert boards.next_name("rpi4", ["rpi4-1", "rpi4-3", "rpi3b-2"]) == "rpi4-2"


# --- images ---


@pytest.mark.parametrize(("dockerfile", "prefix"), [(images.USER_LAND, "board"), (images.MACHINE, "kernel")])
def test_boards_share_an_image_unless_they_compute_on_something_else(dockerfile, prefix):
    names = ["rpi4", "rpi3b", "pynq", "rk3399", "rk3588", "rk3399-cpu"]
    recipes = {name: images.recipe_for(dockerfile, board.load(name)) for name in names}
    assert {name: recipe.name for name, recipe in recipes.items()} == {
        "rpi4": f"{prefix}-arm64",
        "rpi3b": f"{prefix}-arm64",
        "pynq": f"{prefix}-armhf",
        "rk3399": f"{prefix}-arm64-opencl",
        "rk3588": f"{prefix}-arm64-opencl",
        "rk3399-cpu": f"{prefix}-arm64",
    }
    plain, other = recipes["rpi4"], recipes["rk3399"]
    assert plain.labels == other.labels
    assert plain.arguments["PACKAGES"] == "docker/board/packages"
    assert other.arguments == plain.arguments | {"PACKAGES": "docker/board/packages.opencl"}
    assert set(other.copied) - set(plain.copied) == {images.FOLDER.relative_to(ROOT) / "packages.opencl"}


def test_boards_with_musl_have_an_image_of_their_own():
    plain = images.recipe_for(images.USER_LAND, board.load("rpi4"))
    for name in ("rpi4", "rk3399"):  # which has no OpenCL then
        small = images.recipe_for(images.USER_LAND, board.load(name), musl=True)
        assert small.name == "board-arm64-musl"
        assert small.arguments == plain.arguments | {"PACKAGES": "docker/board/packages.musl"}
        assert set(small.copied) - set(plain.copied) == {images.FOLDER.relative_to(ROOT) / "packages.musl"}


def test_more_packages_change_the_images_that_have_them(tmp_path, monkeypatch):
    for folder in ("boards", "docker"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.setattr(resources, "ROOT", tmp_path)
    monkeypatch.setattr(images, "FOLDER", tmp_path / "docker" / "board")

    def digests():
        recipes = [images.recipe_for(images.USER_LAND, board.load(name)) for name in ("rpi4", "rk3399")]
        return [recipe.digest({}) for recipe in recipes]

    before = digests()
    with (tmp_path / "docker" / "board" / "packages.opencl").open("a") as packages:
        packages.write("clinfo\n")
    after = digests()
    assert after[0] == before[0]
    assert after[1] != before[1]


# --- what is written ---


def test_files(fake_boards, folder):
    started = fleet.up({"rpi4": 2, "pynq": 1})
    assert [device.name for device in started] == ["pynq-1", "rpi4-1", "rpi4-2"]
    devices = lab.load_devices()
    assert devices["rpi4-2"] == lab.Device("rpi4", "rpi4-2", ssh_config=folder / "ssh_config", emulated=True)
    assert (folder / "known_hosts").read_text() == "".join(f"{device.name} {HOST_KEY}\n" for device in started)
    config = (folder / "ssh_config").read_text()
    assert (
        f"Host rpi4-1\n  HostName 127.0.0.1\n  HostKeyAlias rpi4-1\n  Port {started[1].port}\n  User board\n" in config
    )
    assert stat.S_IMODE((folder / "id_ed25519").stat().st_mode) == 0o600
    assert fleet.down(["rpi4-1"]) == ("rpi4-1",)
    assert set(lab.load_devices()) == {"rpi4-2", "pynq-1"}
    assert "rpi4-1" not in (folder / "ssh_config").read_text() + (folder / "known_hosts").read_text()
    fleet.down()
    assert not folder.exists()


def test_our_shell_reads_the_ssh_config(fake_boards, folder):
    fleet.up({"rpi4": 1})
    with pytest.raises(DeviceError) as caught:  # nobody listens there
        open_shell("rpi4-1", config=SshOptions(config_file=folder / "ssh_config", agent=False))
    assert "board@127.0.0.1:2200" in caught.value.message


@pytest.mark.parametrize(
    "reported_key",
    [
        "",
        "garbage",
        "ssh-rsa AAAA",
        f"{HOST_KEY}\nother-host ssh-ed25519 AAAA",
        f"{HOST_KEY} @revoked\r* x",
        "ssh-ed25519",
    ],
)
def test_host_key_that_is_none_is_not_trusted(fake_boards, folder, reported_key):
    fake_boards.reported_key = reported_key
    fleet.up({"rpi4": 1})
    assert (folder / "known_hosts").read_text() == ""
    assert lab.load_devices() == {}


@pytest.mark.parametrize("name", ["with space", 'quo"te', "per%cent", "hash#", "tick'", "dollar$"])
def test_folder_that_ssh_config_cannot_name(tmp_path, monkeypatch, name):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / name))
    with pytest.raises(InputError) as caught:
        fleet.status()
    assert "TOOLCHAIN_CACHE" in caught.value.hint
    assert not (tmp_path / name).exists()


def test_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot write"):
        fleet.up({"rpi4": 1})


# --- up and down ---


def test_up_is_idempotent_and_never_takes_away(fake_boards):
    fleet.up({"rpi4": 2})
    fake_boards.calls.clear()
    assert len(fleet.up({"rpi4": 1})) == 2
    assert fake_boards.calls == ["prepare rpi4"]


def test_stopped_boards_are_started_before_new_ones_are_made(fake_boards):
    first = fleet.up({"rpi4": 2})
    fake_boards.stop(first[0])
    fake_boards.calls.clear()
    fleet.up({"rpi4": 3})
    assert fake_boards.calls == ["prepare rpi4", "start rpi4-1", "create rpi4-3"]


def test_stopped_boards_that_nobody_asks_for_stay_stopped(fake_boards):
    first = fleet.up({"rpi4": 2})
    fake_boards.stop(first[1])
    assert [device.name for device in fleet.up({"rpi4": 1})] == ["rpi4-1"]
    assert list(lab.load_devices()) == ["rpi4-1"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, DeviceError("x"), MemoryError])
def test_failed_up_is_undone(fake_boards, folder, monkeypatch, fault):
    first = fleet.up({"rpi4": 2})
    fake_boards.stop(first[1])
    before = fake_boards.boards()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fails(*_arguments):
        raise fault

    monkeypatch.setattr(fleet, "_await_banner", fails)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whichever of the three
        fleet.up({"rpi4": 3, "pynq": 1})
    assert caught.type is (fault if isinstance(fault, type) else type(fault))
    assert fake_boards.boards() == before
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_board_that_ends_before_it_answers(fake_boards, monkeypatch):
    monkeypatch.setattr(
        fleet, "_has_banner", lambda _port: [fake_boards.stop(device) for device in fake_boards.boards()] and False
    )
    with pytest.raises(DeviceError, match="rpi4-1 ended before its SSH server answered") as caught:
        fleet.up({"rpi4": 1})
    assert caught.value.details == "last words of rpi4-1"
    assert fake_boards.boards() == ()


def test_down_of_an_unknown_board(fake_boards):
    fleet.up({"rpi4": 1})
    with pytest.raises(InputError) as caught:
        fleet.down(["rpi4-1", "rpi4-11"])
    assert caught.value.hint == "did you mean rpi4-1?"
    assert len(fake_boards.boards()) == 1


def test_no_engine(folder, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/nobody.sock")
    for command in (fleet.status, fleet.down, lambda: fleet.up({"rpi4": 1})):
        with pytest.raises(DeviceError, match="none is running") as caught:
            command()
        assert "DOCKER_HOST" in caught.value.hint
    assert not folder.exists()


# --- emulation ---


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A kernel that has binfmt_misc but no rule, and a user who may not change that."""
    rules, recipes = tmp_path / "binfmt_misc", tmp_path / "binfmt.d"
    rules.mkdir()
    recipes.mkdir()
    (rules / "register").touch()
    (recipes / "qemu-aarch64.conf").write_text(":qemu-aarch64:M::magic:mask:interpreter:OPF\n")
    monkeypatch.setattr(emulation, "RULES", rules)
    monkeypatch.setattr(emulation, "RECIPES", recipes)
    monkeypatch.setattr(emulation.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(emulation.os, "geteuid", lambda: 1000)
    return rules


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        (None, "is missing"),
        ("disabled\nflags: POF\n", "switched off"),
        ("enabled\nflags: PO\n", "lacks flag F"),
        ("enabled\ninterpreter /usr/bin/F\nflags: \n", "lacks flag F"),
        ("enabled\ninterpreter /usr/bin/x\nflags: POF\n", ""),
    ],
)
def test_rule_of_the_kernel(kernel, rule, fault):
    if rule is not None:
        (kernel / "qemu-aarch64").write_text(rule)
    assert fault in emulation.fault(AARCH64)
    assert bool(emulation.fault(AARCH64)) == bool(fault)


def test_who_is_not_root_reads_what_helps(kernel):
    with pytest.raises(DeviceError) as caught:
        emulation.ensure(AARCH64, print)
    assert "qemu-aarch64 is missing" in caught.value.details
    assert caught.value.hint == f"sudo sh -c 'cat {emulation.RECIPES}/qemu-aarch64.conf >{kernel}/register'"
    (kernel / "qemu-aarch64").write_text("enabled\nflags: PO\n")
    with pytest.raises(DeviceError) as caught:
        emulation.ensure(AARCH64, print)
    assert f"echo -1 >{kernel}/qemu-aarch64; " in caught.value.hint


def test_qemu_is_not_installed(kernel):
    with pytest.raises(DeviceError) as caught:
        emulation.ensure(ARMV7L, print)
    assert caught.value.hint == "apt-get install qemu-user-static"


def test_root_adds_the_rule_and_says_so(kernel, monkeypatch):
    monkeypatch.setattr(emulation.os, "geteuid", lambda: 0)
    messages: list[str] = []
    with pytest.raises(DeviceError):  # a file takes the recipe, but makes no rule of it
        emulation.ensure(AARCH64, messages.append)
    assert (kernel / "register").read_text() == (emulation.RECIPES / "qemu-aarch64.conf").read_text()
    assert "adding a kernel rule to run arm64 programs" in messages[0]


def test_own_architecture_needs_no_rule(kernel, monkeypatch):
    monkeypatch.setattr(emulation.platform, "machine", lambda: "aarch64")
    assert emulation.fault(AARCH64) == ""
    assert emulation.fault(ARMV7L) != ""


# --- machines ---


@pytest.fixture
def machine(folder):
    """A machine that was made and does not run."""
    machine_folder = folder / "machines" / "pynq-1"
    machine_folder.mkdir(parents=True)
    settings = machines._Settings("pynq", "armhf", "cortex-a15", 2222, "image", "ssh-ed25519 AAAA", "client")
    (machine_folder / "machine.json").write_bytes(machines.files.canonical_json(dataclasses.asdict(settings)))
    return machine_folder


def test_machine_is_found(machine, folder):
    kind = machines.KernelBoards(folder)
    (device,) = kind.boards()
    assert device == VirtualBoard("pynq-1", "pynq", "kernel", 2222, running=False, client="client")
    (machine / "console.log").write_bytes(
        b"[ 0.1] x\r\nboard-host-key: " + HOST_KEY.encode() + b" \r\nboard-host-key: x\r\n"
    )
    assert kind.host_key(device) == HOST_KEY
    kind.remove(device)
    assert kind.boards() == ()
    assert not machine.parent.exists()


def test_command_of_a_machine(machine, folder):
    command = machines._command(machine, machines._read(machine))
    assert command[0] == "qemu-system-arm"
    assert "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:2222-:22" in command
    assert command[command.index("-append") + 1].endswith("board.name=pynq-1 board.key=ssh-ed25519,AAAA")
    assert any("readonly=on" in argument and "root.ext4" in argument for argument in command)


def test_process_number_of_somebody_else(machine):
    (machine / "pid").write_text(f"{os.getpid()}\n")
    assert machines._process(machine) is None
    machines._kill(machine)  # which would have ended this test
    (machine / "pid").write_text("nonsense\n")
    assert machines._process(machine) is None


def test_machine_whose_image_is_gone(machine, folder):
    kind = machines.KernelBoards(folder)
    with pytest.raises(DeviceError) as caught:
        kind.start(kind.boards()[0])
    assert caught.value.hint == "toolchain farm down pynq-1"


def test_what_a_killed_command_left_is_swept(machine, folder, monkeypatch):
    (machine / "machine.json").unlink()
    kind = machines.KernelBoards(folder)
    monkeypatch.setattr(machines, "_boot", lambda *_arguments: None)
    kind._images["pynq"] = "image"
    created = kind.create(board.load("pynq"), Login("ssh-ed25519 AAAA", "client"), [])
    assert created.name == "pynq-1"
    assert (machine / "machine.json").is_file()
