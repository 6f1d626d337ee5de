"""A bundle in one file: an OCI archive, whose parts are named by their digests."""

from __future__ import annotations

import dataclasses
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolchain import files, outputs, temporary
from toolchain.bundle import archive
from toolchain.bundle.archive import BLOBS, INDEX, Archive
from toolchain.bundle.contents import assemble, bundle_manifest, contents
from toolchain.bundle.folder import Bundle, load, replacing
from toolchain.bundle.oci import ARTIFACT, Descriptor, Index, encoded_index, parsed
from toolchain.errors import InputError, VerificationError


def pack(bundle: Bundle, target: Path) -> None:
    """Write a bundle as an OCI image-layout archive: the same bytes for the same bundle, reference and records."""
    travelling = contents(bundle)
    members: dict[str, bytes | Path] = {
        INDEX: encoded_index(list(travelling.manifests)),
        "oci-layout": files.canonical_json({"imageLayoutVersion": "1.0.0"}),
        **{f"{BLOBS}{digest}": content for digest, content in travelling.blobs.items()},
    }
    with files.atomic_path(target) as temporary, tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as packed:
        for name in sorted(members):
            _add_member(packed, name, members[name])


def _add_member(packed: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    """Add a file without anything of this machine or this moment: no owner, no time, a fixed mode."""
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    if isinstance(content, bytes):
        info.size = len(content)
        packed.addfile(info, io.BytesIO(content))
        return
    info.size = content.stat().st_size
    with content.open("rb") as stream:
        packed.addfile(info, stream)


def unpack(package: Path, folder: Path) -> Bundle:
    """Unpack a package into a folder, where an earlier bundle gives way, and check every digest on the way.

    Raises:
        InputError: The file is missing, or is no package; there is no room for it; or the folder holds something else
            than a bundle.
        VerificationError: A digest, a size or the structure is not what it must be.
    """
    with archive.opened(package) as source:
        index, described = _described(source, package)
        manifest = bundle_manifest(source, source.read(described))
        with replacing(folder) as staging:
            assemble(source, manifest, index.manifests, staging)
            found = load(staging, package.name)
    return dataclasses.replace(found, folder=folder)


def opened(path: Path, folder: Path) -> Bundle:
    """Open the bundle in a folder, or that of a package, which is unpacked into the other folder.

    Raises:
        InputError: As `load` or `unpack`.
        VerificationError: As these.
    """
    return load(path) if path.is_dir() else unpack(path, folder)


@contextmanager
def at_hand(path: Path) -> Iterator[Bundle]:
    """Open the bundle in a folder, or that of a package, which is unpacked for the time of a block.

    Raises:
        InputError: As `load` or `unpack`.
        VerificationError: As these.
    """
    with temporary.folder() as scratch:
        yield opened(path, Path(scratch) / "bundle")


def check_package_target(path: Path) -> None:
    """See that a package can go to a file, where at most an older package is.

    Raises:
        InputError: It cannot be written, or is something else.
    """
    outputs.check_file(path, "a package", _foreign_package)


def _foreign_package(path: Path) -> str:
    try:
        with archive.opened(path) as source:
            _described(source, path)
    except (InputError, VerificationError) as fault:
        return fault.message
    return ""


def _described(source: Archive, package: Path) -> tuple[Index, Descriptor]:
    """Read the list of an archive's manifests, one of which is a bundle's."""
    index = parsed(Index, source.index(), package.name)
    bundles = [one for one in index.manifests if one.artifact == ARTIFACT]
    if not bundles:
        raise InputError(f"{package} is an OCI archive, but does not contain a bundle", hint="expected " + ARTIFACT)
    if len(bundles) > 1:
        raise VerificationError(f"{package.name} contains {len(bundles)} bundles; a package must contain exactly one")
    return index, bundles[0]
