"""The images of virtual boards: of containers and of machines, for each architecture and for what boards compute on."""

from __future__ import annotations

import dataclasses
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from toolchain import resources
from toolchain.board import Board
from toolchain.containers import build
from toolchain.containers import recipe as image_recipe
from toolchain.containers.build import BuildOptions
from toolchain.containers.recipe import Recipe
from toolchain.containers.run import WORK_LABEL, discard, docker
from toolchain.errors import BuildError
from toolchain.virtual.board import Tell, architecture

FOLDER = resources.ROOT / "docker" / "board"
"""What the images are made of."""

USER_LAND, MACHINE = Path("docker/board/Dockerfile"), Path("docker/board/kernel/Dockerfile")
"""A container's Dockerfile, and that of what a board with a kernel boots from."""

_ARCHITECTURE, _PACKAGES = "ARCHITECTURE", "PACKAGES"


def ensure(engine: Any, dockerfile: Path, wanted: Board, tell: Tell) -> Any:
    """Return the image for boards of a type, built anew if it is missing or its sources have changed since.

    Raises:
        BuildError: It cannot be built.
        InputError: There is no virtual board of that type.
    """
    recipe = recipe_for(dockerfile, wanted)
    tag = f"edge-toolchain/{recipe.name}:latest"
    try:
        found = engine.images.get(tag)
        if build.is_current(recipe, found.labels):
            return found
    except docker().errors.ImageNotFound:
        pass
    tell(f"building the image {tag}, which takes a minute")
    build.build(recipe, tag, BuildOptions.from_environment(), tell)
    return engine.images.get(tag)


def copy_out(image: Any, path: str, target: Path) -> None:
    """Copy one file out of an image."""
    container = image.client.containers.create(image.id, command=["-"], labels={WORK_LABEL: "copy"})
    try:
        with tempfile.TemporaryFile(dir=target.parent) as archive:
            for chunk in container.get_archive(path)[0]:
                archive.write(chunk)
            archive.seek(0)
            with tarfile.open(fileobj=archive) as tar, target.open("wb") as stream:
                content = tar.extractfile(tar.getmembers()[0])
                if content is None:
                    raise BuildError(f"{path} in the image {image.id} is not a file")
                shutil.copyfileobj(content, stream)
    finally:
        discard(container)


def recipe_for(dockerfile: Path, wanted: Board) -> Recipe:
    """Return what an image for boards of a type is made of.

    A board that computes on something else than its CPU has an image of its own, with the packages that let the CPU
    stand in for that: those of the file `packages.KIND`, where KIND is the board's kind of target.

    Raises:
        InputError: There are no virtual boards of that type.
    """
    read = image_recipe.read(resources.ROOT / dockerfile, resources.ROOT)
    name = f"{'kernel' if dockerfile == MACHINE else 'board'}-{architecture(wanted)}"
    arguments = {**read.arguments, _ARCHITECTURE: architecture(wanted)}
    labels = {**read.labels, "edge-toolchain.architecture": architecture(wanted)}
    copied = read.copied
    packages = FOLDER / f"packages.{wanted.target.kind}"
    if packages.is_file():
        name = f"{name}-{wanted.target.kind}"
        below = packages.relative_to(resources.ROOT)
        arguments[_PACKAGES] = below.as_posix()
        copied = (*copied, below)
    return dataclasses.replace(read, name=name, arguments=arguments, labels=labels, copied=copied)
