"""What is written into an SDK, around a library that is none; real ones are in integration/test_sdk.py."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from toolchain import board
from toolchain.errors import BuildError, InputError
from toolchain.native import programs, sdk
from toolchain.native.programs import Program

VERSIONS = {"device": "1.2.3", "tvm": "4", "tvm_ffi": "5"}


@pytest.fixture
def kind():
    return board.load("local").resolved()


@pytest.fixture(autouse=True)
def library(tmp_path, monkeypatch):
    """A library of nothing, beside its object."""
    folder = tmp_path / "built"
    folder.mkdir()
    (folder / "libedge_model.so.1").write_bytes(b"library")
    subprocess.run(["cc", "-x", "c", "-c", "-", "-o", folder / "edge_model.o"], input=b"int edge_x;", check=True)
    built = Program(folder / "libedge_model.so.1", "0" * 64, "2.28", "x86_64", VERSIONS)
    monkeypatch.setattr(programs, "build", lambda *_words: built)
    return folder


def test_it_says_what_it_was_made_of(kind, tmp_path):
    kit = sdk.write(kind, tmp_path / "sdk")
    assert (kit.board, kit.triple, kit.glibc, kit.versions) == ("local", kind.triple, "2.28", VERSIONS)
    document = json.loads((tmp_path / "sdk" / sdk.RECORD).read_bytes())
    assert document == {key: value for key, value in vars(kit).items() if key != "folder"}
    assert (tmp_path / "sdk/lib/libedge_model.so").resolve().name == "libedge_model.so.1"
    assert {name.partition("/")[0] for name in kit.files} == {
        "README.md",
        "example",
        "include",
        "lib",
        "licences",
        "python",
    }


def test_no_word_is_left_open(kind, tmp_path):
    kit = sdk.write(kind, tmp_path / "sdk")
    texts = [tmp_path / "sdk" / name for name in kit.files if "libedge" not in name and "licences" not in name]
    assert not [path for path in texts if re.search(r"@[A-Z]+@", path.read_text(encoding="utf-8"))]
    assert "Version: 1.1.2.3" in (tmp_path / "sdk/lib/pkgconfig/edge_model.pc").read_text()


def test_androids_library_has_no_number(kind, library, tmp_path, monkeypatch):
    (library / "libedge_model.so").write_bytes(b"library")
    built = Program(library / "libedge_model.so", "0" * 64, "", "aarch64", VERSIONS)
    monkeypatch.setattr(programs, "build", lambda *_words: built)
    sdk.write(kind, tmp_path / "sdk")
    assert (tmp_path / "sdk/lib/libedge_model.so").read_bytes() == b"library"
    assert "lib/libedge_model.so" in (tmp_path / "sdk/lib/cmake/EdgeModel/EdgeModelConfig.cmake").read_text()


@pytest.mark.parametrize("record", [None, "[]", "{}", '{"files": 3}', "nonsense"])
def test_a_folder_that_is_none_of_ours_is_left_alone(kind, tmp_path, record):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years")
    if record is not None:
        (folder / sdk.RECORD).write_text(record)
    with pytest.raises(InputError, match="something other than an SDK"):
        sdk.write(kind, folder)
    assert (folder / "thesis.txt").read_text() == "years"


def test_nothing_is_built_for_a_folder_that_cannot_be_written(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "build", lambda *_words: pytest.fail("built"))
    (tmp_path / "file").touch()
    with pytest.raises(InputError):
        sdk.write(kind, tmp_path / "file")


def test_a_failing_build_leaves_the_old_one(kind, tmp_path, monkeypatch):
    sdk.write(kind, tmp_path / "sdk")

    def fail(*arguments):
        raise BuildError("no compiler")

    monkeypatch.setattr(programs, "build", fail)
    with pytest.raises(BuildError, match="no compiler"):
        sdk.write(kind, tmp_path / "sdk")
    assert (tmp_path / "sdk" / sdk.RECORD).is_file()
