"""Where records and devices are looked for: in the project, which is found upwards, and in the user's own folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolchain import state


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder below an empty one that could be a project, and folders of the user's own."""
    monkeypatch.delenv("TOOLCHAIN_RECORDS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    below = tmp_path / "project" / "some" / "where"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    return tmp_path / "project"


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize("marker", ["devices.toml", ".edge-toolchain", "records/rpi4.jsonl"])
def test_a_project_is_found_upwards(folder, marker, monkeypatch):
    assert state.project() is None
    touch(folder / marker)
    assert state.project() == folder
    monkeypatch.chdir(folder)
    assert state.project() == Path()


def test_the_nearest_project_counts(folder):
    touch(folder / "devices.toml")
    touch(folder / "some" / ".edge-toolchain")
    assert state.project() == folder / "some"


def test_a_folder_of_other_records_is_no_project(folder):
    touch(folder / "records" / "1969.txt")
    assert state.project() is None


def test_a_marker_that_somebody_else_put_above_makes_no_project(folder, monkeypatch):
    """In /tmp, for example: its SSH configuration would run commands."""
    touch(folder / "devices.toml")
    monkeypatch.setattr(os, "getuid", lambda: (folder / "devices.toml").stat().st_uid + 1)
    monkeypatch.setattr(state, "_ADMINISTRATOR", -1)  # whose these files are where tests run as root
    assert state.project() is None
    monkeypatch.chdir(folder)
    assert state.project() == Path(), "whoever works in a folder means it"


def test_a_working_folder_that_is_gone_is_no_project(folder, monkeypatch):
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert state.project() is None


def test_records_are_the_users_without_a_project(folder):
    users_records = folder.parent / "data" / "edge-toolchain" / "records" / "rpi4.jsonl"
    assert state.records_path("rpi4") == users_records
    assert state.records_paths("rpi4") == (users_records,)


def test_records_that_there_are_go_before_a_nearer_place(folder):
    """What was tuned before a folder became a project is still found, and added to."""
    users_records = touch(folder.parent / "data" / "edge-toolchain" / "records" / "rpi4.jsonl")
    touch(folder / "devices.toml")
    assert state.records_path("rpi4") == users_records
    assert state.records_path("pynq") == folder / "records" / "pynq.jsonl"
    project = touch(folder / "records" / "rpi4.jsonl")
    assert state.records_path("rpi4") == project


def test_a_variable_goes_before_all_places(folder, monkeypatch):
    touch(folder / "records" / "rpi4.jsonl")
    monkeypatch.setenv("TOOLCHAIN_RECORDS", "elsewhere")
    assert state.records_paths("rpi4") == (Path("elsewhere/rpi4.jsonl"),)


@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_usual_folders_where_a_variable_names_none(folder, monkeypatch, value):
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("XDG_DATA_HOME", value)
    monkeypatch.setenv("XDG_CONFIG_HOME", value)
    assert state.data_folder() == Path("/home/ann/.local/share/edge-toolchain")
    assert state.config_folder() == Path("/home/ann/.config/edge-toolchain")


def test_lists_of_devices_are_the_users_and_the_projects(folder):
    assert state.devices_files() == ()
    project = touch(folder / "devices.toml")
    users_list = touch(folder.parent / "config" / "edge-toolchain" / "devices.toml")
    assert state.devices_files() == (users_list, project)
