"""How far a quantized network lies from the one on floats: signal over noise, and how often the first class differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from toolchain.quantize.calibrate import Probe
from toolchain.quantize.write import Written
from toolchain.tensors import Tensors


@dataclass(frozen=True)
class Accuracy:
    """Figures over all samples; a ratio of None stands for an error of exactly zero.

    Attributes:
        layers: Signal-to-noise ratio in dB by tensor.
        output: The same of all results together.
        agreement: Share of images for which both networks put the same class first; None where the results are not
            scores of classes.
    """

    layers: dict[str, float | None]
    output: float | None
    agreement: float | None


class Noise:
    """Sums up the power of a signal and of its error."""

    def __init__(self) -> None:
        self._signal = 0.0
        self._noise = 0.0

    def add(self, exact: NDArray[Any], actual: NDArray[Any]) -> None:
        """Count a tensor."""
        wide = exact.astype(np.float64)
        self._signal += float(np.square(wide).sum())
        self._noise += float(np.square(wide - actual).sum())

    @property
    def ratio(self) -> float | None:
        """Signal-to-noise ratio in dB; None where there is no noise."""
        if self._noise == 0:
            return None
        return round(10 * math.log10(max(self._signal, np.finfo(float).tiny) / self._noise), 2)


def compare(
    exact: onnx.ModelProto,
    written: Written,
    tensors: Sequence[str],
    samples: Sequence[Tensors],
    declared: onnx.ModelProto | None = None,
) -> Accuracy:
    """Run both networks on all samples.

    Args:
        exact: The network on floats.
        written: The quantized one; it runs as the standard says, which is what integer hardware computes.
        tensors: Names of the int8 tensors to compare.
        samples: Inputs.
        declared: The network that the results are compared with, if not `exact`: a quantized model as the user has
            it, which runs as the standard says.
    """
    results = [value.name for value in exact.graph.output]
    first = Probe(exact, [*tensors, *results])
    third = Probe(declared, results, optimized=False) if declared is not None else None
    second = Probe(written.proto, [*(written.rounded[name] for name in tensors), *results], optimized=False)
    layers, output = {name: Noise() for name in tensors}, Noise()
    hits: list[NDArray[np.bool_]] = []
    for sample in samples:
        expected, actual = first.run(sample), second.run(sample)
        for name, noise in layers.items():
            noise.add(expected[name], actual[written.rounded[name]])
        expected |= third.run(sample) if third is not None else {}
        for name in results:
            output.add(expected[name], actual[name])
        # Classes: one axis besides the batch is longer than 1, a score for each class of each image.
        scores = expected[results[0]]
        is_classes = scores.ndim > 1 and scores.dtype.kind == "f" and sum(size > 1 for size in scores.shape[1:]) == 1
        if len(results) == 1 and is_classes:
            hits.append(_first(scores) == _first(actual[results[0]]))
    agreement = float(np.mean(np.concatenate(hits))) if hits else None
    return Accuracy({name: noise.ratio for name, noise in layers.items()}, output.ratio, agreement)


def _first(result: NDArray[Any]) -> NDArray[np.intp]:
    return np.asarray(result.reshape(len(result), -1).argmax(axis=1))
