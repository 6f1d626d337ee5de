"""What a new release loses against its base on the user's own samples, both of them on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolchain.device.installed import DeviceRelease
from toolchain.pipeline.evaluate.metrics import Score
from toolchain.pipeline.evaluate.paired import CONFIDENCE, Loss
from toolchain.pipeline.evaluate.result import Side, compare
from toolchain.pipeline.evaluate.scoring import LabelledSamples, Scoring
from toolchain.pipeline.gate.result import ACCURACY
from toolchain.progress import Progress, Step
from toolchain.stats import Verdict

_MAX_CHANGED = 100  # names in a report


@dataclass(frozen=True)
class AccuracyLimit:
    """Samples, and what a new release may lose on them, in the unit of their metric."""

    samples: LabelledSamples
    most_lost: float


@dataclass(frozen=True)
class Accuracy:
    """The mean score of both releases, and the loss of the new one."""

    metric: str
    unit: str
    count: int  # of samples
    new: float  # in the unit of the metric
    base: float
    loss: Loss
    most_lost: float
    changed: tuple[str, ...]  # names of samples with another answer, or another score where there are no answers

    @property
    def verdict(self) -> Verdict:
        if self.loss.high <= self.most_lost:
            return Verdict.PASS
        return Verdict.REGRESSION if self.loss.low > self.most_lost else Verdict.INCONCLUSIVE

    def sentence(self) -> str:
        verbs = {Verdict.PASS: "passes", Verdict.REGRESSION: "is a REGRESSION"}
        return f"{ACCURACY} {verbs.get(self.verdict, 'is inconclusive')}: {self.text()}"

    def text(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return (
            f"{self.metric} {self.new:.5g} new, {self.base:.5g} base{unit}; loss {self.loss.value:.3g},"
            f" {CONFIDENCE:.0%} within {self.loss.low:.3g} to {self.loss.high:.3g}, limit {self.most_lost:g};"
            f" {len(self.changed)} of {self.count} samples changed"
        )

    def document(self) -> dict[str, Any]:
        return {
            "verdict": str(self.verdict),
            "metric": self.metric,
            "unit": self.unit,
            "samples": self.count,
            "new": self.new,
            "base": self.base,
            "loss": {**asdict(self.loss), "confidence": CONFIDENCE},
            "most_lost": self.most_lost,
            "changed": list(self.changed[:_MAX_CHANGED]),
        }


def measure(
    limit: AccuracyLimit, scorings: Sequence[Scoring], releases: Sequence[DeviceRelease], progress: Progress
) -> Accuracy:
    """Score both releases, the new one first, on a locked device that has them.

    Raises:
        DeviceError: The device is full or lost, or a release does not run on it.
        VerificationError, InputError: An output has no score.
    """
    metric, dataset = scorings[0].metric, limit.samples.dataset
    titles = ("the new release", "the base")
    new, base = (
        Side(title, title, "", tuple(_scores(scoring, release, progress, title)))
        for scoring, release, title in zip(scorings, releases, titles, strict=True)
    )
    pairs = zip(dataset.samples, new.scores, base.scores, strict=True)
    changed = tuple(
        sample.name
        for sample, new_score, base_score in pairs
        if new_score.answer != base_score.answer
        or abs(new_score.value - base_score.value) > max(new_score.rounding, base_score.rounding)
    )
    loss = compare(metric, base, new).loss
    new_mean, base_mean = (metric.total(side.scores) for side in (new, base))
    return Accuracy(metric.name, metric.unit, len(new.scores), new_mean, base_mean, loss, limit.most_lost, changed)


def _scores(scoring: Scoring, release: DeviceRelease, progress: Progress, title: str) -> Iterator[Score]:
    done, samples = 0, scoring.samples
    progress(Step(f"running samples with {title}", done, len(samples), "samples"))
    for scores in scoring.run(release, samples):
        yield from scores
        done += len(scores)
        progress(Step(f"running samples with {title}", done, len(samples), "samples"))
