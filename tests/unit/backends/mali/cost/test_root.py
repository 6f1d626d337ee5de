"""The compiler in the cache: packages that are unpacked, and what is found to be damaged."""

from __future__ import annotations

import io
import lzma
import tarfile
from pathlib import Path

import pytest

from toolchain.backends.mali.cost import packages
from toolchain.backends.mali.cost.root import Root, at_hand, check, unpack
from toolchain.errors import BuildError
from toolchain.files import canonical_json, sha256_bytes


def package(path: Path, members: dict[str, bytes | str], name: str = "data.tar.xz") -> Path:
    """Write a package as Debian's are; a text is the aim of a symbolic link."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for member, content in members.items():
            info = tarfile.TarInfo(f"./{member}")
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    packed = lzma.compress(data.getvalue())
    ar_members = [("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), (name, packed)]
    with path.open("wb") as stream:
        stream.write(b"!<arch>\n")
        for title, content in ar_members:
            stream.write(f"{title:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode())
            stream.write(content + b"\n" * (len(content) % 2))
    return path


def test_libraries_are_unpacked_and_nothing_else(tmp_path: Path) -> None:
    members: dict[str, bytes | str] = {
        "usr/lib/a/liba.so.1": b"a",
        "usr/lib/a/liba.so": "liba.so.1",
        "usr/lib/clc/amdgcn-x.bc": b"for others",
        "usr/share/doc/a": b"words",
        "etc/a.conf": b"settings",
    }
    unpack(package(tmp_path / "a.deb", members), tmp_path / "root")
    unpacked = {
        str(path.relative_to(tmp_path / "root")) for path in (tmp_path / "root").rglob("*") if not path.is_dir()
    }
    assert unpacked == {"usr/lib/a/liba.so.1", "usr/lib/a/liba.so"}
    assert (tmp_path / "root" / "usr/lib/a/liba.so").read_bytes() == b"a"


def test_nothing_gets_out_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cannot be unpacked"):
        unpack(package(tmp_path / "a.deb", {"usr/lib/../../../out": b"x"}), tmp_path / "deep" / "er" / "root")
    assert not (tmp_path / "out").exists()


def test_links_to_files_of_this_machine_are_left_out(tmp_path: Path) -> None:
    members: dict[str, bytes | str] = {"usr/lib/link": "/etc/passwd", "usr/lib/a": b"a"}
    unpack(package(tmp_path / "a.deb", members), tmp_path / "root")
    assert [path.name for path in (tmp_path / "root/usr/lib").iterdir()] == ["a"]


@pytest.mark.parametrize("content", [b"", b"!<arch>\n", b"!<arch>\n" + b"x" * 200, b"PK\3\4"])
def test_what_is_no_package_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.deb"
    path.write_bytes(content)
    with pytest.raises(BuildError):
        unpack(path, tmp_path / "root")


def test_a_truncated_package_is_refused(tmp_path: Path) -> None:
    path = package(tmp_path / "a.deb", {"usr/lib/a": b"a" * 5000})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BuildError, match="cannot be unpacked"):
        unpack(path, tmp_path / "root")


def test_another_compression_is_told(tmp_path: Path) -> None:
    path = package(tmp_path / "a.deb", {}, name="data.tar.zst")
    with pytest.raises(BuildError, match=r"no data\.tar\.xz"):
        unpack(path, tmp_path / "root")


def test_a_file_that_was_changed_is_found(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"same")
    record = {"files": {"a": [4, sha256_bytes(b"same")]}}
    (tmp_path / "root.json").write_bytes(canonical_json(record))
    compiler = Root(tmp_path, "key", "1", is_pinned=True)
    check(compiler)
    (tmp_path / "a").write_bytes(b"else")
    with pytest.raises(BuildError, match="differs from the file in Debian's package"):
        check(compiler)


def test_an_empty_cache_has_none_and_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path))
    monkeypatch.setenv("TOOLCHAIN_DEBIAN_MIRROR", "http://127.0.0.1:9")
    assert at_hand() is None


def test_figures_of_other_packages_say_so() -> None:
    assert Root(Path(), "k", "25.1", is_pinned=False).stamp == "modelled (Mesa 25.1, not the pinned one)"
    assert packages.pinned().version in Root(Path(), "k", packages.pinned().version, is_pinned=True).stamp
