"""Anchors that follow from a few numbers, as the libraries of detectors make them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from toolchain.steps import Step

MOST_LEVELS = 8  # kMostLevels of runtime/pictures/pictures.h
MOST_SIZES = 16  # anchors of a cell; kMostAnchors there
_LOWEST = 0.1  # scale of the first anchor of TensorFlow's first level

_Sizes = tuple[tuple[float, float], ...]  # width and height of each anchor of a cell, in pixels


@dataclass(frozen=True)
class Level:
    """A grid on the model's input; the struct of the same name in runtime/pictures/pictures.h describes it."""

    columns: int
    rows: int
    step_x: float
    step_y: float
    sizes: _Sizes

    @property
    def boxes(self) -> int:
        return self.columns * self.rows * len(self.sizes)

    def __str__(self) -> str:
        return f"{self.columns}x{self.rows}x{len(self.sizes)}"


@dataclass(frozen=True)
class _Grid:
    """The cells of one level, without anchors."""

    columns: int
    rows: int
    step_x: float
    step_y: float


def make_levels(step: Step, size: tuple[int, int]) -> tuple[Level, ...]:
    """Return the levels of a convention for an input of this width and height.

    Raises:
        InputError: A parameter is missing or wrong.
    """
    convention = step.values["anchors"]
    allowed = {"strides", "cells", *_PARAMETERS[convention]}
    for key in ("scales", "ratios", "each"):
        if key in step.values and key not in allowed:
            raise step.fault(f"{key} is not for anchors={convention}", f"leave {key} out")
    grids = _grids(step, size, has_own_steps=convention in {"ssd", "retinanet"})
    sizes = _MAKERS[convention](step, grids, size)
    pairs = list(zip(grids, sizes, strict=True))
    if convention == "mediapipe":  # levels of the same cells are one, whose cells have the anchors of all
        groups = [list(group) for _, group in itertools.groupby(pairs, key=lambda pair: pair[0])]
        pairs = [(group[0][0], tuple(itertools.chain(*(own for _, own in group)))) for group in groups]
    if (most := max(len(own) for _, own in pairs)) > MOST_SIZES:
        raise step.fault(f"a cell has {most} anchors, and at most {MOST_SIZES} are possible")
    return tuple(Level(grid.columns, grid.rows, grid.step_x, grid.step_y, own) for grid, own in pairs)


def of_levels(step: Step, key: str, count: int = 0, *, low: float = 0.0, high: float = 1e4) -> list[list[float]]:
    """Return the numbers of each level: levels with / between, and numbers of one with +.

    Args:
        step: The step.
        key: The parameter.
        count: How many levels there are; one that is written alone is that of all. 0: as many as are written.
        low: What each number is above.
        high: The largest one.
    """
    if key not in step.values:
        raise step.fault(f"it needs {key}", f"for example: {key}={_EXAMPLES[key]}")
    levels = []
    for text in step.values[key].split("/"):
        numbers = [_plain_number(part) for part in text.split("+")]
        if not all(low < number <= high for number in numbers):
            raise step.fault(
                f"{key} are numbers above {low:g} up to {high:g}, with + between, and / between levels, not {text!r}",
                f"for example: {key}={_EXAMPLES[key]}",
            )
        levels.append(numbers)
    if count and len(levels) == 1:
        levels *= count
    if count and len(levels) != count:
        raise step.fault(f"{key} has {len(levels)} levels, and {count} are needed")
    return levels


_EXAMPLES = {
    "scales": "0.2/0.4/0.6/0.8",
    "ratios": "1+2+0.5",
    "strides": "8/16/32",
    "cells": "38/19/10",
    "variances": "0.1+0.1+0.2+0.2",
}


