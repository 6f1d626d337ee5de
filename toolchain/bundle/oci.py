"""A package as OCI knows it: media types, descriptors, and the image manifest, whose digest is the bundle's."""

from __future__ import annotations

from typing import Any

from toolchain import files
from toolchain.bundle.manifest import (
    GRAPH,
    GRAPH_TEXT,
    LIBRARY,
    PARAMS,
    RECORDS,
    REFERENCE,
    FileRecord,
    Manifest,
)

_VENDOR = "application/vnd.edge-toolchain"
ARTIFACT = f"{_VENDOR}.bundle.v1"
_CONFIG_TYPE = f"{_VENDOR}.manifest.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
TITLE = "org.opencontainers.image.title"

# What travels to a device, in the order of the package's layers, with each file's media type.
LAYERS = {
    LIBRARY: f"{_VENDOR}.library.v1+elf",
    GRAPH: f"{_VENDOR}.graph.v1+json",
    GRAPH_TEXT: "text/plain",
    PARAMS: f"{_VENDOR}.params.v1+safetensors",
}

_REFERENCE_ARTIFACT = f"{_VENDOR}.reference.v1"
_RECORDS_ARTIFACT = f"{_VENDOR}.records.v1"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
REF_NAME = "org.opencontainers.image.ref.name"
# What travels in a package beside the bundle: the name of each artifact's only file, and its media type.
COMPANIONS = {
    _REFERENCE_ARTIFACT: (REFERENCE, "application/vnd.safetensors"),
    _RECORDS_ARTIFACT: (RECORDS, f"{_VENDOR}.records.v1+jsonl"),
}


def oci_manifest(manifest: Manifest) -> bytes:
    """Return the OCI image manifest of a bundle; its SHA-256 is the bundle's digest."""
    config = manifest.encoded()
    layers = [
        descriptor(media, manifest.files[name], {TITLE: name})
        for name, media in LAYERS.items()
        if name in manifest.files
    ]
    return encoded(ARTIFACT, descriptor(_CONFIG_TYPE, bytes_record(config)), layers)


def encoded(
    artifact: str, config: dict[str, Any], layers: list[dict[str, Any]], subject: dict[str, Any] | None = None
) -> bytes:
    """Return an image manifest; `subject` is the one that it accompanies."""
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": artifact,
        "config": config,
        "layers": layers,
    }
    if subject is not None:
        document["subject"] = subject
    return files.canonical_json(document)


def descriptor(media: str, record: FileRecord, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """Return what names a blob: its media type, its digest, and its size in bytes."""
    entry: dict[str, Any] = {"mediaType": media, "digest": f"sha256:{record.sha256}", "size": record.size}
    return {**entry, "annotations": annotations} if annotations else entry


def bytes_record(data: bytes) -> FileRecord:
    """Return the record of bytes that are in no file yet."""
    return FileRecord(files.sha256_bytes(data), len(data))
