"""The images of virtual boards: for containers and machines, by architecture and kind of target."""

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

# The Dockerfiles of a container's user land, and of a machine's boot files.
USER_LAND, MACHINE = Path("docker/board/Dockerfile"), Path("docker/board/kernel/Dockerfile")

_ARCHITECTURE, _PACKAGES = "ARCHITECTURE", "PACKAGES"


def ensure(engine: Any, dockerfile: Path, board: Board, tell: Tell, *, musl: bool = False) -> Any:
    """Return the image for a board type; it is built if it is missing or outdated.

    Raises:
        BuildError: It cannot be built.
        InputError: There is no virtual board of that type.
    """
    recipe = recipe_for(dockerfile, board, musl=musl)
    tag = f"edge-toolchain/{recipe.name}:latest"
    try:
        current = engine.images.get(tag)
        if build.is_current(recipe, current.labels):
            return current
    except docker().errors.ImageNotFound:
        pass
    tell(f"building the image {tag}, which takes a minute")
    build.build(recipe, tag, BuildOptions.from_environment(), tell)
    return engine.images.get(tag)


def copy_out(image: Any, path: str, target: Path) -> None:
    # Files can be copied only from a container, which need not run.
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


def recipe_for(dockerfile: Path, board: Board, *, musl: bool = False) -> Recipe:
    """Return the recipe of the image for a board type.

    A board with an accelerator has an image of its own, with packages that emulate the accelerator on the CPU: those of
    the file `packages.KIND`, where KIND is the board's kind of target. A board with musl has those of `packages.musl`.

    Raises:
        InputError: There are no virtual boards of that type.
    """
    recipe = image_recipe.read(resources.ROOT / dockerfile, resources.ROOT)
    debian = architecture(board).debian
    name = f"{'kernel' if dockerfile == MACHINE else 'board'}-{debian}"
    arguments = {**recipe.arguments, _ARCHITECTURE: debian}
    labels = {**recipe.labels, "edge-toolchain.architecture": debian}
    copied = recipe.copied
    kind = "musl" if musl else board.target.kind
    packages = FOLDER / f"packages.{kind}"
    if packages.is_file():
        name = f"{name}-{kind}"
        below = packages.relative_to(resources.ROOT)
        arguments[_PACKAGES] = below.as_posix()
        copied = (*copied, below)
    return dataclasses.replace(recipe, name=name, arguments=arguments, labels=labels, copied=copied)
