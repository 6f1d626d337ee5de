"""Heads of YOLO networks that do not decode their boxes: numbers for each cell of a grid and each of its anchors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from toolchain.errors import did_you_mean
from toolchain.pictures.anchors import MOST_LEVELS, MOST_SIZES, Level, of_levels
from toolchain.steps import Step
from toolchain.tensors import TensorSpec

Coding = Literal["none", "deltas", "linear", "yolo-v3", "yolo-v5", "yolox"]
Storage = Literal["joined", "rows", "planes", "cells"]

CODINGS: dict[str, Coding] = {"v3-raw": "yolo-v3", "v5-raw": "yolo-v5", "yolox": "yolox"}
"""How the boxes of each head are written."""
_SIZE = re.compile(r"(\d{1,4}(?:\.\d+)?)x(\d{1,4}(?:\.\d+)?)")
_BOX = 5  # x, y, width, height and objectness
_JOINED_RANK, _MAP_RANK, _ROWS_RANK = 3, 4, 5


@dataclass(frozen=True)
class Grid:
    """What a head's outputs are."""

    coding: Coding
    storage: Storage
    levels: tuple[Level, ...]
    outputs: tuple[int, ...]  # one if they are joined, or else that of each level
    classes: int
    sigmoid: bool

    @property
    def boxes(self) -> int:
        return sum(level.boxes for level in self.levels)


def read(
    step: Step, outputs: Sequence[TensorSpec], size: tuple[int, int], *, channels_first: bool
) -> tuple[Grid, TensorSpec]:
    """Return the grid of a model's outputs, with the first one of them.

    Args:
        step: The step `yolo`.
        outputs: Those of the model.
        size: Width and height of its input.
        channels_first: Whether its input is NCHW, as its outputs probably are then.

    Raises:
        InputError: A parameter is wrong, or does not fit the outputs.
    """
    head = step.values["head"]
    for key in ("points", "masks"):
        if key in step.values:
            raise step.fault(f"{key} is not for head={head}", f"leave {key} out")
    anchors = _anchors(step, head)
    chosen = _outputs(step, outputs)
    first = outputs[chosen[0]]
    by = step.choice("by", ("none", "sigmoid"), "none") if head == "yolox" else "sigmoid"
    if head != "yolox" and "by" in step.values:
        raise step.fault("by is for head=yolox", "leave by out")
    storage: Storage = "joined"
    if len(chosen) == 1 and len(first.shape) == _JOINED_RANK:
        levels, classes = _joined(step, first, anchors, size), first.shape[2] - _BOX
    else:
        levels, storage, classes = _apart(step, [outputs[i] for i in chosen], anchors, size, channels_first)
    if classes < 1:
        raise step.fault(f"output {first} has no classes in the layout of {head}")
    return Grid(CODINGS[head], storage, levels, chosen, classes, by == "sigmoid"), first


def _anchors(step: Step, head: str) -> list[tuple[tuple[float, float], ...]]:
    """Return the sizes of each level's anchors; none for a head that has none."""
    if head == "yolox":
        if "anchors" in step.values:
            raise step.fault("head=yolox has no anchors", "leave anchors out")
        return []
    levels = []
    hint = "for example: anchors=10x13+16x30+33x23/30x61+62x45+59x119/116x90+156x198+373x326"
    if "anchors" not in step.values:
        raise step.fault(f"head={head} needs the anchors that the network was trained with", hint)
    for text in step.values["anchors"].split("/"):
        sizes = [_SIZE.fullmatch(part) for part in text.split("+")]
        found = tuple((float(match[1]), float(match[2])) for match in sizes if match)
        if len(found) < len(sizes) or any(0 in pair for pair in found):
            raise step.fault(f"anchors are sizes with + between, and / between levels, not {text!r}", hint)
        levels.append(found)
    if len(levels) > MOST_LEVELS or max(map(len, levels)) > MOST_SIZES:
        raise step.fault(f"at most {MOST_LEVELS} levels of {MOST_SIZES} anchors are possible")
    return levels


