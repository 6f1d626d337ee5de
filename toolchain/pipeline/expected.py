"""The expected outputs of a model and their tolerance, for certain inputs and for many random ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from toolchain import files, tensors
from toolchain.bundle.reference import RandomSamples, Sample
from toolchain.models import inputs, ranked, reference
from toolchain.models.reference import OpenModel
from toolchain.models.source import SourceModel
from toolchain.progress import Progress, Step
from toolchain.rankings import Ranking
from toolchain.tensors import MODEL, ROUNDING, Limit, Tensors, Tolerance


@dataclass(frozen=True)
class Expected:
    """Outputs of the reference for some inputs."""

    outputs: dict[str, NDArray[Any]]
    tolerance: Tolerance | None  # limits for the relative difference; None for the dtype's own
    rankings: tuple[Ranking, ...] = ()  # which outputs have rows in an order of scores

    @property
    def amplified(self) -> dict[str, Limit]:
        """Outputs with a wider limit, because these inputs amplify rounding."""
        limits = self.tolerance if isinstance(self.tolerance, Mapping) else {}
        return {name: limit for name, limit in limits.items() if limit.reason == ROUNDING}


@dataclass(frozen=True)
class ReferenceModel:
    """A model that the reference runs."""

    source: SourceModel
    unoptimized: bool  # whether each operator is computed as the file has it
    float16: bool  # whether the device computes in half precision
    bfloat16: bool = False  # whether it multiplies in bfloat16

    # Each is opened at its first run, and kept for all samples.

    @cached_property
    def _model(self) -> OpenModel:
        return reference.open_model(self.source, unoptimized=self.unoptimized)

    @cached_property
    def _literal(self) -> OpenModel:
        return reference.open_model(self.source, unoptimized=True)

    @cached_property
    def _perturbed(self) -> OpenModel:
        return reference.open_perturbed(self.source)

    def _run_perturbed(self, arrays: Tensors) -> dict[str, NDArray[Any]]:
        return self._perturbed(arrays)  # opened only here: quantized models never need it

    def run(self, arrays: Tensors) -> Expected:
        """Run the model once.

        Raises:
            InputError: The reference cannot run it.
        """
        outputs = self._model(arrays)
        usual = reference.tolerance(self.source, float16=self.float16, bfloat16=self.bfloat16)
        order = ranked.rankings(self.source, arrays, usual)
        if self.unoptimized or self.float16 or self.bfloat16:
            return Expected(outputs, usual, order)
        wider = reference.limits(self.source, arrays, outputs, order, (self._literal, self._run_perturbed))
        if not wider:
            return Expected(outputs, usual, order)
        tolerance = ({} if usual is None else {name: Limit(usual, MODEL) for name in outputs}) | wider
        return Expected(outputs, tolerance, ranked.rankings(self.source, arrays, tolerance))

    def run_random(self, seed: int, count: int, progress: Progress) -> RandomSamples:
        """Run the model on random inputs, with this seed and those that follow it.

        Raises:
            InputError: As `run`.
        """
        samples, outputs, rankings = [], [], []
        for index in range(count):
            progress(Step("running samples with the reference", index, count, "samples"))
            arrays = inputs.random(self.source.inputs, seed + index)
            expected = self.run(arrays)
            samples.append(Sample(files.sha256_bytes(tensors.encode(arrays)), expected.tolerance))
            outputs.append(expected.outputs)
            rankings.append(expected.rankings)
        return RandomSamples(seed, tuple(samples), tuple(outputs), tuple(rankings) if any(rankings) else ())
