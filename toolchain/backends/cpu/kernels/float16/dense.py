"""Fully connected layers in float16: as `dense`, but data is rounded, and blocks of products are summed in float16.

Data and results are plain rows of float32, as other operations have them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import dense, emit
from toolchain.backends.cpu.kernels.dense import Config
from toolchain.backends.cpu.kernels.emit import Argument, Buffer, Expr
from toolchain.backends.cpu.kernels.float16 import bounds
from toolchain.backends.cpu.kernels.float16.emit import rounded, zeros_on_stack
from toolchain.backends.cpu.layers import FLOAT16, Dense, Layer
from toolchain.backends.cpu.machine import Machine, half_registers

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack"]

NAME = "float16_dense"


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return dense.covers(layer)


def configs(layer: Dense, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    return dense.configs(layer, half_registers(machine))


def pack(layer: Dense, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[np.float16]:
    """Return weights [outputs, inputs] as the kernel reads them: those of `dense`, then factors of outputs."""
    ordered = dense.pack(layer, machine, config, weights.astype(np.float32))
    # [groups of blocks, inputs, blocks of a tile, lanes]
    firsts = range(0, layer.inputs, bounds.MOST_IN_CHAIN)
    sums = np.add.reduceat(np.abs(ordered), firsts, axis=1).max(axis=1)
    exponents = bounds.powers(sums)[:, None]
    return bounds.packed(ordered, exponents, sums.size)


def kernel(layer: Dense, machine: Machine, config: Config) -> tirx.PrimFunc:
    groups, inputs, blocks, lanes = dense.packed_shape(layer, machine, config)
    outputs = groups * blocks * lanes

    def body(data: Buffer, *buffers: Buffer) -> None:
        _Writer(layer, half_registers(machine), config, (rounded(data, machine.lanes), *buffers)).write()

    weights = Argument("weights", (outputs * inputs + outputs,), FLOAT16)
    return emit.kernel(dense.arguments(layer, weights), body, {})


class _Writer(dense.DenseWriter):
    sum_dtype = FLOAT16

    def sums(self, group: Expr, tile: Expr, row: Expr, rows: int) -> list[Expr]:
        """Write the products of a tile block by block; return its sums in float32, row by row."""
        layer, blocks, lanes = self._layer, self._config.blocks, self._lanes
        step, count = self._config.inputs, rows * self._config.blocks
        steps = bounds.MOST_IN_CHAIN // step
        totals = zeros_on_stack(count, lanes, "float32")

        def add(first: Expr, inputs: int, rest: int) -> None:
            sums = self.products(group, tile, row, rows, first, inputs, rest)
            for index, value in enumerate(sums):
                T.buffer_store(totals, totals[index] + emit.in_type(value, "float32", lanes), [index])

        each = steps * step
        with T.serial(0, layer.inputs // each) as block:
            add(T.Bind(block * each), steps, 0)
        if layer.inputs % each:
            add(layer.inputs // each * each, layer.inputs % each // step, layer.inputs % step)
        return [T.Bind(self._scaled(totals[index], group, index % blocks)) for index in range(count)]

    def _scaled(self, total: Expr, group: Expr, block: int) -> Expr:
        config, lanes = self._config, self._lanes
        behind = self._groups * config.blocks * lanes * self._layer.inputs
        index = emit.ramp(behind + (group * config.blocks + block) * lanes, lanes)
        return total * emit.in_type(self._weights[index], "float32", lanes)
