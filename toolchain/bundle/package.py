"""A bundle in one file: an OCI archive, whose parts are named by their digests."""

from __future__ import annotations

import dataclasses
import io
import tarfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from toolchain import files, outputs
from toolchain.bundle.contents import assemble, bundle_manifest, checked, contents, save_checked
from toolchain.bundle.folder import Bundle, load, replacing
from toolchain.bundle.oci import ARTIFACT, Descriptor, Index, encoded_index, parsed
from toolchain.errors import InputError, VerificationError

_CHUNK = 1 << 20
_LARGEST_DOCUMENT = 16 << 20  # a manifest has some kilobytes


def pack(bundle: Bundle, target: Path) -> None:
    """Write a bundle as an OCI image-layout archive: the same bytes for the same bundle, reference and records."""
    travelling = contents(bundle)
    members: dict[str, bytes | Path] = {
        "index.json": encoded_index(list(travelling.manifests)),
        "oci-layout": files.canonical_json({"imageLayoutVersion": "1.0.0"}),
        **{f"blobs/sha256/{digest}": content for digest, content in travelling.blobs.items()},
    }
    with files.atomic_path(target) as temporary, tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(members):
            _add_member(archive, name, members[name])


def _add_member(archive: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    """Add a file without anything of this machine or this moment: no owner, no time, a fixed mode."""
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    if isinstance(content, bytes):
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
        return
    info.size = content.stat().st_size
    with content.open("rb") as stream:
        archive.addfile(info, stream)


def unpack(package: Path, folder: Path) -> Bundle:
    """Unpack a package into a folder, where an earlier bundle gives way, and check every digest on the way.

    Raises:
        InputError: The file is missing, or is no package; or the folder holds something else than a bundle.
        VerificationError: A digest, a size or the structure is not what it must be.
    """
    index = _index(package)
    try:
        with replacing(folder) as staging, tarfile.open(package) as archive:
            source = _Archive(package.name, archive)
            described = next(one for one in index.manifests if one.artifact == ARTIFACT)
            manifest = bundle_manifest(source, source.read(described))
            assemble(source, manifest, index.manifests, staging)
            found = load(staging, package.name)
    except (tarfile.TarError, EOFError) as fault:
        raise _damaged(package, fault) from fault
    return dataclasses.replace(found, folder=folder)


def opened(path: Path, folder: Path) -> Bundle:
    """Open the bundle in a folder, or that of a package, which is unpacked into the other folder.

    Raises:
        InputError: As `load` or `unpack`.
        VerificationError: As these.
    """
    return load(path) if path.is_dir() else unpack(path, folder)


def check_package_target(path: Path) -> None:
    """See that a package can go to a file, where at most an older package is.

    Raises:
        InputError: It cannot be written, or is something else.
    """
    outputs.check_file(path, "a package", _foreign_package)


def _foreign_package(path: Path) -> str:
    try:
        _index(path)
    except (InputError, VerificationError) as fault:
        return fault.message
    return ""


def _index(package: Path) -> Index:
    """Read the list of an archive's manifests, one of which is a bundle's."""
    if not package.is_file():
        raise InputError(f"there is no package {package}", hint="`toolchain package DIR -o FILE` makes one")
    if not tarfile.is_tarfile(package):
        raise InputError(f"{package} is not a package", hint="expected an OCI archive")
    try:
        with tarfile.open(package) as archive, _member(archive, "index.json") as stream:
            index = parsed(Index, stream.read(_LARGEST_DOCUMENT), package.name)
    except (tarfile.TarError, EOFError) as fault:
        raise _damaged(package, fault) from fault
    if all(one.artifact != ARTIFACT for one in index.manifests):
        raise InputError(f"{package} is an OCI archive, but holds no bundle", hint="expected " + ARTIFACT)
    return index


def _damaged(package: Path, fault: BaseException) -> VerificationError:
    return VerificationError(f"{package.name} is damaged", details=str(fault), hint="fetch it again")


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    try:
        stream = archive.extractfile(name)
    except KeyError:
        stream = None
    if stream is None:
        raise VerificationError(f"{name} is missing from the package", hint="fetch it again")
    return stream


@dataclass(frozen=True)
class _Archive:
    """The blobs of an opened archive."""

    name: str
    archive: tarfile.TarFile

    def read(self, wanted: Descriptor) -> bytes:
        with _member(self.archive, f"blobs/sha256/{wanted.sha256}") as stream:
            return checked(stream.read(_LARGEST_DOCUMENT), wanted, self.name)

    def save(self, wanted: Descriptor, target: Path) -> None:
        with _member(self.archive, f"blobs/sha256/{wanted.sha256}") as stream:
            save_checked(iter(partial(stream.read, _CHUNK), b""), target, wanted, self.name)
