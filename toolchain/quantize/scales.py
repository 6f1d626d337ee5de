"""Powers of two as scales: histograms of activations, the grid that loses least, and what hardware demands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.errors import InputError
from toolchain.quantize.graph import Graph
from toolchain.quantize.plan import Layer
from toolchain.quantize.ranges import BEYOND, HIGHEST, LOWEST, Grid, Range, covering

METHODS = ("mse", "max", "percentile")
"""How activations get their scales from samples."""
FILE = "file"
"""From the ranges of a quantized file."""

_BINS = 4096
_CANDIDATES = 5  # exponents tried below the one that covers everything
_PERCENTILE = 0.9999

MOST_SPREAD = 15
"""Bits between the scales of two channels: the array shifts by no more."""

Powers = tuple[int, ...]
"""One exponent, or one for each channel."""

_MOST_SHIFT = 30
_MOST_MOVED_SHIFT = 22  # of a result with a zero point, which is shifted left by as much, and added to the sums
_GAIN = 2  # what a zero point has to divide the squared error by: layers that pad with it are kernels of their own
_MOST_RESIDUAL_SHIFT = 15
_ROUNDS = 100

_MOVING = ("MaxPool", "Concat")


class Histogram:
    """Counts values in 4096 bins from 0 to a power of two, which doubles when one reaches it; as many below 0."""

    def __init__(self) -> None:
        self._counts = np.zeros((2, _BINS), dtype=np.int64)  # of values from 0 on, and of negative ones
        self._range: int | None = None
        self._interval = Range(0.0, 0.0)

    def add(self, values: NDArray[Any]) -> bool:
        """Count values; False, and nothing counted, if one is infinite or no number."""
        flat = values.reshape(-1)
        interval = Range(float(flat.min(initial=0.0)), float(flat.max(initial=0.0)))
        largest = interval.symmetric().high
        if not np.isfinite(largest):
            return False
        self._interval = interval.union(self._interval)
        if largest:
            exponent = int(np.frexp(largest)[1])
            if self._range is None:
                self._range = exponent
            for _ in range(min(exponent - self._range, 12)):
                # The range doubles: two neighbouring bins become one.
                pairs = self._counts.reshape(2, -1, 2).sum(axis=2)
                self._counts = np.concatenate([pairs, np.zeros_like(pairs)], axis=1)
            self._range = max(self._range, exponent)
        if self._range is not None:
            # There are 2^12 bins up to a power of two: the exponent alone gives the bin.
            bins = np.ldexp(np.abs(flat), 12 - self._range).astype(np.int32) + _BINS * (flat < 0)
            self._counts += np.bincount(bins, minlength=2 * _BINS).reshape(2, _BINS)
        return True

    def grid(self, method: str) -> Grid:
        """Choose the grid; one with a zero point only where that gains a bit.

        Args:
            method: `max` covers every value, `percentile` all but the largest in 10000, `mse` has the least squared
                error of rounding and saturation together.
        """
        interval = self._interval
        if self._range is None:
            return interval.symmetric().on(covering(0))
        centers = np.ldexp(np.arange(_BINS) + 0.5, self._range - 12)
        if method == "percentile":
            counts = self._counts.sum(axis=0)
            index = int(np.searchsorted(np.cumsum(counts), _PERCENTILE * counts.sum()))
            interval = Range(max(interval.low, -centers[index]), min(interval.high, centers[index]))
        if method != "mse":
            return _finest(interval)
        return _least_error(np.array([centers, -centers]), self._counts, interval)


def _finest(interval: Range) -> Grid:
    """Return the finest grid that holds a range; one with a zero point only where that gains a bit."""
    top = exponent = covering(interval.symmetric().high)
    while exponent > LOWEST and interval.is_held(exponent - 1):
        exponent -= 1
    return (interval if exponent < top else interval.symmetric()).on(exponent)


def _least_error(values: NDArray[Any], counts: NDArray[Any], interval: Range) -> Grid:
    """Return the grid that loses the least of values in a range; one with a zero point only where that gains much."""

    def error(grid: Grid) -> float:
        steps = np.clip(np.rint(np.ldexp(values, -grid.exponent)), -HIGHEST - 1 - grid.zero, HIGHEST - grid.zero)
        return float((counts * (values - np.ldexp(steps, grid.exponent)) ** 2).sum())

    def best(covered: Range, top: int) -> Grid:
        candidates = range(top, max(top - _CANDIDATES, LOWEST - 1), -1)
        return min((covered.on(exponent) for exponent in candidates), key=error)

    plain = best(interval.symmetric(), covering(interval.symmetric().high))
    finest = _finest(interval)
    if not finest.zero:
        return plain
    moved = best(interval, finest.exponent)
    return moved if error(moved) * _GAIN < error(plain) else plain


def of_weight(weight: NDArray[Any]) -> int:
    """Choose the exponent of a weight's scale: the one of least squared error."""
    wide = weight.astype(np.float64)
    limit = float(np.abs(wide).max(initial=0.0))
    return _least_error(wide, np.ones(1), Range(-limit, limit)).exponent


