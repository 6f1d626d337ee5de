"""Powers of two as scales: histograms of activations, the exponent that loses least, and what hardware demands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.errors import InputError
from toolchain.quantize import ties
from toolchain.quantize.plan import Layer
from toolchain.quantize.ranges import HIGHEST, LOWEST, covering

METHODS = ("mse", "max", "percentile")
"""How activations get their scales from samples."""
FILE = "file"
"""From the ranges that a quantized file says."""

_BINS = 4096
_CANDIDATES = 5  # exponents tried below the one that covers everything
_PERCENTILE = 0.9999

MOST_SPREAD = 15
"""Bits between the scales of two channels: the array shifts by no more."""

Powers = tuple[int, ...]
"""One exponent, or one for each channel."""

_MOST_SHIFT = 30
_MOST_RESIDUAL_SHIFT = 15
_ROUNDS = 100


class Histogram:
    """Counts absolute values in 4096 bins from 0 to a power of two, which doubles when a value reaches it."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, dtype=np.int64)
        self._range: int | None = None
        self._most = 0.0

    def add(self, values: NDArray[Any]) -> bool:
        """Count values; False, and nothing counted, if one is infinite or no number."""
        magnitudes = np.abs(values).reshape(-1)
        most = float(magnitudes.max(initial=0.0))
        if not np.isfinite(most):
            return False
        self._most = max(self._most, most)
        if most:
            self._reach(int(np.frexp(most)[1]))
        if self._range is not None:
            bins = np.ldexp(magnitudes, 12 - self._range).astype(np.int32)
            self._counts += np.bincount(bins, minlength=_BINS)
        return True

    def _reach(self, exponent: int) -> None:
        if self._range is None:
            self._range = exponent
        for _ in range(min(exponent - self._range, 12)):
            pairs = self._counts.reshape(-1, 2).sum(axis=1)
            self._counts = np.concatenate([pairs, np.zeros_like(pairs)])
        self._range = max(self._range, exponent)

    def exponent(self, method: str) -> int:
        """Choose the exponent of the scale.

        Args:
            method: `max` covers every value, `percentile` all but the largest in 10000, `mse` has the least squared
                error of rounding and saturation together.
        """
        top = covering(self._most)
        if method == "max" or self._range is None:
            return top
        centers = np.ldexp(np.arange(_BINS) + 0.5, self._range - 12)
        if method == "percentile":
            place = int(np.searchsorted(np.cumsum(self._counts), _PERCENTILE * self._counts.sum()))
            return min(top, covering(float(centers[place])))
        return _least_error(centers, self._counts, top)


def _least_error(values: NDArray[Any], counts: NDArray[Any], top: int) -> int:
    candidates = range(top, max(top - _CANDIDATES, LOWEST - 1), -1)

    def error(exponent: int) -> float:
        steps = np.clip(np.rint(np.ldexp(values, -exponent)), -HIGHEST - 1, HIGHEST)
        return float((counts * (values - np.ldexp(steps, exponent)) ** 2).sum())

    return min(candidates, key=error)


def of_weight(weight: NDArray[Any]) -> int:
    """Choose the exponent of a weight's scale: the one of least squared error."""
    wide = weight.astype(np.float64)
    return _least_error(wide, np.ones(1), covering(float(np.abs(wide).max(initial=0.0))))


def powers(weight: NDArray[Any], *, apart: bool) -> Powers:
    """Choose the exponents of a weight's scales: one, or one for each output channel where that gains a bit on average.

    Each channel counts the same: what follows makes up for one whose weights are small.

    Args:
        weight: The weight, its output channels first.
        apart: Whether channels may differ.
    """
    whole = of_weight(weight)
    if not apart:
        return (whole,)
    own = [of_weight(channel) if channel.any() else whole for channel in weight]
    found = tuple(max(one, max(own) - MOST_SPREAD) for one in own)
    return found if whole - float(np.mean(found)) >= 1 else (whole,)


