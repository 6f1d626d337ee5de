"""What doctor finds on this machine, and what it says of a machine that lacks it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import tomllib

import pytest

from tests.support.paths import ROOT
from toolchain import board
from toolchain.pipeline import doctor


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A machine without programs, keys or installed packages."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)


def checks(*names: str) -> dict[str, doctor.Check]:
    return {check.what: check for check in doctor.examine([board.load(name) for name in names])}


def test_this_machine_has_what_it_needs():
    missing = [check for check in doctor.examine([board.load("local")]) if not check.ok]
    assert missing == []


def test_pins_are_those_of_the_project():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {f"{name}=={version}" for name, version in doctor._PINS.items()} <= set(dependencies)


@pytest.mark.usefixtures("empty")
def test_machine_that_has_nothing():
    by_name = checks("local")
    assert not any(check.ok for requirement, check in by_name.items() if "cache" not in requirement)
    assert by_name["c++"].remedy == "apt-get install g++"
    assert by_name["c++"].board == "local"
    assert by_name["make"].remedy == "apt-get install make"
    assert by_name["apache-tvm 0.27.0.post1"].remedy == "make setup"


def test_other_version_counts_as_missing(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.1.15")
    assert not checks()["apache-tvm-ffi 0.1.14.post1"].ok


def test_cross_compiler():
    other = dataclasses.replace(board.load("x86_64"), name="pi", machine="aarch64", triple="aarch64-linux-gnu")
    by_name = {check.what: check for check in doctor.examine([other])}
    assert by_name["aarch64-linux-gnu-g++"].remedy == "apt-get install g++-aarch64-linux-gnu"


def test_host_keys_are_for_boards_reached_by_ssh(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "trusted host keys" not in checks("local")
    assert not checks("x86_64")["trusted host keys"].ok
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").touch()
    assert checks("x86_64")["trusted host keys"].found.endswith("known_hosts")


def test_space_for_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "not" / "yet" / "there"))
    assert str(tmp_path) in checks()["2 GB for the cache"].found
    monkeypatch.setattr(doctor, "_MIN_FREE", 1e18)
    assert not next(check for check in doctor.examine([]) if "for the cache" in check.what).ok


def test_android_needs_its_ndk(monkeypatch):
    monkeypatch.delenv("TVM_NDK_CC", raising=False)
    assert checks("android-mali")["an Android NDK"].remedy == "set TVM_NDK_CC: see docs/android.md"
    monkeypatch.setenv("TVM_NDK_CC", "/opt/ndk/aarch64-linux-android24-clang++")
    assert checks("android-mali")["an Android NDK"].ok
    assert "an Android NDK" not in checks("rk3399")


def test_what_is_missing_is_grouped_with_what_brings_it():
    gxx = ("c++", "", "apt-get install g++")
    checks = [doctor.Check("", "make", "", "apt-get install make"), doctor.Check("local", *gxx)]
    checks += [doctor.Check("x86_64", *gxx), doctor.Check("local", "keys", "/there", "")]
    there, _, missing, *rest = doctor.render_text(checks)
    assert there.rows == [("keys", "/there", "local")]
    assert missing.rows == [("make", "apt-get install make", "every board"), (*gxx[::2], "local, x86_64")]
    assert rest == ["", "all packages at once: apt-get install make g++"]


def test_nothing_is_missing():
    assert doctor.render_text([doctor.Check("", "make", "/usr/bin/make", "")])[-1] == "nothing is missing"
