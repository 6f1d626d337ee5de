"""What doctor finds on this machine, and what it says of a machine that lacks it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import tomllib

import pytest

from tests.support.paths import ROOT
from toolchain import board
from toolchain.checks import Outcome
from toolchain.pipeline import doctor


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
    assert not any(check.passed for requirement, check in by_name.items() if "cache" not in requirement)
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
