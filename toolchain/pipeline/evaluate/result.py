"""The result of an evaluation: the scores of each side, what is lost between two of them, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from toolchain.errors import InconclusiveError, RegressionError, ToolchainError
from toolchain.pipeline.evaluate.data import Dataset
from toolchain.pipeline.evaluate.metrics import Metric, Score
from toolchain.pipeline.evaluate.paired import CONFIDENCE, Loss, Verdict

SCHEMA_VERSION = 1
REFERENCE, COMPILED, DEVICE = "reference", "compiled", "device"
_MOST_OFTEN = 0.5  # share of one answer that is suspicious
_ONCE_MORE = 2.0  # how many times as often as with the reference


@dataclass(frozen=True)
class Side:
    """One way to compute the outputs, with the score of each sample."""

    name: str  # REFERENCE, COMPILED or DEVICE
    label: str  # for people: the file, or the device
    digest: str  # SHA-256 of the model, or of the package
    scores: tuple[Score, ...]
    resumed: int = 0  # how many of them an interrupted run had computed


@dataclass(frozen=True)
class Comparison:
    """What the second side loses against the first, in the unit of the metric."""

    first: str
    second: str
    loss: Loss

    @property
    def verdict(self) -> Verdict:
        return self.loss.verdict

    def document(self) -> dict[str, Any]:
        return {"first": self.first, "second": self.second, **asdict(self.loss), "verdict": str(self.verdict)}


def compare(metric: Metric, first: Side, second: Side) -> Comparison:
    """Return what the second side loses against the first."""
    return Comparison(first.name, second.name, metric.compare(first.scores, second.scores))


@dataclass(frozen=True)
class Change:
    """A sample with another answer, or another score, on the device than with the reference."""

    index: int
    loss: float  # in the unit of the metric


@dataclass(frozen=True)
class Evaluation:
    model: str
    package: str  # what the user called it
    digest: str
    board: str
    host: str
    emulated: bool
    metric: Metric
    dataset: Dataset
    labels: tuple[str, ...]  # label of each sample, as written
    sides: tuple[Side, ...]
    most_lost: float | None  # loss that is allowed, in the unit of the metric; None without a limit
    notes: tuple[str, ...] = ()

    def side(self, name: str) -> Side:
        return next(side for side in self.sides if side.name == name)

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The device against the reference first."""
        pairs = sorted(
            combinations(self.sides, 2), key=lambda pair: (pair[0].name, pair[1].name) != (REFERENCE, DEVICE)
        )
        return tuple(compare(self.metric, first, second) for first, second in pairs)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Samples with another answer, or another score where there are no answers; the largest losses first."""
        reference, device = self.side(REFERENCE), self.side(DEVICE)
        changes = [
            Change(index, loss * self.metric.scale)
            for index, loss in enumerate(self.metric.losses(reference.scores, device.scores))
            if loss or reference.scores[index].answer != device.scores[index].answer
        ]
        return tuple(sorted(changes, key=lambda change: -change.loss))

    @property
    def main(self) -> Comparison:
        return self.comparisons[0]

    @property
    def sentence(self) -> str:
        loss, unit = self.main.loss, f" {self.metric.unit}" if self.metric.unit else ""
        within = f"99 % within {loss.low:.4g} to {loss.high:.4g}"
        return f"the device is {self.main.verdict}: {loss.value:.4g}{unit} of {self.metric.name} lost, {within}"

    def warnings(self) -> tuple[str, ...]:
        """Return notes, and what points to the cause of a loss."""
        texts = [*self.notes]
        worse = {(item.first, item.second) for item in self.comparisons if item.verdict is Verdict.WORSE}
        if (REFERENCE, COMPILED) in worse:
            texts.append("the compiled file is worse than the reference in ONNX Runtime too: quantization loses")
        if (COMPILED, DEVICE) in worse:
            texts.append("the device is worse than the same file in ONNX Runtime: the board or the build is at fault")
        answers, usual = (
            Counter(score.answer for score in self.side(name).scores if score.answer) for name in (DEVICE, REFERENCE)
        )
        for answer, count in answers.most_common(1):
            if count > _MOST_OFTEN * len(self.labels) and count > _ONCE_MORE * usual[answer]:
                share = count / len(self.labels)
                texts.append(
                    f"the device answers {answer} for {share:.0%} of the samples: check layout and value range"
                )
        return tuple(texts)

    def fault(self) -> ToolchainError | None:
        """Return the error of a loss above the limit, or of one that is not known well enough; None without a limit."""
        loss, limit = self.main.loss, self.most_lost
        if limit is None or loss.high <= limit:
            return None
        details = "\n".join(self.warnings())
        if loss.low > limit:
            hint = "`toolchain evaluate --html FILE` shows the samples that changed"
            return RegressionError(f"{self.sentence}; the limit is {limit:g}", details=details, hint=hint)
        text = f"{self.sentence}; that neither shows nor rules out a loss of more than {limit:g}"
        return InconclusiveError(text, details=details, hint="use more samples")

    def summary(self) -> dict[str, Any]:
        """Return what the report of a deploy has of it, as JSON's types."""
        loss = self.main.document()
        return {
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "samples": len(self.dataset.samples),
            "reference": self.metric.total(self.side(REFERENCE).scores),
            "device": self.metric.total(self.side(DEVICE).scores),
            "loss": loss,
            "most_lost": self.most_lost,
        }

    def document(self) -> dict[str, Any]:
        names = [sample.name for sample in self.dataset.samples]
        return {
            "schema_version": SCHEMA_VERSION,
            "model": self.model,
            "package": self.package,
            "bundle_digest": f"sha256:{self.digest}",
            "board": self.board,
            "host": self.host,
            "emulated": self.emulated,
            "data": {"path": str(self.dataset.path), "sha256": self.dataset.digest, "samples": len(names)},
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "confidence": CONFIDENCE,
            "verdict": str(self.main.verdict),
            "most_lost": self.most_lost,
            "sides": [
                {
                    "name": side.name,
                    "label": side.label,
                    "sha256": side.digest,
                    "value": self.metric.total(side.scores),
                    "resumed": side.resumed,
                }
                for side in self.sides
            ],
            "comparisons": [comparison.document() for comparison in self.comparisons],
            "warnings": list(self.warnings()),
            "changed": [names[change.index] for change in self.changes],
            "samples": [
                {"name": name, "label": label, **{side.name: _score(side.scores[index]) for side in self.sides}}
                for index, (name, label) in enumerate(zip(names, self.labels, strict=True))
            ],
        }


def _score(score: Score) -> dict[str, Any]:
    return {"value": score.value, "answer": score.answer}


def values_text(sides: Sequence[Side], index: int) -> list[str]:
    """Return the answer of each side to a sample, or its score where there is none."""
    return [score.answer or f"{score.value:.5g}" for score in (side.scores[index] for side in sides)]
