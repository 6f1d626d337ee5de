"""The word error rate, by jiwer: the metric of networks that write down what is spoken, or what stands in a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.errors import InputError
from toolchain.pipeline.evaluate import answers, extras
from toolchain.pipeline.evaluate.answers import Answers, ReleaseSteps
from toolchain.pipeline.evaluate.data import Reader, Target
from toolchain.pipeline.evaluate.metrics import Metric, Score, compare_sums, counts
from toolchain.pipeline.evaluate.paired import Loss
from toolchain.tensors import Tensors, TensorSpec

NAME = "wer"
_NOTHING = "(no words)"


@dataclass(frozen=True, kw_only=True)
class WordErrorRate(Metric):
    """Words that are missing, wrong or too many, for each word of the transcripts of all samples."""

    text: Answers | None  # None: the steps of the release read it

    def of_release(self, steps: ReleaseSteps | None, outputs: Sequence[str], *, own_reader: bool) -> WordErrorRate:
        _ = own_reader  # the outputs have the text, whoever read the sample
        if self.text:
            return self
        text = answers.of_text(steps, outputs)
        if text is None:
            raise InputError(
                f"the metric {NAME} needs a text, which no step of the release reads",
                hint="build it with --post ctc, or pass --postprocess module:function (docs/evaluate.md)",
            )
        return replace(self, text=text, digest=f"{self.digest}\n{text.name}\n{text.digest}")

    def check(self, reader: Reader, outputs: Sequence[TensorSpec]) -> None:  # noqa: ARG002 - the function decides
        if not any(reader.target(sample).label for sample in reader.dataset.samples):
            raise InputError(
                f"no sample of {reader.dataset.path} has a transcript, which {NAME} needs",
                hint="write a .csv file with the columns file and transcript",
            )

    def score(self, outputs: Tensors, target: Target) -> Score:
        if self.text is None:
            raise InputError(f"the metric {NAME} is not of a release", hint="pass --postprocess module:function")
        text = self.text(target.name, dict(outputs), target.path)
        if not isinstance(text, str):
            raise InputError(
                f"{self.text.name} returned {type(text).__name__} for {target.name}", hint="return the text, a str"
            )
        compared = extras.load("jiwer").process_words(target.label, text)
        errors = compared.substitutions + compared.deletions + compared.insertions
        count = compared.hits + compared.substitutions + compared.deletions
        rate = float(-_accuracy(np.array([errors, count])))
        return Score(rate, text.strip() or _NOTHING, 0.0, (errors, count))

    def total(self, scores: Sequence[Score]) -> float:
        return self.scale * float(-_accuracy(counts(scores).sum(axis=0)))

    def compare(self, first: Sequence[Score], second: Sequence[Score]) -> Loss:
        return compare_sums(self, first, second, _accuracy)


def _accuracy(sums: NDArray[Any]) -> NDArray[np.float64]:
    """Return the negated rate of sums [..., errors and words]; without words, each word that is too many counts."""
    errors, counted = np.moveaxis(np.asarray(sums, np.float64), -1, 0)
    return np.asarray(-errors / np.maximum(counted, 1), np.float64)
