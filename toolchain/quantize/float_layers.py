"""Chooses the layers of a quantized network that stay float, so that its loss is within a budget.

Layers are ordered by the noise that goes away if one of them stays float, for the time that it takes in floats: a loss
of answers is too coarse for one layer. If there is no time to try each layer, groups of neighbours are tried, and those
that gain most are halved. As many layers as needed stay float, in this order, and then each is tried once more without.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from toolchain import interrupts
from toolchain.progress import Progress, Step, stage
from toolchain.quantize.real_scales import Layer, Quantizer

_RANKING_S, _SEARCH_S = 100.0, 180.0  # of trials with groups of layers, and of all trials

_DIGITS = 4  # of what a layer gives back

Judge = Callable[[onnx.ModelProto], float]
"""Measures a network: more is worse."""


@dataclass(frozen=True)
class Budget:
    """How much a network may lose."""

    loss: Judge
    most: float


@dataclass(frozen=True)
class FloatLayer:
    """A layer that stays float; int8 would lose `gives_back` more. None if there was no time to measure that."""

    name: str
    operator: str
    gives_back: float | None
    noise: float | None = None  # share of the noise that goes away if this layer alone is float; None: not measured
    time_share: float = 0.0  # of the layers' estimated time in floats


@dataclass(frozen=True)
class Choice:
    """The layers that stay float, those that give back most first, and the loss if none of them did.

    `noises` has the share of the noise for each layer that was measured by itself, by name.
    """

    layers: tuple[FloatLayer, ...]
    loss_of_all: float
    noises: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Group:
    layers: tuple[Layer, ...]
    noise: float  # that goes away if all of them are float

    @property
    def gain(self) -> float:
        """How much noise goes away for the time that they take."""
        return self.noise / sum(layer.work for layer in self.layers)


def choose(
    quantizer: Quantizer,
    noise: Judge,
    budget: Budget,
    tell: Progress = lambda _line: None,
    clock: Callable[[], float] = time.monotonic,
) -> Choice:
    """Choose the layers that stay float; all of them if nothing else is within the budget.

    Args:
        quantizer: Quantizes the network.
        noise: The power of the noise of a network's outputs.
        budget: What is allowed.
        tell: Called with lines about progress.
        clock: Returns seconds.
    """
    return _Search(quantizer, noise, budget, tell, clock).run()


class _Search:
    def __init__(
        self, quantizer: Quantizer, noise: Judge, budget: Budget, tell: Progress, clock: Callable[[], float]
    ) -> None:
        self._quantizer = quantizer
        self._noise = noise
        self._budget = budget
        self._tell = tell
        self._clock = clock
        self._began = clock()
        self._noises: dict[str, float] = {}
        self._work = sum(layer.work for layer in quantizer.layers)

    def run(self) -> Choice:
        loss = self._loss([])
        if loss <= self._budget.most:
            return Choice((), loss)
        order = self._order()
        kept = self._fewest(order)
        if len(kept) == len(order):
            return Choice(tuple(self._float_layer(layer, None) for layer in kept), loss, self._noises)
        return Choice(self._needed(kept), loss, self._noises)

    def _float_layer(self, layer: Layer, gives_back: float | None) -> FloatLayer:
        share = round(layer.work / self._work, _DIGITS)
        return FloatLayer(layer.name, layer.operator, gives_back, self._noises.get(layer.name), share)

    def _has_time(self, limit_s: float) -> bool:
        return self._clock() - self._began < limit_s

    def _network(self, layers: Sequence[Layer]) -> onnx.ModelProto:
        interrupts.check()
        return self._quantizer.quantized({layer.name for layer in layers})

    def _loss(self, layers: Sequence[Layer]) -> float:
        return self._budget.loss(self._network(layers))

    def _order(self) -> list[Layer]:
        """Return the layers by the noise that each of them adds, the most first."""
        layers, began = self._quantizer.layers, self._clock()
        noise = self._noise(self._network([]))
        # Half of the time is for the first groups, and half for their parts.
        trials = int(_RANKING_S / 2 / max(self._clock() - began, 1e-3))
        count = max(1, min(len(layers), trials))
        edges = [number * len(layers) // count for number in range(count + 1)]
        waiting = [layers[first:end] for first, end in itertools.pairwise(edges)]
        groups: list[_Group] = []
        while waiting:
            single = sum(len(group.layers) == 1 for group in groups)
            self._tell(Step("measuring what each layer loses", single, len(layers), "layers"))
            part = waiting.pop(0)
            groups.append(_Group(part, noise - self._noise(self._network(part))))
            large = [group for group in groups if len(group.layers) > 1]
            if not waiting and large and self._has_time(_RANKING_S):
                worst = max(large, key=lambda group: group.gain)
                groups.remove(worst)
                middle = len(worst.layers) // 2
                waiting += [worst.layers[:middle], worst.layers[middle:]]
        if noise > 0:
            alone = (group for group in groups if len(group.layers) == 1)
            self._noises = {group.layers[0].name: round(group.noise / noise, _DIGITS) for group in alone}
        groups.sort(key=lambda group: group.gain, reverse=True)
        return [layer for group in groups for layer in group.layers]

    def _fewest(self, order: list[Layer]) -> list[Layer]:
        """Return the shortest beginning of the order that is within the budget, as far as there is time."""
        self._tell(stage("choosing the layers that stay float"))
        short, enough = 0, 1
        while enough < len(order) and self._loss(order[:enough]) > self._budget.most:
            short, enough = enough, min(2 * enough, len(order))
        while enough - short > 1 and self._has_time(_SEARCH_S):
            middle = (short + enough) // 2
            if self._loss(order[:middle]) <= self._budget.most:
                enough = middle
            else:
                short = middle
        return order[:enough]

    def _needed(self, kept: list[Layer]) -> tuple[FloatLayer, ...]:
        """Drop the layers without which the loss is within the budget too; measure what the others give back."""
        loss = self._loss(kept)
        gains: dict[str, float | None] = {}
        order = kept[::-1]
        for number, layer in enumerate(order):
            if not self._has_time(_SEARCH_S):
                break
            self._tell(Step("checking the layers that stay float", number, len(order), "layers"))
            others = [other for other in kept if other is not layer]
            loss_without = self._loss(others)
            if loss_without <= self._budget.most:
                kept, loss = others, loss_without
            else:
                gain = loss_without - loss
                gains[layer.name] = round(gain, _DIGITS) if math.isfinite(gain) else None
        layers = [self._float_layer(layer, gains.get(layer.name)) for layer in kept]
        return tuple(sorted(layers, key=lambda layer: math.inf if layer.gives_back is None else -layer.gives_back))
