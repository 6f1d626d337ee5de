"""How something was made, as an in-toto statement with SLSA's provenance. It is not signed, and has no time in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toolchain import __version__, files
from toolchain.inventory.component import Component
from toolchain.inventory.python import TOOLCHAIN

STATEMENT_TYPE = "application/vnd.in-toto+json"  # the media type of a statement

_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://slsa.dev/provenance/v1"


@dataclass(frozen=True)
class Build:
    """How something was made."""

    kind: str  # what kind of thing was made: `bundle`, `image`
    asked: Mapping[str, Any]  # what was asked for, from outside; with it and the materials it can be made again
    chosen: Mapping[str, Any]  # what the toolchain chose itself
    materials: Iterable[Component]  # what went into it; of those, what has a package URL or a digest is named


def statement(subjects: Mapping[str, str], build: Build) -> bytes:
    """Return the statement about how things were made, which are given by name and SHA-256."""
    document = {
        "_type": _STATEMENT,
        "subject": [_described(name, sha256) for name, sha256 in sorted(subjects.items())],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": f"pkg:pypi/{TOOLCHAIN}#{build.kind}/v1",
                "externalParameters": build.asked,
                "internalParameters": build.chosen,
                "resolvedDependencies": [_material(one) for one in build.materials if one.purl or one.sha256],
            },
            "runDetails": {"builder": {"id": f"pkg:pypi/{TOOLCHAIN}", "version": {TOOLCHAIN: __version__}}},
        },
    }
    return files.canonical_json(document)


def _described(name: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": sha256}}


def _material(one: Component) -> dict[str, Any]:
    found: dict[str, Any] = {"name": one.name}
    if one.purl:
        found["uri"] = one.purl
    if one.sha256:
        found["digest"] = {"sha256": one.sha256}
    if one.version or one.notes:
        found["annotations"] = {**({"version": one.version} if one.version else {}), **one.notes}
    return found
