"""A bundle (library + graph + params + manifest) and its package: one deterministic OCI image-layout archive."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from toolchain import files, tensors
from toolchain.errors import InputError, VerificationError
from toolchain.tensors import Tensors, TensorSpec

MANIFEST = "manifest.json"
LIBRARY = "model.so"
GRAPH = "graph.json"
GRAPH_TEXT = "graph.txt"
PARAMS = "params.safetensors"
REFERENCE = "reference.safetensors"  # inputs and the outputs that ONNX Runtime gives for them
RECORDS = "records.jsonl"  # the tuning records that were applied

_SCHEMA = 1
_VENDOR = "application/vnd.edge-toolchain"
ARTIFACT = f"{_VENDOR}.bundle.v1"
_CONFIG_TYPE = f"{_VENDOR}.manifest.v1+json"
_REFERENCE_ARTIFACT = f"{_VENDOR}.reference.v1"
_RECORDS_ARTIFACT = f"{_VENDOR}.records.v1"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_TITLE = "org.opencontainers.image.title"
_REF_NAME = "org.opencontainers.image.ref.name"

# What travels to a device, in the order of the package's layers, with each file's media type.
LAYERS = {
    LIBRARY: f"{_VENDOR}.library.v1+elf",
    GRAPH: f"{_VENDOR}.graph.v1+json",
    GRAPH_TEXT: "text/plain",
    PARAMS: f"{_VENDOR}.params.v1+safetensors",
}

# What travels in a package beside the bundle: the name of each artifact's only file, and its media type.
_COMPANIONS = {
    _REFERENCE_ARTIFACT: (REFERENCE, "application/vnd.safetensors"),
    _RECORDS_ARTIFACT: (RECORDS, f"{_VENDOR}.records.v1+jsonl"),
}

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class FileRecord:
    """SHA-256 (64 hexadecimal digits) and size in bytes of one file."""

    sha256: _Digest
    size: Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Tuned:
    """What tuning records had to do with a bundle.

    Attributes:
        sha256: SHA-256 of the records that were applied, which are in the bundle's folder; empty if there are none.
        tasks: How many kernels the model has; 0 where none is tuned.
        tuned: For how many of them a record was applied.
        shipped: For how many more a record that comes with the toolchain was.
    """

    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    tasks: Annotated[int, Field(ge=0)] = 0
    tuned: Annotated[int, Field(ge=0)] = 0
    shipped: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True)
class Modelled:
    """What a model of an accelerator says of its part of one run. Nothing of it was measured.

    Attributes:
        model: Name of the model.
        clock_mhz: Clock of the accelerator.
        kernels: Calls of its kernels.
        cycles: Clock cycles of all of them.
        macs: Multiply-adds that count.
        macs_per_cycle: The most that the accelerator does in a cycle.
    """

    model: str
    clock_mhz: Annotated[float, Field(gt=0)]
    kernels: Annotated[int, Field(ge=1)]
    cycles: Annotated[int, Field(ge=1)]
    macs: Annotated[int, Field(ge=0)]
    macs_per_cycle: Annotated[int, Field(ge=1)]

    @property
    def milliseconds(self) -> float:
        """Time of the accelerator's part."""
        return self.cycles / self.clock_mhz / 1e3

    @property
    def utilisation(self) -> float:
        """Share of the multiply-adds that it could have done."""
        return self.macs / (self.cycles * self.macs_per_cycle)

    @property
    def gops(self) -> float:
        """Billions of operations a second; a multiply-add counts as two."""
        return 2 * self.macs / self.milliseconds / 1e6


@dataclass(frozen=True)
class Manifest:
    """Everything that someone has to know about a bundle before running it, and to make it again.

    Attributes:
        schema: Version of this document.
        name: Model name.
        board: Board type it was built for.
        machine: What `uname -m` must say on the device.
        triple: GNU triple of the library.
        target: TVM code-generation target.
        glibc: Lowest glibc version that the library loads on; empty if it needs none.
        cpu_features: Flags that the device's /proc/cpuinfo must show.
        entry: Function of the library that runs the model: inputs first, then the params in `params_order`.
        library: File name of the Relax VM library.
        params: File name of the params, in safetensors format.
        params_order: Names of the params in the order of the entry's arguments.
        inputs: Input signature in the order of the entry's arguments.
        outputs: Output signature.
        versions: Versions of `toolchain`, `tvm` and `tvm_ffi`.
        compiler: What compiled and linked the library.
        model: Origin and digest of the model file.
        command: The command that makes this bundle again.
        files: Digest and size of each of the bundle's files.
        records: The tuning records that were applied; None in a manifest from before there were any.
        modelled: What a model of the board's accelerator says; None where there is none.
    """

    schema: Literal[1]
    name: str
    board: str
    machine: str
    triple: str
    target: Mapping[str, Any]
    glibc: str
    cpu_features: tuple[str, ...]
    entry: str
    library: Literal["model.so"]
    params: Literal["params.safetensors"]
    params_order: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    versions: Mapping[str, str]
    compiler: Mapping[str, str]
    model: Mapping[str, str]
    command: str
    files: Mapping[str, FileRecord]
    records: Tuned | None = None
    modelled: Modelled | None = None

    def encoded(self) -> bytes:
        """Return the manifest as the bytes of manifest.json."""
        document = asdict(self)
        for name in ("records", "modelled"):  # an older manifest keeps its bytes, and so its bundle its digest
            if document[name] is None:
                del document[name]
        return files.canonical_json(document)


