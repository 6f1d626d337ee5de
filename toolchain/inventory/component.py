"""One part of something, as an inventory names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Component:
    """One part.

    Attributes:
        kind: What it is, as CycloneDX says it: `library`, `application`, `file`, `container`, `machine-learning-model`.
        name: Its name.
        version: Its version; empty if it has none.
        purl: Its package URL; empty if it is no package.
        sha256: Its digest, as 64 hexadecimal digits; empty where there is none of the whole.
        required: Whether it is in the whole, or needed to run it, and not only used to make it.
        needs: The references of what it needs itself.
        notes: What else is said of it.
    """

    kind: str
    name: str
    version: str = ""
    purl: str = ""
    sha256: str = ""
    required: bool = True
    needs: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        """What names it within one inventory."""
        return self.purl or f"{self.kind}:{self.name}"
