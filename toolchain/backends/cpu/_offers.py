"""What a tuner may choose from: for each layer, the templates' kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm

from toolchain.backends.cpu import _fallback, _templates
from toolchain.backends.cpu._layers import Conv, Layer, Pool, QuantizedConv, QuantizedLayer, QuantizedPool, from_json
from toolchain.backends.cpu._machine import Machine


@dataclass(frozen=True)
class Offers:
    """The templates' kernels for one processor.

    Attributes:
        target: The processor's target.
        machine: The processor.
        without: Names of templates that are left out.
    """

    target: tvm.target.Target
    machine: Machine
    without: frozenset[str] = frozenset()

    def default(self, module: tvm.IRModule) -> tvm.IRModule:
        """Schedule kernels that no template computes, as they are where nothing was tuned."""
        return _fallback.schedule(module, self.target, self.machine.lanes)

    def candidates(self, layer: str) -> list[dict[str, Any]]:
        """List the ways to compute a layer, the one that is likely the fastest first."""
        found = _templates.candidates(from_json(layer), self.machine, without=self.without)
        return [one.choice.document() for one in found]

    def module(self, layer: str, choice: Mapping[str, Any]) -> tvm.IRModule | None:
        """Return the kernel of a layer as the function `main`; None if it cannot be written in that way any more."""
        wanted, known = from_json(layer), self._known(layer, choice)
        if known is None:
            return None
        function = _templates.kernel(wanted, self.machine, known).with_attr("global_symbol", "main")
        return tvm.IRModule({"main": function})

    def fits(self, layer: str, choice: Mapping[str, Any]) -> bool:
        """Whether a layer can be computed in a way that was chosen at another time."""
        return self._known(layer, choice) is not None

    def _known(self, layer: str, choice: Mapping[str, Any]) -> _templates.Choice | None:
        known = _templates.choice(dict(choice))
        if known is None or known.template in self.without or not _templates.fits(from_json(layer), known):
            return None
        return known

    def operator(self, layer: str) -> str:
        """Name what a layer does."""
        return _operator(from_json(layer))

    def gflop(self, layer: str) -> float:
        """Return billions of floating-point operations of one call."""
        return from_json(layer).flops / 1e9


def _operator(layer: Layer) -> str:
    on = "int8_" if isinstance(layer, QuantizedLayer) else ""
    if isinstance(layer, (Conv, QuantizedConv)):
        if layer.is_depthwise:
            return f"{on}depthwise_conv2d"
        return f"{on}conv2d" if layer.groups == 1 else f"{on}group_conv2d"
    if isinstance(layer, (Pool, QuantizedPool)):
        return f"{on}{'avg' if layer.reduce == 'mean' else 'max'}_pool2d"
    return f"{on}{type(layer).__name__.removeprefix('Quantized').lower()}"
