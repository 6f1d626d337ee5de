"""The toolchain's own Python as a client: it reads a bundle and its signers as `toolchain trust verify` does."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conformance import arguments
from toolchain import bundle, files
from toolchain.bundle import Bundle
from toolchain.errors import ToolchainError, VerificationError
from toolchain.signing import trust

_LARGEST = 1 << 20
_ARMOUR = b"-----BEGIN SSH SIGNATURE-----"


def main(argv: Sequence[str]) -> int:
    options = arguments.parse(argv)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            release = _as_bundle(options.release, Path(scratch) / "bundle")
            _approve(release, options.trust)
            covered = _covered(release)
            if options.command == "install":
                with arguments.staging(options.target) as folder:
                    for name in covered:
                        shutil.copyfile(release.folder / name, folder / name)
                    for name in ("oci.json", "release.signed"):
                        shutil.copyfile(options.release / name, folder / name)
    except ToolchainError as fault:
        sys.stderr.write(f"{fault.message}\n{fault.details}\n")
        return fault.exit_code
    except OSError as fault:
        sys.stderr.write(f"{fault}\n")
        return 5
    if options.command == "list":
        arguments.show(covered)
    return 0


def _covered(release: Bundle) -> Mapping[str, str]:
    rows = {name: record.sha256 for name, record in release.manifest.files.items()}
    return {**rows, bundle.MANIFEST: files.sha256_file(release.folder / bundle.MANIFEST)}


def _as_bundle(release: Path, folder: Path) -> Bundle:
    """Copy a release of a device into the folder of a bundle, and open it."""
    statement, mark, signatures = files.read_limited(release / "release.signed", _LARGEST).partition(_ARMOUR)
    manifest = bundle.read_manifest(files.read_limited(release / bundle.MANIFEST), str(release))
    folder.mkdir()
    for name, record in {**manifest.files, bundle.MANIFEST: None}.items():
        path = release / name
        if not path.is_file() or (record and path.stat().st_size != record.size):
            raise VerificationError(f"{name} is missing, or has another size")
        shutil.copyfile(path, folder / name)
    (folder / bundle.STATEMENT).write_bytes(statement)
    (folder / bundle.SIGNATURES).write_bytes(mark + signatures)
    package = bundle.load(folder, str(release))
    if files.read_limited(release / "oci.json") != bundle.oci_manifest(manifest):
        raise VerificationError("oci.json is not that of the manifest")
    return package


def _approve(release: Bundle, folder: Path) -> None:
    revoked, threshold, board = folder / "revoked", folder / "threshold", folder / "board"
    floor = folder / "floors" / release.manifest.name
    required = trust.Requirement(
        board.read_text().strip() if board.exists() else "", int(floor.read_text()) if floor.exists() else 0
    )
    trusted = trust.Trust.read(
        folder / "trusted",
        revoked if revoked.exists() else None,
        int(threshold.read_text()) if threshold.exists() else 1,
    )
    trust.approve(release, trusted, required)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