def powers(weight: NDArray[Any], *, apart: bool) -> Powers:
    """Choose the exponents of a weight's scales: one, or one for each output channel where that gains a bit on average.

    Each channel counts the same: later layers make up for channels with small weights. The output channels are the
    weight's first axis; `apart` says whether they may differ.
    """
    common = of_weight(weight)
    if not apart:
        return (common,)
    by_channel = [of_weight(channel) if channel.any() else common for channel in weight]
    exponents = tuple(max(exponent, max(by_channel) - MOST_SPREAD) for exponent in by_channel)
    return exponents if common - float(np.mean(exponents)) >= 1 else (common,)


def multiples(steps: NDArray[Any], exponents: Powers) -> NDArray[np.float64]:
    """Return the numbers that steps stand for, by one exponent or one for each place along the first axis."""
    return np.asarray(np.ldexp(steps.astype(np.float64), _column(exponents, steps)))


def _column(exponents: int | Powers, values: NDArray[Any]) -> NDArray[np.int64]:
    column = np.atleast_1d(np.asarray(exponents))
    return column.reshape(-1, *(1,) * (values.ndim - 1)) if values.ndim else column[0]


def rounded(values: NDArray[Any], exponent: int | Powers) -> NDArray[np.int8]:
    """Round values to int8 multiples of 2^exponent, or of one power of two for each place along the first axis."""
    steps = np.rint(np.ldexp(values.astype(np.float64), -_column(exponent, values)))
    return np.asarray(np.clip(steps, -HIGHEST - 1, HIGHEST).astype(np.int8))


@dataclass(frozen=True)
class Exponents:
    """Grids of activations by tensor, and exponents of weights by initializer, one or one for each channel."""

    activations: Mapping[str, Grid]
    weights: Mapping[str, Powers]

    def accumulator(self, layer: Layer) -> Powers:
        """Exponents of the units of a layer's sums."""
        return tuple(self.activations[layer.input].exponent + exponent for exponent in self.weights[layer.weight])

    def shifts(self, layer: Layer) -> Powers:
        """Right shifts from a layer's sums to its output."""
        return tuple(self.activations[layer.output].exponent - exponent for exponent in self.accumulator(layer))

    def residual_shift(self, layer: Layer) -> int | None:
        """Left shift of a layer's residual, whose sums have one unit then; None without a residual."""
        return self.activations[layer.residual].exponent - self.accumulator(layer)[0] if layer.residual else None


