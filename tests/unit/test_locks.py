from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys

import pytest

from toolchain import locks
from toolchain.errors import BusyError

HOLD = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lock"


@pytest.fixture
def stranger(path):
    """Another process that has the lock."""
    path.touch()
    argv = [sys.executable, "-c", HOLD, path]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_lock_is_private(path):
    os.close(locks.open_lock(path))
    assert mode_of(path) == 0o600


def test_a_lock_that_others_could_read_becomes_private(path):
    path.touch()
    path.chmod(0o644)
    os.close(locks.open_lock(path))
    assert mode_of(path) == 0o600


def test_who_may_write_the_records_by_now_may_lock_them(path):
    os.close(locks.open_lock(path))
    os.close(locks.open_lock(path, 0o660))
    assert mode_of(path) == 0o660


def test_a_folder_becomes_private(tmp_path):
    tmp_path.chmod(0o755)
    locks.make_private(tmp_path)
    assert mode_of(tmp_path) == 0o700


def test_no_link_is_followed(path, tmp_path):
    path.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        locks.open_lock(path)


@pytest.mark.parametrize(("mode", "expected"), [(0o644, 0o600), (0o664, 0o660), (0o600, 0o600), (0o666, 0o666)])
def test_who_may_write_a_file_may_lock_it(tmp_path, mode, expected):
    (tmp_path / "records").touch()
    (tmp_path / "records").chmod(mode)
    assert locks.mode_beside(tmp_path / "records") == expected


def test_a_file_that_is_missing_has_a_private_lock(path):
    assert locks.mode_beside(path) == 0o600


def test_a_wait_has_an_end_and_names_the_holder(path, stranger):
    lines = []
    with pytest.raises(BusyError) as caught, locks.hold(path, "the store", 0.1, lines.append):
        pytest.fail("somebody has it")
    assert caught.value.message.startswith(f"the store is in use by process {stranger.pid} (python")
    assert caught.value.details == "this command waited 0 s for it"
    assert lines == [f"waiting for up to 0 s: {caught.value.message}"]


def test_a_wait_ends_with_the_holder(path, stranger):
    def end(_line):
        stranger.kill()

    with locks.hold(path, "the store", 60, end):
        pass


def test_a_holder_that_left_the_lock_to_a_child_is_named(path):
    path.touch()
    script = f"exec 9<{path}; flock 9; read line"
    with subprocess.Popen(["sh", "-c", f"{{ {script}; }} && :"], stdin=subprocess.PIPE) as process:
        handle = locks.open_lock(path)
        while locks.attempt(handle):
            fcntl.flock(handle, fcntl.LOCK_UN)
        assert "process" in locks.holder(handle)
        os.close(handle)
        process.kill()


def test_a_lock_that_nobody_has_is_taken_at_once(path):
    with locks.hold(path, "the store", 0):
        pass
