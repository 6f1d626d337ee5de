"""The Python packages that took part: those of the toolchain that are installed, as requirements.lock pins them."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from toolchain import files, resources
from toolchain.inventory.documents import TOOLCHAIN, Component

_LOCK = "requirements.lock"


def lock_digest() -> str:
    """Return the SHA-256 of requirements.lock, which has the digest of every file that pip may install."""
    return files.sha256_file(resources.ROOT / _LOCK)


def python_packages(required: frozenset[str] = frozenset()) -> tuple[Component, ...]:
    """Return the toolchain's own package and its dependencies, by name, without those for development alone.

    Args:
        required: Names of those that are needed to run the product, and not only to make it.
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
