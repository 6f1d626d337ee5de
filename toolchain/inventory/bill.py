"""A bill of materials in CycloneDX 1.6. It says nothing of a time or a machine: the same parts are the same bytes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from toolchain import files
from toolchain.inventory.component import Component

if TYPE_CHECKING:
    from cyclonedx.model.component import Component as Written

BILL_TYPE = "application/vnd.cyclonedx+json"  # the media type of a bill

_NAMES = uuid.uuid5(uuid.NAMESPACE_URL, BILL_TYPE)


def bill(whole: Component, parts: Iterable[Component]) -> bytes:
    """Return the bill of a whole, whose serial number follows from its digest."""
    from cyclonedx.model.bom import Bom, BomMetaData  # noqa: PLC0415 - most commands write none
    from cyclonedx.output.json import JsonV1Dot6  # noqa: PLC0415

    made = {one.reference: (one, _component(one)) for one in parts}
    top = _component(whole)
    bom = Bom(
        serial_number=uuid.uuid5(_NAMES, whole.sha256 or whole.reference),
        metadata=BomMetaData(component=top),
        components=[component for _, component in made.values()],
    )
    bom.register_dependency(top, [component for one, component in made.values() if one.required])
    for one, component in made.values():
        bom.register_dependency(component, [made[name][1] for name in one.needs if name in made])
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["metadata"]["timestamp"]  # the library's clock
    return files.canonical_json(document)


def _component(one: Component) -> Written:
    from cyclonedx.model import HashAlgorithm, HashType, Property  # noqa: PLC0415
    from cyclonedx.model.component import Component as Written  # noqa: PLC0415
    from cyclonedx.model.component import ComponentScope, ComponentType  # noqa: PLC0415
    from packageurl import PackageURL  # noqa: PLC0415

    return Written(
        type=ComponentType(one.kind),
        name=one.name,
        version=one.version or None,
        bom_ref=one.reference,
        purl=PackageURL.from_string(one.purl) if one.purl else None,
        scope=ComponentScope.REQUIRED if one.required else ComponentScope.EXCLUDED,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one.sha256)] if one.sha256 else (),
        properties=[Property(name=f"edge-toolchain:{name}", value=value) for name, value in one.notes.items()],
    )
