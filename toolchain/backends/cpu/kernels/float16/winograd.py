"""Winograd convolution in float16: as `winograd`, but inputs, weights, short sums and columns of sums are float16.

Sums of a few products are in float16, those of some of these too, and the rest in float32, as is the last transform,
that of rows. No step before it overflows where the data does not: inputs are divided by a power of two, since their
transform enlarges them, and the weights of each output by one that bounds its sums and their transform of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import direct, emit, winograd
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.kernels.float16 import bounds
from toolchain.backends.cpu.kernels.float16.emit import keep, zeros_on_stack
from toolchain.backends.cpu.kernels.winograd import algebra
from toolchain.backends.cpu.kernels.winograd import plan as winograd_plan
from toolchain.backends.cpu.kernels.winograd.plan import Config, WinogradPlan
from toolchain.backends.cpu.layers import FLOAT16, Conv, Layer
from toolchain.backends.cpu.machine import Machine, half_registers

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack"]

NAME = "float16_winograd"

_SUM = 16  # blocks of input channels whose sum is in float16
# By the size of a tile: blocks that are summed in registers. Transforms of large tiles enlarge what rounding changes.
_CHAIN = {2: _SUM, 4: 4}
# By the size of a tile: the power of two by which inputs are divided, since transforms enlarge them 4 and 26.3 times.
_POWERS = {2: 2, 4: 5}


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return isinstance(layer, Conv) and winograd.has_tiles(layer) and layer.data.dtype == layer.out.dtype == FLOAT16


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated cost, the cheapest first."""
    return winograd_plan.configs(layer, half_registers(machine))


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[np.float16]:
    """Return weights [out, in, 3, 3] as the kernel reads them: those of `winograd`, then factors of outputs."""
    ordered = winograd.pack(layer, machine, config, weights)
    # [groups of blocks, components, channels in, blocks of a group, lanes]
    greatest = _greatest(ordered, machine.lanes, config.tile)
    return bounds.packed(ordered, bounds.powers(greatest)[:, None, None], greatest.size)


def _greatest(weights: NDArray[np.float32], lanes: int, tile: int) -> NDArray[np.float32]:
    """Return the greatest number in float16 that data of at most 1 leads to, [groups of blocks, blocks, lanes]."""
    side = tile + 2
    gains = np.multiply.outer(algebra.input_gains(tile), algebra.input_gains(tile)) / 2 ** _POWERS[tile]
    firsts = range(0, weights.shape[2], _SUM * lanes)
    sums = np.add.reduceat(np.abs(weights), firsts, axis=2) * gains.reshape(-1, 1, 1, 1)
    # What is summed in float32 is transformed in float16.
    columns = sums.sum(axis=2).reshape(-1, side, side, *sums.shape[3:])
    transformed = np.tensordot(algebra.output_gains(tile), columns, axes=(1, 2))  # [rows, groups, columns, ...]
    greatest: NDArray[np.float32] = np.maximum(sums.max(axis=(1, 2)), transformed.max(axis=(0, 2))).astype(np.float32)
    return greatest


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    plan = WinogradPlan(layer, machine.lanes, config)
    factors = int(np.prod(plan.packed))

    def body(*buffers: Any) -> None:
        _Writer(plan, half_registers(machine), buffers, factors).write()

    weights = Argument("weights", (factors + layer.out.blocks * layer.out.lanes,), FLOAT16)
    return emit.kernel(direct.arguments(layer, weights), body, {})


class _Writer(winograd.WinogradWriter):
    dtype = FLOAT16

    def __init__(self, plan: WinogradPlan, machine: Machine, buffers: Any, factors: int) -> None:
        """Take the processor, the flat buffers of the arguments, and where factors begin behind the weights."""
        super().__init__(plan, machine, buffers)
        self._factors, self._power = factors, _POWERS[plan.config.tile]

    def input(self, vector: Any) -> Any:
        return vector * emit.splat(2.0**-self._power, self._lanes, FLOAT16)

    def sums(self, count: int, add: Callable[[emit.Registers, Any, Any], None]) -> list[Any]:
        lanes, blocks, chain = self._lanes, self._layer.data.blocks, _CHAIN[self._tile]
        sums = emit.Registers(count, lanes, FLOAT16)

        def add_chain(first: Any, end: Any) -> None:
            for number in range(count):
                sums[number] = emit.splat(0.0, lanes, FLOAT16)
            add(sums, first, end)

        if blocks <= chain:
            add_chain(0, blocks)
            return [sums[number] for number in range(count)]
        if chain == _SUM:
            return self._total(count, add_chain, sums)
        halves = emit.on_stack(count, lanes, FLOAT16)

        def add_chains(first: Any, end: Any) -> None:
            with T.serial(0, T.Bind((end - first + chain - 1) // chain)) as number:
                begin = T.Bind(first + number * chain)
                add_chain(begin, T.Bind(tirx.min(begin + chain, end)))
                keep(halves, [sums[index] for index in range(count)], number)

        if blocks <= _SUM:
            add_chains(0, blocks)
            return [halves[number] for number in range(count)]
        return self._total(count, add_chains, halves)

    def _total(self, count: int, add: Callable[[Any, Any], None], halves: Any) -> list[Any]:
        """Return sums over all blocks; `add` writes those over some of them in float16 to `halves`."""
        lanes, blocks = self._lanes, self._layer.data.blocks
        totals = zeros_on_stack(count, lanes, "float32")
        with T.serial(0, -(-blocks // _SUM)) as number:
            first = T.Bind(number * _SUM)
            add(first, T.Bind(tirx.min(first + _SUM, blocks)))
            for index in range(count):
                T.buffer_store(totals, totals[index] + emit.in_type(halves[index], "float32", lanes), [index])
        return [emit.in_type(totals[number], FLOAT16, lanes) for number in range(count)]

    def finish(self, block: Any) -> Callable[[Any], Any]:
        lanes = self._lanes
        index = emit.ramp(self._factors + block * lanes, lanes)
        factor = emit.in_type(self._weights[index], "float32", lanes) * emit.splat(2.0**self._power, lanes)
        factor = T.Bind(factor)
        bias = None if self._bias is None else T.Bind(self._bias[emit.ramp(block * lanes, lanes)])

        def finished(value: Any) -> Any:
            scaled = value * factor
            return T.Bind(emit.in_type(scaled if bias is None else scaled + bias, FLOAT16, lanes))

        return finished
