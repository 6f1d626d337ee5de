"""Which board type a device gets, by the real script on the files of tests/data/devices (from public sources)."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support import paths
from toolchain import board as boards
from toolchain.adoption import choice, selection
from toolchain.device import probe
from toolchain.device.probe import DeviceProbe, hardware_tables, script
from toolchain.device.probe.answer import Answer

DEVICES = paths.DATA / "devices"
TOKEN = "0123456789abcdef"  # noqa: S105 - it keeps nothing secret

# The board type of each device; of the others, the LLVM name in the new file.
EXISTING = {
    "beagley-ai": "beagley-ai",
    "imx8mp": "imx8mp",
    "imx93": "imx93",
    "jetson-orin": "jetson-orin",
    "n100": "n100",
    "orangepi-zero2": "rpi3b",  # no file names it: one for any device with such CPUs
    "rk3399-cpu": "rk3399-cpu",
    "rk3566": "rk3566",
    "rk3588-cpu": "rk3588-cpu",
    "rk3588s": "rk3588-cpu",
    "rpi-zero2w": "rpi-zero2w",
    "rpi3b": "rpi3b",
    "rpi4": "rpi4",
    "rpi5": "rpi5",
    "ryzen-v1000": "ryzen-v1000",
    "spacemit-k1": "spacemit-k1",
    "stm32mp25": "stm32mp25",
}
NEW = {"jetson-xavier": "carmel", "odroid-c4": "cortex-a55", "orion-o6": "cortex-a720"}


@pytest.fixture(autouse=True)
def own_boards(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def write_files(name: str, root: Path) -> None:
    """Write the files of a device below a folder."""
    for line in (DEVICES / name / "files").read_text().splitlines():
        path, _, content = line.partition(":")
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content.replace("\\0", "\0") + ("" if content.endswith("\\0") else "\n"))
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc" / "cpuinfo").write_text((DEVICES / name / "cpuinfo").read_text())


def probed(name: str, folder: Path) -> DeviceProbe:
    """Run the script of `board add` with the files of a device instead of this machine's."""
    write_files(name, folder)
    cpus = len(re.findall(r"(?m)^processor", (DEVICES / name / "cpuinfo").read_text()))
    is_arm = (folder / "proc" / "device-tree").exists()
    machine = "riscv64" if "isa\t" in (DEVICES / name / "cpuinfo").read_text() else "aarch64" if is_arm else "x86_64"
    (folder / "bin").mkdir()
    kernel = f"case $1 in -m) echo {machine} ;; -s) echo Linux ;; *) echo 6.12.0 ;; esac"
    for command, output in (("uname", kernel), ("nproc", f"echo {cpus}")):
        (folder / "bin" / command).write_text(f"#!/bin/sh\n{output}\n")
        (folder / "bin" / command).chmod(0o755)
    text = re.sub(r"(?<![\w/])/(proc|sys)/", rf"{folder}/\1/", script.text(TOKEN, "", hardware_tables.accelerators()))
    environment = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder)}
    completed = subprocess.run(["/bin/sh", "-c", text], env=environment, capture_output=True, text=True, check=True)
    return probe.read(Answer(completed.stdout, TOKEN, "me@board"), "me@board")


def test_every_device_has_its_row():
    assert {path.name for path in DEVICES.iterdir() if path.is_dir()} == EXISTING.keys() | NEW.keys()


def test_every_named_board_has_a_device():
    boards_with_names = {name for name in boards.names() if choice.has_names(boards.load(name))}
    assert boards_with_names <= set(EXISTING.values())


@pytest.mark.parametrize(("name", "board"), EXISTING.items())
def test_a_device_of_a_board_file(name, board, tmp_path):
    device = probed(name, tmp_path)
    chosen = choice.choose(device, "", "")
    assert (chosen.board.name, chosen.text) == (board, "")
    assert not [note for note in chosen.notes if "kernels are scheduled" in note or "compiles for" in note]


@pytest.mark.parametrize(("name", "mcpu"), NEW.items())
def test_a_device_without_a_board_file(name, mcpu, tmp_path):
    chosen = choice.choose(probed(name, tmp_path), "", "")
    target = tomllib.loads(chosen.text)["target"]
    assert target == {"kind": "llvm", "mcpu": mcpu, "mattr": ["+neon"]}


def test_cores_of_two_kinds(tmp_path):
    device = probed("rk3588-cpu", tmp_path)
    clusters = [(cluster.count, cluster.name, cluster.max_mhz) for cluster in device.clusters]
    assert clusters == [(2, "cortex-a76", 2352), (2, "cortex-a76", 2304), (4, "cortex-a55", 1800)]
    (note,) = choice.choose(device, "", "").notes
    assert note.startswith(
        "board rk3588-cpu has 4 cortex-a76 and 4 cortex-a55: a model runs with 4 threads, on the fastest"
    )


def test_cores_of_two_kinds_that_are_all_used(tmp_path):
    (note,) = choice.choose(probed("rk3399-cpu", tmp_path), "", "").notes
    assert note.startswith("board rk3399-cpu has 2 cortex-a72 and 4 cortex-a53: a model runs with a thread on each")


def test_the_names_of_a_device_tree(tmp_path):
    device = probed("jetson-orin", tmp_path)
    assert device.compatible == ("nvidia,p3768-0000+p3767-0005", "nvidia,p3767-0005", "nvidia,tegra234")
    assert device.model == "NVIDIA Jetson Orin Nano Developer Kit"
    assert device.clusters[0].caches == (("l1d", 64), ("l1i", 64), ("l2", 256), ("l3", 2048))


def answer(machine: str, *lines: str) -> DeviceProbe:
    text = "\n".join([f"begin={TOKEN}", f"machine={machine}", "libc=glibc 2.36", *lines, f"end={TOKEN}"])
    return probe.read(Answer(text, TOKEN, "me@board"), "me@board")


def test_a_board_that_lacks_a_feature_gets_a_file_of_its_own():
    """As in a virtual machine that hides dot products: code for the board type would not run there."""
    cpu = ("cpu processor=0", "cpu Features=fp asimd asimdhp", "cpu CPU implementer=0x41", "cpu CPU part=0xd0b")
    chosen = choice.choose(answer("aarch64", "compatible=brcm,bcm2712", *cpu), "", "")
    assert chosen.text
    assert chosen.board.target.mattr == ("+neon", "-dotprod")


def test_the_reason_for_a_named_cpu(tmp_path):
    device = probed("n100", tmp_path)
    assert selection.reason(choice.choose(device, "", ""), device) == "the device's CPU is Intel(R) N100"


def test_an_n100_without_its_instructions_is_any_x86():
    """As in a virtual machine that hides AVX-VNNI."""
    text = (DEVICES / "n100" / "cpuinfo").read_text().replace(" avx_vnni", "")
    lines = [
        f"cpu {match[1]}={match[2]}" for match in re.finditer(r"(?m)^(processor|model name|flags)\s*: (.*)$", text)
    ]
    assert choice.choose(answer("x86_64", *lines), "", "").board.name == "x86_64-v3"
