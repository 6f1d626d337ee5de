"""A bundle in its folder: written, read and checked against its manifest."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from toolchain import files, outputs
from toolchain.bundle import inventories
from toolchain.bundle.manifest import (
    LARGEST_MANIFEST,
    MANIFEST,
    RECORDS,
    REFERENCE,
    SIGNATURES,
    STATEMENT,
    FileRecord,
    Manifest,
    older_schema,
    read_manifest,
)
from toolchain.bundle.oci import COMPANIONS, LAYERS, oci_manifest
from toolchain.bundle.reference import Reference
from toolchain.errors import InputError, VerificationError

_WHAT = "a bundle"
_FEW_NAMES = 5


@dataclass(frozen=True)
class Bundle:
    """A bundle in a folder, whose files are what its manifest says."""

    folder: Path  # where its files are
    manifest: Manifest  # its manifest
    digest: str  # SHA-256 of its OCI manifest, which names it everywhere: in reports, packages and on devices

    @property
    def reference(self) -> Path | None:
        """File with the reference inputs (`input.<name>`) and outputs (`output.<name>`), if there is one."""
        return _existing(self.folder / REFERENCE)

    @property
    def records(self) -> Path | None:
        """File with the tuning records that were applied, if there is one."""
        return _existing(self.folder / RECORDS)

    @property
    def statement(self) -> Path | None:
        """File with what was signed of the bundle, if anything was."""
        return _existing(self.folder / STATEMENT)

    @property
    def signatures(self) -> Path | None:
        """File with the signatures under it."""
        return _existing(self.folder / SIGNATURES)


def _existing(path: Path) -> Path | None:
    if not path.parent.is_dir():  # or a file that was there would count as one that never was
        raise FileNotFoundError(f"{path.parent} is gone: a bundle is read within the block that opens it")
    return path if path.is_file() else None


def records(folder: Path) -> dict[str, FileRecord]:
    """Measure the files of a bundle that is being made."""
    return {name: recorded(folder / name) for name in LAYERS}


def recorded_reference(folder: Path) -> FileRecord | None:
    """Measure the reference of a bundle that is being made, if it has one."""
    return recorded(folder / REFERENCE) if (folder / REFERENCE).is_file() else None


def recorded(path: Path) -> FileRecord:
    """Return the digest and the size of a file."""
    return FileRecord(files.sha256_file(path), path.stat().st_size)


def load(folder: Path, named: str = "") -> Bundle:
    """Open a bundle and check every file against the manifest.

    Args:
        folder: Where it is.
        named: What errors call it; the folder by default.

    Raises:
        InputError: The folder holds no bundle.
        VerificationError: A file is missing or has another digest, or the reference does not fit the model.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(
            f"{folder} is not a bundle: it has no {MANIFEST}", hint="run `toolchain build MODEL -o DIR` to create one"
        )
    manifest = read_manifest(_described(folder), named or str(folder))
    _check_files(folder, manifest, named or str(folder))
    _check_records(folder, manifest, named or str(folder))
    _check_reference(folder, manifest, named or str(folder))
    inventories.check(folder, manifest, named or str(folder))
    return Bundle(folder, manifest, files.sha256_bytes(oci_manifest(manifest)))


def _described(folder: Path) -> bytes:
    """Read the manifest of a bundle."""
    return files.read_limited(folder / MANIFEST, LARGEST_MANIFEST, VerificationError)


def foreign(folder: Path) -> str:
    """Say what shows that a folder is more than an earlier bundle, or none; empty if a newer one may replace it."""
    known = {MANIFEST, *LAYERS, *(name for name, _media in COMPANIONS.values())}
    own = {item.name for item in folder.iterdir() if item.name in known and item.is_file() and not item.is_symlink()}
    strangers = sorted({item.name for item in folder.iterdir()} - own)
    if strangers:
        return f"it contains {', '.join(strangers[:_FEW_NAMES])}"
    if MANIFEST not in own:
        return f"it does not contain {MANIFEST}"
    try:
        described = _described(folder)
        if older_schema(described) is None:
            read_manifest(described, str(folder))
    except VerificationError as fault:
        return f"{fault.message}\n{fault.details}"
    return ""


def check_target(folder: Path) -> None:
    """See that a bundle can go to a folder.

    Raises:
        InputError: It cannot be written, or holds something else than a bundle.
    """
    outputs.check_folder(folder, _WHAT, foreign)


def replacing(folder: Path) -> AbstractContextManager[Path]:
    """Fill a folder aside and let it take the place of an older bundle in one step at the end.

    Raises:
        InputError: As `check_target`.
    """
    return outputs.replacing(folder, _WHAT, foreign)


def _check_files(folder: Path, manifest: Manifest, named: str) -> None:
    for name, wanted in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise VerificationError(f"{name} is missing from {named}", hint="build the bundle again")
        found = recorded(path)
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
            f"{RECORDS} in {named} does not contain the records that were applied",
            hint="build the bundle again, or fetch the package again",
        )


def _check_reference(folder: Path, manifest: Manifest, named: str) -> None:
    """The reference may be missing, which a deploy asks about; another must not stand in for it."""
    path = folder / REFERENCE
    if not path.exists():
        return
    if not path.is_file() or recorded(path) != manifest.reference:
        raise VerificationError(
            f"{REFERENCE} in {named} is not the one that the bundle was built with",
            hint="build the bundle again, or fetch the package again",
        )
    Reference.read(path).check(manifest)
