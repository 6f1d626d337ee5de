"""Winograd convolution as `winograd`, with weights in their own size: the kernel transforms them.

Winograd's weights are 4 or 1.8 times larger. Here a core transforms those of a column of components and a group of
output blocks into memory of its own, just before it multiplies them. That is done once for each chunk of tiles, so it
pays where a chunk has many of a layer's tiles, and where weights come from memory: in the last layers of a network,
which have most of its weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.ir import prim
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import direct, emit, winograd
from toolchain.backends.cpu.kernels.emit import Argument, with_definitions
from toolchain.backends.cpu.kernels.winograd import algebra
from toolchain.backends.cpu.kernels.winograd import plan as winograd_plan
from toolchain.backends.cpu.kernels.winograd.plan import Config, WinogradPlan
from toolchain.backends.cpu.layers import Conv
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack"]

NAME = "winograd_compact"

_TAPS = algebra.TAPS

covers = winograd.covers


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated cost, the cheapest first."""
    return winograd_plan.configs(layer, machine, compact=True)


def _packed(plan: WinogradPlan) -> tuple[int, ...]:
    """Return the shape of the weights: [groups, channels in, taps by column, blocks of a group, lanes]."""
    return (plan.groups, plan.inputs, _TAPS**2, plan.config.blocks, plan.lanes)


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:
    """Return weights [out, in, 3, 3] in single precision, in the order in which the kernel reads them."""
    plan = WinogradPlan(layer, machine.lanes, config)
    outputs, inputs, _, _ = weights.shape
    padded = np.zeros((layer.out.blocks * plan.lanes, plan.inputs, _TAPS**2), np.float32)
    padded[:outputs, :inputs] = weights.transpose(0, 1, 3, 2).reshape(outputs, inputs, -1)
    split = padded.reshape(plan.groups, config.blocks, plan.lanes, plan.inputs, _TAPS**2)
    return np.ascontiguousarray(split.transpose(0, 3, 4, 1, 2))


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    plan = WinogradPlan(layer, machine.lanes, config)

    def body(*buffers: Any) -> None:
        _Writer(plan, machine, buffers).write()

    arguments = direct.arguments(layer, Argument("weights", _packed(plan)))
    return with_definitions(emit.kernel(arguments, body, {}), machine)


class _Writer(winograd.WinogradWriter):
    def more_sizes(self) -> tuple[int, ...]:
        return (self._plan.side * self._panel_size,)

    @property
    def _panel_size(self) -> int:
        """Elements of a component's weights, and a vector more, so that components do not share a set of the cache."""
        return (self._plan.inputs * self._plan.config.blocks + 1) * self._lanes

    def prepare_column(self, group: Any, column: Any) -> None:
        plan, lanes = self._plan, self._lanes
        factors = [self._factor(column, tap) for tap in range(_TAPS)]
        step = plan.config.blocks * lanes
        with T.serial(0, plan.inputs) as channel:
            first = T.Bind((group * plan.inputs + channel) * (_TAPS**2 * step))
            for block in range(plan.config.blocks):
                taps = [super(_Writer, self).weight(first + tap * step + block * lanes) for tap in range(_TAPS**2)]
                rows = [
                    T.Bind(sum(factor * taps[tap * _TAPS + row] for tap, factor in enumerate(factors)))
                    for row in range(_TAPS)
                ]
                for row, value in enumerate(algebra.filter_rows(rows, self._tile, lanes)):
                    self._more[0].store(value, row * self._panel_size + channel * step + block * lanes)

    def _factor(self, column: Any, tap: int) -> Any:
        """Return the factor of a tap in a column of components, for all lanes."""
        factors = [row[tap] for row in algebra.filter_factors(self._tile)]
        value: Any = tirx.const(factors[-1], "float32")
        for number, factor in enumerate(factors[:-1]):
            value = prim.Select(column == number, tirx.const(factor, "float32"), value)
        return T.Bind(emit.splat(T.Bind(value), self._lanes))

    def panel(self, group: Any, component: Any, row: Any) -> Any:  # noqa: ARG002 - as the base class has it
        return row * self._panel_size

    def weight(self, offset: Any) -> Any:
        return self._more[0].vector(offset)

    def fetch_ahead(self, panel: Any, pass_number: Any, number: Any, elements: int) -> None:
        """Fetch nothing: the panel is in the second cache."""