def _outputs(step: Step, outputs: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Return the numbers of the outputs that are read, the finest level first: all, or those of `output=NAME+NAME`."""
    names = [spec.name for spec in outputs]
    given = step.values.get("output")
    chosen = names if given is None else [given] if given in names else given.split("+")
    if unknown := [name for name in chosen if name not in names]:
        raise step.fault(
            f"there is no output {unknown[0]!r}: the model's outputs are {', '.join(names)}",
            did_you_mean(unknown[0], names),
        )
    for name in chosen:
        spec = outputs[names.index(name)]
        if spec.dtype != "float32" or spec.bound or spec.shape[0] != 1:
            raise step.fault(f"output {spec} is not float32 of a fixed size", "write output=NAME+NAME of the levels")
    return tuple(sorted((names.index(name) for name in chosen), key=lambda number: -outputs[number].elements))


def _joined(
    step: Step, spec: TensorSpec, anchors: Sequence[tuple[tuple[float, float], ...]], size: tuple[int, int]
) -> tuple[Level, ...]:
    """Return the levels of one output, in which each box is a row."""
    written = of_levels(step, "strides") if "strides" in step.values else [[8.0], [16.0], [32.0]]
    if any(len(numbers) != 1 for numbers in written) or len(written) > MOST_LEVELS:
        raise step.fault("strides are one number for each level, with / between", "for example: strides=8/16/32")
    strides = [numbers[0] for numbers in written]
    if anchors and len(anchors) != len(strides):
        raise step.fault(f"there are anchors of {len(anchors)} levels, and {len(strides)} strides")
    levels = []
    for number, stride in enumerate(strides):
        if any(side % stride for side in size):
            raise step.fault(f"the model's input of {size[0]}x{size[1]} has no whole cells of the stride {stride:g}")
        own = anchors[number] if anchors else ((stride, stride),)
        levels.append(Level(int(size[0] // stride), int(size[1] // stride), stride, stride, own))
    if (count := sum(level.boxes for level in levels)) != spec.shape[1]:
        raise step.fault(
            f"output {spec} has {spec.shape[1]} boxes, but the grid has {count}",
            f"the grid is {' + '.join(map(str, levels))}: check strides{' and anchors' if anchors else ''}",
        )
    return tuple(levels)


def _apart(
    step: Step,
    specs: Sequence[TensorSpec],
    anchors: Sequence[tuple[tuple[float, float], ...]],
    size: tuple[int, int],
    channels_first: bool,  # noqa: FBT001
) -> tuple[tuple[Level, ...], Storage, int]:
    """Return the levels of outputs that are one level each, how they store it, and the number of classes."""
    if "strides" in step.values:
        raise step.fault("the strides follow from outputs that are one level each", "leave strides out")
    if anchors and len(anchors) != len(specs):
        raise step.fault(
            f"there are anchors of {len(anchors)} levels, and {len(specs)} outputs",
            "write output=NAME+NAME of the levels, if there are other outputs",
        )
    counts = [len(anchors[number]) if anchors else 1 for number in range(len(specs))]
    shapes = [_shapes_of(spec, count, size) for spec, count in zip(specs, counts, strict=True)]
    for spec, count, shape in zip(specs, counts, shapes, strict=True):
        if not shape:
            raise step.fault(
                f"output {spec} is not a grid of {count} anchor(s) on an input of {size[0]}x{size[1]}",
                "it is 1 x anchors x rows x columns x numbers, or 1 x channels x rows x columns",
            )
    order: tuple[Storage, ...] = ("rows", "planes", "cells") if channels_first else ("rows", "cells", "planes")
    for storage in order:
        if all(storage in shape for shape in shapes) and len({shape[storage][1] for shape in shapes}) == 1:
            break
    else:
        raise step.fault("the outputs have levels of different layouts or classes", "check output=NAME+NAME")
    levels = []
    for number, shape in enumerate(shapes):
        columns = shape[storage][0]
        stride = size[0] / columns
        own = anchors[number] if anchors else ((stride, stride),)
        levels.append(Level(columns, size[1] * columns // size[0], stride, stride, own))
    if any(second.columns >= first.columns for first, second in itertools.pairwise(levels)):
        raise step.fault("two outputs have a grid of the same size", "write output=NAME+NAME, one for each level")
    return tuple(levels), storage, shapes[0][storage][1] - _BOX


def _shapes_of(spec: TensorSpec, anchors: int, size: tuple[int, int]) -> dict[Storage, tuple[int, int]]:
    """Return how an output may store a level: its columns, and the numbers of each box."""

    def fits(rows: int, columns: int) -> bool:
        return size[0] % columns == 0 and size[1] % rows == 0 and size[0] // columns == size[1] // rows

    shape, found = spec.shape, dict[Storage, tuple[int, int]]()
    if len(shape) == _ROWS_RANK and shape[1] == anchors and fits(shape[2], shape[3]):
        found["rows"] = shape[3], shape[4]
    if len(shape) == _MAP_RANK and shape[1] % anchors == 0 and fits(shape[2], shape[3]):
        found["planes"] = shape[3], shape[1] // anchors
    if len(shape) == _MAP_RANK and shape[3] % anchors == 0 and fits(shape[1], shape[2]):
        found["cells"] = shape[2], shape[3] // anchors
    return found
