"""Metrics: the score of the outputs for one sample, of which the mean is reported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.errors import InputError, did_you_mean
from toolchain.pipeline.evaluate.answers import ReleaseSteps
from toolchain.pipeline.evaluate.data import Reader, Target
from toolchain.pipeline.evaluate.functions import UserFunction
from toolchain.pipeline.evaluate.paired import NO_LOSS, Loss, compare_answers, compare_scores, compare_totals
from toolchain.tensors import Tensors, TensorSpec

NOT_A_NUMBER = "not a number"
_ROUNDING = 1e-6  # of a score: what single precision explains


@dataclass(frozen=True)
class Score:
    value: float
    answer: str = ""  # for people: the class, or what the user's function returns
    rounding: float = 0.0  # differences up to this are explained by rounding
    counts: Sequence[float] = ()  # of metrics whose figure is not the mean score: what it follows from


@dataclass(frozen=True)
class Metric(ABC):
    """A metric: scores of samples, and a figure of all of them, such as `scale` times the mean score."""

    name: str
    digest: str = ""  # of what decides the scores beside the samples
    unit: str = ""
    scale: float = 1.0
    sign: float = 1.0  # -1 if less is better

    def of_release(self, steps: ReleaseSteps | None, outputs: Sequence[str], *, own_reader: bool) -> Metric:
        """Return the metric for a release with these steps and outputs.

        Args:
            steps: What the release does before and after its model.
            outputs: Names, in the order of the release.
            own_reader: Whether a function of the user's project reads samples in place of the steps.

        Raises:
            InputError: The metric needs boxes or a text, which neither a function nor the steps make.
        """
        _ = steps, outputs, own_reader
        return self

    @abstractmethod
    def check(self, reader: Reader, outputs: Sequence[TensorSpec]) -> None:
        """Check that all samples have what the metric compares outputs with.

        Raises:
            InputError: One has not.
        """

    @abstractmethod
    def score(self, outputs: Tensors, target: Target) -> Score:
        """Score the outputs for a sample.

        Raises:
            InputError: They have no score.
        """

    def total(self, scores: Sequence[Score]) -> float:
        """Return the figure of all samples that people read."""
        return self.scale * float(np.mean([score.value for score in scores]))

    def losses(self, first: Sequence[Score], second: Sequence[Score]) -> list[float]:
        """Return what the second way loses of each sample's score; differences that rounding explains are 0."""
        return [
            0.0 if abs(a.value - b.value) <= max(a.rounding, b.rounding) else self.sign * (a.value - b.value)
            for a, b in zip(first, second, strict=True)
        ]

    def changed(self, first: Sequence[Score], second: Sequence[Score]) -> tuple[int, int]:
        """Return how many samples are worse the second way, and how many are better."""
        losses = np.array(self.losses(first, second))
        return int(np.sum(losses > 0)), int(np.sum(losses < 0))

    def compare(self, first: Sequence[Score], second: Sequence[Score]) -> Loss:
        """Return what the second way loses against the first, in the unit of the metric."""
        return compare_scores(np.array(self.losses(first, second))).scaled(self.scale)


def counts(scores: Sequence[Score]) -> NDArray[np.float64]:
    """Return the counts of scores, [samples, counts]."""
    return np.array([score.counts for score in scores], np.float64)


def compare_sums(
    metric: Metric, first: Sequence[Score], second: Sequence[Score], total: Callable[[NDArray[Any]], NDArray[Any]]
) -> Loss:
    """Compare a figure that follows from the sums of the counts, [..., counts]; more is better."""
    sides = counts(first), counts(second)
    if np.array_equal(sides[0], sides[1]):
        return NO_LOSS
    summands = np.vstack(sides)
    loss = compare_totals(
        lambda weights: total(weights @ summands), len(first), metric.changed(first, second), summands.shape[1]
    )
    return loss.scaled(metric.scale)


