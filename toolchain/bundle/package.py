"""A package: a bundle in one file, an OCI archive, whose members are named by their digests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolchain import archives, files, outputs, temporary
from toolchain.bundle import archive
from toolchain.bundle.archive import BLOBS, INDEX, Archive
from toolchain.bundle.contents import assemble, bundle_manifest, contents
from toolchain.bundle.folder import Bundle, load, replacing
from toolchain.bundle.oci import ARTIFACT, Descriptor, Index, encode_index, parse
from toolchain.errors import InputError, VerificationError


def pack(bundle: Bundle, target: Path) -> None:
    """Write a bundle as an OCI image-layout archive: the same bytes for the same bundle, reference and records."""
    package = contents(bundle)
    members: dict[str, bytes | Path] = {
        INDEX: encode_index(list(package.manifests)),
        "oci-layout": files.canonical_json({"imageLayoutVersion": "1.0.0"}),
        **{f"{BLOBS}{digest}": content for digest, content in package.blobs.items()},
    }
    with files.atomic_path(target) as temporary:
        archives.write(temporary, dict(sorted(members.items())))


def unpack(package: Path, folder: Path) -> Bundle:
    """Unpack a package into a folder, where it replaces an earlier bundle, and check every digest.

    Raises:
        InputError: The file is missing or not a package, the disk is full, or the folder does not hold a bundle.
        VerificationError: A digest, a size or the structure is wrong.
    """
    with archive.open_archive(package) as source:
        index, entry = _bundle_descriptor(source, package)
        manifest = bundle_manifest(source, source.read(entry))
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


def check_package_target(path: Path) -> None:
    """Check that a package can be written to a file, where at most an older package may be.

    Raises:
        InputError: It cannot be written, or is something else.
    """
    outputs.check_file(path, "a package", _foreign_package)


def _foreign_package(path: Path) -> str:
    try:
        with archive.open_archive(path) as source:
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
