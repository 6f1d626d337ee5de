"""The expected outputs of a model and their tolerance, for certain inputs and for many random ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from toolchain import files, states, tensors
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
    weights: str = ""  # what it rounds weights to

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

    def _complete(self, call: OpenModel) -> OpenModel:
        """Return a call that runs a sequence if the model has a state; otherwise the same one."""
        return states.sequence(call, self.source.inputs, self.source.states) if self.source.states else call

    def _rankings(self, arrays: Tensors, tolerance: Tolerance | None) -> tuple[Ranking, ...]:
        # The rows of a step are not comparable with those of another one.
        return () if self.source.states else ranked.rankings(self.source, arrays, tolerance)

    def outputs(self, arrays: Tensors) -> dict[str, NDArray[Any]]:
        """Return the outputs for inputs, or for each step of a sequence of them if the model has a state.

        Raises:
            InputError: The reference cannot run it.
        """
        return self._complete(self._model)(arrays)

    def run(self, arrays: Tensors) -> Expected:
        """Run the model once, or once for each step of a sequence.

        Raises:
            InputError: The reference cannot run it.
        """
        outputs = self.outputs(arrays)
        usual = reference.tolerance(self.source, float16=self.float16, bfloat16=self.bfloat16, weights=self.weights)
        order = self._rankings(arrays, usual)
        if self.unoptimized or self.float16 or self.bfloat16 or self.weights:
            return Expected(outputs, usual, order)
        others = (self._complete(self._literal), self._complete(self._run_perturbed))
        wider = reference.limits(self.source, arrays, outputs, order, others)
        if not wider:
            return Expected(outputs, usual, order)
        tolerance = ({} if usual is None else {name: Limit(usual, MODEL) for name in outputs}) | wider
        return Expected(outputs, tolerance, self._rankings(arrays, tolerance))

    def run_random(self, seed: int, count: int, progress: Progress) -> RandomSamples:
        """Run the model on random inputs, with this seed and those that follow it.

        Raises:
            InputError: As `run`.
        """
        samples, outputs, rankings = [], [], []
        for index in range(count):
            progress(Step("running samples with the reference", index, count, "samples"))
            arrays = inputs.random(self.source.step_inputs, seed + index)
            expected = self._run_first_step(arrays) if self.source.states else self.run(arrays)
            samples.append(Sample(files.sha256_bytes(tensors.encode(arrays)), expected.tolerance))
            outputs.append(expected.outputs)
            rankings.append(expected.rankings)
        return RandomSamples(seed, tuple(samples), tuple(outputs), tuple(rankings) if any(rankings) else ())

    def _run_first_step(self, arrays: Tensors) -> Expected:
        """Run a model with a state once, from a state of zeros."""
        expected = self.run({name: value[None] for name, value in arrays.items()})
        return replace(expected, outputs={name: value[0] for name, value in expected.outputs.items()})
