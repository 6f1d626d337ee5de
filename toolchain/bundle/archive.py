"""A package: a bundle in one file, an OCI archive, whose members are named by their digests.

It is a plain tar file, which depends on its contents alone: no owner, no time, mode 644. Every size is checked before
anything is read.

A library for archives follows links, sparse files and compression, so that a few kilobytes become terabytes. A package
has none of these: only regular files, and folders.
"""

from __future__ import annotations

import bz2
import dataclasses
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from toolchain import files, inventory, outputs, temporary
from toolchain.bundle import inventories
from toolchain.bundle.contents import assemble, bundle_manifest, check_blob, companion_layer, contents, save_blob
from toolchain.bundle.folder import Bundle, load, replacing
from toolchain.bundle.manifest import BILL, LARGEST_MANIFEST
from toolchain.bundle.oci import ARTIFACT, Descriptor, Index, empty_config, encode_index, parse
from toolchain.errors import InputError, VerificationError

INDEX = "index.json"
BLOBS = "blobs/sha256/"

_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1 << 20
_MAX_MEMBERS = 4096
_MEMBER_NAME = re.compile(rf"index\.json|oci-layout|{BLOBS}[0-9a-f]{{64}}")
_FOLDERS = {"blobs", BLOBS.rstrip("/")}
_MAGIC, _MAGIC_AT = b"ustar", 257
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}
_COMPRESSED_HEAD = 1 << 20  # bzip2 decompresses whole blocks, which have 900 kB at most
_UNXZ_BYTES = 128 << 20  # `xz -9` wants 65 MB
_GZIP = 16  # added to the size of the window: zlib expects the header of gzip
_KINDS = {
    tarfile.SYMTYPE: "a link",
    tarfile.LNKTYPE: "a link",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
}

Contents = Mapping[str, bytes | Path]  # members by name, in the archive's order: their bytes, or the file that has them


def is_archive(path: Path) -> bool:
    """Whether a file may be a package: a tar file, perhaps compressed, which a package must not be."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        head = stream.read(_BLOCK)
        if command := _unpacker(head):
            return _holds_tar(command, head + stream.read(_COMPRESSED_HEAD), path.name)
    return head[_MAGIC_AT:].startswith(_MAGIC)


def _holds_tar(command: str, head: bytes, name: str) -> bool:
    """Whether a compressed file begins as a tar file does: any other may be a model."""
    try:
        if command == "gunzip":
            block = zlib.decompressobj(zlib.MAX_WBITS | _GZIP).decompress(head, _BLOCK)
        elif command == "bunzip2":
            block = bz2.BZ2Decompressor().decompress(head, _BLOCK)
        elif command == "unxz":
            block = lzma.LZMADecompressor(memlimit=_UNXZ_BYTES).decompress(head, _BLOCK)
        else:  # which the standard library cannot decompress
            return ".tar" in name
    except (zlib.error, lzma.LZMAError, OSError):  # damaged
        return ".tar" in name
    return block[_MAGIC_AT:].startswith(_MAGIC)


def _unpacker(head: bytes) -> str:
    return next((command for magic, command in _COMPRESSED.items() if head.startswith(magic)), "")


@dataclass(frozen=True)
class Archive:
    name: str  # for errors
    stream: IO[bytes]
    members: Mapping[str, tuple[int, int]]  # offset and size by name

    def index(self) -> bytes:
        """Return the document that lists its manifests."""
        _at, size = self._member(INDEX)
        if size > LARGEST_MANIFEST:
            raise VerificationError(f"{INDEX} in {self.name} has {size} bytes", hint="fetch the package again")
        return b"".join(self._chunks(INDEX))

    def read(self, blob: Descriptor) -> bytes:
        name = BLOBS + blob.sha256
        _at, size = self._member(name)
        if size != blob.size or size > LARGEST_MANIFEST:
            raise VerificationError(
                f"blob {blob.sha256[:12]} in {self.name} does not match its digest",
                details=f"expected {blob.size} bytes, found {size}; at most {LARGEST_MANIFEST} are allowed",
                hint="fetch the package again",
            )
        return check_blob(b"".join(self._chunks(name)), blob, self.name)

    def save(self, blob: Descriptor, target: Path) -> None:
        save_blob(self._chunks(BLOBS + blob.sha256), target, blob, self.name)

    def _member(self, name: str) -> tuple[int, int]:
        if name not in self.members:
            raise VerificationError(f"{name} is missing from {self.name}", hint="fetch the package again")
        return self.members[name]

    def _chunks(self, name: str) -> Iterator[bytes]:
        offset, remaining = self._member(name)
        self.stream.seek(offset)
        while remaining:
            chunk = self.stream.read(min(remaining, _CHUNK))
            if not chunk:  # it is being written to
                raise VerificationError(f"{self.name} ends within {name}", hint="fetch the package again")
            remaining -= len(chunk)
            yield chunk


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open an archive and list its members, without reading them.

    Raises:
        InputError: It is missing, or not a plain tar file.
        VerificationError: It has a member that no package has, or is cut off.
    """
    if not path.is_file():
        raise InputError(f"there is no package {path}", hint="run `toolchain package DIR -o FILE` to create one")
    with path.open("rb") as stream:
        head = stream.read(_BLOCK)
        if command := _unpacker(head):
            raise VerificationError(f"{path} is compressed; a package must be uncompressed", hint=f"{command} {path}")
        if not head[_MAGIC_AT:].startswith(_MAGIC):
            raise InputError(f"{path} is not a package", hint="expected an OCI archive")
        yield Archive(path.name, stream, dict(_members(stream, path.stat().st_size, path.name)))