@dataclass(frozen=True)
class TopClasses(Metric):
    """Whether the right class is among the best ones of the first output."""

    count: int = 1
    folders: tuple[str, ...] = ()  # names of the class folders, in order
    labels: tuple[str, ...] = ()  # names of the classes, in order; empty without a file of them

    def check(self, reader: Reader, outputs: Sequence[TensorSpec]) -> None:
        output = outputs[0]
        if max(output.shape, default=1) != output.elements or output.elements < self.count:
            raise InputError(
                f"{self.name} needs one score for each class, but the first output is {output}",
                hint="use --metric module:function, a function of your own",
            )
        if self.labels and len(self.labels) != output.elements:
            raise InputError(
                f"{len(self.labels)} labels for {output.elements} classes", hint="write one line for each class"
            )
        if not self.labels and self._are_names and len(self.folders) != output.elements:
            raise InputError(
                f"{len(self.folders)} folders of classes, but the model has {output.elements} classes",
                hint="pass --labels FILE with the name of each class, or name the folders by the numbers of classes",
            )
        for sample in reader.dataset.samples:
            index = self.index(reader.target(sample))
            if not 0 <= index < output.elements:
                raise InputError(
                    f"{sample.name} is of class {index}, but the model has classes 0 to {output.elements - 1}",
                    hint="classes are counted from 0",
                )

    @property
    def _are_names(self) -> bool:
        return bool(self.folders) and not all(folder.isdecimal() for folder in self.folders)

    def compare(self, first: Sequence[Score], second: Sequence[Score]) -> Loss:
        values = [np.array([score.value for score in scores]) for scores in (first, second)]
        return compare_answers(*values).scaled(self.scale)

    def index(self, target: Target) -> int:
        """Return the index of a sample's class.

        Raises:
            InputError: It has no class, or one of an unknown name.
        """
        if not target.label:
            raise InputError(
                f"{target.name} has no label, which {self.name} needs",
                hint="put samples into a folder for each class, or labels into a .csv or .npz file",
            )
        names = self.labels or (self.folders if self._are_names else ())
        matches = [index for index, name in enumerate(names) if name == target.label]
        if len(matches) == 1:
            return matches[0]
        if len(matches) > 1:
            raise InputError(
                f"{len(matches)} classes are called {target.label!r}", hint="use the numbers of classes as labels"
            )
        if target.label.isdecimal():
            return int(target.label)
        hint = did_you_mean(target.label, names) or "labels are names of --labels FILE, or numbers from 0 on"
        raise InputError(f"{target.name} is of class {target.label!r}, which the model does not have", hint=hint)

    def score(self, outputs: Tensors, target: Target) -> Score:
        scores = next(iter(outputs.values())).reshape(-1).astype(np.float64)
        if np.isnan(scores).any():
            return Score(0.0, NOT_A_NUMBER)
        best = np.argsort(-scores, kind="stable")[: self.count]  # of equal scores, the first class comes first
        names = self.labels or (self.folders if self._are_names else ())
        answer = names[best[0]] if names else str(best[0])
        return Score(float(self.index(target) in best), answer)


@dataclass(frozen=True)
class Distance(Metric):
    """How near the outputs are to the expected ones of the sample."""

    def check(self, reader: Reader, outputs: Sequence[TensorSpec]) -> None:
        specs = {spec.name: spec for spec in outputs}
        for sample in reader.dataset.samples:
            arrays = reader.target(sample).arrays
            if faults := [
                name for name, value in arrays.items() if name not in specs or value.shape != specs[name].shape
            ]:
                raise InputError(
                    f"the array {faults[0]} of {sample.name} is not an output of the model",
                    details="its outputs: " + ", ".join(map(str, outputs)),
                    hint="name arrays by the model's inputs and outputs",
                )
            if not arrays:
                raise InputError(
                    f"{sample.name} has no expected outputs, which {self.name} needs",
                    hint="store them under the names of the model's outputs in .npz files, beside its inputs",
                )

    def score(self, outputs: Tensors, target: Target) -> Score:
        names = list(target.arrays)
        values, expected = (
            np.concatenate([source[name].reshape(-1).astype(np.float64) for name in names])
            for source in (outputs, target.arrays)
        )
        if self.name == "mse":
            return Score(float(np.mean((values - expected) ** 2)), "", _ROUNDING * float(np.mean(expected**2)))
        return Score(_cosine(values, expected), "", _ROUNDING)


def _cosine(values: NDArray[Any], expected: NDArray[Any]) -> float:
    lengths = float(np.linalg.norm(values) * np.linalg.norm(expected))
    # Two vectors of zeros are equal, and zeros have no direction.
    return float(values @ expected) / lengths if lengths else float(not values.any() and not expected.any())


@dataclass(frozen=True, kw_only=True)
class OwnMetric(Metric):
    """A function of the user's project: it takes outputs by name and the target; more is better."""

    function: UserFunction

    def check(self, reader: Reader, outputs: Sequence[TensorSpec]) -> None:
        """The function decides what it needs."""

    def score(self, outputs: Tensors, target: Target) -> Score:
        label = {"label": target.label} if target.label else {}
        has_arrays = target.path.suffix.lower() == ".npz"
        expected: Any = {**label, **target.arrays} if has_arrays else target.label
        result = self.function(target.name, dict(outputs), expected)
        value, answer = result if isinstance(result, tuple) and len(result) == 2 else (result, "")  # noqa: PLR2004
        try:
            return Score(float(value), str(answer), _ROUNDING * abs(float(value)))
        except (TypeError, ValueError) as fault:
            raise InputError(
                f"{self.name} returned {type(value).__name__} for {target.name}",
                hint="return a number, or a pair of a number and a text",
            ) from fault
