"""The host's library of the boards' sources: built once, anew when anything that decides it changes."""

from __future__ import annotations

import ctypes
import shutil

import pytest

from toolchain import process
from toolchain.backends.vta.device import native
from toolchain.errors import BuildError

SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer() { return %d; }\n'


@pytest.fixture(autouse=True)
def sources(tmp_path, monkeypatch):
    """Stand in for the simulator, which takes ten seconds to compile; the compiler is the real one."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "answer.cc").write_text(SOURCE % 42)
    (folder / "functions.cc").write_text("#error this one needs TVM\n")
    monkeypatch.setattr(native, "_SOURCES", folder)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    native.loaded.cache_clear()
    yield folder
    native.loaded.cache_clear()


def test_it_is_built_once_and_told_once():
    messages = []
    path = native.library(messages.append)
    assert native.library(messages.append) == path
    assert messages == ["building the VTA simulator (once, a minute at most)"]
    assert ctypes.CDLL(str(path)).answer() == 42


def test_other_sources_are_another_library(sources):
    first = native.library()
    (sources / "answer.cc").write_text(SOURCE % 43)
    second = native.library()
    assert first != second
    assert ctypes.CDLL(str(second)).answer() == 43


def test_sources_that_are_refused_leave_nothing(sources, tmp_path):
    (sources / "answer.cc").write_text("no C++\n")
    with pytest.raises(BuildError):
        native.library()
    assert not list((tmp_path / "cache").rglob("libvta*"))


def test_it_is_loaded_once():
    assert native.loaded() is native.loaded()
    assert native.loaded().answer() == 42


def test_a_damaged_library_is_told_with_what_to_do():
    native.library().write_bytes(b"no library")
    with pytest.raises(BuildError, match="cannot be loaded") as caught:
        native.loaded()
    assert "remove that file" in caught.value.hint


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "armv7l"])
def test_without_gcc_it_is_zig_that_promises_the_oldest_library(monkeypatch, machine):
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(native.platform, "machine", lambda: machine)
    command, identity = native._compiler()
    assert command[1] == "c++"
    assert command[command.index("-target") + 1].endswith(".2.28")
    assert process.run([command[0], "version"], timeout=60.0).stdout.strip() in identity


def test_a_machine_without_any_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(native.platform, "machine", lambda: "s390x")
    with pytest.raises(BuildError, match="no compiler for the VTA simulator on s390x") as caught:
        native.library()
    assert caught.value.hint == "apt-get install g++"
