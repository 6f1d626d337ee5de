"""What a bundle travels as, in an archive as in a registry: blobs, the manifests that name them, and the way back."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from toolchain import files
from toolchain.bundle import inventories
from toolchain.bundle.folder import Bundle, recorded
from toolchain.bundle.manifest import (
    LARGEST_STATEMENT,
    MANIFEST,
    REFERENCE,
    SIGNATURES,
    STATEMENT,
    FileRecord,
    Manifest,
    read_manifest,
)
from toolchain.bundle.oci import (
    ARTIFACT,
    COMPANIONS,
    EMPTY,
    LAYERS,
    MANIFEST_TYPE,
    REF_NAME,
    TITLE,
    VENDOR,
    Descriptor,
    Image,
    bytes_record,
    descriptor,
    encoded,
    oci_manifest,
    parsed,
)
from toolchain.errors import InputError, VerificationError
from toolchain.progress import size_text

_SPARE = 16 << 20
_LARGEST_MANIFEST = 64 << 10  # of a companion: it names one file, and the bundle
_MOST_SHARED = 64  # companions of a type that is not ours alone
_LARGEST_COMPANION = 8 << 30  # a reference of many samples is large; and the disk has its own say


@dataclass(frozen=True)
class Contents:
    """A bundle and what accompanies it."""

    blobs: Mapping[str, bytes | Path]  # everything that the manifests name, and they themselves, by SHA-256
    # the manifests' descriptors as documents, the bundle's first, which the others refer to
    manifests: tuple[dict[str, Any], ...]


def contents(bundle: Bundle) -> Contents:
    """Return what a bundle travels as.

    The reference and the tuning records are artifacts of their own that refer to the bundle: a device has no use for
    them. The bundle's manifest has their digests, so that no others can stand in for them.
    """
    blobs: dict[str, bytes | Path] = {}
    described = [_add_bundle(blobs, bundle)]
    for artifact, (name, _media) in COMPANIONS.items():
        if (bundle.folder / name).is_file():
            described.append(_add_companion(blobs, artifact, bundle.folder / name, described[0]))
    return Contents(blobs, tuple(described))


def _add_bundle(blobs: dict[str, bytes | Path], bundle: Bundle) -> dict[str, Any]:
    for name, record in bundle.manifest.files.items():
        blobs[record.sha256] = bundle.folder / name
    _add_bytes(blobs, EMPTY)
    _add_bytes(blobs, bundle.manifest.encoded())
    described = descriptor(MANIFEST_TYPE, _add_bytes(blobs, oci_manifest(bundle.manifest)))
    return {**described, "artifactType": ARTIFACT, "annotations": {REF_NAME: bundle.manifest.name}}


def _add_companion(
    blobs: dict[str, bytes | Path], artifact: str, path: Path, subject: dict[str, Any]
) -> dict[str, Any]:
    name, media = COMPANIONS[artifact]
    record = recorded(path)
    blobs[record.sha256] = path
    document = encoded(artifact, [descriptor(media, record, {TITLE: name})], subject)
    return {**descriptor(MANIFEST_TYPE, _add_bytes(blobs, document)), "artifactType": artifact}


def _add_bytes(blobs: dict[str, bytes | Path], data: bytes) -> FileRecord:
    record = bytes_record(data)
    blobs[record.sha256] = data
    return record


def size_of(content: bytes | Path) -> int:
    """Return how many bytes a blob has."""
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def data_of(content: bytes | Path) -> bytes:
    """Return a small blob."""
    return content if isinstance(content, bytes) else content.read_bytes()


class Source(Protocol):
    """Where a package's blobs are read from. Nothing that it gives is believed before its digest was."""

    @property
    def name(self) -> str:
        """What errors call it."""

    def read(self, wanted: Descriptor) -> bytes:
        """Return a small blob, checked."""

    def save(self, wanted: Descriptor, target: Path) -> None:
        """Write a blob into a new file, checked on the way."""


def bundle_manifest(source: Source, document: bytes) -> Manifest:
    """Read the manifest of the bundle that an OCI manifest describes.

    Args:
        source: Where the blobs are.
        document: The OCI manifest, which has the digest that was asked for.

    Raises:
        InputError: It describes something else than a bundle.
        VerificationError: Something has another digest or form than it must have.
    """
    image = parsed(Image, document, source.name)
    if image.artifact != ARTIFACT:
        what = image.artifact or "without an artifact type, like a container image"
        raise InputError(
            f"{source.name} does not contain a bundle", details=f"it is {what}", hint=f"expected {ARTIFACT}"
        )
    described = [layer for layer in image.layers if layer.annotations.get(TITLE) == MANIFEST]
    if len(described) != 1:
        raise VerificationError(
            f"{source.name} contains a bundle of schema version 1 or without a schema version",
            details=f"its layers do not include {MANIFEST}",
            hint="build it again with this toolchain",
        )
    manifest = read_manifest(source.read(described[0]), source.name)
    if oci_manifest(manifest) != document:
        raise VerificationError(f"the OCI manifest of {source.name} does not match its bundle's manifest")
    return manifest