def multiples(steps: NDArray[Any], exponents: Powers) -> NDArray[np.float64]:
    """Return the numbers that steps stand for, by one exponent or one for each place along the first axis."""
    return np.asarray(np.ldexp(steps.astype(np.float64), _along(exponents, steps)))


def _along(exponents: int | Powers, values: NDArray[Any]) -> NDArray[np.int64]:
    column = np.atleast_1d(np.asarray(exponents))
    return column.reshape(-1, *(1,) * (values.ndim - 1)) if values.ndim else column[0]


def rounded(values: NDArray[Any], exponent: int | Powers) -> NDArray[np.int8]:
    """Round values to int8 multiples of 2^exponent, or of one power of two for each place along the first axis."""
    steps = np.rint(np.ldexp(values.astype(np.float64), -_along(exponent, values)))
    return np.asarray(np.clip(steps, -HIGHEST - 1, HIGHEST).astype(np.int8))


@dataclass(frozen=True)
class Exponents:
    """Exponents of the scales: of activations by tensor, of weights by initializer, one or one for each channel."""

    activations: Mapping[str, int]
    weights: Mapping[str, Powers]

    def accumulator(self, layer: Layer) -> Powers:
        """Exponents of the units of a layer's sums."""
        return tuple(self.activations[layer.input] + one for one in self.weights[layer.weight])

    def shifts(self, layer: Layer) -> Powers:
        """Right shifts from a layer's sums to its output."""
        return tuple(self.activations[layer.output] - one for one in self.accumulator(layer))

    def residual_shift(self, layer: Layer) -> int | None:
        """Left shift of what is added to a layer's sums, which have one unit then; None where nothing is."""
        return self.activations[layer.residual] - self.accumulator(layer)[0] if layer.residual else None


def settled(layers: tuple[Layer, ...], wanted: Exponents, groups: Sequence[frozenset[str]] = ()) -> Exponents:
    """Raise exponents until every shift is one that hardware has: 0 to 30, and 0 to 15 for residuals.

    An output finer than the sums loses nothing when it is raised to them, and sums 2^15 times finer than what is added
    to them lose little.

    Args:
        layers: The layers.
        wanted: The exponents that lose the least.
        groups: Activations that are to have one exponent each.

    Raises:
        InputError: They never settle, which takes weights of whole numbers in a circle of residuals.
    """
    found = wanted
    for _ in range(_ROUNDS):
        weights = _coarse_enough(layers, found.activations, wanted.weights)
        activations = ties.coarsest(_above_sums(layers, found.activations, weights), groups)
        raised = Exponents(activations, weights)
        if raised == found:
            return found
        found = raised
    names = [layer.name for layer in layers]
    raise InputError(
        "no scales of these layers give shifts that hardware has",
        details="\n".join(names),
        hint=f"leave one on floats: --exclude {names[-1]}",
    )


def _coarse_enough(
    layers: tuple[Layer, ...], activations: Mapping[str, int], wanted: Mapping[str, Powers]
) -> dict[str, Powers]:
    """Return exponents of the weights with which no shift is too long."""
    weights = dict(wanted)
    for layer in layers:
        unit = activations[layer.output] - _MOST_SHIFT
        if layer.residual:
            unit = max(unit, activations[layer.residual] - _MOST_RESIDUAL_SHIFT)
        least = unit - activations[layer.input]
        weights[layer.weight] = tuple(max(one, least) for one in weights[layer.weight])
    return weights


def _above_sums(
    layers: tuple[Layer, ...], activations: Mapping[str, int], weights: Mapping[str, Powers]
) -> dict[str, int]:
    """Raise what is added to sums, and what comes out of them, to their unit."""
    raised = dict(activations)
    for layer in layers:
        unit = raised[layer.input] + max(weights[layer.weight])
        for name in filter(None, (layer.output, layer.residual)):
            raised[name] = max(raised[name], unit)
    return raised
