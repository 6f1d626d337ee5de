"""What is in a product and how it was made, in two documents of standard formats.

They are a bill of materials in CycloneDX 1.6, and an in-toto statement with SLSA's provenance. Neither contains a time
or a machine, so the same content gives the same bytes. Neither is signed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from toolchain import __version__, files, resources

if TYPE_CHECKING:
    from cyclonedx.model.component import Component as CycloneComponent

BILL_TYPE = "application/vnd.cyclonedx+json"  # media types
STATEMENT_TYPE = "application/vnd.in-toto+json"
TOOLCHAIN = "edge-toolchain"  # our package on PyPI

_SERIAL_NUMBERS = uuid.uuid5(uuid.NAMESPACE_URL, BILL_TYPE)

_LOCK = "requirements.lock"


@dataclass(frozen=True)
class Component:
    """One entry of an inventory."""

    kind: str  # in CycloneDX's words: `library`, `application`, `file`, `container`, `machine-learning-model`
    name: str
    version: str = ""
    purl: str = ""  # its package URL; empty if it is not a package
    sha256: str = ""  # 64 hexadecimal digits; empty where the component has no digest of its own
    required: bool = True  # whether it is in the product, or needed to run it, and not only used to make it
    needs: tuple[str, ...] = ()  # references of its dependencies
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        """Its identifier within one inventory."""
        return self.purl or f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class Build:
    """How something was made."""

    kind: str  # of the product: `bundle`, `image`
    parameters: Mapping[str, Any]  # the request, from outside; with it and the materials the product can be made again
    choices: Mapping[str, Any]  # what the toolchain chose itself
    materials: Iterable[Component]  # those with a package URL or a digest are named


def bill(product: Component, components: Iterable[Component]) -> bytes:
    """Return the bill of a product, whose serial number follows from its digest."""
    from cyclonedx.model.bom import Bom, BomMetaData  # noqa: PLC0415 - most commands write none
    from cyclonedx.output.json import JsonV1Dot6  # noqa: PLC0415

    by_reference = {component.reference: (component, _to_cyclone(component)) for component in components}
    top = _to_cyclone(product)
    bom = Bom(
        serial_number=uuid.uuid5(_SERIAL_NUMBERS, product.sha256 or product.reference),
        metadata=BomMetaData(component=top),
        components=[entry for _, entry in by_reference.values()],
    )
    bom.register_dependency(top, [entry for component, entry in by_reference.values() if component.required])
    for component, entry in by_reference.values():
        needs = [by_reference[reference][1] for reference in component.needs if reference in by_reference]
        bom.register_dependency(entry, needs)
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["metadata"]["timestamp"]  # the library's clock
    return files.canonical_json(document)


def _to_cyclone(component: Component) -> CycloneComponent:
    from cyclonedx.model import HashAlgorithm, HashType, Property  # noqa: PLC0415
    from cyclonedx.model.component import Component as CycloneComponent  # noqa: PLC0415
    from cyclonedx.model.component import ComponentScope, ComponentType  # noqa: PLC0415
    from packageurl import PackageURL  # noqa: PLC0415

    digest = component.sha256
    return CycloneComponent(
        type=ComponentType(component.kind),
        name=component.name,
        version=component.version or None,
        bom_ref=component.reference,
        purl=PackageURL.from_string(component.purl) if component.purl else None,
        scope=ComponentScope.REQUIRED if component.required else ComponentScope.EXCLUDED,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else (),
        properties=[Property(name=f"edge-toolchain:{name}", value=value) for name, value in component.notes.items()],
    )


def statement(subjects: Mapping[str, str], build: Build) -> bytes:
    """Return the statement about how the subjects were made, which are given by name and SHA-256."""
    materials = []
    for component in build.materials:
        if component.purl or component.sha256:
            material: dict[str, Any] = {"name": component.name}
            if component.purl:
                material["uri"] = component.purl
            if component.sha256:
                material["digest"] = {"sha256": component.sha256}
            if component.version or component.notes:
                version = {"version": component.version} if component.version else {}
                material["annotations"] = {**version, **component.notes}
            materials.append(material)
    document = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in sorted(subjects.items())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"pkg:pypi/{TOOLCHAIN}#{build.kind}/v1",
                "externalParameters": build.parameters,
                "internalParameters": build.choices,
                "resolvedDependencies": materials,
            },
            "runDetails": {"builder": {"id": f"pkg:pypi/{TOOLCHAIN}", "version": {TOOLCHAIN: __version__}}},
        },
    }
    return files.canonical_json(document)


def lock_digest() -> str:
    """Return the SHA-256 of requirements.lock, which has the digest of every file that pip may install."""
    return files.sha256_file(resources.ROOT / _LOCK)


def python_packages(required: frozenset[str] = frozenset()) -> tuple[Component, ...]:
    """Return the toolchain's own package and its dependencies, by name, without those for development alone.

    `required` names those that are needed to run the product, and not only to make it.
    """
    distributions: dict[str, metadata.Distribution] = {}
    needed: dict[str, set[str]] = {}
    queue = [(TOOLCHAIN, frozenset[str]())]
    while queue:
        name, extras = queue.pop()
        if name not in distributions:
            distributions[name] = metadata.distribution(name)
        requirements = _requirements(distributions[name], extras)
        new = requirements.keys() - needed.setdefault(name, set())
        needed[name] |= new
        queue += [(requirement, requirements[requirement]) for requirement in new]
    references = {name: f"pkg:pypi/{name}@{package.version}" for name, package in distributions.items()}
    return tuple(
        Component(
            "library",
            name,
            distributions[name].version,
            references[name],
            required=name in required,
            needs=tuple(sorted(references[requirement] for requirement in needed[name])),
        )
        for name in sorted(distributions)
    )


def _requirements(distribution: metadata.Distribution, extras: frozenset[str]) -> dict[str, frozenset[str]]:
    """Return the installed dependencies of a package, with their extras. What is not installed took no part."""
    requirements: dict[str, frozenset[str]] = {}
    for line in distribution.requires or ():
        requirement = Requirement(line)
        marker, name = requirement.marker, canonicalize_name(requirement.name)
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        requirements[name] = frozenset(requirement.extras) | requirements.get(name, frozenset())
    return requirements
