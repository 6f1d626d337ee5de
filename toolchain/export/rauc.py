"""What `rauc bundle` makes a bundle of RAUC from: a manifest, an update, and a handler that applies it.

RAUC signs its bundles with a key that only its owner has, so the last step is its owner's. See
https://rauc.readthedocs.io/en/latest/reference.html#manifest
"""

from __future__ import annotations

from pathlib import Path

from toolchain import outputs
from toolchain.errors import InputError
from toolchain.export import offline
from toolchain.export.offline import UPDATE, Update, WrittenUpdate, printable

MANIFEST = "manifest.raucm"
HANDLER = "handler.sh"
_WHAT = "the input of `rauc bundle`"
_SCRIPT = Path(__file__).parent / "rauc-handler.sh"
_MANIFEST = """\
[update]
compatible={compatible}
version={version}
description={description}

[bundle]
format=verity

[handler]
filename={handler}
"""


def check_target(target: Path, *, folder: bool) -> None:
    """See `export.check_target`; a file is refused."""
    if not folder:
        raise InputError(
            "`rauc bundle` makes the RAUC bundle from a folder, and signs it with your key",
            hint=f"pass a folder: -o {target}/",
        )
    outputs.check_folder(target, _WHAT, _foreign_folder)


def write(update: Update, target: Path, *, folder: bool, compatible: str) -> WrittenUpdate:
    """Write the folder; see `export.write`. `compatible` is the device type in RAUC's system.conf."""
    check_target(target, folder=folder)
    manifest = _MANIFEST.format(
        compatible=compatible,
        version=update.bundle.digest[:16],
        description=printable(update.bundle.manifest.name),
        handler=HANDLER,
    )
    with outputs.replacing(target, _WHAT, _foreign_folder) as staging:
        payload = offline.write(update, staging / UPDATE)
        (staging / MANIFEST).write_text(manifest, encoding="utf-8")
        (staging / HANDLER).write_bytes(_SCRIPT.read_bytes())
        (staging / HANDLER).chmod(0o755)
        size = sum(path.stat().st_size for path in staging.iterdir())
    return WrittenUpdate(target / UPDATE, payload.sha256, size)


def _foreign_folder(folder: Path) -> str:
    names = {item.name for item in folder.iterdir()}
    if strangers := sorted(names - {UPDATE, MANIFEST, HANDLER}):
        return f"it contains {', '.join(strangers[:5])}"
    return "" if {UPDATE, MANIFEST} <= names else f"it does not contain {UPDATE}"