def settled(layers: tuple[Layer, ...], best: Exponents, groups: Sequence[frozenset[str]] = ()) -> Exponents:
    """Raise exponents until the hardware has every shift: 0 to 30, and 0 to 15 for residuals.

    A result with a zero point is shifted by 22 at most, as that is added to the sums.

    An output finer than the sums loses nothing when it is raised to them, and sums 2^15 times finer than what is added
    to them lose little.

    Args:
        layers: The layers.
        best: The exponents that lose the least.
        groups: Activations that are to have one grid each.

    Raises:
        InputError: They never settle, which takes weights of whole numbers in a circle of residuals.
    """
    exponents = best
    for _ in range(_ROUNDS):
        weights = _limit_shifts(layers, exponents.activations, best.weights)
        activations = coarsest(_raise_to_sums(layers, exponents.activations, weights), groups)
        # Both steps raise exponents only, so they end unless residuals form a circle.
        raised = Exponents(activations, weights)
        if raised == exponents:
            return exponents
        exponents = raised
    names = [layer.name for layer in layers]
    raise InputError(
        "no scales for these layers give shifts that the hardware supports",
        details="\n".join(names),
        hint=f"keep one layer in float: --exclude {names[-1]}",
    )


def _limit_shifts(
    layers: tuple[Layer, ...], activations: Mapping[str, Grid], best: Mapping[str, Powers]
) -> dict[str, Powers]:
    """Return exponents of the weights with which no shift is too long."""
    weights = dict(best)
    for layer in layers:
        result = activations[layer.output]
        unit = result.exponent - (_MOST_MOVED_SHIFT if result.zero else _MOST_SHIFT)
        if layer.residual:
            unit = max(unit, activations[layer.residual].exponent - _MOST_RESIDUAL_SHIFT)
        lowest = unit - activations[layer.input].exponent
        weights[layer.weight] = tuple(max(exponent, lowest) for exponent in weights[layer.weight])
    return weights


def _raise_to_sums(
    layers: tuple[Layer, ...], activations: Mapping[str, Grid], weights: Mapping[str, Powers]
) -> dict[str, Grid]:
    """Raise the exponents of residuals and results to the unit of their sums."""
    raised = dict(activations)
    for layer in layers:
        unit = raised[layer.input].exponent + max(weights[layer.weight])
        for name in filter(None, (layer.output, layer.residual)):
            raised[name] = raised[name].at_least(unit)
    return raised


# Maxima and concatenations are computed without arithmetic: bytes stay bytes where all are on one grid. With two grids,
# each number would be rounded twice, and would have to be a float in between.
def tied(graph: Graph, tensors: Collection[str]) -> tuple[frozenset[str], ...]:
    """Return the sets of tensors that are to have one grid each. `tensors` are those that become bytes."""
    groups: list[frozenset[str]] = []
    for name in tensors:
        sources = _sources(graph, name, tensors)
        if sources:
            group = sources | {name}
            # A tensor in two groups makes them one.
            joined = [other for other in groups if other & group]
            groups = [other for other in groups if not other & group] + [group.union(*joined)]
    return tuple(groups)


def _sources(graph: Graph, name: str, tensors: Collection[str]) -> frozenset[str]:
    """Return the tensors of bytes whose numbers a tensor has; none if it has any of other tensors."""
    maker = graph.makers.get(name)
    if maker is None or maker.op_type not in _MOVING:
        return frozenset()
    sources: set[str] = set()
    for read in filter(None, maker.input):
        more = {read} if read in tensors else _sources(graph, read, tensors)
        if not more:
            return frozenset()
        sources |= more
    return frozenset(sources)


def coarsest(grids: Mapping[str, Grid], groups: Sequence[frozenset[str]]) -> dict[str, Grid]:
    """Return grids with one for all of each set that is as coarse as its coarsest, and holds what each of them does."""
    result = dict(grids)
    for group in groups:
        members = [grids[name] for name in group]
        interval = reduce(Range.union, (grid.range for grid in members))
        lowest = max(grid.exponent for grid in members)
        result |= dict.fromkeys(
            group, interval.on(next(bits for bits in count(lowest) if interval.is_held(bits, BEYOND)))
        )
    return result
