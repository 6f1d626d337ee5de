from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from toolchain import temporary

MAKE = "from toolchain import temporary\nwith temporary.folder() as made:\n print(made, flush=True)\n input()"


@pytest.fixture
def parent(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(temporary.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def old(path):
    """Make a folder look as if nobody has touched it for an hour."""
    os.utime(path, (time.time() - 3600,) * 2)
    return path


def test_a_folder_is_private_and_gone_afterwards(parent):
    with temporary.folder() as folder:
        assert folder.parent == parent
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert not list(parent.iterdir())


def test_what_a_killed_command_left_is_removed(parent):
    with subprocess.Popen(
        [sys.executable, "-c", MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        folder = temporary.Path(other.stdout.readline().strip())
        (folder / "file").touch()
        old(folder)
        temporary.sweep(parent)
        assert folder.exists(), "its command still runs"
        other.send_signal(signal.SIGKILL)
        other.wait()
        temporary.sweep(parent)
        assert not folder.exists()


def test_a_new_folder_is_left_alone(parent):
    (parent / f"{temporary.PREFIX}new").mkdir()
    temporary.sweep(parent)
    assert (parent / f"{temporary.PREFIX}new").exists()


def test_what_is_not_ours_is_left_alone(parent, tmp_path_factory, monkeypatch):
    away = old(tmp_path_factory.mktemp("away"))
    (parent / f"{temporary.PREFIX}link").symlink_to(away)
    old(parent / f"{temporary.PREFIX}link")
    old_file = parent / f"{temporary.PREFIX}file"
    old_file.touch()
    old(old_file)
    foreign = parent / f"{temporary.PREFIX}foreign"
    foreign.mkdir()
    old(foreign)
    (parent / "other").mkdir()
    old(parent / "other")
    with monkeypatch.context() as changed:
        changed.setattr(temporary.os, "getuid", lambda: os.geteuid() + 1)
        temporary.sweep(parent)
    assert foreign.exists()
    temporary.sweep(parent)
    assert not foreign.exists()
    assert away.exists()
    assert old_file.exists()
    assert (parent / "other").exists()


def test_the_first_folder_of_a_command_sweeps(parent):
    leftover = parent / f"{temporary.PREFIX}left"
    leftover.mkdir()
    old(leftover)
    with temporary.folder():
        assert not leftover.exists()
