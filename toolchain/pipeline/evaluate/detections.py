"""Mean average precision: the metric of networks that find objects in pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from toolchain.errors import InputError, did_you_mean
from toolchain.pipeline.evaluate import answers, masks, precision
from toolchain.pipeline.evaluate.answers import Answers, ReleaseSteps, StepObjects
from toolchain.pipeline.evaluate.data import Reader, Sample, Target
from toolchain.pipeline.evaluate.metrics import Metric, Score
from toolchain.pipeline.evaluate.paired import DRAWS, FEWEST_DRAWS, NO_LOSS, Loss, compare_totals
from toolchain.pipeline.evaluate.precision import Box, Curves, Matches
from toolchain.tensors import Tensors, TensorSpec

BOXES, MASKS = "map", "map-masks"
_WORK = 10_000_000  # numbers that the draws of a comparison take, unless fewer draws would say too little
_ROUNDING = 1e-6
_FORMS = {
    BOXES: "a list of (box, score, category), a box as [left, top, width, height] in pixels of the picture's file",
    MASKS: "a list of (mask, score, category), a mask as an array [height, width] of the picture's file",
}


@dataclass(frozen=True, kw_only=True)
class MeanPrecision(Metric):
    """The mean average precision of all pictures, and of each one by itself: of boxes, or of masks."""

    categories: Mapping[int, str]
    objects: Answers | None  # makes boxes or masks with scores and categories; None: the steps of the release do

    def of_release(self, steps: ReleaseSteps | None, outputs: Sequence[str], *, own_reader: bool) -> MeanPrecision:
        if self.objects:
            return self
        objects = None if own_reader else self._of_steps(steps, outputs)
        if objects is None:
            what, step = ("masks", "yolo:masks=NAME") if self.name == MASKS else ("boxes", "yolo")
            raise InputError(
                f"the metric {self.name} needs {what}, which no step of the release finds",
                details="--preprocess takes the place of its steps" if own_reader and steps else "",
                hint=f"build it with --post {step}, or pass --postprocess module:function (docs/evaluate.md)",
            )
        return replace(self, objects=objects, digest=f"{self.digest}\n{objects.name}\n{objects.digest}")

    def _of_steps(self, steps: ReleaseSteps | None, outputs: Sequence[str]) -> Answers | None:
        return answers.of_objects(steps, outputs, frozenset(self.categories.values()), masks=self.name == MASKS)

    def check(self, reader: Reader, outputs: Sequence[TensorSpec]) -> None:  # noqa: ARG002 - the answers decide
        samples = reader.dataset.samples
        if all(item.crowd for sample in samples for item in sample.objects):
            raise InputError(
                f"the pictures of {reader.dataset.path} have no objects, which {self.name} needs",
                hint="annotations have a bbox and the id of their picture; crowds do not count",
            )
        if isinstance(self.objects, StepObjects):
            present = {self.categories[item.category] for sample in samples for item in sample.objects}
            if unknown := sorted(present.difference(self.objects.steps.labels)):
                raise InputError(
                    f"no class of the release is called {unknown[0]!r}, as a category of {reader.dataset.path} is",
                    hint=did_you_mean(unknown[0], self.objects.steps.labels)
                    or "name the categories as the labels of the release, or pass --postprocess module:function",
                )
        if self.name == MASKS:
            self._check_masks(samples)

    def _check_masks(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            missing = [self.categories[item.category] for item in sample.objects if item.mask is None]
            if missing or not sample.size:
                what = "has no height and width" if not missing else f"has a {missing[0]} without a segmentation"
                raise InputError(
                    f"{sample.name} {what}, which {self.name} needs",
                    hint="annotations have a segmentation, and images a height and a width",
                )

    def score(self, outputs: Tensors, target: Target) -> Score:
        if self.objects is None:
            raise InputError(f"the metric {self.name} is not of a release", hint="pass --postprocess module:function")
        boxes = self._read(self.objects(target.name, dict(outputs), target.path), self.objects.name, target)
        if boxes is None:
            return Score(math.nan)
        try:
            matches = precision.match(target.objects, boxes, target.size if self.name == MASKS else None)
        except ValueError as fault:
            raise InputError(
                f"a mask of {target.name} in the COCO file is not right",
                details=str(fault),
                hint="a segmentation has polygons, or the runs of all pixels of the picture",
            ) from fault
        found, count = matches.found
        answer = f"{found} of {count} objects" if count else "no objects"
        return Score(float(_precision([matches])) if count else 1.0, answer, _ROUNDING, matches.pack())

    def _read(self, result: Any, source: str, target: Target) -> list[Box] | None:
        """Check the answer for a sample; None if a number is infinite or not a number."""
        names = {name: key for key, name in self.categories.items()}
        boxes = []
        try:
            for place, score, category in result:
                numbers = [score] if isinstance(category, str) else [score, category]
                if self.name == BOXES:
                    numbers.extend(place)
                if not all(math.isfinite(number) for number in numbers):
                    return None
                key = names.get(category) if isinstance(category, str) else _whole(category)
                if key is None or key not in self.categories:
                    raise InputError(
                        f"{source} returned an object of category {category!r}, which the data do not have",
                        details=f"sample: {target.name}\ncategories: {', '.join(names)[:500]}",
                        hint=did_you_mean(str(category), names)
                        or "return the id or the name of a category of the data",
                    )
                boxes.append(self._box(place, float(score), key, target))
        except (TypeError, ValueError) as fault:
            raise InputError(
                f"{source} returned no {'masks' if self.name == MASKS else 'boxes'} with scores and categories for"
                f" {target.name}",
                details=str(fault),
                hint=f"return {_FORMS[self.name]}",
            ) from fault
        return boxes

    def _box(self, place: Any, score: float, category: int, target: Target) -> Box:
        if self.name == BOXES or not target.size:
            return Box(category, _sides(place), score)
        return Box(category, (0.0, 0.0, 0.0, 0.0), score, masks.runs(np.asarray(place), target.size))

    def total(self, scores: Sequence[Score]) -> float:
        return self.scale * float(_precision([Matches.unpack(score.counts) for score in scores]))

    def compare(self, first: Sequence[Score], second: Sequence[Score]) -> Loss:
        packed = [score.counts for score in (*first, *second)]
        if packed[: len(first)] == packed[len(first) :]:
            return NO_LOSS
        curves = Curves([Matches.unpack(numbers) for numbers in packed])
        draws = min(DRAWS, max(FEWEST_DRAWS, _WORK // max(curves.work, 1)))
        changed = self.changed(first, second)
        return compare_totals(curves.mean_precision, len(first), changed, curves.width, draws).scaled(self.scale)


def _whole(category: Any) -> int:
    if int(category) != category:
        raise ValueError(f"a category is {category}")
    return int(category)


def _sides(box: Any) -> tuple[float, float, float, float]:
    left, top, width, height = map(float, box)
    if width < 0 or height < 0:
        raise ValueError(f"a box is {[left, top, width, height]}")
    return left, top, width, height


def _precision(pictures: Sequence[Matches]) -> float:
    return float(Curves(pictures).mean_precision(np.ones((1, len(pictures))))[0])
