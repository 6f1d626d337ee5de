"""What a model's outputs should be, and how near one can come: for given inputs, and for many random ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from toolchain import files, tensors
from toolchain.bundle.random_samples import RandomSamples, Sample
from toolchain.compile.request import Tell
from toolchain.models import inputs, ranked, reference
from toolchain.models.reference import OpenModel
from toolchain.models.source import SourceModel
from toolchain.progress import Step
from toolchain.rankings import Ranking
from toolchain.tensors import MODEL, ROUNDING, Limit, Tensors, Tolerance


@dataclass(frozen=True)
class Expected:
    """Outputs of the reference for some inputs.

    Attributes:
        outputs: By name.
        tolerance: Limits for the relative difference; None for the dtype's own.
        rankings: Which outputs have rows in an order of scores.
    """

    outputs: dict[str, NDArray[Any]]
    tolerance: Tolerance | None
    rankings: tuple[Ranking, ...] = ()

    @property
    def amplified(self) -> dict[str, Limit]:
        """Outputs for which these inputs amplify rounding, so that their limit is a wider one."""
        known = self.tolerance if isinstance(self.tolerance, Mapping) else {}
        return {name: limit for name, limit in known.items() if limit.reason == ROUNDING}


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
    def _opened(self) -> OpenModel:
        return reference.open_model(self.source, unoptimized=self.to_the_letter)

    @cached_property
    def _literal(self) -> OpenModel:
        return reference.open_model(self.source, unoptimized=True)

    @cached_property
    def _opened_near(self) -> OpenModel:
        return reference.open_perturbed(self.source)

    def _near(self, fed: Tensors) -> dict[str, NDArray[Any]]:
        return self._opened_near(fed)  # quantized models never ask for it

    def of(self, fed: Tensors) -> Expected:
        """Run the model once.

        Raises:
            InputError: The reference cannot run it.
        """
        outputs = self._opened(fed)
        usual = reference.tolerance(self.source, float16=self.float16)
        order = ranked.rankings(self.source, fed, usual)
        if self.to_the_letter or self.float16:
            return Expected(outputs, usual, order)
        wider = reference.limits(self.source, fed, outputs, order, (self._literal, self._near))
        if not wider:
            return Expected(outputs, usual, order)
        tolerance = ({} if usual is None else {name: Limit(usual, MODEL) for name in outputs}) | wider
        return Expected(outputs, tolerance, ranked.rankings(self.source, fed, tolerance))

    def of_random(self, seed: int, count: int, tell: Tell) -> RandomSamples:
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
        return RandomSamples(seed, tuple(samples), tuple(outputs), tuple(rankings) if any(rankings) else ())
