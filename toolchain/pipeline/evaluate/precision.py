"""Mean average precision of boxes, masks or key points: matches of a picture by pycocotools, and the curves of many.

A picture's matches do not depend on other pictures. So they are computed once, and the precision of pictures drawn at
random follows from sums over them, as pycocotools accumulates them: over the thresholds of 0.5 to 0.95 of intersection
over union, or of the similarity of key points, 101 steps of recall and all categories, with at most 100 boxes of a
category in a picture, or 20 sets of key points.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.pipeline.evaluate import extras, masks
from toolchain.pipeline.evaluate.coco import Object

_THRESHOLDS = 10
_BITS = 1 << np.arange(_THRESHOLDS)
_RECALLS = np.linspace(0.0, 1.0, 101)
_MOST_BOXES, _MOST_SETS = 100, 20  # of a category in a picture
_COCO_POINTS = 17
SIGMA = 0.05
"""How far a key point may be off, as a share of an object's size; COCO's 17 have their own."""
_EVERY_AREA = [0.0, 1e10]


@dataclass(frozen=True)
class Box:
    """A box that a network found, or the mask or the key points of an object."""

    category: int
    box: tuple[float, float, float, float]  # left, top, width and height
    score: float
    runs: Any = None  # of the pixels of its mask, by `masks.runs`
    points: tuple[float, ...] = ()  # x and y of its key points, each with a number that does not count


@dataclass(frozen=True)
class Detection:
    """A box of a picture as it counts; the bits of `hits` and `ignored` are the thresholds, the lowest first."""

    category: int
    score: float
    hits: int  # where it matches an object
    ignored: int  # where it does not count, because it matches a crowd


@dataclass(frozen=True)
class Matches:
    """What a picture contributes: how many objects of each category count, and the boxes."""

    objects: tuple[tuple[int, int], ...]
    detections: tuple[Detection, ...]

    def pack(self) -> tuple[float, ...]:
        """Return it as numbers."""
        objects = [number for pair in self.objects for number in pair]
        boxes = [number for box in self.detections for number in (box.category, box.score, box.hits, box.ignored)]
        return (len(self.objects), *objects, *boxes)

    @classmethod
    def unpack(cls, numbers: Sequence[float]) -> Matches:
        end = 1 + 2 * int(numbers[0])
        objects = tuple((int(key), int(count)) for key, count in zip(numbers[1:end:2], numbers[2:end:2], strict=True))
        boxes = zip(*(numbers[end + field :: 4] for field in range(4)), strict=True)
        return cls(objects, tuple(Detection(int(a), score, int(b), int(c)) for a, score, b, c in boxes))

    @property
    def found(self) -> tuple[int, int]:
        """How many objects are found at the lowest threshold, and how many there are."""
        hits = sum(box.hits & ~box.ignored & 1 for box in self.detections)
        return hits, sum(count for _, count in self.objects)


def match(
    objects: Sequence[Object], boxes: Sequence[Box], size: tuple[int, int] | None = None, points: int = 0
) -> Matches:
    """Match what was found in a picture with its objects.

    Args:
        objects: Those of the picture.
        boxes: What was found.
        size: Compares masks, in a picture of this height and width.
        points: Compares so many key points of each. Without both, boxes are compared.

    Raises:
        ValueError: The mask of an object is not one of that size.
    """
    truth = [_annotation(item.category, item.box, area=item.area, iscrowd=int(item.crowd)) for item in objects]
    guesses = [_annotation(item.category, item.box, area=item.box[2] * item.box[3], score=item.score) for item in boxes]
    if size:
        own = [*(masks.runs(item.mask, size) for item in objects), *(item.runs for item in boxes)]
        for annotation, mask in zip([*truth, *guesses], own, strict=True):
            annotation["segmentation"] = mask
    if points:
        places = [*(item.points for item in objects), *(item.points for item in boxes)]
        for annotation, numbers in zip([*truth, *guesses], places, strict=True):
            annotation["keypoints"], annotation["num_keypoints"] = list(numbers), visible(numbers)
    counted, detections = [], []
    for result in filter(None, _evaluate(truth, guesses, size, points)):
        category = int(result["category_id"])
        if count := int(np.count_nonzero(np.asarray(result["gtIgnore"]) == 0)):
            counted.append((category, count))
        hits, ignored = (_BITS @ (np.asarray(result[key]) > 0) for key in ("dtMatches", "dtIgnore"))
        detections += [
            Detection(category, float(score), int(hit), int(skip))
            for score, hit, skip in zip(result["dtScores"], hits, ignored, strict=True)
        ]
    return Matches(tuple(counted), tuple(detections))


def visible(points: Sequence[float]) -> int:
    """Return how many key points of an object are marked."""
    return sum(mark > 0 for mark in points[2::3])


def _annotation(category: int, box: Sequence[float], **others: Any) -> dict[str, Any]:
    return {"image_id": 1, "category_id": category, "bbox": list(box), "iscrowd": 0, **others}


def _evaluate(
    truth: Iterable[dict[str, Any]], guesses: Iterable[dict[str, Any]], size: tuple[int, int] | None, points: int
) -> list[dict[str, Any] | None]:
    """Return what pycocotools says about one picture, for each category."""
    sides, categories = [], sorted({item["category_id"] for item in (*truth, *guesses)})
    height, width = size or (0, 0)
    with contextlib.redirect_stdout(io.StringIO()):
        for annotations in (truth, guesses):
            side = extras.load("pycocotools.coco").COCO()
            side.dataset = {
                "images": [{"id": 1, "height": height, "width": width}],
                "categories": [{"id": key} for key in categories],
                "annotations": [{**item, "id": number} for number, item in enumerate(annotations, 1)],
            }
            side.createIndex()
            sides.append(side)
        evaluation = extras.load("pycocotools.cocoeval").COCOeval(
            *sides, "keypoints" if points else "segm" if size else "bbox"
        )
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [_EVERY_AREA], ["all"]
        evaluation.params.maxDets = [_MOST_SETS if points else _MOST_BOXES]
        if points and points != _COCO_POINTS:
            evaluation.params.kpt_oks_sigmas = np.full(points, SIGMA)
        evaluation.evaluate()
    return list(evaluation.evalImgs)


class Curves:
    """The curves of precision over recall of pictures, each of which counts any number of times."""

    def __init__(self, pictures: Sequence[Matches]) -> None:
        categories = sorted({key for matches in pictures for key, _ in matches.objects})
        self._curves = [_Curve.of(pictures, category) for category in categories]

    @property
    def width(self) -> int:
        """How many numbers a draw takes for the largest category."""
        return max((len(curve.pictures) for curve in self._curves), default=0)

    @property
    def work(self) -> int:
        """How many numbers a draw takes for all categories."""
        return sum(len(curve.pictures) + curve.hits.size for curve in self._curves)

    def mean_precision(self, weights: NDArray[Any]) -> NDArray[np.float64]:
        """Return the mean average precision, from 0 to 1.

        Args:
            weights: How often each picture counts, [draws, pictures].
        """
        total, present = np.zeros(len(weights)), np.zeros(len(weights))
        for curve in self._curves:
            objects = weights @ curve.objects
            total += np.where(objects > 0, curve.precision(weights, np.maximum(objects, 1)), 0.0)
            present += objects > 0
        return total / np.maximum(present, 1)


@dataclass(frozen=True)
class _Curve:
    """The boxes of one category in all pictures, by falling score."""

    objects: NDArray[np.float64]  # of each picture
    pictures: NDArray[np.int64]  # that of each box
    hits: NDArray[np.bool_]  # [thresholds, boxes]
    ignored: NDArray[np.bool_]

    @classmethod
    def of(cls, pictures: Sequence[Matches], category: int) -> _Curve:
        objects = np.array([dict(matches.objects).get(category, 0) for matches in pictures], np.float64)
        boxes = [
            (number, box)
            for number, matches in enumerate(pictures)
            for box in matches.detections
            if box.category == category
        ]
        boxes.sort(key=lambda item: -item[1].score)  # of equal scores, the first picture comes first, as there
        ignored = _at_thresholds([box.ignored for _, box in boxes])
        hits = _at_thresholds([box.hits for _, box in boxes]) & ~ignored
        # What is below the last hit changes nothing.
        end = int(np.flatnonzero(hits.any(axis=0)).max(initial=-1)) + 1
        numbers = np.array([number for number, _ in boxes], np.int64)
        return cls(objects, numbers[:end], hits[:, :end], ignored[:, :end])

    def precision(self, weights: NDArray[Any], objects: NDArray[Any]) -> NDArray[np.float64]:
        """Return the average precision of each draw, given how many objects each has."""
        of_boxes = weights[:, self.pictures]
        total, everything = np.zeros(len(weights)), np.cumsum(of_boxes, axis=1)
        for hits, ignored in zip(self.hits, self.ignored, strict=True):
            columns = np.flatnonzero(hits)
            if not len(columns):
                continue
            boxes = np.cumsum(np.where(ignored, 0.0, of_boxes), axis=1) if ignored.any() else everything
            right = np.cumsum(of_boxes[:, columns], axis=1)
            precision = right / (boxes[:, columns] + np.spacing(1))
            best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]  # with at least this recall
            steps = _steps(right / objects[:, None])
            total += (best * np.diff(steps, axis=1, prepend=0)).sum(axis=1)
        return total / (_THRESHOLDS * len(_RECALLS))


def _at_thresholds(bits: Sequence[int]) -> NDArray[np.bool_]:
    """Return whether each bit is set, [thresholds, boxes]."""
    return _BITS[:, None] & np.array(bits, np.int64)[None] > 0


def _steps(recall: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many steps of recall are reached: faster than `searchsorted`, and exact where they are equal."""
    last = len(_RECALLS) - 1
    step = (recall * last).astype(np.int64)
    step -= _RECALLS[step] > recall
    step += (step < last) & (_RECALLS[np.minimum(step + 1, last)] <= recall)
    return step + 1
