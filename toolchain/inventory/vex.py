"""What a vulnerability means for releases, as a VEX document in CycloneDX: a draft, which a person completes.

The document refers to components in the bills of the releases by BOM-Link. A component that only built a release is not
in it, so the release is `not_affected`; everything else is `in_triage`: whether the vulnerable code is reached is not
known here.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from toolchain import files
from toolchain.errors import InputError
from toolchain.inventory.affected import Match, Product

_SERIAL = re.compile(r"urn:uuid:([0-9a-f-]{36}/[0-9]+)")
_NAMESPACE = uuid.UUID("8a2f6c1e-4f0d-5d1a-9a57-0e3b1c6f7d42")  # of the serial numbers of these documents
_BUILD_ONLY = "it built the release, and is not in it"
_CONTAINED = "the release contains it; whether the vulnerable code is reached was not examined"
_UNCLEAR = "the release may contain a vulnerable version: the advisory does not decide"


def document(identifier: str, releases: Mapping[str, Product]) -> bytes:
    """Return the document for an advisory and the releases that it concerns, by the paths of their files.

    Raises:
        InputError: A bill has no serial number, or a component has no `bom-ref`.
    """
    from cyclonedx.model.bom import Bom  # noqa: PLC0415 - most commands write none
    from cyclonedx.model.impact_analysis import ImpactAnalysisJustification as Justification  # noqa: PLC0415
    from cyclonedx.model.impact_analysis import ImpactAnalysisState as State  # noqa: PLC0415
    from cyclonedx.model.vulnerability import BomTarget, Vulnerability, VulnerabilityAnalysis  # noqa: PLC0415
    from cyclonedx.output.json import JsonV1Dot6  # noqa: PLC0415

    targets: dict[str, list[str]] = {}
    for path, product in releases.items():
        for match in product.matches:
            detail = _BUILD_ONLY if not match.required else _CONTAINED if match.certainty == "affected" else _UNCLEAR
            targets.setdefault(detail, []).append(_link(path, product, match))
    vulnerabilities = [
        Vulnerability(
            bom_ref=f"{identifier}#{number}",
            id=identifier,
            affects=[BomTarget(ref=link) for link in _unique(links)],
            analysis=VulnerabilityAnalysis(
                state=State.NOT_AFFECTED if detail == _BUILD_ONLY else State.IN_TRIAGE,
                justification=Justification.CODE_NOT_PRESENT if detail == _BUILD_ONLY else None,
                detail=detail,
            ),
        )
        for number, (detail, links) in enumerate(sorted(targets.items()), 1)
    ]
    content = json.dumps([identifier, sorted(targets.items())])
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, content), vulnerabilities=vulnerabilities)
    table = json.loads(JsonV1Dot6(bom).output_as_string())
    del table["metadata"]["timestamp"]  # the library's clock
    return files.canonical_json(table)


def _link(path: str, product: Product, match: Match) -> str:
    serial = _SERIAL.fullmatch(product.serial)
    if not serial or not match.reference:
        raise InputError(
            f"the bill of {path} cannot be referred to: it has no serial number, or a component has no bom-ref",
            hint="leave --vex or that file out; bills of this toolchain have both",
        )
    return f"urn:cdx:{serial[1]}#{quote(match.reference, safe='')}"


def _unique(links: Sequence[str]) -> list[str]:
    return sorted({*links})  # one release may be there as a bundle and as a package
