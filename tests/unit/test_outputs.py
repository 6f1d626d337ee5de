"""What a result may replace, on real folders and files."""

from __future__ import annotations

import ctypes
import errno
import os

import pytest

from toolchain import outputs
from toolchain.errors import InputError

KNOWN = "ours"


def foreign(path):
    """Say that everything is foreign but what holds, or is, our file."""
    marker = path / KNOWN if path.is_dir() else path
    return "" if marker.is_file() and marker.read_text().startswith(KNOWN) else "it is not ours"


def tree(folder):
    paths = sorted(folder.rglob("*"))
    return {str(item.relative_to(folder)): item.read_bytes() if item.is_file() else None for item in paths}


def replace(folder, text="ours, newer"):
    with outputs.replacing(folder, "a result", foreign) as staging:
        (staging / KNOWN).write_text(text)


def refused_folder(folder):
    with pytest.raises(InputError) as caught:
        outputs.check_folder(folder, "a result", foreign)
    assert caught.value.hint
    return caught.value.message


def refused_file(path):
    with pytest.raises(InputError) as caught:
        outputs.check_file(path, "a result", foreign)
    assert caught.value.hint
    return caught.value.message


@pytest.fixture
def mine(tmp_path):
    """A folder of ours."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / KNOWN).write_text("ours, older")
    return folder


@pytest.mark.parametrize("before", [None, "empty", "older"])
def test_a_result_takes_its_place(tmp_path, before):
    target = tmp_path / "a" / "target"
    if before:
        target.mkdir(parents=True)
    if before == "older":
        (target / KNOWN).write_text("ours, older")
    replace(target)
    assert tree(tmp_path) == {"a": None, "a/target": None, "a/target/ours": b"ours, newer"}
    assert oct(target.stat().st_mode & 0o777) == "0o755"


def test_what_is_there_stays_until_the_new_one_is_whole(mine):
    with outputs.replacing(mine, "a result", foreign) as staging:
        (staging / KNOWN).write_text("ours, newer")
        assert (mine / KNOWN).read_text() == "ours, older"
    assert (mine / KNOWN).read_text() == "ours, newer"


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_a_failure_changes_nothing(tmp_path, mine, fault):
    before = tree(tmp_path)
    with pytest.raises(fault), outputs.replacing(mine, "a result", foreign):
        raise fault
    assert tree(tmp_path) == before


def test_the_two_are_exchanged_in_one_step(mine, monkeypatch):
    """Plain renames would have to move the older one away first."""
    moved = []
    monkeypatch.setattr(outputs, "_exchange_in_steps", lambda *paths: moved.append(paths))
    replace(mine)
    assert (moved, (mine / KNOWN).read_text()) == ([], "ours, newer")


class NoExchange:
    """The C library on a file system that cannot exchange."""

    def renameat2(self, *_arguments):
        ctypes.set_errno(errno.EINVAL)
        return -1


def test_a_file_system_without_exchange_takes_more_steps(tmp_path, mine, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda *_arguments, **_options: NoExchange())
    replace(mine)
    assert tree(tmp_path) == {"mine": None, "mine/ours": b"ours, newer"}


def test_steps_that_fail_are_taken_back(tmp_path, mine):
    before = tree(tmp_path)
    with pytest.raises(FileNotFoundError):
        outputs._exchange_in_steps(tmp_path / "gone", mine)
    assert tree(tmp_path) == before


def test_what_appears_meanwhile_is_left_alone(tmp_path, mine):
    with pytest.raises(InputError, match="something other"), outputs.replacing(mine, "a result", foreign):
        (mine / KNOWN).write_text("did not write")
    assert tree(tmp_path) == {"mine": None, "mine/ours": b"did not write"}


@pytest.mark.parametrize("kind", ["file", "foreign", "link", "dangling", "link to ours"])
def test_a_folder_that_is_left_alone(tmp_path, mine, kind):
    target, other = tmp_path / "target", tmp_path / "other"
    other.mkdir()
    match kind:
        case "file":
            target.write_text("mine")
        case "foreign":
            (target / ".git").mkdir(parents=True)
        case "link":
            target.symlink_to(other)
        case "dangling":
            target.symlink_to("nowhere")
        case "link to ours":
            target.symlink_to(mine)
    before = tree(tmp_path)
    message = refused_folder(target)
    assert "symbolic link" in message if "link" in kind or kind == "dangling" else "something other" in message
    with pytest.raises(InputError):
        replace(target)
    assert tree(tmp_path) == before
    assert target.is_symlink() is ("link" in kind or kind == "dangling")


def test_the_current_folder_is_left_alone(tmp_path, mine, monkeypatch):
    monkeypatch.chdir(mine)
    for name in (".", "../mine", mine):
        assert "current folder" in refused_folder(type(mine)(name))


@pytest.mark.parametrize("name", ["/proc/nowhere/out", "file/inside", "file/far/inside"])
def test_a_folder_that_cannot_be_made(tmp_path, name):
    (tmp_path / "file").touch()
    assert "cannot write" in refused_folder(tmp_path / name)


def test_a_check_makes_nothing(tmp_path):
    outputs.check_folder(tmp_path / "a" / "b", "a result", foreign)
    outputs.check_file(tmp_path / "file", "a result", foreign)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("content", ["", "ours, older"])
def test_a_file_that_may_be_replaced(tmp_path, content):
    (tmp_path / "file").write_text(content)
    outputs.check_file(tmp_path / "file", "a result", foreign)
    assert (tmp_path / "file").read_text() == content


def test_a_file_that_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "something other than a result" in refused_file(tmp_path / "file")
    (tmp_path / "link").symlink_to("file")
    assert "symbolic link" in refused_file(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    assert "something other" in refused_file(tmp_path / "pipe")
    assert "something other" in refused_file(type(tmp_path)("/dev/null"))


@pytest.mark.parametrize("name", ["no/such/folder/file", "file/inside", "folder"])
def test_a_file_that_cannot_be_written(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert "cannot write" in refused_file(tmp_path / name)
