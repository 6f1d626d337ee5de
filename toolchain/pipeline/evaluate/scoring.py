"""Samples and a metric: what to run, and how the outputs are scored."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import interrupts, tensors
from toolchain.bundle.manifest import Manifest
from toolchain.device import sampling
from toolchain.device.installed import DeviceRelease
from toolchain.errors import InputError, VerificationError
from toolchain.models.series import Series
from toolchain.pipeline import steps
from toolchain.pipeline.evaluate import data, functions
from toolchain.pipeline.evaluate.catalog import open_metric
from toolchain.pipeline.evaluate.causes import MOST_SAMPLES, Case
from toolchain.pipeline.evaluate.data import Dataset, Reader, Sample
from toolchain.pipeline.evaluate.functions import UserFunction
from toolchain.pipeline.evaluate.metrics import Metric, Score
from toolchain.pipeline.evaluate.result import DEVICE
from toolchain.tensors import Tensors, TensorSpec


@dataclass(frozen=True)
class SampleRequest:
    """The samples and the metric, as a user names them."""

    data: Path
    metric: str
    labels: Path | None = None  # names of the classes
    preprocess: str = ""  # module:function
    limit: int | None = None
    postprocess: str = ""  # module:function, of the metrics that need objects or a text
    pictures: Path | None = None  # folder of a COCO file's pictures

    def open(self) -> LabelledSamples:
        """Read the list of samples, and load the functions of the user's project.

        Raises:
            InputError: The data, the metric or the labels are wrong.
        """
        dataset = data.read(self.data, self.pictures).limited(self.limit)
        metric = open_metric(self.metric, dataset, self.labels, self.postprocess)
        return LabelledSamples(dataset, metric, functions.load(self.preprocess) if self.preprocess else None)


@dataclass(frozen=True)
class LabelledSamples:
    dataset: Dataset
    metric: Metric
    preprocess: UserFunction | None = None

    def of(self, manifest: Manifest) -> Scoring:
        """Return how to score a release on them; all that can be checked of the samples is checked.

        Raises:
            InputError: They do not fit the release, or the metric does not.
        """
        if manifest.states:
            raise InputError(
                f"samples are run one by one, but {manifest.name} has a state",
                details="state: " + ", ".join(map(str, manifest.states)),
                hint="evaluate the same model built without --state, whose inputs and outputs include the state",
            )
        convert = steps.converter(manifest.pipeline, manifest.inputs)
        names = [spec.name for spec in manifest.outputs]
        metric = self.metric.of_release(manifest.pipeline, names, own_reader=self.preprocess is not None)
        scoring = Scoring(Reader(self.dataset, manifest.inputs, self.preprocess, convert), metric, manifest)
        scoring.reader.check()
        metric.check(scoring.reader, outputs_of_model(manifest))
        return scoring


def outputs_of_model(manifest: Manifest) -> list[TensorSpec]:
    """Return the outputs as the model defines them, without the counts that others are cut to."""
    counts = {spec.bound.count for spec in manifest.outputs if spec.bound}
    return [spec for spec in manifest.outputs if spec.name not in counts]


@dataclass(frozen=True)
class Scoring:
    """Samples for a release, and how its outputs are scored."""

    reader: Reader
    metric: Metric
    manifest: Manifest
    first: list[Case] = field(default_factory=list, compare=False)  # of the device, which may explain a loss

    @property
    def samples(self) -> Sequence[Sample]:
        return self.reader.dataset.samples

    def score(self, outputs: Tensors, sample: Sample, side: str) -> Score:
        """Score the outputs for a sample, in the order of the manifest's."""
        ordered = {spec.name: outputs[spec.name] for spec in self.manifest.outputs if spec.name in outputs}
        score = self.metric.score(ordered, self.reader.target(sample))
        if not math.isfinite(score.value):
            error = VerificationError if side == DEVICE else InputError
            raise error(
                f"{self.metric.name} of {sample.name} is {score.value} for the {side}",
                hint="its outputs contain infinities or NaN: `toolchain run` writes those of the device to a file",
            )
        return score

    def run(self, release: DeviceRelease, samples: Sequence[Sample]) -> Iterator[list[Score]]:
        """Yield the scores of samples on a device, which has the release, for each process that runs them there.

        Raises:
            DeviceError: The device is full or lost, or the model does not run on it.
            VerificationError, InputError: An output has no score.
        """
        outputs = self.manifest.outputs
        for piece in sampling.pieces(len(samples), [*self.manifest.inputs, *outputs]) if samples else ():
            interrupts.check()
            part = samples[piece.start : piece.stop]
            sampled = sampling.run_all(release, Series(len(part), functools.partial(_take, self.reader, part)))
            rows = [
                tensors.cut({key: value[row] for key, value in sampled.outputs.items()}, outputs)
                for row in range(len(part))
            ]
            for sample, row in zip(part, rows[: MOST_SAMPLES - len(self.first)], strict=False):
                self.first.append(Case(self.reader.inputs(sample), row))
            yield [self.score(row, sample, DEVICE) for row, sample in zip(rows, part, strict=True)]


def _take(reader: Reader, samples: Sequence[Sample], indices: range) -> dict[str, NDArray[Any]]:
    rows = [reader.inputs(samples[index]) for index in indices]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
