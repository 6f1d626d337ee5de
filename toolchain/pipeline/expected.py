"""What a model's outputs should be, and how near one can come: for given inputs, and for many random ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from toolchain import files, tensors
from toolchain.bundle.drawn import Drawn, Sample
from toolchain.compile.request import Tell
from toolchain.models import inputs, ranked, reference
from toolchain.models.reference import Opened
from toolchain.models.source import SourceModel
from toolchain.progress import Step
from toolchain.rankings import Ranking
from toolchain.tensors import Tensors


@dataclass(frozen=True)
class Expected:
    """Outputs of the reference for some inputs.

    Attributes:
        outputs: By name.
        tolerance: Limit for the relative difference; None for the dtype's own.
        amplified: Whether these inputs amplify rounding, so that the limit is a wider one.
        rankings: Which outputs have rows in an order of scores.
    """

    outputs: dict[str, NDArray[Any]]
    tolerance: float | None
    amplified: bool
    rankings: tuple[Ranking, ...] = ()


@dataclass(frozen=True)
class Expecting:
    """A model as the reference runs it.

    Attributes:
        source: The model.
        to_the_letter: Whether each operator is computed as the file has it.
        float16: Whether the device computes in half precision.
    """

    source: SourceModel
    to_the_letter: bool
    float16: bool

    @cached_property
    def _opened(self) -> Opened:
        return reference.opened(self.source, to_the_letter=self.to_the_letter)

    @cached_property
    def _literal(self) -> Opened:
        return reference.opened(self.source, to_the_letter=True)

    @cached_property
    def _opened_near(self) -> Opened:
        return reference.opened_near(self.source)

    def _near(self, fed: Tensors) -> dict[str, NDArray[Any]]:
        return self._opened_near(fed)  # quantized models never ask for it

    def of(self, fed: Tensors) -> Expected:
        """Run the model once.

        Raises:
            InputError: The reference cannot run it.
        """
        outputs = self._opened(fed)
        usual = reference.tolerance(self.source, float16=self.float16)
        wider = None
        if not (self.to_the_letter or self.float16):
            wider = reference.widened(self.source, fed, outputs, self._literal, self._near)
        limit = wider or usual
        rankings = ranked.rankings(self.source, fed, limit)
        return Expected(outputs, limit, amplified=wider is not None, rankings=rankings)

    def of_random(self, seed: int, count: int, tell: Tell) -> Drawn:
        """Run the model on inputs that are drawn, with this seed and those that follow it.

        Raises:
            InputError: As `of`.
        """
        samples, outputs, rankings = [], [], []
        for at in range(count):
            tell(Step("running samples with the reference", at, count, "samples"))
            fed = inputs.random(self.source.inputs, seed + at)
            found = self.of(fed)
            samples.append(Sample(files.sha256_bytes(tensors.encode(fed)), found.tolerance))
            outputs.append(found.outputs)
            rankings.append(found.rankings)
        return Drawn(seed, tuple(samples), tuple(outputs), tuple(rankings) if any(rankings) else ())
