"""A bundle in its folder: written, read and checked against its manifest and against a board."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from toolchain import files, outputs
from toolchain.board import Board
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

_CONTENT = "a bundle"
_FEW_NAMES = 5


@dataclass(frozen=True)
class Bundle:
    """A bundle in a folder, whose files match its manifest."""

    folder: Path
    manifest: Manifest
    digest: str  # SHA-256 of its OCI manifest, which names it everywhere: in reports, packages and on devices

    @property
    def reference(self) -> Path | None:
        """The file with the reference, if there is one."""
        return _existing(self.folder / REFERENCE)

    @property
    def records(self) -> Path | None:
        """The file with the tuning records that were applied, if there is one."""
        return _existing(self.folder / RECORDS)

    @property
    def statement(self) -> Path | None:
        """The file with the signed statement, if there is one."""
        return _existing(self.folder / STATEMENT)

    @property
    def signatures(self) -> Path | None:
        """The file with its signatures, if there is one."""
        return _existing(self.folder / SIGNATURES)


def _existing(path: Path) -> Path | None:
    if not path.parent.is_dir():  # or a file that was there would count as one that never was
        raise FileNotFoundError(f"{path.parent} is gone: a bundle is read within the block that opens it")
    return path if path.is_file() else None


def records(folder: Path) -> dict[str, FileRecord]:
    """Measure the files of a bundle that is being made."""
    return {name: record_of(folder / name) for name in LAYERS}


def reference_record(folder: Path) -> FileRecord | None:
    """Measure the reference of a bundle that is being made, if it has one."""
    return record_of(folder / REFERENCE) if (folder / REFERENCE).is_file() else None


def record_of(path: Path) -> FileRecord:
    return FileRecord(files.sha256_file(path), path.stat().st_size)


def load(folder: Path, label: str = "") -> Bundle:
    """Open a bundle and check every file against the manifest.

    `label` is its name in errors.

    Raises:
        InputError: The folder does not hold a bundle.
        VerificationError: A file is missing or has another digest, or the reference does not fit the model.
    """
    path, label = folder / MANIFEST, label or str(folder)
    if not path.is_file():
        raise InputError(
            f"{folder} is not a bundle: it has no {MANIFEST}", hint="run `toolchain build MODEL -o DIR` to create one"
        )
    manifest = read_manifest(_manifest_bytes(folder), label)
    _check_files(folder, manifest, label)
    # Records and reference may be missing, since a device does not need them, but others must not stand in for them.
    records_path = folder / RECORDS
    applied = manifest.records.sha256 if manifest.records else ""
    if records_path.is_file() and files.sha256_file(records_path) != applied:
        raise VerificationError(
            f"{RECORDS} in {label} does not contain the records that were applied",
            hint="build the bundle again, or fetch the package again",
        )
    reference_path = folder / REFERENCE
    if reference_path.exists():
        if not reference_path.is_file() or record_of(reference_path) != manifest.reference:
            raise VerificationError(
                f"{REFERENCE} in {label} is not the one that the bundle was built with",
                hint="build the bundle again, or fetch the package again",
            )
        Reference.read(reference_path).check(manifest)
    inventories.check(folder, manifest, label)
    return Bundle(folder, manifest, files.sha256_bytes(oci_manifest(manifest)))


def _manifest_bytes(folder: Path) -> bytes:
    return files.read_limited(folder / MANIFEST, LARGEST_MANIFEST, VerificationError)


def foreign(folder: Path) -> str:
    """Return what shows that a folder is not, or not only, an earlier bundle; empty if a newer one may replace it."""
    names = {MANIFEST, *LAYERS, *(name for name, _media in COMPANIONS.values())}
    ours = {item.name for item in folder.iterdir() if item.name in names and item.is_file() and not item.is_symlink()}
    strangers = sorted({item.name for item in folder.iterdir()} - ours)
    if strangers:
        return f"it contains {', '.join(strangers[:_FEW_NAMES])}"
    if MANIFEST not in ours:
        return f"it does not contain {MANIFEST}"
    try:
        manifest = _manifest_bytes(folder)
        if older_schema(manifest) is None:
            read_manifest(manifest, str(folder))
    except VerificationError as fault:
        return f"{fault.message}\n{fault.details}"
    return ""


def check_target(folder: Path) -> None:
    """Check that a bundle can be written to a folder.

    Raises:
        InputError: It cannot be written, or holds something other than a bundle.
    """
    outputs.check_folder(folder, _CONTENT, foreign)


def replacing(folder: Path) -> AbstractContextManager[Path]:
    """Fill a folder aside that replaces an older bundle in one step at the end.

    Raises as `check_target`.
    """
    return outputs.replacing(folder, _CONTENT, foreign)


def check_board(manifest: Manifest, board: Board, label: str = "", root: str = "") -> None:
    """Refuse a bundle that was built for another board type, or for another target of one of that name.

    A library for the CPU alone runs on every board of its machine, but a report would say that it is the GPU's, and its
    records, threads and tolerance are those of the other board.

    Args:
        manifest: The bundle's.
        board: The board type that it is to run as, resolved.
        label: The folder or file that the user named, where that says more than the model's name.
        root: The store that it is in, where it is a release.

    Raises:
        VerificationError: It was built for something else.
    """
    origin = manifest.model.get("origin", "MODEL")
    build = f"`toolchain build {origin} --board {board.name}`"
    built_for = f"{manifest.machine}, {manifest.triple}, {manifest.target.get('kind')}"
    if manifest.board != board.name:
        hint = f"use --board {manifest.board} or its board file; or run {build}"
        if root:  # board types of one machine may have stores of their own
            elsewhere = f" --root {root}" if board.connection == "local" else ""
            deploy = f"`toolchain deploy {origin} --board {board.name}`"
            hint = f"--board {manifest.board}{elsewhere}, or its file, uses this release; {deploy} replaces it"
        raise VerificationError(
            f"{label or manifest.name} was built for board {manifest.board}, not for board {board.name}",
            details=f"it is for {built_for}",
            hint=hint,
        )
    expected = (board.machine, board.triple, board.target.kind)
    if (manifest.machine, manifest.triple, manifest.target.get("kind")) != expected:
        raise VerificationError(
            f"{manifest.name} was built for a different board that is also named {board.name}",
            details=f"its target is {built_for}; this one is {', '.join(expected)}",
            hint=build,
        )


def _check_files(folder: Path, manifest: Manifest, label: str) -> None:
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise VerificationError(f"{name} is missing from {label}", hint="build the bundle again")
        # The size comes first: there may be gigabytes of it.
        size, wanted = path.stat().st_size, f"{expected.size} bytes, sha256 {expected.sha256}"
        found = f"{size} bytes" if size != expected.size else f"{size} bytes, sha256 {files.sha256_file(path)}"
        if found != wanted:
            raise VerificationError(
                f"{name} in {label} is not the file that was built",
                details=f"expected {wanted}\nfound    {found}",
                hint="build the bundle again, or fetch the package again",
            )
