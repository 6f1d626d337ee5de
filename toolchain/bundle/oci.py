"""A package as OCI sees it: media types, descriptors, and the image manifest, whose digest is the bundle's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from toolchain import files
from toolchain.bundle.manifest import (
    BILL,
    GRAPH,
    GRAPH_TEXT,
    LIBRARY,
    MANIFEST,
    PARAMS,
    PROVENANCE,
    RECORDS,
    REFERENCE,
    SIGNATURES,
    STATEMENT,
    FileRecord,
    Manifest,
)
from toolchain.errors import VerificationError
from toolchain.inventory import BILL_TYPE, STATEMENT_TYPE
from toolchain.validation import FEW_KEYS, FIRST_FAULT, words

VENDOR = "application/vnd.edge-toolchain"  # the prefix of our own media types
ARTIFACT = f"{VENDOR}.bundle.v1"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
TITLE = "org.opencontainers.image.title"

# What travels to a device, in the order of the package's layers, with each file's media type. Before them goes the
# bundle's manifest. It is a layer and not the config, since clients download the layers of an artifact as files.
LAYERS = {
    LIBRARY: f"{VENDOR}.library.v1+elf",
    GRAPH: f"{VENDOR}.graph.v1+json",
    GRAPH_TEXT: "text/plain",
    PARAMS: f"{VENDOR}.params.v1+safetensors",
}
_MANIFEST_LAYER = f"{VENDOR}.manifest.v1+json"

_REFERENCE_ARTIFACT = f"{VENDOR}.reference.v1"
_RECORDS_ARTIFACT = f"{VENDOR}.records.v1"
_STATEMENT_ARTIFACT = f"{VENDOR}.statement.v1"
_SIGNATURES_ARTIFACT = f"{VENDOR}.signatures.v1"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"  # the config of an artifact, which has none
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
REF_NAME = "org.opencontainers.image.ref.name"
# What travels in a package beside the bundle: the name of each artifact's only file, and its media type.
COMPANIONS = {
    _REFERENCE_ARTIFACT: (REFERENCE, "application/vnd.safetensors"),
    _RECORDS_ARTIFACT: (RECORDS, f"{VENDOR}.records.v1+jsonl"),
    # Under their own types, by which scanners ask a registry for them.
    BILL_TYPE: (BILL, BILL_TYPE),
    STATEMENT_TYPE: (PROVENANCE, STATEMENT_TYPE),
    _STATEMENT_ARTIFACT: (STATEMENT, f"{VENDOR}.statement.v1+json"),
    _SIGNATURES_ARTIFACT: (SIGNATURES, f"{VENDOR}.signatures.v1+sshsig"),
}

_Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
_Form = TypeVar("_Form")


@dataclass(frozen=True)
class Descriptor:
    """The reference to a blob."""

    digest: _Digest  # `sha256:` and 64 hexadecimal digits
    size: Annotated[int, Field(ge=0, le=1 << 40)]
    media: Annotated[str, Field(validation_alias="mediaType")]
    # of a manifest, its artifact type; may be empty
    artifact: Annotated[str, Field(validation_alias="artifactType")] = ""
    annotations: Annotated[Mapping[str, str], FEW_KEYS] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """The digest without its algorithm."""
        return self.digest.removeprefix("sha256:")

    @property
    def record(self) -> FileRecord:
        """Digest and size alone."""
        return FileRecord(self.sha256, self.size)


@dataclass(frozen=True)
class Image:
    """The fields of an image manifest that matter: its layers, its artifact type, and the manifest it accompanies."""

    layers: Annotated[tuple[Descriptor, ...], FIRST_FAULT]
    artifact: Annotated[str, Field(validation_alias="artifactType")] = ""
    subject: Descriptor | None = None


@dataclass(frozen=True)
class Index:
    manifests: Annotated[tuple[Descriptor, ...], FIRST_FAULT]


def parse(kind: type[_Form], data: bytes, where: str) -> _Form:
    """Parse an OCI document, `Image` or `Index`; `where` names it in errors.

    Raises:
        VerificationError: It is not in a valid form.
    """
    try:
        return TypeAdapter(kind).validate_json(data)
    except ValidationError as fault:
        raise VerificationError(
            f"{where} has no valid OCI {'index' if kind is Index else 'manifest'}",
            details=words(fault),
            hint="fetch the package again",
        ) from fault


def oci_manifest(manifest: Manifest) -> bytes:
    """Return the OCI image manifest of a bundle; its SHA-256 is the bundle's digest."""
    manifest_layer = descriptor(_MANIFEST_LAYER, bytes_record(manifest.encoded()), {TITLE: MANIFEST})
    layers = [descriptor(media, manifest.files[name], {TITLE: name}) for name, media in LAYERS.items()]
    return encode_manifest(ARTIFACT, [manifest_layer, *layers])


def encode_manifest(artifact: str, layers: list[dict[str, Any]], subject: dict[str, Any] | None = None) -> bytes:
    """Return an image manifest; `subject` is the manifest that it accompanies."""
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": artifact,
        "config": descriptor(_EMPTY_TYPE, bytes_record(EMPTY)),
        "layers": layers,
    }
    if subject is not None:
        document["subject"] = {key: subject[key] for key in ("mediaType", "digest", "size")}
    return files.canonical_json(document)


def empty_config() -> Descriptor:
    """Return the reference to the config of each of our manifests."""
    return Descriptor(f"sha256:{bytes_record(EMPTY).sha256}", len(EMPTY), _EMPTY_TYPE)


def encode_index(manifests: list[dict[str, Any]]) -> bytes:
    return files.canonical_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests})


def descriptor(media: str, record: FileRecord, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"mediaType": media, "digest": f"sha256:{record.sha256}", "size": record.size}
    return {**entry, "annotations": annotations} if annotations else entry


def bytes_record(data: bytes) -> FileRecord:
    """Return the record of a blob in memory."""
    return FileRecord(files.sha256_bytes(data), len(data))
