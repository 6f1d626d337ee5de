"""Boxes and texts of a network's outputs: by a function of the user's project, or by the steps of the release."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from PIL import Image

from toolchain import files
from toolchain.errors import InputError, reason
from toolchain.native import pictures as native_pictures
from toolchain.native import sounds as native_sounds
from toolchain.pictures import Pictures
from toolchain.sounds import Sounds
from toolchain.tensors import Tensors
from toolchain.texts import Texts

ReleaseSteps = Pictures | Sounds | Texts
Kind = Literal["boxes", "masks", "points"]


class Answers(Protocol):
    """What makes boxes or a text of the outputs for a sample."""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str:
        """Digest of what decides the answers."""

    def __call__(self, sample: str, *values: Any) -> Any:
        """Return the answer for a sample, given its outputs by name and the path of its file."""


@dataclass(frozen=True)
class StepAnswers(ABC):
    """The steps of a release after its model, which this machine computes as devices do."""

    outputs: Sequence[str]  # names, in the order of the release
    steps: ReleaseSteps

    @abstractmethod
    def answer(self, values: Tensors, path: Path) -> Any:
        """Return the boxes or the text of outputs."""

    @property
    def name(self) -> str:
        return f"the step {self.steps.post[-1]!r}"

    @property
    def digest(self) -> str:
        table = [self.steps.plan.table] if isinstance(self.steps, Pictures) and self.steps.plan.table else []
        return files.sha256_bytes(files.canonical_json([self.steps.pre, self.steps.post, self.steps.labels, *table]))

    def __call__(self, sample: str, *values: Any) -> Any:
        try:
            return self.answer(*values)
        except InputError as fault:
            raise InputError(f"{sample}: {fault.message}", details=fault.details, hint=fault.hint) from fault


@dataclass(frozen=True)
class StepObjects(StepAnswers):
    """The boxes that a step finds, or the masks or key points of its objects, with the names of their categories."""

    steps: Pictures
    categories: frozenset[str]  # others do not count
    kind: Kind

    def answer(self, values: Tensors, path: Path) -> list[tuple[Any, float, str]]:
        plan, labels = self.steps.plan, self.steps.labels
        computer, (width, height) = native_pictures.Computer(plan), _size(path)
        found = computer.find(width, height, [values[name] for name in self.outputs])
        points = computer.points() if self.kind == "points" else None
        answers = []
        for number, item in enumerate(found):
            name = labels[int(item["label"])]
            if name not in self.categories:
                continue
            left, top, right, bottom = (float(item[side]) for side in ("left", "top", "right", "bottom"))
            place: Any = [left, top, right - left, bottom - top]
            if points is not None:
                place = points[number, :, :2].astype(np.float64)
            if self.kind == "masks":
                mask = computer.mask(number, values[self.outputs[plan.mask_output]])
                place = np.zeros((height, width), np.uint8)
                rows, columns = mask.pixels.shape
                place[mask.top : mask.top + rows, mask.left : mask.left + columns] = mask.pixels
            answers.append((place, float(item["score"]), name))
        return answers


def _size(path: Path) -> tuple[int, int]:
    """Return the width and height of a picture's file."""
    try:
        with Image.open(path) as picture:
            return picture.size
    except Exception as fault:  # its decoders raise exceptions of any class
        raise InputError(f"cannot read the image {path}", details=reason(fault)) from fault


@dataclass(frozen=True)
class StepText(StepAnswers):
    """The text that the step `ctc` or `tokens` reads."""

    def answer(self, values: Tensors, path: Path) -> str:  # noqa: ARG002 - the outputs have the text
        steps = self.steps
        outputs = [values[name] for name in self.outputs]
        output = outputs[steps.plan.output]
        if isinstance(steps, Texts):
            numbers = output.argmax(axis=-1) if output.dtype == np.float32 else output
            if ((numbers < 0) | (numbers >= len(steps.labels))).any():
                raise InputError("an output has numbers that are not those of tokens", hint="check the vocabulary")
            return steps.text(numbers.reshape(-1).tolist())
        if isinstance(steps, Sounds):
            found = native_sounds.Computer(steps.plan).find(output)
        else:
            found = native_pictures.Computer(steps.plan).find(steps.plan.width, steps.plan.height, outputs)
        return steps.text(found["label"].tolist())


def of_objects(
    steps: ReleaseSteps | None, outputs: Sequence[str], categories: frozenset[str], kind: Kind
) -> StepObjects | None:
    """Return the steps of a release as answers; None if they find no boxes, or no masks or key points.

    Raises:
        InputError: The objects that they find have no names.
    """
    if not isinstance(steps, Pictures) or not steps.plan.finds_boxes:
        return None
    if (kind == "masks" and steps.plan.mask_output < 0) or (kind == "points" and not steps.plan.points):
        return None
    if not steps.labels:
        raise InputError(
            "the classes of the release have no names, by which the categories of the data are found",
            hint="build it with --post yolo:labels=FILE, or pass --postprocess module:function",
        )
    return StepObjects(outputs, steps, categories, kind)


def of_text(steps: ReleaseSteps | None, outputs: Sequence[str]) -> StepText | None:
    """Return the steps of a release as answers; None if they read no text."""
    reads = isinstance(steps, Texts) or (steps is not None and steps.plan.head == "labels")
    return StepText(outputs, steps) if steps is not None and reads else None
