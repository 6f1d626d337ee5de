"""The Python packages that took part: those of the toolchain that are installed, as requirements.lock pins them."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from toolchain import files, resources
from toolchain.inventory.component import Component

TOOLCHAIN = "edge-toolchain"
_LOCK = "requirements.lock"


def lock_digest() -> str:
    """Return the SHA-256 of requirements.lock, which has the digest of every file that pip may install."""
    return files.sha256_file(resources.ROOT / _LOCK)


def python_packages(required: frozenset[str] = frozenset()) -> tuple[Component, ...]:
    """Return the toolchain's own package and all that it needs, by name, without what is for developers alone.

    Args:
        required: Names of those that are needed to run what is made, and not only to make it.
    """
    found: dict[str, metadata.Distribution] = {}
    needed: dict[str, set[str]] = {}
    left = [(TOOLCHAIN, frozenset[str]())]
    while left:
        name, extras = left.pop()
        if name not in found:
            found[name] = metadata.distribution(name)
        asked = _requirements(found[name], extras)
        new = asked.keys() - needed.setdefault(name, set())
        needed[name] |= new
        left += [(one, asked[one]) for one in new]
    references = {name: _purl(name, one.version) for name, one in found.items()}
    return tuple(
        Component(
            "library",
            name,
            found[name].version,
            references[name],
            required=name in required,
            needs=tuple(sorted(references[one] for one in needed[name])),
        )
        for name in sorted(found)
    )


def _requirements(distribution: metadata.Distribution, extras: frozenset[str]) -> dict[str, frozenset[str]]:
    """Return what a package needs here, with the extras that it asks for. What is not installed took no part."""
    asked: dict[str, frozenset[str]] = {}
    for line in distribution.requires or ():
        one = Requirement(line)
        name = canonicalize_name(one.name)
        applies = one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        if applies and _is_installed(name):
            asked[name] = frozenset(one.extras) | asked.get(name, frozenset())
    return asked


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"
