"""Device programs that a wheel brings: they take the place of a build for the same sources and compiler.

`make wheel` puts them into the package, each in a folder of its own, with a manifest. A checkout has none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain import files, resources
from toolchain.errors import InputError, VerificationError

MANIFEST = "manifest.json"
_EXECUTABLE = 0o755
_REPAIR = "install the wheel again: pip install --force-reinstall WHEEL"


@dataclass(frozen=True)
class Prebuilt:
    """One program in the package.

    Attributes:
        path: The file.
        key: Digest of everything that determined it; see `programs`.
        built_from: What that was, for messages: the digest of our sources, and packages with their versions.
        sha256: Digest of the file.
    """

    path: Path
    key: str
    built_from: Mapping[str, str]
    sha256: str

    def is_for(self, key: str, here: Mapping[str, str], tell: Callable[[str], None] | None) -> bool:
        """Whether it is what a build would make here; if it is not, report the differences."""
        if self.key == key:
            return True
        differing = [name for name in {**here, **self.built_from} if here.get(name) != self.built_from.get(name)]
        if tell:
            which = ", ".join(differing) or "compiler options"
            tell(f"the package's {self.path.parent.name} is not used: it was built from other {which}")
        return False

    def copy(self, target: Path) -> None:
        """Copy it, and check what was copied.

        Raises:
            VerificationError: It is not what was packed; nothing is left at the target.
        """
        try:
            shutil.copyfile(self.path, target)
            target.chmod(_EXECUTABLE)
            is_intact = files.sha256_file(target) == self.sha256
        except FileNotFoundError:
            is_intact = False
        if not is_intact:
            target.unlink(missing_ok=True)
            raise VerificationError(
                f"{self.path} is not the program that the package was made with",
                details=f"its SHA-256 is not the {self.sha256} of {MANIFEST}",
                hint=_REPAIR,
            )


def folder() -> Path:
    """Return where an installed package has them; a checkout has no such folder."""
    return resources.ROOT / resources.PROGRAMS


def find(name: str, triple: str) -> Prebuilt | None:
    """Return a program of the package; None if it has none of that name for a triple.

    Raises:
        VerificationError: The manifest is damaged.
    """
    manifest = folder() / MANIFEST
    if not manifest.is_file():
        return None
    try:
        document = files.read_json(manifest)
        entry = document["programs"].get(f"{name}-{triple}")
        if entry is None:
            return None
        path = folder() / f"{name}-{triple}" / name
        key, sha256 = str(entry["key"]), str(entry["sha256"])
        return Prebuilt(path, key, {str(part): str(value) for part, value in entry["built_from"].items()}, sha256)
    except (InputError, KeyError, TypeError, AttributeError) as fault:
        raise VerificationError(f"{manifest} is damaged", details=str(fault), hint=_REPAIR) from fault
