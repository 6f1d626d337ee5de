"""The files of an update: one that extracts itself, or a folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from toolchain import archives, files, outputs
from toolchain.export import installer
from toolchain.export.installer import BLOCK, MARK, Extent
from toolchain.export.update import Update

UPDATE = "update.run"
INSTALLER = "install.sh"
BLOBS = "blobs"
_FILE, _FOLDER = "an update", "the folder of an update"
_EXECUTABLE = 0o755


@dataclass(frozen=True)
class WrittenUpdate:
    """An update that was written: the file to run on the device, its SHA-256, and the bytes of the whole update."""

    path: Path
    sha256: str
    size: int

    @classmethod
    def of(cls, path: Path, size: int) -> WrittenUpdate:
        return cls(path, files.sha256_file(path), size)


def check_target(target: Path, *, folder: bool) -> None:
    """See `export.check_target`."""
    if folder:
        outputs.check_folder(target, _FOLDER, _foreign_folder)
    else:
        outputs.check_file(target, _FILE, _foreign_file)


def write(update: Update, target: Path, *, folder: bool = False) -> WrittenUpdate:
    """See `export.write`."""
    check_target(target, folder=folder)
    return _write_folder(update, target) if folder else _write_file(update, target)


def _write_file(update: Update, target: Path) -> WrittenUpdate:
    extents, offset = {}, BLOCK  # each file comes after one block that describes it
    for digest, path in update.contents.items():
        size = path.stat().st_size
        extents[digest] = Extent(size, offset)
        offset += size + -size % BLOCK + BLOCK
    with files.atomic_path(target) as temporary:
        with temporary.open("wb") as stream:
            stream.write(installer.text(update, extents, in_file=True))
            # A plain archive, so that people can inspect an update with `tail` and `tar`.
            archives.append(stream, {f"{BLOBS}/{digest}": path for digest, path in update.contents.items()})
        installer.seal(temporary)
    target.chmod(target.stat().st_mode | 0o111)
    return WrittenUpdate.of(target, target.stat().st_size)


def _write_folder(update: Update, target: Path) -> WrittenUpdate:
    extents = {digest: Extent(path.stat().st_size, 0) for digest, path in update.contents.items()}
    with outputs.replacing(target, _FOLDER, _foreign_folder) as staging:
        script = staging / INSTALLER
        script.write_bytes(installer.text(update, extents, in_file=False))
        installer.seal(script)
        script.chmod(_EXECUTABLE)
        (staging / BLOBS).mkdir()
        for digest, path in update.contents.items():
            shutil.copyfile(path, staging / BLOBS / digest)
    script = target / INSTALLER
    size = script.stat().st_size + sum(extent.size for extent in extents.values())
    return WrittenUpdate.of(script, size)


def _foreign_file(path: Path) -> str:
    with path.open("rb") as stream:
        return "" if stream.read(len(MARK)) == MARK else "it is not an update of this toolchain"


def _foreign_folder(folder: Path) -> str:
    strangers = sorted({item.name for item in folder.iterdir()} - {INSTALLER, BLOBS})
    if strangers:
        return f"it contains {', '.join(strangers[:5])}"
    script = folder / INSTALLER
    return _foreign_file(script) if script.is_file() else f"it does not contain {INSTALLER}"
