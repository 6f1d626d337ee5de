"""An image's packages and origin as CycloneDX and in-toto, from the list that its build left in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from toolchain import inventory
from toolchain.containers import images
from toolchain.containers.build import ARGUMENTS, SOURCES
from toolchain.containers.check import SBOM
from toolchain.containers.recipe import COMPILER, TRIPLE
from toolchain.errors import VerificationError
from toolchain.inventory import Build, Component

_SHA256 = "sha256:"


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
    digest = images.identity(name).removeprefix(_SHA256)
    return inventory_of(images.tag(name), digest, images.labels(name), images.run(name, ["cat", SBOM]).stdout)


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
