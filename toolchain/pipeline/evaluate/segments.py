"""The mean intersection over union of classes, of pixels: the metric of networks that give each pixel a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from toolchain import files
from toolchain.errors import InputError, reason
from toolchain.pipeline.evaluate.data import Dataset, Reader, Sample, Target
from toolchain.pipeline.evaluate.metrics import Metric, Score, compare_sums, counts
from toolchain.pipeline.evaluate.paired import Loss
from toolchain.tensors import Tensors, TensorSpec

NAME = "miou"
MASK = "mask"  # the array of an .npz file with the class of each pixel
_IGNORED = 255  # the class of pixels that do not count, as in the usual data sets
_MOST_CLASSES = 255
_ROUNDING = 1e-3  # of a sample's own score: a few pixels at an edge
_FORM = "the class of each pixel, from 0 on, and 255 for pixels that do not count"


@dataclass(frozen=True, kw_only=True)
class MeanIou(Metric):
    """The intersection over union of each class over all samples, of which the mean is reported."""

    folder: Path  # paths of masks begin there

    def check(self, reader: Reader, outputs: Sequence[TensorSpec]) -> None:
        height, width = _size(outputs[0])
        for sample in reader.dataset.samples:
            target = reader.target(sample)
            size = self._mask(target).shape if target.arrays else self._picture(target).size[::-1]
            if size != (height, width):
                raise InputError(
                    f"the mask of {sample.name} has {size[0]}x{size[1]} pixels, and the output {height}x{width}",
                    hint="resize the masks to the output's size, by the nearest pixel",
                )

    def score(self, outputs: Tensors, target: Target) -> Score:
        mask, (predicted, count) = self._mask(target), _predicted(next(iter(outputs.values())))
        counted = mask != _IGNORED
        truth, guess = mask[counted], predicted[counted]
        if truth.size and (truth.max() >= count or truth.min() < 0):
            raise InputError(
                f"the mask of {target.name} has class {truth.max()}, but the model has classes 0 to {count - 1}",
                hint=f"a mask has {_FORM}",
            )
        right = np.bincount(truth[truth == guess], minlength=count)
        union = np.bincount(truth, minlength=count) + np.bincount(guess, minlength=count + 1)[:count] - right
        pixels = np.concatenate([right, union])
        return Score(float(_mean_iou(pixels)), "", _ROUNDING, tuple(pixels.tolist()))

    def total(self, scores: Sequence[Score]) -> float:
        return self.scale * float(_mean_iou(counts(scores).sum(axis=0)))

    def compare(self, first: Sequence[Score], second: Sequence[Score]) -> Loss:
        return compare_sums(self, first, second, _mean_iou)

    def _mask(self, target: Target) -> NDArray[np.int64]:
        if target.arrays:
            if MASK not in target.arrays:
                raise InputError(f"{target.name} has no array {MASK!r}, which {NAME} needs", hint=f"it has {_FORM}")
            mask = np.squeeze(target.arrays[MASK])
        else:
            mask = np.asarray(self._picture(target))
        if mask.ndim != 2 or mask.dtype.kind not in "iub":  # noqa: PLR2004 - rows and columns
            raise InputError(
                f"the mask of {target.name} is {mask.dtype} of shape {mask.shape}, not one class for each pixel",
                hint=f"a mask is a PNG file of grey levels or of a palette: {_FORM}",
            )
        return mask.astype(np.int64)

    def _picture(self, target: Target) -> Image.Image:
        if not target.label:
            raise InputError(
                f"{target.name} has no mask, which {NAME} needs",
                hint="write the path of its mask into the column label of a .csv file",
            )
        return _open(self.folder / target.label)


def open_mean_iou(dataset: Dataset) -> MeanIou:
    """Return the metric for a data set."""
    folder = dataset.path.parent
    paths = sorted({folder / sample.label for sample in dataset.samples if _names_mask(dataset, sample)})
    digests = [files.sha256_file(path) for path in paths if path.is_file()]  # `check` reports those that are not there
    return MeanIou(name=NAME, digest="\n".join(digests), unit="points", scale=100.0, folder=folder)


def _names_mask(dataset: Dataset, sample: Sample) -> bool:
    return dataset.kind == "pictures" and bool(sample.label)


def _open(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except Exception as fault:  # its decoders raise exceptions of any class
        raise InputError(f"cannot read the mask {path}", details=reason(fault)) from fault


def _size(output: TensorSpec) -> tuple[int, int]:
    """Return the rows and columns of an output with the scores of classes [1, classes, ...], or classes [1, ...]."""
    shape, is_class = output.shape, output.dtype.startswith(("int", "uint"))
    if is_class and len(shape) in {2, 3, 4} and all(size == 1 for size in shape[:-2]):
        return shape[-2], shape[-1]
    if not is_class and len(shape) == 4 and shape[0] == 1 and 1 < shape[1] <= _MOST_CLASSES:  # noqa: PLR2004 - NCHW
        return shape[-2], shape[-1]
    raise InputError(
        f"{NAME} needs the scores of classes [1, classes, rows, columns], or classes [1, rows, columns]",
        details=f"the first output is {output}",
        hint="use --metric module:function, a function of your own",
    )


def _predicted(output: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """Return the class of each pixel, and the number of classes; that number itself for scores that are not numbers."""
    if output.dtype.kind in "iu":
        classes = output.reshape(output.shape[-2:]).astype(np.int64)
        return np.where((classes >= 0) & (classes < _MOST_CLASSES), classes, _MOST_CLASSES), _MOST_CLASSES
    scores = output[0].astype(np.float32)
    best = scores.argmax(axis=0).astype(np.int64)
    best[np.isnan(scores).any(axis=0)] = len(scores)
    return best, len(scores)


def _mean_iou(pixels: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean over the classes that occur, of pixels [..., intersections and unions]; 1 if none occurs."""
    right, union = np.split(np.asarray(pixels, np.float64), 2, axis=-1)
    occurs = union > 0
    ratios = np.divide(right, union, out=np.zeros_like(right), where=occurs)
    present = occurs.sum(axis=-1)
    return np.where(present > 0, ratios.sum(axis=-1) / np.maximum(present, 1), 1.0)
