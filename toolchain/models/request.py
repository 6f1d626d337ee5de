"""What a user names as the model: where it is, and what it is run with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from toolchain.models import inputs
from toolchain.steps import Steps

Detection = Literal["propose", "use", "off"]
"""What happens to outputs that look like a state: a line about them, or they are the state, or nothing."""


@dataclass(frozen=True)
class VariantShapes:
    """One of several sets of shapes that a model is built for, under its name."""

    name: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of inputs by name
    dims: Mapping[str, int] = field(default_factory=dict)  # sizes of open dimensions by name


@dataclass(frozen=True)
class Range:
    """All sizes of an open dimension between two."""

    name: str
    least: int
    greatest: int


@dataclass(frozen=True)
class Model:
    """A model to build, from the command line or from Python."""

    source: str  # a name of the zoo or a path
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of inputs by name
    given: inputs.Source = field(default_factory=inputs.Source)
    fixed: Mapping[str, str] = field(default_factory=dict)  # values of inputs that become constants, as text
    dims: Mapping[str, int] = field(default_factory=dict)  # sizes of open dimensions by name
    # Names of outputs that stay on the device, by the names of the inputs that they are in the next step
    states: Mapping[str, str] = field(default_factory=dict)
    detection: Detection = "propose"  # what happens to outputs that look like a state
    # The steps for pictures or sounds; None for those of a pipeline.toml beside the file, if any
    pipeline: Steps | None = None
    variants: tuple[VariantShapes, ...] = ()  # the shapes of each variant beside those of all; none for one set
    range: Range | None = None  # a dimension of any size, of which the variants are some; None for fixed shapes

    def of_variant(self, variant: VariantShapes) -> Model:
        """Return the model with the shapes of one of its variants."""
        shapes, dims = {**self.shapes, **variant.shapes}, {**self.dims, **variant.dims}
        return replace(self, shapes=shapes, dims=dims, variants=(), range=None)

    def of_size(self, size: int) -> Model:
        """Return the model with one size of the dimension that has any."""
        return self.of_variant(VariantShapes("", dims={self.range.name: size} if self.range else {}))
