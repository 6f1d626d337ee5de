"""Container images with compilers: builds, lists and checks them, and runs commands in them.

Building uses the `docker` command ($TOOLCHAIN_DOCKER names another one), all else the engine's API.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from toolchain import inventory, process
from toolchain.checks import Outcome
from toolchain.containers import build as image_build
from toolchain.containers import recipe as image_recipe
from toolchain.containers import run as container_run
from toolchain.containers.archive import ImageConfig, write
from toolchain.containers.build import ARGUMENTS, SOURCES, BuildOptions, BuiltImage, Tell
from toolchain.containers.check import SBOM, checks
from toolchain.containers.recipe import COMPILER, TRIPLE
from toolchain.containers.run import Command
from toolchain.errors import BuildError, VerificationError
from toolchain.inventory import Build, Component

__all__ = [
    "BuildOptions",
    "BuiltImage",
    "ImageConfig",
    "ImageState",
    "Tell",
    "build",
    "check",
    "environment",
    "examine",
    "identity",
    "labels",
    "names",
    "run",
    "tag",
    "write",
]

State = Literal["missing", "outdated", "ready"]
# "outdated": the Dockerfile, or a file that it copies, has changed since.

_PREFIX = "edge-toolchain"

_SHA256 = "sha256:"


@dataclass(frozen=True)
class ImageState:
    """An image as it is on this machine."""

    name: str  # in board files
    tag: str  # in the engine
    triple: str  # GNU triple that it compiles for
    compiler: str  # driver
    state: State
    id: str = ""  # digest of its content; empty if it is missing
    size: int = 0  # bytes in its files


def names() -> tuple[str, ...]:
    return tuple(image_recipe.recipes())


def tag(name: str) -> str:
    """Return the engine's name of an image: a bare name is a folder of docker/, any other is a full image name."""
    return name if "/" in name or ":" in name else f"{_PREFIX}/{name}:latest"


def build(name: str, options: BuildOptions | None = None, tell: Tell = lambda _line: None) -> BuiltImage:
    """Build one image of this checkout; `options` are the environment's by default.

    Builds of the same sources from the same packages have the same ID, on every machine and at any time.

    Raises:
        InputError: There is no such image, or a file that the options name cannot be read.
        BuildError: Docker is missing or refuses, or a step of the Dockerfile fails.
    """
    chosen = BuildOptions.from_environment() if options is None else options
    return image_build.build(image_recipe.recipe(name), tag(name), chosen, tell)


def examine() -> tuple[ImageState, ...]:
    """List the images and whether they are up to date, or raise a BuildError without a usable engine."""
    with container_run.engine() as client:
        images = {name: image for image in client.images.list(name=f"{_PREFIX}/*") for name in image.tags}
    states = []
    for name, recipe in image_recipe.recipes().items():
        image = images.get(tag(name))
        if image is None:
            states.append(ImageState(name, tag(name), recipe.triple, recipe.compiler, "missing"))
            continue
        state: State = "ready" if image_build.is_current(recipe, image.labels) else "outdated"
        size = image.attrs["Size"]
        states.append(ImageState(name, tag(name), recipe.triple, recipe.compiler, state, image.id, size))
    return tuple(states)


def check(name: str) -> tuple[Outcome, ...]:
    """Check in an image that it compiles, and that it can do nothing else.

    Raises:
        InputError: There is no such image to build.
        BuildError: It is not here, or there is no engine.
    """
    recipe = image_recipe.recipe(name)
    identity(name)

    def attempt(argv: list[str], folder: Path | None = None) -> process.Result:
        return run(name, argv, writable=[folder] if folder else [], timeout=120.0, check=False)

    return checks(recipe, attempt)


