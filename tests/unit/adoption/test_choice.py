"""Which board type a device is of."""

from __future__ import annotations

import tomllib

import pytest

from tests.support.devices_said import A53, A72, A76, ARMV8, ARMV82, cores, probed
from toolchain.adoption import choice
from toolchain.errors import InputError, VerificationError


@pytest.fixture(autouse=True)
def own_boards(tmp_path, monkeypatch):
    """Boards of the tester's own are none of these."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize(
    ("lines", "values", "name"),
    [
        ([], {}, "rpi4"),
        (cores(*[(A53, ARMV8)] * 4), {}, "rpi3b"),
        (cores(*[(A53, ARMV8)] * 4, *[(A72, ARMV8)] * 2), {"cpus": "6"}, "rk3399-cpu"),
    ],
)
def test_one_that_there_is(lines, values, name):
    chosen = choice.choose(probed(values, lines), "", "")
    assert (chosen.board.name, chosen.text) == (name, "")


def test_a_zynq():
    lines = cores(*[(("0x41", "0xc09"), "half thumb neon vfpv3")] * 2)
    chosen = choice.choose(probed({"machine": "armv7l", "bits": "32", "cpus": "2"}, lines), "", "")
    assert chosen.board.name == "pynq"


def test_a_new_one_where_none_fits():
    chosen = choice.choose(probed({"model": "Orange Pi 5 Rev 1"}, cores(*[(A76, ARMV82)] * 4)), "", "")
    table = tomllib.loads(chosen.text)
    assert chosen.board.name == "orange-pi-5"
    assert table["target"] == {"kind": "llvm", "mcpu": "cortex-a76", "mattr": ["+neon"]}
    assert (table["machine"], table["triple"], table["cores"]) == ("aarch64", "aarch64-linux-gnu", 4)
    assert (table["toolchain"], table["image"]) == ("container", "mali")


def test_32_bits_on_a_kernel_of_64():
    chosen = choice.choose(probed({"bits": "32"}, []), "", "")
    assert chosen.board.name == "raspberry-pi-4-model-b-armv7"
    assert (chosen.board.machine, chosen.board.triple) == ("armv7l", "arm-linux-gnueabihf")
    assert (chosen.board.target.mcpu, chosen.board.target.mattr) == ("cortex-a72", ("+neon",))


def test_a_new_one_is_found_the_next_time(tmp_path, monkeypatch):
    device = probed({"bits": "32"})
    first = choice.choose(device, "", "")
    folder = tmp_path / "config" / "edge-toolchain" / "boards"
    folder.mkdir(parents=True)
    (folder / f"{first.board.name}.toml").write_text(first.text)
    second = choice.choose(device, "", "")
    assert (second.board.name, second.text) == (first.board.name, "")


@pytest.mark.parametrize(
    "model", ["../../etc/passwd", "foo.toml", "a" * 500, "\\x1b[31m", "---", "", "x\"]\nmachine = 'y'"]
)
def test_a_hostile_model_makes_a_plain_name(model):
    chosen = choice.choose(probed({"model": model}, cores((A76, ARMV82))), "", "")
    assert chosen.text
    assert chosen.board.name.replace("-", "").isalnum()
    assert len(chosen.board.name) <= 60
    assert tomllib.loads(chosen.text)["machine"] == "aarch64"


def test_the_name_is_the_users():
    chosen = choice.choose(probed(lines=cores((A76, ARMV82))), "", "bench-3")
    assert chosen.board.name == "bench-3"
    assert choice.choose(probed(lines=cores((A76, ARMV82))), "opi", "bench-3").board.name == "opi"


def test_a_name_made_of_a_devices_is_no_path():
    assert choice.choose(probed(lines=cores((A76, ARMV82))), "", "bench.toml").board.name == "bench-toml"


@pytest.mark.parametrize("name", ["TMP/mine", "../x", "boards/my", ".x", "-x", "a b", "a\n", "x" * 64, "é"])
def test_a_name_is_no_path(name, tmp_path, monkeypatch):
    """Or a file of the user's would be written over."""
    monkeypatch.chdir(tmp_path)
    board_name = name.replace("TMP", str(tmp_path))
    mine = tmp_path / "mine.toml"
    mine.write_text("mine")
    with pytest.raises(InputError, match="not a valid name of a board type"):
        choice.choose(probed(lines=cores((A76, ARMV82))), board_name, "")
    assert mine.read_text() == "mine"
    assert list(tmp_path.rglob("*.toml")) == [mine]


def test_a_board_that_is_no_such_board():
    with pytest.raises(VerificationError, match="is not a pynq"):
        choice.choose(probed(), "pynq", "")
    with pytest.raises(VerificationError, match="is not a local"):
        choice.choose(probed(), "local", "")


def test_a_plainer_board_may_be_named():
    chosen = choice.choose(probed(), "rpi3b", "")
    assert (chosen.board.name, chosen.text) == ("rpi3b", "")
    assert any("cortex-a53" in note for note in chosen.notes)


def test_an_unknown_core_is_told():
    chosen = choice.choose(probed(lines=cores((("0x48", "0xabc"), ARMV82))), "", "")
    assert chosen.board.target.mcpu == "generic"
    assert chosen.board.cpu_features == ("asimd", "asimddp", "asimdhp")
    assert any("0x48, 0xabc" in note for note in chosen.notes)


def test_boards_of_what_computes_there_are_offered():
    lines = [*cores(*[(A72, ARMV8)] * 4), "library.opencl=/usr/lib/libmali.so"]
    lines += ["device.opencl=rw video /dev/mali0", "kind.opencl=/dev/mali0"]
    assert choice.choose(probed(lines=lines), "", "").accelerated == ("rk3399",)
    assert not choice.choose(probed(), "", "").accelerated


@pytest.mark.parametrize(
    "lines",
    [
        ["device.opencl=rw render /dev/dri/renderD128"],
        ["device.opencl=rw render /dev/dri/renderD128", "library.opencl=/usr/lib/libOpenCL.so.1"],
        ["device.opencl=rw video /dev/mali0", "kind.opencl=/dev/mali0"],
        ["library.opencl=/usr/lib/libOpenCL.so.1"],
    ],
    ids=["any-gpu", "another-gpu", "no-library", "no-device"],
)
def test_a_gpu_alone_is_no_mali(lines):
    """As a Raspberry Pi's is none."""
    assert not choice.choose(probed(lines=[*cores(*[(A72, ARMV8)] * 4), *lines]), "", "").accelerated


def test_an_fpga_alone_is_no_zynq():
    lines = cores(*[(("0x41", "0xc09"), "half thumb neon vfpv3")] * 2)
    lines += ["device.vta=rw root /sys/class/fpga_manager/fpga0/flags"]
    values = {"machine": "armv7l", "bits": "32", "cpus": "2"}
    assert not choice.choose(probed(values, lines), "", "").accelerated
    lines += ["kind.vta=/sys/bus/platform/drivers/zynq_fpga_manager/f8007000.devcfg"]
    assert choice.choose(probed(values, lines), "", "").accelerated == ("pynq-z1",)


def test_big_cores_are_an_offer():
    chosen = choice.choose(probed({"cpus": "6"}, cores(*[(A53, ARMV8)] * 4, *[(A72, ARMV8)] * 2)), "", "")
    assert any("--threads 2" in note for note in chosen.notes)


def test_android_has_boards_of_its_own():
    chosen = choice.choose(probed({"android": "30", "libc": None}), "", "")
    assert chosen.board.triple == "aarch64-linux-android24"
    assert chosen.board.root.startswith("/data/local/tmp")
