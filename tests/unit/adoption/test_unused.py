"""What a device's CPU has and a board type leaves unused."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.devices_said import A72, A76, ARMV8, ARMV82, cores, probed
from tests.unit.adoption.test_selection import V3, V4, X86, x86
from toolchain import board
from toolchain.adoption import unused
from toolchain.device import probe
from toolchain.device.probe import hardware_tables
from toolchain.device.probe.facts import DeviceFacts
from toolchain.errors import DeviceError
from toolchain.shell import LocalShell


@pytest.fixture(autouse=True)
def own_boards(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def facts(flags: str, machine: str = "x86_64") -> DeviceFacts:
    return DeviceFacts(machine, "Linux", "2.36", "a CPU", tuple(flags.split()), 4, 1 << 20, 1 << 20, ())


def instructions(name: str, flags: str, machine: str = "x86_64") -> str:
    return unused.instructions(board.load(name).resolved(), facts(flags, machine))


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("x86_64", f"{V4} avx512_vnni", "AVX-512 with VNNI"),
        ("x86_64", V4, "AVX-512"),
        ("x86_64", V3, "AVX2 and FMA"),
        ("x86_64-v3", V4, "AVX-512"),
        ("x86_64-v4", f"{V4} avx512_vnni", "AVX-512 with VNNI"),
        ("x86_64-v4-vnni", f"{V4} avx512_vnni", ""),
        ("x86_64-v4", V4, ""),
        ("x86_64-v3", V3, ""),
        ("x86_64", "", ""),
        ("x86_64", "sse2", ""),
        ("local", f"{V4} avx512_vnni", ""),
        ("vta-sim-x86_64", f"{V4} avx512_vnni", ""),
    ],
)
def test_on_x86(name, flags, expected):
    assert instructions(name, flags) == expected


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("rpi4", ARMV82, "dot products (int8 models)"),
        ("android-arm64", ARMV82, "dot products (int8 models)"),
        ("rpi4", ARMV8, ""),
        ("rk3588", ARMV82, ""),  # its GPU computes
    ],
)
def test_on_arm(name, flags, expected):
    assert instructions(name, flags, "aarch64") == expected


def test_what_the_name_of_a_core_stands_for_is_used():
    kind = board.load("rpi4").resolved()
    for mcpu, mattr, expected in (
        ("cortex-a76", ("+neon",), ""),
        ("cortex-a76", ("-dotprod",), "dot products (int8 models)"),
        ("cortex-a72", ("+dotprod",), ""),
        ("nobody-knows", (), ""),
    ):
        target = dataclasses.replace(kind.target, mcpu=mcpu, mattr=mattr)
        assert unused.instructions(dataclasses.replace(kind, target=target), facts(ARMV82, "aarch64")) == expected


def test_a_named_x86_cpu_is_left_alone():
    kind = board.load("x86_64").resolved()
    kind = dataclasses.replace(kind, target=dataclasses.replace(kind.target, mcpu="znver3"))
    assert unused.instructions(kind, facts(V4)) == ""


def warned(monkeypatch, name, device_probe, flags, machine="x86_64", **options):
    monkeypatch.setattr(probe, "ask", lambda *_arguments: device_probe)
    return unused.warning(board.load(name).resolved(), facts(flags, machine), LocalShell(), **options)


def test_the_warning_names_the_board_and_the_factor(monkeypatch):
    best = hardware_tables.cpus().levels["x86_64"][0]
    text = warned(monkeypatch, "x86_64", probed(X86, x86(f"{V4} avx512_vnni")), f"{V4} avx512_vnni")
    assert text.startswith("board x86_64 leaves unused what the device's CPU has: AVX-512 with VNNI; ")
    factor = best.speed["float32"]
    assert f"float32 networks about {factor:.{0 if factor >= 3 else 1}f} times" in text
    assert text.endswith(": --board x86_64-v4-vnni")
    listed = warned(monkeypatch, "x86_64", probed(X86, x86(V3)), V3, listed="lab.toml")
    assert listed.endswith(': board = "x86_64-v3" in lab.toml')


def test_only_int8_gains_by_vnni(monkeypatch):
    flags = f"{V4} avx512_vnni"
    text = warned(monkeypatch, "x86_64-v4", probed(X86, x86(flags)), flags)
    assert "runs int8 networks about" in text
    assert "float32" not in text


def test_where_a_board_type_is_to_be_written(monkeypatch):
    text = warned(monkeypatch, "rpi4", probed({"model": "Opi"}, cores(*[(A76, ARMV82)] * 4)), ARMV82, "aarch64")
    assert "`toolchain board add " in text
    assert "writes a board type that uses it (how much faster that is was not measured)" in text


def test_no_warning_where_nothing_is_unused(monkeypatch):
    assert warned(monkeypatch, "rpi4", probed({}, cores((A72, ARMV8))), ARMV8, "aarch64") == ""


def test_a_device_that_is_lost_meanwhile_is_told(monkeypatch):
    def lost(*_arguments):
        raise DeviceError("it is gone")

    monkeypatch.setattr(probe, "ask", lost)
    text = unused.warning(board.load("x86_64").resolved(), facts(V4), LocalShell())
    assert text.endswith("no better board type can be named: it is gone")