def run(  # noqa: PLR0913 - each is an independent property of one command
    image: str,
    argv: Sequence[str | os.PathLike[str]],
    *,
    writable: Sequence[Path] = (),
    readable: Sequence[Path] = (),
    workdir: Path | None = None,
    timeout: float = 600.0,
    environment: Mapping[str, str] | None = None,
    check: bool = True,
) -> process.Result:
    """Run a command in an image: as the calling user, without network or capabilities, on a read-only file system.

    Args:
        image: Its name in docker/, or a full image name.
        argv: Its paths are the same there as here, below the folders named next.
        writable: Folders that it may write to.
        readable: Folders that it may read.
        workdir: Folder to run in; one of those, or one of the image.
        timeout: Seconds until it is killed, even if this process has already ended.
        environment: Variables to set.
        check: Raise on a non-zero exit code.

    Raises:
        BuildError: There is no engine or no such image; the command is missing, too slow, or failed under `check`.
    """
    command = Command(
        [os.fspath(argument) for argument in argv], writable, readable, workdir, timeout, environment or {}
    )
    with container_run.engine() as client:
        result = container_run.run(client, container_run.inspect(client, tag(image), _remedy(image)), command)
    if check and result.returncode != 0:
        raise BuildError(
            f"{command.argv[0]} failed with exit code {result.returncode} in the image {image}",
            details=f"{shlex.join(command.argv)}\n{process.tail(result.stderr or result.stdout)}",
        )
    return result


def identity(image: str) -> str:
    """Return the digest of an image's content; BuildError without the image, as for `labels` and `environment`."""
    with container_run.engine() as client:
        return str(container_run.inspect(client, tag(image), _remedy(image)).id)


def labels(image: str) -> dict[str, str]:
    """Return the labels that an image's build gave it."""
    with container_run.engine() as client:
        return dict(container_run.inspect(client, tag(image), _remedy(image)).labels)


def environment(image: str) -> dict[str, str]:
    """Return the variables that an image sets."""
    with container_run.engine() as client:
        entries = container_run.inspect(client, tag(image), _remedy(image)).attrs["Config"].get("Env") or []
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def _remedy(image: str) -> str:
    if tag(image) != image:
        return f"toolchain containers build {image}"
    return f"docker pull {image}"


@dataclass(frozen=True)
class ImageInventory:
    packages: tuple[Component, ...]
    bill: bytes  # bill of materials
    provenance: bytes  # statement of how it was made


def describe(name: str) -> ImageInventory:
    """Describe an image of this machine; its content cannot differ from its digest.

    Raises:
        BuildError: It is not here, or there is no engine.
        VerificationError: It has no list of its packages.
    """
    digest = identity(name).removeprefix(_SHA256)
    return inventory_of(tag(name), digest, labels(name), run(name, ["cat", SBOM]).stdout)


def inventory_of(tag: str, digest: str, labels: Mapping[str, str], listed: str) -> ImageInventory:
    """Return an image's inventory.

    Args:
        tag: Its name.
        digest: SHA-256 of its configuration, which is its ID.
        labels: The labels that its build gave it.
        listed: The list of its packages, as SPDX.

    Raises:
        VerificationError: The list has another form.
    """
    try:
        entries = TypeAdapter(_List).validate_json(listed).packages
    except ValidationError as fault:
        raise VerificationError(
            f"{tag} has no valid list of its contents",
            details=f"{SBOM} is not a valid SPDX document",
            hint="`toolchain containers build`",
        ) from fault
    # The image itself is among those listed, without a package URL.
    packages = tuple(Component("library", entry.name, entry.version, entry.purl) for entry in entries if entry.purl)
    notes = {name.rpartition(".")[2]: labels[name] for name in (TRIPLE, COMPILER) if name in labels}
    image = Component("container", tag, sha256=digest, notes=notes)
    sources = Component("file", "sources", sha256=labels.get(SOURCES, ""))
    try:
        arguments: object = json.loads(labels.get(ARGUMENTS, "{}"))
    except (ValueError, RecursionError):
        arguments = {}
    request = {"image": tag, "arguments": arguments}
    origin = Build("image", request, notes, [sources, *packages])
    return ImageInventory(packages, inventory.bill(image, packages), inventory.statement({tag: digest}, origin))


@dataclass(frozen=True)
class _Reference:
    kind: Annotated[str, Field(validation_alias="referenceType")]
    locator: Annotated[str, Field(validation_alias="referenceLocator")]


@dataclass(frozen=True)
class _Package:
    name: str
    version: Annotated[str, Field(validation_alias="versionInfo")] = ""
    references: Annotated[tuple[_Reference, ...], Field(validation_alias="externalRefs")] = ()

    @property
    def purl(self) -> str:
        return next((reference.locator for reference in self.references if reference.kind == "purl"), "")


@dataclass(frozen=True)
class _List:
    packages: tuple[_Package, ...]