@dataclass(frozen=True)
class Reference:
    """What a bundle's outputs are compared with.

    Attributes:
        runtime: What computed them, with its version.
        inputs: Inputs by name.
        outputs: The outputs for them, by name.
        tolerance: Limit for the relative difference, where the dtype's own is not the right one.
    """

    runtime: str
    inputs: Tensors
    outputs: Tensors
    tolerance: float | None = None

    def save(self, folder: Path) -> None:
        """Write it into the folder of a bundle, as `input.<name>` and `output.<name>`."""
        named = {f"input.{name}": value for name, value in self.inputs.items()}
        named |= {f"output.{name}": value for name, value in self.outputs.items()}
        limit = {} if self.tolerance is None else {"tolerance": repr(self.tolerance)}
        tensors.save(folder / REFERENCE, named, {"runtime": self.runtime, **limit})

    @classmethod
    def read(cls, path: Path) -> Reference:
        """Read it.

        Raises:
            VerificationError: The file is not readable.
        """
        parts: dict[str, dict[str, NDArray[Any]]] = {"input": {}, "output": {}}
        for key, value in tensors.load(path).items():
            kind, _, name = key.partition(".")
            parts.setdefault(kind, {})[name] = value
        notes = tensors.notes(path)
        try:
            limit = float(notes["tolerance"]) if "tolerance" in notes else None
        except ValueError as fault:
            raise VerificationError(f"{path.name} has a tolerance that is no number", details=str(fault)) from fault
        return cls(notes.get("runtime", "an unnamed reference"), parts["input"], parts["output"], limit)


_MANIFEST_READER: TypeAdapter[Manifest] = TypeAdapter(Manifest)


@dataclass(frozen=True)
class Bundle:
    """A bundle in a folder, whose files are what its manifest says.

    Attributes:
        folder: Where its files are.
        manifest: Its manifest.
        digest: SHA-256 of its OCI manifest, which names it everywhere: in reports, packages and on devices.
    """

    folder: Path
    manifest: Manifest
    digest: str

    @property
    def reference(self) -> Path | None:
        """File with the reference inputs (`input.<name>`) and outputs (`output.<name>`), if there is one."""
        return _existing(self.folder / REFERENCE)

    @property
    def records(self) -> Path | None:
        """File with the tuning records that were applied, if there is one."""
        return _existing(self.folder / RECORDS)


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None


def records(folder: Path) -> dict[str, FileRecord]:
    """Measure the files of a bundle that is being made."""
    return {name: _record(folder / name) for name in LAYERS}


def _record(path: Path) -> FileRecord:
    return FileRecord(files.sha256_file(path), path.stat().st_size)


def read_manifest(data: bytes, where: str) -> Manifest:
    """Parse a manifest.

    Raises:
        VerificationError: It is not a manifest of this schema version.
    """
    try:
        return _MANIFEST_READER.validate_json(data)
    except ValidationError as fault:
        lines = [f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in fault.errors()]
        raise VerificationError(f"the manifest of {where} is not valid", details="\n".join(lines[:10])) from fault


