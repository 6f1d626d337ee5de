"""What a user names as the model: where it is, and what it is run with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolchain.models import inputs


@dataclass(frozen=True)
class Model:
    """A model to build, from the command line.

    Attributes:
        source: Zoo name or path of an ONNX file; for a deploy also a package or a bundle.
        shapes: Shapes of inputs that the file leaves open.
        given: Its inputs.
        fixed: Values of inputs that become constants, as text.
    """

    source: str
    shapes: Mapping[str, tuple[int, ...]]
    given: inputs.Source
    fixed: Mapping[str, str] = field(default_factory=dict)
