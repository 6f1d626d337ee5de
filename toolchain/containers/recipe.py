"""The images that can be built: the Dockerfiles of this tree, and the files that go into each."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain import files, resources
from toolchain.errors import InputError, did_you_mean

TRIPLE = "edge-toolchain.triple"
COMPILER = "edge-toolchain.compiler"

_MAIN = "host"
_CERTIFICATES = Path("docker/certs")
_NDK = Path("docker/ndk")
# Not part of the digest: the NDK's checksum is an argument, and certificates do not stay in the image.
_USER_FOLDERS = (_CERTIFICATES, _NDK)
_NOT_SOURCES = {"__pycache__", resources.DATA}
_LABEL = re.compile(r"([\w.-]+)=(\"[^\"]*\"|\S+)")


@dataclass(frozen=True)
class Recipe:
    """One image to build."""

    name: str  # `host` for the Dockerfile at the root, the folder's name for any other
    dockerfile: Path  # below the root
    labels: Mapping[str, str]
    arguments: Mapping[str, str]  # build arguments and their defaults
    copied: tuple[Path, ...]  # files and folders below the root
    root: Path  # the checkout, or the place of its files in an installed package

    @property
    def triple(self) -> str:
        return self.labels[TRIPLE]

    @property
    def compiler(self) -> str:
        return self.labels[COMPILER]

    def digest(self, arguments: Mapping[str, str]) -> str:
        """Return the digest of the image's inputs: its files here and the given build arguments."""
        total = hashlib.sha256(json.dumps(dict(arguments), sort_keys=True).encode())
        for name, path in self._files():
            if not any(name.is_relative_to(folder) for folder in _USER_FOLDERS):
                total.update(f"\n{name.as_posix()} {files.sha256_file(path)}".encode())
        return total.hexdigest()

    def copy(self, context: Path, certificates: tuple[Path, ...], ndk: Path | None) -> None:
        """Write a build context with only this image's files, in modes that do not depend on the user.

        Raises:
            InputError: A certificate or the NDK's archive cannot be read.
        """
        for name, path in self._files():
            _copy_file(path, context / name)
        for folder in _USER_FOLDERS:
            (context / folder).mkdir(parents=True, exist_ok=True)
            (context / folder / "README.md").touch()  # COPY needs a file
        try:
            for number, path in enumerate(certificates):
                _copy_file(path, context / _CERTIFICATES / f"{number}.crt")
            if ndk:
                _copy_file(ndk, context / _NDK / ndk.name)
        except OSError as fault:
            raise InputError(f"cannot read {fault.filename}: {fault.strerror}") from fault

    def _files(self) -> Iterator[tuple[Path, Path]]:
        """Yield the image's files: their names below the root, and their paths."""
        for entry in (self.dockerfile, *self.copied):
            # An installed package has the other files inside, not beside it.
            is_package = self.root == resources.ROOT and entry == Path(resources.PACKAGE.name)
            path = resources.PACKAGE if is_package else self.root / entry
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                name = file.relative_to(path)
                if file.is_file() and _NOT_SOURCES.isdisjoint(name.parts):
                    yield entry / name, file


def recipes(root: Path = resources.ROOT) -> dict[str, Recipe]:
    """Find the images: every Dockerfile here that labels itself with the triple it compiles for."""
    paths = [root / "Dockerfile", *sorted((root / "docker").glob("*/Dockerfile"))]
    candidates = [read(path, root) for path in paths if path.is_file()]
    return {recipe.name: recipe for recipe in candidates if TRIPLE in recipe.labels}


def recipe(name: str, root: Path = resources.ROOT) -> Recipe:
    available = recipes(root)
    if name in available:
        return available[name]
    hint = did_you_mean(name, available) or "`toolchain containers list` shows all"
    raise InputError(f"there is no image recipe {name}", details=f"images: {', '.join(available)}", hint=hint)


def read(path: Path, root: Path) -> Recipe:
    """Read a Dockerfile: its labels, the defaults of its arguments, and the files that it copies from below `root`."""
    labels: dict[str, str] = {}
    arguments: dict[str, str] = {}
    copied: list[Path] = []
    text = path.read_text(encoding="utf-8")
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in text.replace("\\\n", " ").splitlines():
        instruction, _, rest = line.strip().partition(" ")
        instruction, rest = instruction.upper(), rest.strip()
        if instruction == "LABEL":
            labels |= {name: value.strip('"') for name, value in _LABEL.findall(rest)}
        elif instruction == "ARG":
            name, _, default = rest.partition("=")
            arguments.setdefault(name, default)
        elif instruction == "COPY" and "--from" not in rest:
            copied += [Path(source) for source in shlex.split(rest)[:-1] if not source.startswith("$")]
    name = _MAIN if path.parent == root else path.parent.name
    return Recipe(name, path.relative_to(root), labels, arguments, tuple(dict.fromkeys(copied)), root)


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
