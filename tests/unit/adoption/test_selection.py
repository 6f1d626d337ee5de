"""Which board type a device is of where no command line says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.devices_said import A53, A72, A76, ARMV8, ARMV82, cores, probed
from toolchain import board
from toolchain.adoption import selection
from toolchain.device import probe
from toolchain.devices import Device
from toolchain.errors import DeviceError, InputError, VerificationError

V4 = "avx512f avx512bw avx512cd avx512dq avx512vl avx2 fma bmi1 bmi2 f16c movbe abm sse4_2 ssse3 popcnt cx16"
V3 = "avx2 fma bmi1 bmi2 f16c movbe abm sse4_2 ssse3 popcnt cx16"
X86 = {"machine": "x86_64", "model": ""}


@pytest.fixture(autouse=True)
def own_boards(tmp_path, monkeypatch):
    """Boards of the tester's own are none of these."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def x86(flags: str) -> list[str]:
    return [line for cpu in range(4) for line in (f"cpu processor={cpu}", f"cpu flags=fpu sse2 {flags}")]


def answering(monkeypatch, values, lines):
    monkeypatch.setattr(probe, "ask", lambda *_arguments: probed(values, lines))


@pytest.mark.parametrize(
    ("flags", "name", "reason"),
    [
        (f"{V4} avx512_vnni", "x86_64-v4-vnni", "the device's CPU has AVX-512 with VNNI"),
        (V4, "x86_64-v4", "the device's CPU has AVX-512"),
        (V3, "x86_64-v3", "the device's CPU has AVX2 and FMA"),
        (f"{V3} avx512_vnni", "x86_64-v3", "the device's CPU has AVX2 and FMA"),
        ("sse4_2 ssse3 popcnt cx16", "x86_64-v2", "the device's CPU has SSE4.2"),
        ("", "x86_64", "the device's CPU has SSE2"),
    ],
)
def test_each_level_has_a_shipped_file(monkeypatch, own_boards, flags, name, reason):
    answering(monkeypatch, X86, x86(flags))
    selected = selection.select(None)
    assert (selected.board.name, selected.reason, selected.is_new, selected.emulated) == (name, reason, False, False)
    assert selected.sentence("me@h") == f"board {name}: {reason}"
    assert not own_boards.exists()


def test_a_cpu_that_says_nothing_of_itself_gets_the_baseline(monkeypatch):
    answering(monkeypatch, X86, ["cpu processor=0"])
    assert selection.select(None).board.name == "x86_64"


@pytest.mark.parametrize(
    ("lines", "name", "cpu"),
    [(cores(*[(A72, ARMV8)] * 4), "rpi4", "cortex-a72"), (cores(*[(A53, ARMV8)] * 4), "rpi3b", "cortex-a53")],
)
def test_an_arm_board(monkeypatch, lines, name, cpu):
    answering(monkeypatch, {}, lines)
    selected = selection.select(None)
    assert (selected.board.name, selected.reason) == (name, f"the device's CPU is a {cpu}")


def test_a_new_board_type_is_not_written(monkeypatch, own_boards):
    answering(monkeypatch, {"model": "Orange Pi 5"}, cores(*[(A76, ARMV82)] * 4))
    selected = selection.select(None)
    assert (selected.board.name, selected.is_new) == ("orange-pi-5", True)
    assert "it has no file, `toolchain board add me@h` writes one" in selected.sentence("me@h")
    assert not own_boards.exists()
    assert selection.select(None).board == selected.board


def test_an_unknown_cpu(monkeypatch):
    answering(monkeypatch, {}, cores((("0x48", "0xabc"), ARMV82)))
    assert "is unknown here: it has +neon, +dotprod" in selection.select(None).reason


def test_an_emulator_is_marked(monkeypatch):
    answering(monkeypatch, {"kernel_arch": "x86_64"}, ())
    selected = selection.select(None)
    assert selected.emulated
    assert "shows signs of an emulator" in selected.sentence("me@h")


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"libc": "musl libc"}, VerificationError),
        ({"machine": "s390x"}, VerificationError),
        ({"lacks": "flock"}, DeviceError),
    ],
)
def test_what_no_release_runs_on_is_refused(monkeypatch, values, fault):
    answering(monkeypatch, values, ())
    with pytest.raises(fault):
        selection.select(None)


LAB = {
    "bench": Device("rpi4", "me@10.0.0.7"),
    "other": Device("rpi3b", "me@10.0.0.8"),
    "twice": Device("rpi4", "me@10.0.0.9"),
    "again": Device("rpi3b", "me@10.0.0.9"),
    "alias": Device("rpi4", "board", ssh_config=Path("config")),
    "lost": Device("rpi9", "me@10.0.0.10"),
}


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("bench", "rpi4"),
        ("me@10.0.0.8", "rpi3b"),
        ("me@10.0.0.9", None),  # two entries disagree
        ("board", None),  # an alias that means something in that entry's configuration alone
        ("me@10.0.0.77", None),
        ("adb:serial", None),
    ],
)
def test_what_the_lists_say(device, name):
    entry = selection.listed(device, LAB)
    assert (entry and entry.name) == name


def test_an_entry_of_a_board_type_without_a_file():
    with pytest.raises(InputError, match="device lost is a rpi9 in") as caught:
        selection.listed("lost", LAB)
    assert caught.value.hint.startswith("did you mean rpi")


def test_every_level_has_its_shipped_file_with_its_flags():
    from toolchain.device.probe import hardware_tables

    for level in hardware_tables.cpus().levels["x86_64"]:
        kind = board.load(level.board.removesuffix("-base"))
        assert (kind.target.mcpu, kind.target.mattr) == (level.mcpu, level.mattr)
        assert kind.cpu_features == level.flags
        assert set(level.speed) == {"float32", "int8"}
