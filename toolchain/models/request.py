"""What a user names as the model: where it is, and what it is run with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolchain.models import inputs
from toolchain.pictures import Steps


@dataclass(frozen=True)
class Model:
    """A model to build, from the command line or from Python."""

    source: str  # a name of the zoo or a path
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of inputs by name
    given: inputs.Source = field(default_factory=inputs.Source)
    fixed: Mapping[str, str] = field(default_factory=dict)  # values of inputs that become constants, as text
    dims: Mapping[str, int] = field(default_factory=dict)  # sizes of open dimensions by name
    pictures: Steps | None = None  # steps for pictures; None for those of a pipeline.toml beside the file, if any
