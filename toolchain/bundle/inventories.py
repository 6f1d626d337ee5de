"""The inventories of a bundle: its contents, and how it was made. They follow from its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from toolchain import files, inventory
from toolchain.bundle.manifest import BILL, PROVENANCE, Manifest
from toolchain.bundle.oci import oci_manifest
from toolchain.errors import InputError, VerificationError
from toolchain.inventory import Build, Component
from toolchain.validation import FEW_KEYS, FIRST_FAULT, words

NAMES = frozenset({BILL, PROVENANCE})  # the names of their files
AT_MOST = 4 << 20  # the most bytes that one has
# What a library asks for when it runs; the others took part in making it.
_RUNS_WITH = frozenset({"apache-tvm", "apache-tvm-ffi"})
_SHA256 = "sha256:"
_Form = TypeVar("_Form")


def save(folder: Path, manifest: Manifest) -> None:
    """Write both into the folder of a bundle that this toolchain makes."""
    materials = _materials(manifest)
    notes = {"board": manifest.board, "machine": manifest.machine, "triple": manifest.triple}
    if manifest.supported_until:
        notes["supported-until"] = manifest.supported_until
    product = Component("application", manifest.name, sha256=_digest(manifest), notes=notes)
    contents = [Component("file", name, sha256=file.sha256) for name, file in manifest.files.items()]
    files.write_atomic(folder / BILL, inventory.bill(product, [*contents, *materials]))
    parameters = {"command": manifest.command, "board": manifest.board}
    choices = {name: getattr(manifest, name) for name in ("target", "triple", "versions", "compiler")}
    build = Build("bundle", parameters, choices, materials)
    files.write_atomic(folder / PROVENANCE, inventory.statement(_subjects(manifest), build))


def check(folder: Path, manifest: Manifest, label: str) -> None:
    """Check that those which are there describe this bundle.

    Raises:
        VerificationError: One describes another, or has another form.
    """
    if (folder / BILL).exists():
        hashes = _read(_Bill, folder / BILL, label).metadata.component.hashes
        _compare([digest.content for digest in hashes], [_digest(manifest)], BILL, label)
    if (folder / PROVENANCE).exists():
        subjects = _read(_Statement, folder / PROVENANCE, label).subject
        digests = {subject.name: subject.digest.get("sha256", "") for subject in subjects}
        _compare(digests, _subjects(manifest), PROVENANCE, label)


def components(folder: Path, manifest: Manifest) -> tuple[Component, ...]:
    """Return what a bundle's bill lists: its contents, and what it was made with.

    Raises:
        InputError: It has no bill.
        VerificationError: The bill is not in a valid form.
    """
    listed = _read(_Bill, _require_file(folder, manifest, BILL), str(folder)).components
    return tuple(
        Component(entry.type, entry.name, entry.version, required=entry.scope == "required") for entry in listed
    )


def document(folder: Path, manifest: Manifest, name: str) -> Any:
    """Return one of the documents, `BILL` or `PROVENANCE`.

    Raises:
        InputError: The bundle does not have it.
    """
    return files.read_json(_require_file(folder, manifest, name), VerificationError, AT_MOST)


def _require_file(folder: Path, manifest: Manifest, name: str) -> Path:
    path = folder / name
    if not path.exists():
        raise InputError(
            f"the package of {manifest.name} has no {name}",
            hint="build it again, or fetch it with `toolchain pull`: other clients fetch only the bundle",
        )
    return path


def _compare(actual: object, expected: object, name: str, label: str) -> None:
    if actual != expected:
        raise VerificationError(
            f"{name} in {label} describes another bundle", hint="build the bundle again, or fetch the package again"
        )


def _digest(manifest: Manifest) -> str:
    return files.sha256_bytes(oci_manifest(manifest))


def _subjects(manifest: Manifest) -> dict[str, str]:
    return {manifest.name: _digest(manifest), **{name: file.sha256 for name, file in manifest.files.items()}}


def _materials(manifest: Manifest) -> list[Component]:
    """Return the materials of a bundle: the model, the compiler, the records, the lock file and its packages."""
    compiler, image = manifest.compiler.get("compiler", ""), manifest.compiler.get("image", "")
    model = manifest.model
    materials = [
        Component("machine-learning-model", model.get("origin") or manifest.name, sha256=model.get("sha256", "")),
        Component("application", "compiler", compiler, required=False),
        Component("file", "requirements.lock", sha256=inventory.lock_digest(), required=False),
    ]
    if image.startswith(_SHA256):
        materials.append(Component("container", "compiler-image", sha256=image.removeprefix(_SHA256), required=False))
    if manifest.records and manifest.records.sha256:
        materials.append(Component("file", "records.jsonl", sha256=manifest.records.sha256, required=False))
    return [*materials, *inventory.python_packages(_RUNS_WITH)]


# As much of the documents as is checked. Other fields are ignored.


@dataclass(frozen=True)
class _Hash:
    content: str


@dataclass(frozen=True)
class _Whole:
    hashes: Annotated[tuple[_Hash, ...], FIRST_FAULT]


@dataclass(frozen=True)
class _Metadata:
    component: _Whole


@dataclass(frozen=True)
class _Part:
    name: str
    type: str
    version: str = ""
    scope: str = "required"


@dataclass(frozen=True)
class _Bill:
    metadata: _Metadata
    components: Annotated[tuple[_Part, ...], FIRST_FAULT]


@dataclass(frozen=True)
class _Subject:
    name: str
    digest: Annotated[Mapping[str, str], FEW_KEYS]


@dataclass(frozen=True)
class _Statement:
    subject: Annotated[tuple[_Subject, ...], FIRST_FAULT, Field(min_length=1)]


def _read(kind: type[_Form], path: Path, label: str) -> _Form:
    if not path.is_file():
        raise VerificationError(f"{path.name} in {label} is not a file", hint="build the bundle again")
    try:
        return TypeAdapter(kind).validate_json(files.read_limited(path, AT_MOST, VerificationError))
    except ValidationError as fault:
        raise VerificationError(
            f"{path.name} in {label} is not in a valid form",
            details=words(fault),
            hint="build the bundle again, or fetch the package again",
        ) from fault