def load(folder: Path, named: str = "") -> Bundle:
    """Open a bundle and check every file against the manifest.

    Args:
        folder: Where it is.
        named: What errors call it; the folder by default.

    Raises:
        InputError: The folder holds no bundle.
        VerificationError: A file is missing or has another digest.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(
            f"{folder} holds no bundle: there is no {MANIFEST}", hint="`toolchain build MODEL -o DIR` makes one"
        )
    manifest = read_manifest(path.read_bytes(), named or str(folder))
    _check_files(folder, manifest, named or str(folder))
    _check_records(folder, manifest, named or str(folder))
    return Bundle(folder, manifest, files.sha256_bytes(oci_manifest(manifest)))


def _check_files(folder: Path, manifest: Manifest, named: str) -> None:
    if set(manifest.files) != set(LAYERS):
        raise VerificationError(f"the manifest of {named} lists other files", details=", ".join(manifest.files))
    for name, wanted in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise VerificationError(f"{name} is missing from {named}", hint="build the bundle again")
        found = _record(path)
        if found != wanted:
            raise VerificationError(
                f"{name} in {named} is not the file that was built",
                details=f"expected {wanted.size} bytes, sha256 {wanted.sha256}\n"
                f"found    {found.size} bytes, sha256 {found.sha256}",
                hint="build the bundle again, or fetch the package again",
            )


def _check_records(folder: Path, manifest: Manifest, named: str) -> None:
    """The records may be left out, as a device has no use for them; others must not stand in for them."""
    path = folder / RECORDS
    wanted = manifest.records.sha256 if manifest.records else ""
    if path.is_file() and files.sha256_file(path) != wanted:
        raise VerificationError(
            f"{RECORDS} in {named} does not hold the records that were applied",
            hint="build the bundle again, or fetch the package again",
        )


def oci_manifest(manifest: Manifest) -> bytes:
    """Return the OCI image manifest of a bundle; its SHA-256 is the bundle's digest."""
    config = manifest.encoded()
    layers = [
        _descriptor(media, manifest.files[name], {_TITLE: name})
        for name, media in LAYERS.items()
        if name in manifest.files
    ]
    return _encoded_oci_manifest(ARTIFACT, _descriptor(_CONFIG_TYPE, _bytes_record(config)), layers)


def _encoded_oci_manifest(
    artifact: str, config: dict[str, Any], layers: list[dict[str, Any]], subject: dict[str, Any] | None = None
) -> bytes:
    document = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST_TYPE,
        "artifactType": artifact,
        "config": config,
        "layers": layers,
    }
    if subject is not None:
        document["subject"] = subject
    return files.canonical_json(document)


def _descriptor(media: str, record: FileRecord, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"mediaType": media, "digest": f"sha256:{record.sha256}", "size": record.size}
    return {**entry, "annotations": annotations} if annotations else entry


def _bytes_record(data: bytes) -> FileRecord:
    return FileRecord(files.sha256_bytes(data), len(data))


def pack(bundle: Bundle, target: Path) -> None:
    """Write a bundle as an OCI image-layout archive: the same bytes for the same bundle and reference.

    The reference outputs go in as an artifact of their own that refers to the bundle. They come from the CPU that
    built the bundle, so their last bits must not change the bundle's digest. So do the tuning records, which a device
    has no use for.
    """
    blobs: dict[str, bytes | Path] = {}
    described = [_add_bundle(blobs, bundle)]
    for artifact, (name, _media) in _COMPANIONS.items():
        if (bundle.folder / name).is_file():
            described.append(_add_companion(blobs, artifact, bundle.folder / name, described[0]))
    index = {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": described}
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
    described = _descriptor(_MANIFEST_TYPE, _add_bytes(blobs, oci_manifest(bundle.manifest)))
    return {**described, "artifactType": ARTIFACT, "annotations": {_REF_NAME: bundle.manifest.name}}


def _add_companion(
    blobs: dict[str, bytes | Path], artifact: str, path: Path, subject: dict[str, Any]
) -> dict[str, Any]:
    name, media = _COMPANIONS[artifact]
    record = _record(path)
    blobs[record.sha256] = path
    empty = _add_bytes(blobs, b"{}")
    layer = _descriptor(media, record, {_TITLE: name})
    refers_to = {key: subject[key] for key in ("mediaType", "digest", "size")}
    document = _encoded_oci_manifest(artifact, _descriptor(_EMPTY_TYPE, empty), [layer], refers_to)
    return {**_descriptor(_MANIFEST_TYPE, _add_bytes(blobs, document)), "artifactType": artifact}


def _add_bytes(blobs: dict[str, bytes | Path], data: bytes) -> FileRecord:
    record = _bytes_record(data)
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
    """Unpack a package into a folder, which is created, and check every digest on the way.

    Raises:
        InputError: The file is missing, or is no package.
        VerificationError: A digest, a size or the structure is not what it must be.
    """
    layout = _Layout.read(package)
    try:
        with _staged(folder) as staging, tarfile.open(package) as archive:
            _unpack_into(layout, archive, staging)
            found = load(staging, layout.name)
    except (tarfile.TarError, EOFError) as fault:
        raise VerificationError(f"{package.name} is damaged", details=str(fault), hint="fetch it again") from fault
    return dataclasses.replace(found, folder=folder)


@contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """Fill a folder aside and put it in place at the end, so that a half-unpacked bundle is never seen."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty", hint="name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield staging
        staging.chmod(0o755)
        staging.replace(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


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
    for artifact in _COMPANIONS.keys() & layout.manifests.keys():
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
    name, _media = _COMPANIONS[artifact]
    described = _parsed(_blob(archive, layout.manifests[artifact]), layout.name)
    digest = described["layers"][0]["digest"]
    _extract(archive, digest, staging / name)
    if files.sha256_file(staging / name) != digest.removeprefix("sha256:"):
        raise VerificationError(f"{name} in the package is not what its digest says", hint="fetch it again")