def _members(stream: IO[bytes], length: int, where: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Walk from header to header, and check that each member is within the file."""
    offset, names = 0, set[str]()
    while True:
        stream.seek(offset)
        block = stream.read(_BLOCK)
        if not block.strip(b"\0"):  # the end of the archive
            return
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as fault:
            raise _damaged(where, f"the header at byte {offset}: {fault}") from fault
        start = offset + _BLOCK
        if not 0 <= info.size <= length - start:
            raise _damaged(where, f"{info.name!r} should have {info.size} bytes, but only {length - start} are there")
        name = _checked_name(info, where)
        if name in names or len(names) > _MAX_MEMBERS:
            raise _damaged(where, f"{name!r} occurs twice" if name in names else "it has too many members")
        names.add(name)
        if info.isreg():
            yield name, (start, info.size)
        offset = start + -(-info.size // _BLOCK) * _BLOCK


def _checked_name(info: tarfile.TarInfo, where: str) -> str:
    name = info.name.removeprefix("./").rstrip("/")
    if info.isdir() and not info.size and (name in {*_FOLDERS, "", "."}):
        return name
    if info.type not in {tarfile.REGTYPE, tarfile.AREGTYPE}:
        raise _damaged(
            where,
            f"{info.name!r} is {_KINDS.get(info.type, f'of type {info.type!r}')}, which a package may not contain",
        )
    if not _MEMBER_NAME.fullmatch(name):
        raise _damaged(where, f"{info.name!r} is not a valid member of a package")
    return name


def _damaged(where: str, details: str) -> VerificationError:
    return VerificationError(f"{where} is damaged", details=details, hint="fetch the package again")


def pack(bundle: Bundle, target: Path) -> None:
    """Write a bundle as an OCI image-layout archive: the same bytes for the same bundle, reference and records."""
    package = contents(bundle)
    members: dict[str, bytes | Path] = {
        INDEX: encode_index(list(package.manifests)),
        "oci-layout": files.canonical_json({"imageLayoutVersion": "1.0.0"}),
        **{f"{BLOBS}{digest}": content for digest, content in package.blobs.items()},
    }
    with files.atomic_path(target) as temporary:
        write_tar(temporary, dict(sorted(members.items())))


def unpack(package: Path, folder: Path) -> Bundle:
    """Unpack a package into a folder, where it replaces an earlier bundle, and check every digest.

    Raises:
        InputError: The file is missing or not a package, the disk is full, or the folder does not hold a bundle.
        VerificationError: A digest, a size or the structure is wrong.
    """
    with open_archive(package) as source:
        index, entry = _bundle_descriptor(source, package)
        manifest = bundle_manifest(source, source.read(entry))
        source.read(empty_config())  # nothing needs it, but no byte of a package goes unchecked without a reason
        with replacing(folder) as staging:
            assemble(source, manifest, index.manifests, staging)
            bundle = load(staging, package.name)
    return dataclasses.replace(bundle, folder=folder)


def open_bundle(path: Path, folder: Path) -> Bundle:
    """Open the bundle in a folder, or that of a package, which is unpacked into the other folder.

    Raises as `load` and `unpack`.
    """
    return load(path) if path.is_dir() else unpack(path, folder)


@contextmanager
def at_hand(path: Path) -> Iterator[Bundle]:
    """Open the bundle in a folder, or that of a package, which is unpacked for the time of a block.

    Raises as `load` and `unpack`.
    """
    with temporary.folder() as scratch:
        yield open_bundle(path, Path(scratch) / "bundle")


def read_bill(path: Path) -> bytes:
    """Return the bill of materials of a bundle in a folder or a package, without unpacking it.

    Raises:
        InputError: It is missing, is neither, or has no bill.
        VerificationError: The package is damaged.
    """
    if path.is_dir():
        return files.read_limited(path / BILL, inventories.AT_MOST)
    with open_archive(path) as source:
        index, entry = _bundle_descriptor(source, path)
        manifest = bundle_manifest(source, source.read(entry))
        for companion in index.manifests:
            if companion.artifact == inventory.BILL_TYPE:
                return source.read(companion_layer(source, companion, manifest))
    raise InputError(f"{path} has no bill of materials", hint="build it again and pack it with `toolchain package`")


def check_package_target(path: Path) -> None:
    """Check that a package can be written to a file, where at most an older package may be.

    Raises:
        InputError: It cannot be written, or is something else.
    """
    outputs.check_file(path, "a package", _foreign_package)


def _foreign_package(path: Path) -> str:
    try:
        with open_archive(path) as source:
            _bundle_descriptor(source, path)
    except (InputError, VerificationError) as fault:
        return fault.message
    return ""


def _bundle_descriptor(source: Archive, package: Path) -> tuple[Index, Descriptor]:
    """Return an archive's index, and the one of its manifests that is a bundle's."""
    index = parse(Index, source.index(), package.name)
    bundles = [entry for entry in index.manifests if entry.artifact == ARTIFACT]
    if not bundles:
        raise InputError(f"{package} is an OCI archive, but does not contain a bundle", hint="expected " + ARTIFACT)
    if len(bundles) > 1:
        raise VerificationError(f"{package.name} contains {len(bundles)} bundles; a package must contain exactly one")
    return index, bundles[0]


def append_tar(stream: IO[bytes], contents: Contents) -> None:
    """Write an archive at the end of an open file."""
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content) if isinstance(content, bytes) else content.stat().st_size
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
                archive.addfile(info, source)


def write_tar(path: Path, contents: Contents) -> None:
    with path.open("wb") as stream:
        append_tar(stream, contents)


def encode_tar(contents: Contents) -> bytes:
    stream = io.BytesIO()
    append_tar(stream, contents)
    return stream.getvalue()
