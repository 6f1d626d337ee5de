from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolchain import files
from toolchain.errors import InputError, VerificationError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=10,
)
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class Interrupted(BaseException):
    """Stands for whatever may end a block."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_and_fail(target: Path, fault: type[BaseException]) -> None:
    with files.atomic_path(target) as temporary:
        temporary.write_text("half of the ne")
        raise fault


def write_to_full_disk(target: Path) -> None:
    with files.atomic_path(target), Path("/dev/full").open("wb", buffering=0) as stream:
        stream.write(b"content")


@pytest.fixture
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_written_whole(tmp_path):
    files.write_atomic(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert names(tmp_path) == ["file"]


def test_replaces_what_was_there(tmp_path):
    (tmp_path / "file").write_text("a longer old content")
    files.write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt, Interrupted])
@pytest.mark.parametrize("before", [None, "old"])
def test_an_interrupted_write_changes_nothing(tmp_path, fault, before):
    target = tmp_path / "file"
    if before:
        target.write_text(before)
    with pytest.raises(fault):
        write_and_fail(target, fault)
    assert names(tmp_path) == (["file"] if before else [])
    assert not before or target.read_text() == before


def test_target_keeps_its_old_content_until_the_end(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")
    with files.atomic_path(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
        assert temporary.parent == tmp_path
    assert target.read_text() == "new"


@pytest.mark.parametrize("umask", [0o022], indirect=True)
def test_threads_that_write_at_once_leave_the_mask_as_it_was(tmp_path, umask, monkeypatch):
    """One that asks while another one has set it would put that back for good."""
    real_umask, barrier = os.umask, threading.Barrier(2)

    def slowly(mask):
        before = real_umask(mask)
        if mask == 0o077:
            with contextlib.suppress(threading.BrokenBarrierError):
                barrier.wait(0.2)
        return before

    monkeypatch.setattr(os, "umask", slowly)
    writers = [threading.Thread(target=files.write_atomic, args=(tmp_path / name, b"x")) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"} == {0o644}
    assert real_umask(0o022) == 0o022


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)], indirect=["umask"])
def test_mode_is_that_of_an_ordinary_file(tmp_path, umask, mode):
    files.write_atomic(tmp_path / "file", b"")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    assert os.umask(umask) == umask, "the umask itself must stay what it was"


@pytest.mark.parametrize("target", ["no/such/folder/file", "file/inside", "folder"])
def test_unwritable_target(tmp_path, target):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=f"cannot write .*{target}") as caught:
        files.write_atomic(tmp_path / target, b"content")
    assert caught.value.hint
    assert names(tmp_path) == ["file", "folder"]


def test_full_disk_is_named_and_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*file: No space left"):
        write_to_full_disk(tmp_path / "file")
    assert names(tmp_path) == []


def test_digest_of_nothing(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert files.sha256_file(tmp_path / "empty") == files.sha256_bytes(b"") == EMPTY_SHA256


@given(st.binary(max_size=2000))
def test_digests_agree(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "digested"
    path.write_bytes(data)
    assert files.sha256_file(path) == files.sha256_bytes(data) == hashlib.sha256(data).hexdigest()


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), JSON))
def test_canonical_json_depends_on_the_value_alone(value):
    backwards = dict(reversed(value.items()))
    assert files.canonical_json(value) == files.canonical_json(backwards)
    assert json.loads(files.canonical_json(value)) == value


def test_no_more_is_read_than_a_file_may_have(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert files.read_limited(path, 5) == b"12345"
    with pytest.raises(VerificationError, match="has more than 4 bytes, which is the limit"):
        files.read_limited(path, 4, VerificationError)


def test_canonical_json_is_for_people_too():
    assert files.canonical_json({"b": [1], "a": "ü"}).decode() == '{\n  "a": "ü",\n  "b": [\n    1\n  ]\n}\n'


def test_read_json(tmp_path):
    (tmp_path / "file.json").write_bytes(files.canonical_json({"a": [1, None]}))
    assert files.read_json(tmp_path / "file.json") == {"a": [1, None]}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"{'a': 1}", b"\xff\xfe\xfa", b"nonsense", b"1 2", b"[" * 200_000],
    ids=["empty", "open", "quotes", "not UTF-8", "word", "two values", "too deep"],
)
@pytest.mark.parametrize("error", [InputError, VerificationError])
def test_read_json_of_something_else(tmp_path, content, error):
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(error, match=r"file\.json is not JSON") as caught:
        files.read_json(tmp_path / "file.json", error)
    assert caught.value.details


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_read_json_of_no_file(tmp_path, name):
    with pytest.raises(VerificationError, match="cannot read"):
        files.read_json(tmp_path / name, VerificationError)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TOOLCHAIN_CACHE": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c"),
        ({"TOOLCHAIN_CACHE": "", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/edge-toolchain"),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/edge-toolchain"),
        ({"HOME": "/h"}, "/h/.cache/edge-toolchain"),
    ],
)
def test_cache_root(monkeypatch, variables, expected):
    for name in ("TOOLCHAIN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert files.cache_root() == Path(expected)


# --- what this machine refuses ---------------------------------------------------------------------------------


@pytest.fixture
def without_variables(monkeypatch):
    for name in ("TOOLCHAIN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_a_cache_that_cannot_be_made_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match="cannot be written: Not a directory") as caught:
        files.check_cache()
    assert "TOOLCHAIN_CACHE" in caught.value.hint


@pytest.mark.usefixtures("without_variables")
def test_a_home_that_cannot_be_written(monkeypatch):
    monkeypatch.setenv("HOME", "/proc/nobody")
    with pytest.raises(InputError, match=r"/proc/nobody/\.cache/edge-toolchain cannot be written") as caught:
        files.check_cache()
    assert "TOOLCHAIN_CACHE" in caught.value.hint


@pytest.mark.usefixtures("without_variables")
def test_a_user_without_a_home(monkeypatch):
    def none():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    with pytest.raises(InputError, match="no home folder"):
        files.cache_root()


def test_a_cache_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "new" / "cache"))
    assert files.check_cache() == tmp_path / "new" / "cache"
    assert names(tmp_path / "new" / "cache") == []


@pytest.mark.usefixtures("without_variables")
def test_a_cache_that_others_can_enter_becomes_private(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "edge-toolchain").mkdir(mode=0o755)
    assert files.check_cache().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("fault", "message", "hint"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/opt/x"), "no disk space for /opt/x", "TMPDIR"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "no disk space for a temporary file", "TMPDIR"),
        (PermissionError(errno.EACCES, "Permission denied", "/opt/x"), "denies access to /opt/x", "doctor"),
        (MemoryError(), "no memory left", "--shape"),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/x']"), "No usable", "TMPDIR"),
    ],
)
def test_what_a_machine_refuses_has_a_next_step(fault, message, hint):
    error = files.refused(fault)
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize("fault", [FileNotFoundError(errno.ENOENT, "No such file", "x"), OSError(errno.EINVAL, "x")])
def test_what_may_be_a_fault_of_our_own_is_not_explained_away(fault):
    assert files.refused(fault) is None


def test_a_full_disk_is_no_foreign_folder(tmp_path):
    full = files.unwritable(tmp_path, OSError(errno.ENOSPC, "No space left on device"))
    assert full.hint.startswith("free some space there")


def test_two_who_edit_at_once_lose_nothing(tmp_path):
    path = tmp_path / "list"

    def work(name: int) -> None:
        for count in range(20):
            line = f"{name}-{count}\n".encode()
            files.edit(path, lambda before, line=line: before + line)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(path.read_text().split())) == 80


def test_an_edit_that_changes_nothing_writes_nothing(tmp_path):
    path = tmp_path / "list"
    path.write_text("x")
    before = path.stat()
    assert not files.edit(path, lambda text: text)
    assert path.stat().st_ino == before.st_ino
    with pytest.raises(ZeroDivisionError):
        files.edit(path, lambda _text: b"%d" % (1 // 0))
    assert [path.name for path in tmp_path.iterdir()] == ["list"]
