"""A bundle in one file: an OCI archive, whose parts are named by their digests."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import files, outputs
from toolchain.bundle.folder import Bundle, load, recorded, replacing
from toolchain.bundle.manifest import MANIFEST, FileRecord, read_manifest
from toolchain.bundle.oci import (
    ARTIFACT,
    COMPANIONS,
    EMPTY_TYPE,
    INDEX_TYPE,
    MANIFEST_TYPE,
    REF_NAME,
    TITLE,
    bytes_record,
    descriptor,
    encoded,
    oci_manifest,
)
from toolchain.errors import InputError, VerificationError


def pack(bundle: Bundle, target: Path) -> None:
    """Write a bundle as an OCI image-layout archive: the same bytes for the same bundle and reference.

    The reference outputs go in as an artifact of their own that refers to the bundle. They come from the CPU that
    built the bundle, so their last bits must not change the bundle's digest. So do the tuning records, which a device
    has no use for.
    """
    blobs: dict[str, bytes | Path] = {}
    described = [_add_bundle(blobs, bundle)]
    for artifact, (name, _media) in COMPANIONS.items():
        if (bundle.folder / name).is_file():
            described.append(_add_companion(blobs, artifact, bundle.folder / name, described[0]))
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": described}
    members: dict[str, bytes | Path] = {
        "index.json": files.canonical_json(index),
        "oci-layout": files.canonical_json({"imageLayoutVersion": "1.0.0"}),
        **{f"blobs/sha256/{digest}": content for digest, content in blobs.items()},
    }
    with files.atomic_path(target) as temporary, tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(members):
            _add_member(archive, name, members[name])


def _add_bundle(blobs: dict[str, bytes | Path], bundle: Bundle) -> dict[str, Any]:
    for name, record in bundle.manifest.files.items():
        blobs[record.sha256] = bundle.folder / name
    _add_bytes(blobs, bundle.manifest.encoded())
    described = descriptor(MANIFEST_TYPE, _add_bytes(blobs, oci_manifest(bundle.manifest)))
    return {**described, "artifactType": ARTIFACT, "annotations": {REF_NAME: bundle.manifest.name}}


def _add_companion(
    blobs: dict[str, bytes | Path], artifact: str, path: Path, subject: dict[str, Any]
) -> dict[str, Any]:
    name, media = COMPANIONS[artifact]
    record = recorded(path)
    blobs[record.sha256] = path
    empty = _add_bytes(blobs, b"{}")
    layer = descriptor(media, record, {TITLE: name})
    refers_to = {key: subject[key] for key in ("mediaType", "digest", "size")}
    document = encoded(artifact, descriptor(EMPTY_TYPE, empty), [layer], refers_to)
    return {**descriptor(MANIFEST_TYPE, _add_bytes(blobs, document)), "artifactType": artifact}


def _add_bytes(blobs: dict[str, bytes | Path], data: bytes) -> FileRecord:
    record = bytes_record(data)
    blobs[record.sha256] = data
    return record


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
    layout = _Layout.read(package)
    try:
        with replacing(folder) as staging, tarfile.open(package) as archive:
            _unpack_into(layout, archive, staging)
            found = load(staging, layout.name)
    except (tarfile.TarError, EOFError) as fault:
        raise VerificationError(f"{package.name} is damaged", details=str(fault), hint="fetch it again") from fault
    return dataclasses.replace(found, folder=folder)


def check_package_target(path: Path) -> None:
    """See that a package can go to a file, where at most an older package is.

    Raises:
        InputError: It cannot be written, or is something else.
    """
    outputs.check_file(path, "a package", _foreign_package)


def _foreign_package(path: Path) -> str:
    try:
        _Layout.read(path)
    except (InputError, VerificationError) as fault:
        return fault.message
    return ""


@dataclass(frozen=True)
class _Layout:
    """The index of an opened archive: its manifests by artifact type."""

    name: str
    manifests: Mapping[str, str]

    @classmethod
    def read(cls, package: Path) -> _Layout:
        if not package.is_file():
            raise InputError(f"there is no package {package}", hint="`toolchain package DIR -o FILE` makes one")
        if not tarfile.is_tarfile(package):
            raise InputError(f"{package} is not a package", hint="expected an OCI archive")
        try:
            with tarfile.open(package) as archive:
                index = json.loads(_member(archive, "index.json").read())
                manifests = {entry.get("artifactType"): entry["digest"] for entry in index["manifests"]}
        except (tarfile.TarError, EOFError) as fault:
            raise VerificationError(f"{package.name} is damaged", details=str(fault), hint="fetch it again") from fault
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise VerificationError(f"the index of {package.name} is not readable", details=repr(fault)) from fault
        if ARTIFACT not in manifests:
            raise InputError(f"{package} is an OCI archive, but holds no bundle", hint="expected " + ARTIFACT)
        return cls(package.name, manifests)


def _member(archive: tarfile.TarFile, name: str) -> Any:
    try:
        stream = archive.extractfile(name)
    except KeyError:
        stream = None
    if stream is None:
        raise VerificationError(f"{name} is missing from the package", hint="fetch it again")
    return stream


def _blob(archive: tarfile.TarFile, digest: str) -> bytes:
    """Read a small blob and check its digest."""
    wanted = digest.removeprefix("sha256:")
    data: bytes = _member(archive, f"blobs/sha256/{wanted}").read()
    if files.sha256_bytes(data) != wanted:
        raise VerificationError(f"blob {wanted[:12]} of the package is not what its digest says", hint="fetch it again")
    return data


def _unpack_into(layout: _Layout, archive: tarfile.TarFile, staging: Path) -> None:
    digest = layout.manifests[ARTIFACT]
    document = _parsed(_blob(archive, digest), layout.name)
    config = _blob(archive, document["config"]["digest"])
    manifest = read_manifest(config, layout.name)
    if files.sha256_bytes(oci_manifest(manifest)) != digest.removeprefix("sha256:"):
        raise VerificationError(f"the OCI manifest of {layout.name} does not follow from its bundle's manifest")
    (staging / MANIFEST).write_bytes(config)
    for name, record in manifest.files.items():
        _extract(archive, f"sha256:{record.sha256}", staging / Path(name).name)
    for artifact in COMPANIONS.keys() & layout.manifests.keys():
        _unpack_companion(layout, archive, artifact, staging)


def _parsed(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except ValueError as fault:
        raise VerificationError(f"an OCI manifest of {where} is not JSON", details=str(fault)) from fault


def _extract(archive: tarfile.TarFile, digest: str, target: Path) -> None:
    stream = _member(archive, f"blobs/sha256/{digest.removeprefix('sha256:')}")
    with target.open("wb") as sink:
        shutil.copyfileobj(stream, sink, 1 << 20)


def _unpack_companion(layout: _Layout, archive: tarfile.TarFile, artifact: str, staging: Path) -> None:
    """Unpack a file that the bundle's manifest does not list, and check it against its own artifact's."""
    name, _media = COMPANIONS[artifact]
    described = _parsed(_blob(archive, layout.manifests[artifact]), layout.name)
    digest = described["layers"][0]["digest"]
    _extract(archive, digest, staging / name)
    if files.sha256_file(staging / name) != digest.removeprefix("sha256:"):
        raise VerificationError(f"{name} in the package is not what its digest says", hint="fetch it again")
