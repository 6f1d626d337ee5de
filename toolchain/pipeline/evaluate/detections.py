"""Mean average precision: the metric of networks that find objects in pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolchain.errors import InputError, did_you_mean
from toolchain.pipeline.evaluate import precision
from toolchain.pipeline.evaluate.data import Reader, Target
from toolchain.pipeline.evaluate.functions import UserFunction
from toolchain.pipeline.evaluate.metrics import Metric, Score
from toolchain.pipeline.evaluate.paired import DRAWS, FEWEST_DRAWS, NO_LOSS, Loss, compare_totals
from toolchain.pipeline.evaluate.precision import Box, Curves, Matches
from toolchain.tensors import Tensors, TensorSpec

NAME = "map"
_WORK = 10_000_000  # numbers that the draws of a comparison take, unless fewer draws would say too little
_ROUNDING = 1e-6
_FORM = "return a list of (box, score, category), a box as [left, top, width, height] in pixels of the picture's file"


@dataclass(frozen=True, kw_only=True)
class MeanPrecision(Metric):
    """The mean average precision of all pictures, and of each one by itself."""

    categories: Mapping[int, str]
    boxes: UserFunction  # takes outputs by name and the picture's file; returns boxes with scores and categories

    def check(self, reader: Reader, outputs: Sequence[TensorSpec]) -> None:  # noqa: ARG002 - the function decides
        if all(item.crowd for sample in reader.dataset.samples for item in sample.objects):
            raise InputError(
                f"the pictures of {reader.dataset.path} have no objects, which {NAME} needs",
                hint="annotations have a bbox and the id of their picture; crowds do not count",
            )

    def score(self, outputs: Tensors, target: Target) -> Score:
        boxes = self._read(self.boxes(target.name, dict(outputs), target.path), target.name)
        if boxes is None:
            return Score(math.nan)
        matches = precision.match(target.objects, boxes)
        found, count = matches.found
        answer = f"{found} of {count} objects" if count else "no objects"
        return Score(float(_precision([matches])) if count else 1.0, answer, _ROUNDING, matches.pack())

    def _read(self, result: Any, sample: str) -> list[Box] | None:
        """Check what the user's function returned; None if a number is infinite or not a number."""
        names = {name: key for key, name in self.categories.items()}
        boxes = []
        try:
            for sides, score, category in result:
                numbers = (*sides, score) if isinstance(category, str) else (*sides, score, category)
                if not all(math.isfinite(number) for number in numbers):
                    return None
                key = names.get(category) if isinstance(category, str) else _whole(category)
                if key is None or key not in self.categories:
                    raise InputError(
                        f"{self.boxes.name} returned a box of category {category!r}, which the data do not have",
                        details=f"sample: {sample}\ncategories: {', '.join(names)[:500]}",
                        hint=did_you_mean(str(category), names)
                        or "return the id or the name of a category of the data",
                    )
                boxes.append(Box(key, _sides(sides), float(score)))
        except (TypeError, ValueError) as fault:
            raise InputError(
                f"{self.boxes.name} returned no boxes with scores and categories for {sample}",
                details=str(fault),
                hint=_FORM,
            ) from fault
        return boxes

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
