"""The blobs and manifests of a package, the same in an archive and in a registry, and the way back to a bundle."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from toolchain import files
from toolchain.bundle import inventories
from toolchain.bundle.folder import Bundle, record_of
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
    encode_manifest,
    oci_manifest,
    parse,
)
from toolchain.errors import InputError, VerificationError
from toolchain.progress import size_text

_SPARE_BYTES = 16 << 20
_LARGEST_MANIFEST = 64 << 10  # of a companion: it names one file, and the bundle
_MAX_SHARED = 64  # companions of a type that is not ours alone
_LARGEST_COMPANION = 8 << 30  # a reference of many samples is large; and the disk has its own say


@dataclass(frozen=True)
class Contents:
    """A bundle and its companions."""

    blobs: Mapping[str, bytes | Path]  # everything that the manifests name, and they themselves, by SHA-256
    # the manifests' descriptors as documents, the bundle's first, which the others refer to
    manifests: tuple[dict[str, Any], ...]


def contents(bundle: Bundle) -> Contents:
    """Return the blobs and manifests of a bundle.

    The reference and the tuning records are artifacts of their own that refer to the bundle, because a device does not
    need them. The bundle's manifest has their digests, so that no others can stand in for them.
    """
    blobs: dict[str, bytes | Path] = {}
    for name, record in bundle.manifest.files.items():
        blobs[record.sha256] = bundle.folder / name
    _add_bytes(blobs, EMPTY)
    _add_bytes(blobs, bundle.manifest.encoded())
    subject = descriptor(MANIFEST_TYPE, _add_bytes(blobs, oci_manifest(bundle.manifest)))
    subject |= {"artifactType": ARTIFACT, "annotations": {REF_NAME: bundle.manifest.name}}
    manifests = [subject]
    for artifact, (name, media) in COMPANIONS.items():
        path = bundle.folder / name
        if path.is_file():
            record = record_of(path)
            blobs[record.sha256] = path
            document = encode_manifest(artifact, [descriptor(media, record, {TITLE: name})], subject)
            companion = descriptor(MANIFEST_TYPE, _add_bytes(blobs, document))
            manifests.append({**companion, "artifactType": artifact})
    return Contents(blobs, tuple(manifests))


def _add_bytes(blobs: dict[str, bytes | Path], data: bytes) -> FileRecord:
    record = bytes_record(data)
    blobs[record.sha256] = data
    return record


def size_of(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def data_of(content: bytes | Path) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


class Source(Protocol):
    """Where a package's blobs are read from: every blob is checked against its digest."""

    @property
    def name(self) -> str: ...

    def read(self, blob: Descriptor) -> bytes:
        """Return a small blob, checked."""

    def save(self, blob: Descriptor, target: Path) -> None:
        """Write a blob into a new file, checked on the way."""


def bundle_manifest(source: Source, document: bytes) -> Manifest:
    """Read the manifest of the bundle that an OCI manifest describes.

    `document` is the OCI manifest, with the requested digest.

    Raises:
        InputError: It does not describe a bundle.
        VerificationError: A blob has another digest or form.
    """
    image = parse(Image, document, source.name)
    if image.artifact != ARTIFACT:
        kind = image.artifact or "without an artifact type, like a container image"
        raise InputError(
            f"{source.name} does not contain a bundle", details=f"it is {kind}", hint=f"expected {ARTIFACT}"
        )
    layers = [layer for layer in image.layers if layer.annotations.get(TITLE) == MANIFEST]
    if len(layers) != 1:
        raise VerificationError(
            f"{source.name} contains a bundle of schema version 1 or without a schema version",
            details=f"its layers do not include {MANIFEST}",
            hint="build it again with this toolchain",
        )
    manifest = read_manifest(source.read(layers[0]), source.name)
    if oci_manifest(manifest) != document:
        raise VerificationError(f"the OCI manifest of {source.name} does not match its bundle's manifest")
    return manifest


