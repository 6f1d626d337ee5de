"""The programs of a package take the place of a build, if they are what a build would make."""

from __future__ import annotations

import json
import os

import pytest

from toolchain import files
from toolchain.errors import VerificationError
from toolchain.native import packaging, prebuilt, programs
from toolchain.native.programs import RUNNER, Compiler

TRIPLE, MACHINE = "x86_64-linux-gnu", "x86_64"
LISTS = """
cmake_minimum_required(VERSION 3.24)
project(tiny CXX)
add_executable(runner main.cc)
add_executable(board_server main.cc)
install(TARGETS runner DESTINATION . COMPONENT runner)
install(TARGETS board_server DESTINATION . COMPONENT board_server)
"""


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Programs of one line, and this machine's compiler."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(LISTS)
    (folder / "main.cc").write_text("int main() { return 0; }\n")
    monkeypatch.setattr(programs, "_SOURCES", folder)
    monkeypatch.setattr(programs, "_compiler", lambda _triple: Compiler(("c++",), (), (), ("1", "2", "3")))
    return folder


@pytest.fixture
def package(sources, tmp_path, monkeypatch):
    """An installed package with the programs of these sources, and a user whose cache is empty."""
    folder = tmp_path / "package"
    folder.mkdir()
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "packer"))
    packaging.write(folder, [TRIPLE])
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(prebuilt, "folder", lambda: folder)
    return folder


def make(tell=None):
    return programs.build(RUNNER, TRIPLE, MACHINE, tell)


def no_build(monkeypatch):
    monkeypatch.setattr(programs, "_build_into", lambda *_: pytest.fail("built"))


def test_it_is_taken_and_checked(package, monkeypatch, tmp_path):
    no_build(monkeypatch)
    messages = []
    program = make(messages.append)
    assert program.path.is_relative_to(tmp_path / "cache")
    assert program.sha256 == files.sha256_file(package / f"runner-{TRIPLE}" / "runner")
    assert os.access(program.path, os.X_OK)
    assert messages == []
    (package / "manifest.json").unlink()
    assert make() == program  # from the cache


def test_the_package_is_the_same_again(package, tmp_path):
    (tmp_path / "again").mkdir()
    packaging.write(tmp_path / "again", [TRIPLE])
    contents = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (package, tmp_path / "again")
    ]
    assert contents[0] == contents[1]
    document = json.loads((package / "manifest.json").read_text())
    assert set(document["programs"]) == {f"{name}-{TRIPLE}" for name in programs.PROGRAMS}
    built_from = document["programs"][f"runner-{TRIPLE}"]["built_from"]
    assert set(built_from) == {"sources", "apache-tvm", "apache-tvm-ffi", "ziglang"}


@pytest.mark.parametrize("change", ["sources", "ziglang"])
def test_a_stale_one_is_named_and_built_instead(package, sources, monkeypatch, change):
    if change == "sources":
        (sources / "main.cc").write_text("int main() { return 1; }\n")
    else:
        monkeypatch.setattr(programs, "_compiler", lambda _triple: Compiler(("c++",), (), (), ("1", "2", "4")))
    messages = []
    program = make(lambda line: messages.append(str(line)))
    assert f"the package's runner-{TRIPLE} is not used: it was built from other {change}" in messages
    assert program.sha256 == files.sha256_file(program.path)
    assert any("building runner" in line for line in messages)


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_tampered_one_is_refused_by_name(package, tmp_path, damage):
    path = package / f"runner-{TRIPLE}" / "runner"
    if damage == "changed":
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    else:
        path.unlink()
    with pytest.raises(VerificationError, match="runner is not the program that the package was made with") as caught:
        make()
    assert "--force-reinstall" in caught.value.hint
    assert not list((tmp_path / "cache" / "device").glob("runner-*"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"programs": []}', f'{{"programs": {{"runner-{TRIPLE}": {{}}}}}}'])
def test_a_damaged_manifest(package, text):
    (package / "manifest.json").write_text(text)
    with pytest.raises(VerificationError, match=r"manifest\.json is damaged"):
        make()


@pytest.mark.usefixtures("package")
def test_a_triple_that_the_package_lacks_is_built(monkeypatch):
    built = []
    monkeypatch.setattr(programs, "_build_into", lambda _compiler, entry, *_: built.append(entry.triple))
    programs.build(RUNNER, "aarch64-linux-musl", "aarch64")
    assert built == ["aarch64-linux-musl"]


def test_a_checkout_has_none():
    assert prebuilt.find(RUNNER, TRIPLE) is None
