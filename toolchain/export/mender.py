"""Artifacts of Mender, with an update as the payload and an update module that applies it.

The format is version 3 of https://github.com/mendersoftware/mender-artifact/tree/master/Documentation, uncompressed:
weights do not become smaller, and the bytes depend on no compressor.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

from toolchain import files, outputs, temporary
from toolchain.bundle import archive
from toolchain.export import offline
from toolchain.export.offline import UPDATE, Update, WrittenUpdate

MODULE = "edge-toolchain"
ARTIFACT = "update.mender"
_WHAT = "a Mender artifact"
_VERSION = b'{"format":"mender","version":3}'
_SOFTWARE = "data-partition.edge-toolchain"
_SCRIPT = Path(__file__).parent / "mender-module.sh"


def check_target(target: Path, *, folder: bool) -> None:
    """See `export.check_target`."""
    if folder:
        outputs.check_folder(target, _WHAT, _foreign_folder)
    else:
        outputs.check_file(target, _WHAT, _foreign_file)


def write(update: Update, target: Path, *, folder: bool, compatible: str) -> WrittenUpdate:
    """Write an artifact, or a folder with the artifact and the update module; see `export.write`."""
    check_target(target, folder=folder)
    if not folder:
        _write_artifact(update, target, compatible)
        return WrittenUpdate.of(target, target.stat().st_size)
    with outputs.replacing(target, _WHAT, _foreign_folder) as staging:
        _write_artifact(update, staging / ARTIFACT, compatible)
        (staging / MODULE).write_bytes(_SCRIPT.read_bytes())
        (staging / MODULE).chmod(0o755)
    artifact = target / ARTIFACT
    return WrittenUpdate.of(artifact, artifact.stat().st_size + (target / MODULE).stat().st_size)


def _write_artifact(update: Update, target: Path, compatible: str) -> None:
    with temporary.folder() as folder:
        work = Path(folder)
        payload = offline.write(update, work / UPDATE)
        header = _header(update, compatible)
        archive.write_tar(work / "data", {UPDATE: payload.path})
        sums = {f"data/0000/{UPDATE}": payload.sha256}
        sums |= {"header.tar": files.sha256_bytes(header), "version": files.sha256_bytes(_VERSION)}
        manifest = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode()
        with files.atomic_path(target) as staging:
            members: archive.Contents = {  # in the order that the format requires
                "version": _VERSION,
                "manifest": manifest,
                "header.tar": header,
                "data/0000.tar": work / "data",
            }
            archive.write_tar(staging, members)


def _header(update: Update, compatible: str) -> bytes:
    slot = f"-{update.slot}" if update.slot else ""
    name = f"{update.bundle.manifest.name}{slot}-{update.bundle.digest[:16]}"
    name = re.sub(r"[^\w.+-]", "-", name, flags=re.ASCII)
    software = f"{_SOFTWARE}{slot}"  # an artifact for one slot must not clear what Mender notes of another
    info = {
        "payloads": [{"type": MODULE}],
        "artifact_provides": {"artifact_name": name},
        "artifact_depends": {"device_type": [compatible]},
    }
    kind = {
        "type": MODULE,
        "artifact_provides": {f"{software}.version": name},
        "clears_artifact_provides": [f"{software}.*"],
    }
    return archive.encode_tar({"header-info": _json(info), "headers/0000/type-info": _json(kind)})


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _foreign_file(path: Path) -> str:
    try:
        with tarfile.open(path) as tar:
            names = [member.name for member in tar]
    except (tarfile.TarError, EOFError):
        return "it is not a Mender artifact"
    return "" if names[:2] == ["version", "manifest"] else "it is a different kind of archive"


def _foreign_folder(folder: Path) -> str:
    strangers = sorted({item.name for item in folder.iterdir()} - {ARTIFACT, MODULE})
    if strangers:
        return f"it contains {', '.join(strangers[:5])}"
    artifact = folder / ARTIFACT
    return _foreign_file(artifact) if artifact.is_file() else f"it does not contain {ARTIFACT}"