def _plain_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _grids(step: Step, size: tuple[int, int], *, has_own_steps: bool) -> list[_Grid]:
    """Return the cells of each level, of `strides` or `cells`."""
    if ("strides" in step.values) == ("cells" in step.values):
        raise step.fault("it needs strides or cells", "for example: strides=8/16/32, or cells=38/19/10x8")
    grids = []
    if "cells" in step.values:
        for text in step.values["cells"].split("/"):
            sides = [int(part) if part.isdecimal() else 0 for part in text.split("x")]
            columns, rows = sides * 2 if len(sides) == 1 else (sides if len(sides) == 2 else [0, 0])  # noqa: PLR2004
            if not (1 <= columns <= size[0] and 1 <= rows <= size[1]):
                raise step.fault(f"cells are such as 38 or 20x15, not {text!r}", "for example: cells=38/19/10x8")
            grids.append(_Grid(columns, rows, size[0] / columns, size[1] / rows))
    else:
        for numbers in of_levels(step, "strides", high=max(size)):
            if len(numbers) != 1:
                raise step.fault("a level has one stride", "write / between levels: strides=8/16/32")
            (stride,) = numbers
            columns, rows = (math.ceil(side / stride) for side in size)
            steps = (stride, stride) if has_own_steps else (size[0] / columns, size[1] / rows)
            grids.append(_Grid(columns, rows, *steps))
    if len(grids) > MOST_LEVELS:
        raise step.fault(f"there are {len(grids)} levels, and at most {MOST_LEVELS} are possible")
    return grids


def _scales(step: Step, levels: int) -> list[tuple[float, float]]:
    """Return the scale of each level, and that of the next one."""
    scales = of_levels(step, "scales", high=10)
    if len(scales) != levels + 1 or any(len(numbers) != 1 for numbers in scales):
        raise step.fault(
            f"scales must be {levels + 1} numbers with / between, one for each level and one after the last"
        )
    return [(first[0], second[0]) for first, second in itertools.pairwise(scales)]


def _ssd(step: Step, grids: Sequence[_Grid], size: tuple[int, int]) -> list[_Sizes]:
    """As torchvision's DefaultBoxGenerator, and the SSD of its authors: shares of both sides, at most 1."""
    result = []
    ratios = of_levels(step, "ratios", len(grids), high=100)
    for (scale, following), own in zip(_scales(step, len(grids)), ratios, strict=True):
        middle = math.sqrt(scale * following)
        shares = [(scale, scale), (middle, middle)]
        for ratio in own:
            root = math.sqrt(ratio)
            shares += [(scale * root, scale / root), (scale / root, scale * root)]
        result.append(tuple((min(width, 1) * size[0], min(height, 1) * size[1]) for width, height in shares))
    return result


def _retinanet(step: Step, grids: Sequence[_Grid], size: tuple[int, int]) -> list[_Sizes]:  # noqa: ARG001
    """As torchvision's AnchorGenerator: scales in pixels, and halves of sides that are rounded."""
    scales = of_levels(step, "scales", len(grids))
    ratios = of_levels(step, "ratios", len(grids), high=100)
    return [
        tuple(
            (2.0 * round(scale / math.sqrt(ratio) / 2), 2.0 * round(scale * math.sqrt(ratio) / 2))
            for ratio in of_level
            for scale in own
        )
        for own, of_level in zip(scales, ratios, strict=True)
    ]


def _tensorflow(step: Step, grids: Sequence[_Grid], size: tuple[int, int]) -> list[_Sizes]:
    """As the SSD anchor generator of TensorFlow's object detection, whose first level has three anchors."""
    result: list[_Sizes] = []
    side = min(size)
    ratios = of_levels(step, "ratios", len(grids), high=100)
    for (scale, following), own in zip(_scales(step, len(grids)), ratios, strict=True):
        pairs = [*((scale, ratio) for ratio in own), (math.sqrt(scale * following), 1.0)]
        if not result:
            pairs = [(_LOWEST, 1.0), (scale, 2.0), (scale, 0.5)]
        result.append(tuple((part * math.sqrt(ratio) * side, part / math.sqrt(ratio) * side) for part, ratio in pairs))
    return result


def _mediapipe(step: Step, grids: Sequence[_Grid], size: tuple[int, int]) -> list[_Sizes]:
    """As MediaPipe's calculator with anchors of a fixed size, that of the input."""
    whole = (float(size[0]), float(size[1]))
    return [(whole,) * step.whole("each", 2, 1, MOST_SIZES)] * len(grids)


_MAKERS: Mapping[str, Callable[[Step, Sequence[_Grid], tuple[int, int]], list[_Sizes]]] = {
    "ssd": _ssd,
    "retinanet": _retinanet,
    "tensorflow": _tensorflow,
    "mediapipe": _mediapipe,
}
_PARAMETERS = {
    "ssd": ("scales", "ratios"),
    "retinanet": ("scales", "ratios"),
    "tensorflow": ("scales", "ratios"),
    "mediapipe": ("each",),
}
