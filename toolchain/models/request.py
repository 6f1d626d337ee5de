"""What a user names as the model: where it is, and what it is run with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolchain.models import inputs


@dataclass(frozen=True)
class Model:
    """A model to build, from the command line; `fixed` has values of inputs that become constants, as text."""

    source: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    given: inputs.Source = field(default_factory=inputs.Source)
    fixed: Mapping[str, str] = field(default_factory=dict)
