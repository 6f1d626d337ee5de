"""What an image says is in it, and how it was made, as CycloneDX and in-toto: of the list that its build left in it."""

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
class Described:
    """What is said of an image.

    Attributes:
        parts: The packages in it.
        bill: The bill of materials.
        provenance: The statement of how it was made.
    """

    parts: tuple[Component, ...]
    bill: bytes
    provenance: bytes


def describe(name: str) -> Described:
    """Ask an image of this machine; nothing else can be written in it.

    Raises:
        BuildError: It is not here, or there is no engine.
        VerificationError: It has no list of what is in it.
    """
    digest = images.identity(name).removeprefix(_SHA256)
    return described(images.tag(name), digest, images.labels(name), images.run(name, ["cat", SBOM]).stdout)


def described(tag: str, digest: str, labels: Mapping[str, str], listed: str) -> Described:
    """Return what is said of an image.

    Args:
        tag: Its name.
        digest: SHA-256 of its configuration, which is its ID.
        labels: What its build wrote of itself.
        listed: The list of packages in it, as SPDX.

    Raises:
        VerificationError: The list has another form.
    """
    parts = _parts(tag, listed)
    notes = {name.rpartition(".")[2]: labels[name] for name in (TRIPLE, COMPILER) if name in labels}
    whole = Component("container", tag, sha256=digest, notes=notes)
    sources = Component("file", "sources", sha256=labels.get(SOURCES, ""))
    asked = {"image": tag, "arguments": _arguments(labels)}
    made = Build("image", asked, notes, [sources, *parts])
    return Described(parts, inventory.bill(whole, parts), inventory.statement({tag: digest}, made))


def _arguments(labels: Mapping[str, str]) -> object:
    try:
        return json.loads(labels.get(ARGUMENTS, "{}"))
    except (ValueError, RecursionError):
        return {}


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
        return next((one.locator for one in self.references if one.kind == "purl"), "")


@dataclass(frozen=True)
class _List:
    packages: tuple[_Package, ...]


def _parts(tag: str, listed: str) -> tuple[Component, ...]:
    """Return the packages; the image itself is among those listed, without a package URL."""
    try:
        found = TypeAdapter(_List).validate_json(listed).packages
    except ValidationError as fault:
        raise VerificationError(
            f"{tag} has no valid list of its contents",
            details=f"{SBOM} is not a valid SPDX document",
            hint="`toolchain containers build`",
        ) from fault
    return tuple(Component("library", one.name, one.version, one.purl) for one in found if one.purl)