def assemble(source: Source, manifest: Manifest, companions: Iterable[Descriptor], folder: Path) -> None:
    """Write the files of a bundle into a folder, under names of our own; `load` has the last word about them.

    Args:
        source: Where the blobs are.
        manifest: The bundle's.
        companions: Manifests of what accompanies it; of those of a kind, and of a known one, the first is taken.
        folder: An empty folder.

    Raises:
        InputError: There is no room for all of it.
        VerificationError: Something has another digest or form than it must have.
    """
    wanted = {name: _layer(manifest.files[name], media) for name, media in LAYERS.items()}
    for described in _worth_reading(companions):
        name, _media = COMPANIONS[described.artifact]
        if name in wanted:
            continue
        layer = companion_layer(source, described, manifest)
        if _is_of_somebody_else(name, layer):
            continue
        _check_named(name, layer, manifest, source.name)
        wanted[name] = layer
    _check_room(sum(layer.size for layer in wanted.values()), folder, source.name)
    (folder / MANIFEST).write_bytes(manifest.encoded())
    for name, layer in wanted.items():
        source.save(layer, folder / name)


def _worth_reading(companions: Iterable[Descriptor]) -> list[Descriptor]:
    """Return those of known types, each once: ours first, then some of the types that scanners attach, too.

    A registry may list as many as it likes, and everything that others have attached over the years.
    """
    known: dict[str, Descriptor] = {}
    for one in companions:
        if one.artifact in COMPANIONS:
            known.setdefault(one.digest, one)
    ours = [one for one in known.values() if one.artifact.startswith(VENDOR)]
    shared = [one for one in known.values() if not one.artifact.startswith(VENDOR) and one.size <= _LARGEST_MANIFEST]
    return [*ours, *shared[:_MOST_SHARED]]


def _layer(record: FileRecord, media: str) -> Descriptor:
    return Descriptor(f"sha256:{record.sha256}", record.size, media)


def _check_room(size: int, folder: Path, where: str) -> None:
    free = shutil.disk_usage(folder).free - _SPARE
    if size > free:
        raise InputError(
            f"{where} needs {size_text(size)}, but only {size_text(max(free, 0))} are free",
            hint="free some space, or set TMPDIR to a folder on another disk",
        )


def _is_of_somebody_else(name: str, layer: Descriptor) -> bool:
    """Whether a scanner, say, has attached a bill of its own: their types are not ours alone, as the others' are."""
    return name in inventories.NAMES and layer.annotations.get(TITLE) != name


def _check_named(name: str, layer: Descriptor, manifest: Manifest, where: str) -> None:
    """See that a companion is the one that the bundle's manifest names, before any of it is fetched.

    Those that say how the bundle was made, or are signed, name the bundle, not it them.
    """
    if name in inventories.NAMES:
        named = layer.size <= inventories.AT_MOST
    elif name in {STATEMENT, SIGNATURES}:
        named = layer.size <= LARGEST_STATEMENT
    elif name == REFERENCE:
        named = manifest.reference is not None and layer.record == manifest.reference
    else:
        named = manifest.records is not None and layer.sha256 == manifest.records.sha256
    if not named or layer.size > _LARGEST_COMPANION:
        raise VerificationError(
            f"{name} in {where} is not the one that the bundle was built with",
            details=f"sha256 {layer.sha256}, {layer.size} bytes",
            hint="fetch the package again, or build the bundle again",
        )


def companion_layer(source: Source, described: Descriptor, manifest: Manifest) -> Descriptor:
    """Return the only layer of a companion, which must say that it is one of this bundle.

    Raises:
        VerificationError: It says something else.
    """
    if described.size > _LARGEST_MANIFEST:
        raise VerificationError(
            f"{described.digest[:19]} in {source.name} has {described.size} bytes, too many for a manifest"
        )
    image = parsed(Image, source.read(described), source.name)
    bundle = bytes_record(oci_manifest(manifest))
    if len(image.layers) != 1 or image.artifact != described.artifact or not image.subject:
        raise VerificationError(f"{described.digest[:19]} in {source.name} is not a valid {described.artifact}")
    if image.subject.record != bundle or image.subject.media != MANIFEST_TYPE:
        raise VerificationError(
            f"{described.digest[:19]} in {source.name} belongs to another bundle", details=image.subject.digest
        )
    return image.layers[0]


def checked(data: bytes, wanted: Descriptor, where: str) -> bytes:
    """Return a small blob that is what its descriptor says.

    Raises:
        VerificationError: It is not.
    """
    if len(data) != wanted.size or files.sha256_bytes(data) != wanted.sha256:
        raise _other(f"blob {wanted.sha256[:12]}", where, f"{len(data)} bytes", wanted)
    return data


def save_checked(chunks: Iterable[bytes], target: Path, wanted: Descriptor, where: str) -> None:
    """Write a blob into a file, and no more of it than its descriptor says.

    Raises:
        VerificationError: It is not what the descriptor says.
    """
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as sink:
        for chunk in chunks:
            size += len(chunk)
            if size > wanted.size:
                raise _other(target.name, where, "more bytes than that", wanted)
            digest.update(chunk)
            sink.write(chunk)
    if size != wanted.size or digest.hexdigest() != wanted.sha256:
        raise _other(target.name, where, f"{size} bytes, sha256 {digest.hexdigest()}", wanted)


def _other(what: str, where: str, found: str, wanted: Descriptor) -> VerificationError:
    return VerificationError(
        f"{what} in {where} does not match its digest",
        details=f"expected {wanted.size} bytes, sha256 {wanted.sha256}\nfound    {found}",
        hint="fetch the package again",
    )
