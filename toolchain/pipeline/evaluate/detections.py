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

BOXES, MASKS, POINTS = NAMES = ("map", "map-masks", "map-keypoints")
_WORK = 10_000_000  # numbers that the draws of a comparison take, unless fewer draws would say too little
_ROUNDING = 1e-6
_FORMS = {
    BOXES: "a list of (box, score, category), a box as [left, top, width, height] in pixels of the picture's file",
    MASKS: "a list of (mask, score, category), a mask as an array [height, width] of the picture's file",
    POINTS: "a list of (points, score, category), key points as an array [points, 2 or 3] of x and y in pixels of the"
    " picture's file",
}
_ANSWERS = {
    BOXES: ("boxes", "yolo"),
    MASKS: ("masks", "yolo:masks=NAME"),
    POINTS: ("key points", "yolo:points=NUMBER"),
}  # what each metric scores, and the step that finds it
_KINDS: dict[str, answers.Kind] = {BOXES: "boxes", MASKS: "masks", POINTS: "points"}


@dataclass(frozen=True, kw_only=True)
class MeanPrecision(Metric):
    """The mean average precision of all pictures, and of each one by itself: of boxes, masks or key points."""

    categories: Mapping[int, str]
    objects: Answers | None  # makes what is scored, with scores and categories; None: the steps of the release do

    def of_release(self, steps: ReleaseSteps | None, outputs: Sequence[str], *, own_reader: bool) -> MeanPrecision:
        if self.objects:
            return self
        objects = None if own_reader else self._of_steps(steps, outputs)
        if objects is None:
            what, step = _ANSWERS[self.name]
            raise InputError(
                f"the metric {self.name} needs {what}, which no step of the release finds",
                details="--preprocess takes the place of its steps" if own_reader and steps else "",
                hint=f"build it with --post {step}, or pass --postprocess module:function (docs/evaluate.md)",
            )
        return replace(self, objects=objects, digest=f"{self.digest}\n{objects.name}\n{objects.digest}")

    def _of_steps(self, steps: ReleaseSteps | None, outputs: Sequence[str]) -> Answers | None:
        return answers.of_objects(steps, outputs, frozenset(self.categories.values()), _KINDS[self.name])

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
        if self.name == POINTS:
            self._check_points(samples)

    def _check_masks(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            missing = [self.categories[item.category] for item in sample.objects if item.mask is None]
            if missing or not sample.size:
                what = "has no height and width" if not missing else f"has a {missing[0]} without a segmentation"
                raise InputError(
                    f"{sample.name} {what}, which {self.name} needs",
                    hint="annotations have a segmentation, and images a height and a width",
                )

    def _check_points(self, samples: Sequence[Sample]) -> None:
        """Refuse objects whose key points are not x, y and a visibility each, or not as many as those of others."""
        first = next(item.points for sample in samples for item in sample.objects)
        for sample in samples:
            for item in sample.objects:
                if not _are_points(item.points) or len(item.points) != len(first):
                    what = "key points" if not _are_points(item.points) else f"{len(first) // 3} key points as others"
                    raise InputError(
                        f"{sample.name} has a {self.categories[item.category]} without {what}, which {self.name} needs",
                        hint="annotations have keypoints: x, y and visibility of each, as many for each object",
                    )
        if not any(precision.visible(item.points) for sample in samples for item in sample.objects if not item.crowd):
            raise InputError(
                f"no key point is visible, which {self.name} needs",
                hint="the third number of a key point is 1 or 2 where it is marked",
            )
        found = self.objects.steps.plan.points if isinstance(self.objects, StepObjects) else 0
        if found and found != len(first) // 3:
            raise InputError(
                f"the release finds {found} key points of an object, and the data have {len(first) // 3}",
                hint="evaluate it on data with the key points that it was trained for",
            )

    def score(self, outputs: Tensors, target: Target) -> Score:
        if self.objects is None:
            raise InputError(f"the metric {self.name} is not of a release", hint="pass --postprocess module:function")
        boxes = self._read(self.objects(target.name, dict(outputs), target.path), self.objects.name, target)
        if boxes is None:
            return Score(math.nan)
        try:
            size = target.size if self.name == MASKS else None
            matches = precision.match(target.objects, boxes, size, self._points_of(target, boxes))
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
                if self.name == POINTS:
                    numbers.extend(np.asarray(place, np.float64).reshape(-1))
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
                f"{source} returned no {_ANSWERS[self.name][0]} with scores and categories for {target.name}",
                details=str(fault),
                hint=f"return {_FORMS[self.name]}",
            ) from fault
        return boxes

    def _points_of(self, target: Target, boxes: Sequence[Box]) -> int:
        """Return how many key points an object has; 0 for another metric."""
        if self.name != POINTS:
            return 0
        sizes = [*(len(item.points) for item in target.objects), *(len(box.points) for box in boxes)]
        return max(sizes, default=3) // 3

    def _box(self, place: Any, score: float, category: int, target: Target) -> Box:
        if self.name == POINTS:
            return Box(category, (0.0, 0.0, 0.0, 0.0), score, points=_numbers(place, target))
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


def _are_points(points: Any) -> bool:
    """Whether they are three finite numbers for each key point."""
    return (
        isinstance(points, Sequence)
        and not isinstance(points, str)
        and len(points) > 0
        and len(points) % 3 == 0
        and all(isinstance(number, int | float) and math.isfinite(number) for number in points)
    )


def _numbers(points: Any, target: Target) -> tuple[float, ...]:
    """Return the key points of an answer, each with a third number."""
    rows = np.asarray(points, np.float64)
    expected = len(target.objects[0].points) // 3 if target.objects else len(rows)
    if rows.ndim != 2 or rows.shape[1] not in {2, 3} or len(rows) != expected:  # noqa: PLR2004 - x, y and a score
        raise ValueError(f"the key points are an array {list(rows.shape)}, not [{expected}, 2 or 3]")
    return tuple(float(number) for x, y, *_ in rows for number in (x, y, 1.0))


def _sides(box: Any) -> tuple[float, float, float, float]:
    left, top, width, height = map(float, box)
    if width < 0 or height < 0:
        raise ValueError(f"a box is {[left, top, width, height]}")
    return left, top, width, height


def _precision(pictures: Sequence[Matches]) -> float:
    return float(Curves(pictures).mean_precision(np.ones((1, len(pictures))))[0])
