"""What doctor finds on this machine, and what it says of a machine that lacks it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import re
import tomllib

import pytest

from tests.support.devices_said import TOKEN, said
from tests.support.paths import ROOT
from toolchain import board
from toolchain.checks import Outcome
from toolchain.errors import BusyError, VerificationError
from toolchain.farm import boards
from toolchain.pipeline import doctor
from toolchain.process import Result
from toolchain.rpc import hardware
from toolchain.shell import LocalShell


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A machine without programs, keys or installed packages."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)


def checks(*names: str) -> dict[str, Outcome]:
    return {check.name: check for check in doctor.examine([board.load(name) for name in names])}


def test_this_machine_has_what_it_needs():
    missing = [check for check in doctor.examine([board.load("local")]) if not check.passed]
    assert missing == []


def test_pins_are_those_of_the_project():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {f"{name}=={version}" for name, version in doctor._PINS.items()} <= set(dependencies)


@pytest.mark.usefixtures("empty")
def test_machine_that_has_nothing():
    by_name = checks("local")
    others = {name: check for name, check in by_name.items() if "cache" not in name and name not in {"pictures", "c++"}}
    assert not any(check.passed for check in others.values())
    assert by_name["c++"].found.endswith("/ziglang/zig")  # which links where there is no compiler
    assert by_name["c++"].remedy == "apt-get install g++"
    assert by_name["c++"].board == "local"
    assert by_name["make"].remedy == "apt-get install make"
    assert by_name["apache-tvm 0.27.0.post1"].remedy == "make setup"


def test_other_version_counts_as_missing(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.1.15")
    assert not checks()["apache-tvm-ffi 0.1.14.post1"].passed


def test_cross_compiler():
    other = dataclasses.replace(board.load("x86_64"), name="pi", machine="aarch64", triple="aarch64-linux-gnu")
    by_name = {check.name: check for check in doctor.examine([other])}
    assert by_name["aarch64-linux-gnu-g++"].remedy == "apt-get install g++-aarch64-linux-gnu"


def test_host_keys_are_for_boards_reached_by_ssh(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "trusted host keys" not in checks("local")
    assert not checks("x86_64")["trusted host keys"].passed
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").touch()
    assert checks("x86_64")["trusted host keys"].found.endswith("known_hosts")


def test_space_for_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "not" / "yet" / "there"))
    assert str(tmp_path) in checks()["2 GB for the cache"].found
    monkeypatch.setattr(doctor, "_MIN_FREE", 1e18)
    assert not next(check for check in doctor.examine([]) if "for the cache" in check.name).passed


def test_android_needs_its_ndk(monkeypatch):
    monkeypatch.delenv("TVM_NDK_CC", raising=False)
    assert checks("android-mali")["an Android NDK"].remedy == "set TVM_NDK_CC: see docs/android.md"
    monkeypatch.setenv("TVM_NDK_CC", "/opt/ndk/aarch64-linux-android24-clang++")
    assert checks("android-mali")["an Android NDK"].passed
    assert "an Android NDK" not in checks("rk3399")


def missing(name: str, board_name: str, remedy: str) -> Outcome:
    return Outcome(name, board_name, "is missing", remedy, passed=False)


def test_what_is_missing_is_grouped_with_what_brings_it():
    remedy = "apt-get install g++"
    outcomes = [missing("make", "", "apt-get install make"), missing("c++", "local", remedy)]
    outcomes += [missing("c++", "x86_64", remedy), Outcome("keys", "local", "/there", "", passed=True)]
    present, _, absent, *rest = doctor.render_text(outcomes)
    assert present.rows == [("keys", "/there", "local")]
    assert absent.rows == [("make", "apt-get install make", "every board"), ("c++", remedy, "local, x86_64")]
    assert rest == ["", "all packages at once: apt-get install make g++"]


def test_nothing_is_missing():
    present = Outcome("make", "", "/usr/bin/make", "apt-get install make", passed=True)
    assert doctor.render_text([present])[-1] == "nothing is missing"
    assert doctor.document([present, missing("c++", "local", "x")]) == [
        {"board": "", "what": "make", "found": "/usr/bin/make", "remedy": "apt-get install make"},
        {"board": "local", "what": "c++", "found": "", "remedy": "x"},
    ]


# --- a device --------------------------------------------------------------------------------------------------------


class Rpi(LocalShell):
    """A device that describes itself as a Raspberry Pi 4."""

    def __init__(self, values: dict[str, str | None] | None = None) -> None:
        super().__init__()
        self._values = values

    def run(self, script: str, **_options: object) -> Result:
        token = re.search(r"begin=([0-9a-f]+)", script)
        assert token
        return Result(0, said(self._values).replace(TOKEN, token[1]), "")


def device_outcomes(board_name: str, values: dict[str, str | None] | None = None) -> dict[str, Outcome]:
    outcomes = doctor.examine_device(board.load(board_name), Rpi(values), "~/x", "me@pi")
    assert {outcome.board for outcome in outcomes} == {board_name}
    return {outcome.name: outcome for outcome in outcomes}


def test_a_device_that_lacks_nothing():
    outcomes = device_outcomes("rpi4")
    assert all(outcome.passed for outcome in outcomes.values())
    assert outcomes["device me@pi"].found == "aarch64, Raspberry Pi 4 Model B Rev 1.4"
    assert outcomes["C library"].found == "glibc 2.36"


def test_what_a_device_lacks_for_a_board():
    outcomes = device_outcomes("rk3399", {"lacks": "flock", "libc": "glibc 2.17"})
    missing = {name: outcome.remedy for name, outcome in outcomes.items() if not outcome.passed}
    assert list(missing) == ["library of OpenCL", "device of OpenCL", "C library", "programs of the store"]
    assert "util-linux" in missing["programs of the store"]
    assert "leave --board out" in device_outcomes("x86_64")["board type"].remedy


class Lease:
    places = ("the board",)


def compared(monkeypatch, describe) -> Outcome:
    """Compare the hardware of a device with the board file of rk3399; `describe` is the answer over RPC."""
    monkeypatch.setattr(hardware, "examine", lambda _board, _place: describe())
    monkeypatch.setattr(boards, "open_boards", lambda _request, _progress: contextlib.nullcontext(Lease()))
    kind = board.load("rk3399").resolved()
    return doctor.compare_hardware(kind, boards.BoardRequest(kind, "me@pi"), lambda _line: None)


def test_the_hardware_is_compared_with_the_board_file(monkeypatch):
    gpu = hardware.Accelerator("Mali-T860", 4, 256, 32768)
    description = hardware.Hardware("aarch64", 6, accelerator=gpu)
    outcome = compared(monkeypatch, lambda: (description, ("it has 6 CPUs, but",)))
    assert (outcome.passed, outcome.name) == (True, "hardware for rk3399")
    assert outcome.found == f"{description}; warning: it has 6 CPUs, but"
    assert compared(monkeypatch, lambda: (None, ())).found == "unknown"


def fail(fault: Exception):
    raise fault


def test_hardware_that_does_not_fit_and_a_device_in_use(monkeypatch):
    outcome = compared(monkeypatch, lambda: fail(VerificationError("requires more", hint="write less")))
    assert (outcome.passed, outcome.remedy) == (False, "write less")
    busy = compared(monkeypatch, lambda: fail(BusyError("the device is busy")))
    assert (busy.passed, busy.found) == (True, "not compared: the device is busy")