def assemble(source: Source, manifest: Manifest, companions: Iterable[Descriptor], folder: Path) -> None:
    """Write the files of a bundle into a folder, under names of our own; the caller has to `load` it.

    Of the companions of each known type, the first one that fits is taken. The folder is empty.

    Raises:
        InputError: There is not enough free space.
        VerificationError: A blob has another digest or form.
    """
    layers = {}
    for name, media in LAYERS.items():
        record = manifest.files[name]
        layers[name] = Descriptor(f"sha256:{record.sha256}", record.size, media)
    for companion in _usable_companions(companions):
        name, _media = COMPANIONS[companion.artifact]
        if name in layers:
            continue
        layer = companion_layer(source, companion, manifest)
        # The types of inventories are not ours alone: a scanner may have attached a bill of its own.
        if name in inventories.NAMES and layer.annotations.get(TITLE) != name:
            continue
        _check_companion(name, layer, manifest, source.name)
        layers[name] = layer
    size, free = sum(layer.size for layer in layers.values()), shutil.disk_usage(folder).free - _SPARE_BYTES
    if size > free:
        raise InputError(
            f"{source.name} needs {size_text(size)}, but only {size_text(max(free, 0))} are free",
            hint="free some space, or set TMPDIR to a folder on another disk",
        )
    (folder / MANIFEST).write_bytes(manifest.encoded())
    for name, layer in layers.items():
        source.save(layer, folder / name)


def _usable_companions(companions: Iterable[Descriptor]) -> list[Descriptor]:
    """Return those of known types, each once: ours first, then a limited number of types that scanners attach, too."""
    # A registry may list any number of manifests, and everything that others have attached over the years.
    by_digest: dict[str, Descriptor] = {}
    for companion in companions:
        if companion.artifact in COMPANIONS:
            by_digest.setdefault(companion.digest, companion)
    ours, shared = [], []
    for companion in by_digest.values():
        if companion.artifact.startswith(VENDOR):
            ours.append(companion)
        elif companion.size <= _LARGEST_MANIFEST:
            shared.append(companion)
    return [*ours, *shared[:_MAX_SHARED]]


def _check_companion(name: str, layer: Descriptor, manifest: Manifest, where: str) -> None:
    """Check that a companion is the one that the bundle's manifest names, before any of it is fetched."""
    # Inventories, statements and signatures are not named there: they name the bundle.
    if name in inventories.NAMES:
        matches = layer.size <= inventories.AT_MOST
    elif name in {STATEMENT, SIGNATURES}:
        matches = layer.size <= LARGEST_STATEMENT
    elif name == REFERENCE:
        matches = manifest.reference is not None and layer.record == manifest.reference
    else:
        matches = manifest.records is not None and layer.sha256 == manifest.records.sha256
    if not matches or layer.size > _LARGEST_COMPANION:
        raise VerificationError(
            f"{name} in {where} is not the one that the bundle was built with",
            details=f"sha256 {layer.sha256}, {layer.size} bytes",
            hint="fetch the package again, or build the bundle again",
        )


def companion_layer(source: Source, companion: Descriptor, manifest: Manifest) -> Descriptor:
    """Return the only layer of a companion, which must refer to this bundle.

    Raises:
        VerificationError: It has another form, or refers to another bundle.
    """
    if companion.size > _LARGEST_MANIFEST:
        raise VerificationError(
            f"{companion.digest[:19]} in {source.name} has {companion.size} bytes, too many for a manifest"
        )
    image = parse(Image, source.read(companion), source.name)
    bundle = bytes_record(oci_manifest(manifest))
    if len(image.layers) != 1 or image.artifact != companion.artifact or not image.subject:
        raise VerificationError(f"{companion.digest[:19]} in {source.name} is not a valid {companion.artifact}")
    if image.subject.record != bundle or image.subject.media != MANIFEST_TYPE:
        raise VerificationError(
            f"{companion.digest[:19]} in {source.name} belongs to another bundle", details=image.subject.digest
        )
    return image.layers[0]


def check_blob(data: bytes, expected: Descriptor, where: str) -> bytes:
    """Return a small blob, or raise a VerificationError if it does not match its descriptor."""
    if len(data) != expected.size or files.sha256_bytes(data) != expected.sha256:
        raise _mismatch(f"blob {expected.sha256[:12]}", where, f"{len(data)} bytes", expected)
    return data


def save_blob(chunks: Iterable[bytes], target: Path, expected: Descriptor, where: str) -> None:
    """Write a blob into a file, at most as many bytes as its descriptor says.

    Raises:
        VerificationError: It does not match the descriptor.
    """
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as sink:
        for chunk in chunks:
            size += len(chunk)
            if size > expected.size:
                raise _mismatch(target.name, where, "more bytes than that", expected)
            digest.update(chunk)
            sink.write(chunk)
    if size != expected.size or digest.hexdigest() != expected.sha256:
        raise _mismatch(target.name, where, f"{size} bytes, sha256 {digest.hexdigest()}", expected)


def _mismatch(blob: str, where: str, actual: str, expected: Descriptor) -> VerificationError:
    return VerificationError(
        f"{blob} in {where} does not match its digest",
        details=f"expected {expected.size} bytes, sha256 {expected.sha256}\nfound    {actual}",
        hint="fetch the package again",
    )
