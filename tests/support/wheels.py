"""Wheels: public ones whose files tests use, fetched by their hashes and never installed; and this project's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PYTHON = "3.11"
_SECONDS = 600


class UnreachableError(RuntimeError):
    """A wheel that pip cannot fetch."""


@dataclass(frozen=True)
class Wheel:
    """A wheel as PyPI has it.

    Attributes:
        project: Name of its project.
        file: Its file name, which tells the version and the platform.
        sha256: Digest of the file.
        licence: What the project says about its licence.
    """

    project: str
    file: str
    sha256: str
    licence: str

    @property
    def version(self) -> str:
        return self.file.split("-")[1]

    @property
    def platforms(self) -> list[str]:
        return self.file.removesuffix(".whl").split("-")[-1].split(".")


def listed(table: Mapping[str, Mapping[str, str]]) -> dict[str, Wheel]:
    """Return the wheels of a table of a data file, by project."""
    return {name: Wheel(name, **fields) for name, fields in table.items()}


def downloaded(wheel: Wheel, folder: Path) -> Path:
    """Fetch a wheel by pip, which compares its hash.

    Raises:
        UnreachableError: It cannot be fetched, or its hash is another one.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.project}=={wheel.version} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--python-version", _PYTHON]
    options += [argument for platform in wheel.platforms for argument in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *options]
    completed = subprocess.run(
        [*command, "--dest", folder, "--requirement", requirements],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    if completed.returncode:
        raise UnreachableError(f"pip cannot fetch {wheel.file}: {completed.stderr.strip()[-2000:]}")
    return folder / wheel.file


def wheel_of(tree: Path, folder: Path) -> Path:
    """Build the wheel of a checkout with what is installed here."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    options = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, *options, "--wheel-dir", folder, tree], check=True, capture_output=True)
    [path] = folder.glob("*.whl")
    return path
