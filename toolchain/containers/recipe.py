"""What images there are to build, as the Dockerfiles of this tree say it, and what goes into each."""

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
# What the user puts there is named by its checksum, or does not stay in the image.
_FROM_USER = (_CERTIFICATES, _NDK)
_NOT_SOURCES = {"__pycache__", resources.DATA}
_LABEL = re.compile(r"([\w.-]+)=(\"[^\"]*\"|\S+)")


@dataclass(frozen=True)
class Recipe:
    """One image to build.

    Attributes:
        name: `host` for the Dockerfile at the root, the folder's name for any other.
        dockerfile: Its path below the root.
        labels: What it says about itself.
        arguments: Its build arguments and their defaults.
        copied: Files and folders below the root that it takes in.
        root: The checkout, or where an installed package has what it takes of one.
    """

    name: str
    dockerfile: Path
    labels: Mapping[str, str]
    arguments: Mapping[str, str]
    copied: tuple[Path, ...]
    root: Path

    @property
    def triple(self) -> str:
        """GNU triple of what it compiles for."""
        return self.labels[TRIPLE]

    @property
    def compiler(self) -> str:
        """Its compiler driver."""
        return self.labels[COMPILER]

    def digest(self, arguments: Mapping[str, str]) -> str:
        """Return the digest of all that goes into the image: its files here and the given build arguments."""
        total = hashlib.sha256(json.dumps(dict(arguments), sort_keys=True).encode())
        for name, path in self._files():
            if not any(name.is_relative_to(folder) for folder in _FROM_USER):
                total.update(f"\n{name.as_posix()} {files.sha256_file(path)}".encode())
        return total.hexdigest()

    def copy(self, context: Path, certificates: tuple[Path, ...], ndk: Path | None) -> None:
        """Write a build context with this image's files alone, in modes that do not depend on the user.

        Raises:
            InputError: A certificate or the NDK's archive cannot be read.
        """
        for name, path in self._files():
            _place(path, context / name)
        for folder in _FROM_USER:
            (context / folder).mkdir(parents=True, exist_ok=True)
            (context / folder / "README.md").touch()  # COPY wants something to copy
        try:
            for number, path in enumerate(certificates):
                _place(path, context / _CERTIFICATES / f"{number}.crt")
            if ndk:
                _place(ndk, context / _NDK / ndk.name)
        except OSError as fault:
            raise InputError(f"cannot read {fault.filename}: {fault.strerror}") from fault

    def _files(self) -> Iterator[tuple[Path, Path]]:
        """Yield what goes into the image: the names below the root, and where the files are."""
        for entry in (self.dockerfile, *self.copied):
            path = self._located(entry)
            for one in sorted(path.rglob("*")) if path.is_dir() else [path]:
                name = one.relative_to(path)
                if one.is_file() and _NOT_SOURCES.isdisjoint(name.parts):
                    yield entry / name, one

    def _located(self, entry: Path) -> Path:
        """Return where an entry of the tree is; an installed package has the others inside, not beside it."""
        package = self.root == resources.ROOT and entry == Path(resources.PACKAGE.name)
        return resources.PACKAGE if package else self.root / entry


def recipes(root: Path = resources.ROOT) -> dict[str, Recipe]:
    """Find the images: every Dockerfile here that labels itself with the triple it compiles for."""
    paths = [root / "Dockerfile", *sorted((root / "docker").glob("*/Dockerfile"))]
    found = [read(path, root) for path in paths if path.is_file()]
    return {recipe.name: recipe for recipe in found if TRIPLE in recipe.labels}


def recipe(name: str, root: Path = resources.ROOT) -> Recipe:
    """Return one image's recipe.

    Raises:
        InputError: There is none of that name.
    """
    known = recipes(root)
    if name in known:
        return known[name]
    hint = did_you_mean(name, known) or "`toolchain containers list` shows all"
    raise InputError(f"there is no image recipe {name}", details=f"images: {', '.join(known)}", hint=hint)


def read(path: Path, root: Path) -> Recipe:
    """Read a Dockerfile: its labels, the defaults of its arguments, and what it copies.

    Args:
        path: The Dockerfile.
        root: What `COPY` is relative to.
    """
    labels: dict[str, str] = {}
    arguments: dict[str, str] = {}
    copied: list[Path] = []
    for word, rest in _instructions(path.read_text(encoding="utf-8")):
        if word == "LABEL":
            labels |= {name: value.strip('"') for name, value in _LABEL.findall(rest)}
        elif word == "ARG":
            name, _, default = rest.partition("=")
            arguments.setdefault(name, default)
        elif word == "COPY" and "--from" not in rest:
            copied += [Path(source) for source in shlex.split(rest)[:-1] if not source.startswith("$")]
    name = _MAIN if path.parent == root else path.parent.name
    return Recipe(name, path.relative_to(root), labels, arguments, tuple(dict.fromkeys(copied)), root)


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in lines.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        yield word.upper(), rest.strip()


def _place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
