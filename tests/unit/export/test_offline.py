"""The files of an update; tests/integration/test_offline.py applies them."""

from __future__ import annotations

import hashlib
import os
import tarfile

import pytest

from tests.support import updates
from toolchain import export
from toolchain.errors import InputError


@pytest.mark.parametrize("folder", [False, True])
def test_the_same_bytes_again(tiny, program, tmp_path, folder):
    first = updates.written(tiny, program, tmp_path / "one", folder=folder)
    second = updates.written(tiny, program, tmp_path / "other", folder=folder)
    assert (first.sha256, first.size) == (second.sha256, second.size)
    assert first.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
    assert os.access(first.path, os.X_OK)


def test_a_file_is_an_installer_and_an_archive(tiny, program, tmp_path):
    path = updates.written(tiny, program, tmp_path / "update.run").path
    begin = path.read_bytes().index(b"ustar") // 512 * 512
    with path.open("rb") as stream:
        stream.seek(begin)
        with tarfile.open(fileobj=stream) as archive:
            for member in archive:
                content = archive.extractfile(member).read()
                assert member.name == f"blobs/{hashlib.sha256(content).hexdigest()}"
                assert (member.uid, member.mtime, member.uname) == (0, 0, "")
                assert f":{member.size}:{member.offset_data + 1}".encode() in path.read_bytes()[:begin]


def test_a_folder_has_its_contents_beside_the_installer(tiny, program, tmp_path):
    script = updates.written(tiny, program, tmp_path / "folder", folder=True).path
    assert script == tmp_path / "folder" / "install.sh"
    for path in (script.parent / "blobs").iterdir():
        assert path.name == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("folder", [False, True])
def test_only_an_older_update_gives_way(tiny, program, tmp_path, folder):
    target = tmp_path / "update"
    first = updates.written(tiny, program, target, folder=folder)
    assert updates.written(tiny, program, target, folder=folder) == first
    with pytest.raises(InputError):
        export.check_target("offline", target, folder=not folder)
    other = tmp_path / "other"
    if folder:
        other.mkdir()
        (other / "install.sh").write_text("#!/bin/sh\necho mine\n")
    else:
        other.write_text("#!/bin/sh\necho mine\n")
    with pytest.raises(InputError, match="is not replaced"):
        updates.written(tiny, program, other, folder=folder)
