"""What a tuner may choose from: for each layer, the templates' kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm

from toolchain.backends.base.attributes import EXAMPLES
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.layers import Attention, Conv, Dense, Layer, Pool, from_json
from toolchain.backends.cpu.machine import Machine
from toolchain.models.converters.sequence.recurrence import Recurrence


@dataclass(frozen=True)
class CpuTemplates:
    """The templates' kernels for one processor.

    Attributes:
        machine: The processor.
        without: Names of templates that are left out.
    """

    machine: Machine
    without: frozenset[str] = frozenset()

    def candidates(self, layer: str) -> list[dict[str, Any]]:
        """List the ways to compute a layer, the one that is likely the fastest first."""
        ranked = kernels.candidates(from_json(layer), self.machine, without=self.without)
        return [candidate.choice.document() for candidate in ranked]

    def module(self, layer: str, choice: Mapping[str, Any]) -> tvm.IRModule | None:
        """Return the kernel of a layer as the function `main`; None if it cannot be written in that way any more."""
        described = from_json(layer)
        parsed = self.read_choice(described, choice)
        if parsed is None:
            return None
        function = kernels.kernel(described, self.machine, parsed).with_attr("global_symbol", "main")
        if examples := kernels.examples(described, self.machine, parsed):
            function = function.with_attr(
                EXAMPLES, {str(n): tvm.runtime.tensor(array) for n, array in examples.items()}
            )
        return tvm.IRModule({"main": function})

    def fits(self, layer: str, choice: Mapping[str, Any]) -> bool:
        """Whether a recorded choice can still compute a layer."""
        return self.read_choice(from_json(layer), choice) is not None

    def read_choice(self, layer: Layer, choice: Mapping[str, Any]) -> kernels.Choice | None:
        """Read a choice for a layer; None if it is unknown, left out, or does not fit."""
        parsed = kernels.choice(dict(choice))
        if parsed is None or parsed.template in self.without or not kernels.fits(layer, parsed):
            return None
        return parsed

    def operator(self, layer: str) -> str:
        """Name what a layer does."""
        described = from_json(layer)
        if isinstance(described, (Attention, Dense, Recurrence)):
            return type(described).__name__.lower()
        prefix = "int8_" if described.is_quantized else ""
        if isinstance(described, Conv):
            if described.is_depthwise:
                return f"{prefix}depthwise_conv2d"
            return f"{prefix}conv2d" if described.groups == 1 else f"{prefix}group_conv2d"
        if isinstance(described, Pool):
            return f"{prefix}{'avg' if described.reduce == 'mean' else 'max'}_pool2d"
        return f"{prefix}map"

    def gflop(self, layer: str) -> float:
        """Return billions of floating-point operations of one call."""
        return from_json(layer).flops / 1e9
