"""One part of something, as an inventory names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Component:
    """One part."""

    # what it is, as CycloneDX says it: `library`, `application`, `file`, `container`, `machine-learning-model`
    kind: str
    name: str  # its name
    version: str = ""  # its version; empty if it has none
    purl: str = ""  # its package URL; empty if it is no package
    sha256: str = ""  # its digest, as 64 hexadecimal digits; empty where there is none of the whole
    required: bool = True  # whether it is in the whole, or needed to run it, and not only used to make it
    needs: tuple[str, ...] = ()  # the references of what it needs itself
    notes: Mapping[str, str] = field(default_factory=dict)  # what else is said of it

    @property
    def reference(self) -> str:
        """What names it within one inventory."""
        return self.purl or f"{self.kind}:{self.name}"
