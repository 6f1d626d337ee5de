"""The file of a package: what would become more than it is, or something else than files, is refused unread."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import shutil
import tarfile

import pytest

from tests.support import nets
from toolchain import bundle
from toolchain.bundle import archive, contents
from toolchain.errors import InputError, VerificationError

TEBIBYTE = 1 << 40
BLOB = archive.BLOBS + "0" * 64


@pytest.fixture
def package(tiny, tmp_path):
    path = tmp_path / "tiny.oci.tar"
    bundle.pack(tiny, path)
    return path


def refused(path, *, match):
    folder = path.with_name("out")
    with pytest.raises(VerificationError, match=match) as caught:
        bundle.unpack(path, folder)
    assert not list(path.parent.glob("*out*"))
    assert caught.value.hint
    return f"{caught.value.message}\n{caught.value.details}"


def member(name=BLOB, kind=tarfile.REGTYPE, size=0, **fields):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def with_member(package, info, tar_format=tarfile.GNU_FORMAT, content=b""):
    """Put a member before those that a package has."""
    package.write_bytes(info.tobuf(tar_format, "utf-8", "surrogateescape") + content + package.read_bytes())
    return package


def test_the_members_of_a_package_are_found_where_they_are(package):
    with archive.open_archive(package) as opened, tarfile.open(package) as tar:
        assert opened.members == {entry.name: (entry.offset_data, entry.size) for entry in tar}


def test_folders_are_of_no_weight(package, tiny, tmp_path):
    for name in (".", "blobs/sha256", "blobs"):
        with_member(package, member(name, tarfile.DIRTYPE))
    assert bundle.unpack(package, tmp_path / "out").digest == tiny.digest


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
def test_a_compressed_package_is_refused(package, module):
    package.write_bytes(module.compress(package.read_bytes()))
    assert bundle.is_archive(package)
    refused(package, match="is compressed; a package must be uncompressed")


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
def test_a_compressed_model_is_no_package(tmp_path, module):
    path = tmp_path / "model.onnx"
    path.write_bytes(module.compress(nets.relu((2,)).SerializeToString()))
    assert not bundle.is_archive(path)


@pytest.mark.parametrize(("name", "is_package"), [("model.tar.zst", True), ("model.onnx.zst", False)])
def test_what_cannot_be_decompressed_here_is_told_by_its_name(tmp_path, name, is_package):
    (tmp_path / name).write_bytes(b"\x28\xb5\x2f\xfd" + bytes(600))
    assert bundle.is_archive(tmp_path / name) == is_package


def test_more_than_there_is_is_no_size(package):
    text = refused(with_member(package, member(size=TEBIBYTE)), match="is damaged")
    assert f"should have {TEBIBYTE} bytes" in text


def test_less_than_nothing_is_no_size(package):
    text = refused(with_member(package, member(size=-512)), match="is damaged")
    assert "should have -512 bytes" in text


@pytest.mark.parametrize(
    ("kind", "description"),
    [
        (tarfile.SYMTYPE, "a link"),
        (tarfile.LNKTYPE, "a link"),
        (tarfile.GNUTYPE_SPARSE, "a sparse file"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (tarfile.XHDTYPE, "of type b'x'"),
        (tarfile.XGLTYPE, "of type b'g'"),
        (tarfile.GNUTYPE_LONGNAME, "of type b'L'"),
        (tarfile.CONTTYPE, "of type b'7'"),
    ],
)
def test_what_is_no_plain_file_is_refused(package, kind, description):
    assert description in refused(with_member(package, member(kind=kind, linkname="/etc/passwd")), match="is damaged")


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "blobs/sha256/short", "evil\x1b[2J", BLOB + "/x", ""])
def test_a_name_that_no_package_has_is_refused(package, name):
    text = refused(with_member(package, member(name)), match="is damaged")
    assert "is not a valid member of a package" in text
    assert "\x1b" not in text


def test_a_name_that_is_there_twice_is_refused(package):
    """The first reader would believe one of them, and the second the other."""
    first = with_member(package, member("index.json", size=2), content=b"{}".ljust(512, b"\0"))
    assert "occurs twice" in refused(first, match="is damaged")


def test_a_damaged_header_is_told_with_its_place(package):
    data = bytearray(package.read_bytes())
    data[150] ^= 1  # of its checksum
    package.write_bytes(data)
    assert "the header at byte 0" in refused(package, match="is damaged")


def test_too_many_members_are_refused(package, monkeypatch):
    monkeypatch.setattr(archive, "_MAX_MEMBERS", 2)
    assert "too many members" in refused(package, match="is damaged")


def test_a_document_beyond_all_documents_is_not_read(package, monkeypatch):
    monkeypatch.setattr(archive, "LARGEST_MANIFEST", 16)
    refused(package, match=r"index\.json in .* has \d+ bytes")


def test_a_file_that_shrinks_is_no_internal_error(package, monkeypatch):
    with archive.open_archive(package) as opened:
        short = archive.Archive(opened.name, io.BytesIO(), opened.members)
        with pytest.raises(VerificationError, match=r"ends within index\.json"):
            short.index()


def test_what_does_not_fit_on_the_disk_is_not_begun(package, tiny, monkeypatch):
    monkeypatch.setattr(contents, "save_blob", lambda *_: pytest.fail("it was begun"))
    usage = shutil.disk_usage(package.parent)._replace(free=(16 << 20) + 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage)
    with pytest.raises(InputError, match=r"but only 0\.001 MB are free"):
        bundle.unpack(package, package.with_name("out"))
    assert [item.name for item in package.parent.iterdir()] == [package.name]


@pytest.mark.parametrize("fault", [KeyboardInterrupt("SIGTERM"), OSError(5, "Input/output error"), MemoryError()])
def test_what_breaks_off_leaves_nothing(package, monkeypatch, fault):
    def broken(*_):
        raise fault

    monkeypatch.setattr(archive.Archive, "save", broken)
    with pytest.raises(type(fault)):
        bundle.unpack(package, package.with_name("out"))
    assert [item.name for item in package.parent.iterdir()] == [package.name]


def test_two_bundles_in_one_package_are_refused(package):
    descriptor = {"mediaType": "x", "digest": f"sha256:{'0' * 64}", "size": 2, "artifactType": bundle.ARTIFACT}
    document = json.dumps({"manifests": [descriptor, descriptor]}).encode()
    head = member("index.json", size=len(document)).tobuf(tarfile.USTAR_FORMAT)
    package.write_bytes(head + document.ljust(-(-len(document) // 512) * 512, b"\0"))
    with pytest.raises(VerificationError, match="contains 2 bundles"):
        bundle.unpack(package, package.with_name("out"))


@pytest.mark.parametrize("content", [b"", b"\x08\x0a an ONNX model", b"x" * 4096])
def test_a_file_of_another_kind_is_none(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    assert not bundle.is_archive(tmp_path / "file")
    assert not bundle.is_archive(tmp_path)
    with pytest.raises(InputError, match="is not a package"):
        bundle.unpack(tmp_path / "file", tmp_path / "out")
