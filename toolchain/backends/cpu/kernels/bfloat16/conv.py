"""Convolutions in bfloat16: as `direct`, but each step adds the products of a pair of channels.

Two neighbouring channels of a pixel are one element of an image of pairs, to which the data is rounded first, unless
the layer before has stored it so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import direct, emit
from toolchain.backends.cpu.kernels.bfloat16 import emit as bfloat16
from toolchain.backends.cpu.kernels.bfloat16.emit import PAIR
from toolchain.backends.cpu.kernels.direct.plan import Config, DirectPlan, flatten
from toolchain.backends.cpu.kernels.direct.writer import DirectWriter
from toolchain.backends.cpu.kernels.emit import Buffer, Expr
from toolchain.backends.cpu.layers import BFLOAT16, Activation, Conv, Layer, on_floats
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack", "variants"]

NAME = "bfloat16"


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Conv) or layer.groups != 1 or not direct.covers(on_floats(layer)):
        return False
    # What fills up the last block may be any number, whose product with zero need not be zero.
    return layer.data.lanes == layer.out.lanes and layer.data.channels % PAIR == 0


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    return _with_rounding(layer, machine, direct.configs(_in_pairs(layer), machine))


def variants(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List candidates for the tuner: see `direct`."""
    return _with_rounding(layer, machine, direct.variants(_in_pairs(layer), machine))


def _with_rounding(
    layer: Conv, machine: Machine, candidates: Sequence[tuple[Config, float]]
) -> list[tuple[Config, float]]:
    rounding = 0 if layer.data.dtype == BFLOAT16 else _rounding(layer.data)
    share, slow = rounding / emit.worker_count(rounding, machine.cores), bfloat16.product_cost(machine)
    return [(config, slow * cost + share) for config, cost in candidates]


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[np.int32]:
    """Return weights [out, in, height, width] as the kernel reads them: as those of `direct`, of pairs."""
    paired = _in_pairs(layer)
    return direct.pack(paired, machine, config, bfloat16.pair_up(weights, paired.data.channels))


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    paired = _in_pairs(layer)
    plan = DirectPlan(flatten(paired), config)

    def body(data: Buffer, *buffers: Buffer) -> None:
        pairs = data if layer.data.dtype == BFLOAT16 else _round_image(layer.data, paired.data, machine, data)
        _Writer(plan, machine, (pairs, *buffers)).write()

    arguments = direct.arguments(layer, emit.Argument("weights", plan.packed, "int32"))
    return bfloat16.with_definitions(emit.kernel(arguments, body, {}), machine)


def _in_pairs(layer: Conv) -> Conv:
    """Return a layer with pairs of channels for the channels of its data."""
    data = layer.data if layer.data.dtype == BFLOAT16 else layer.data.standalone()
    paired = replace(data, channels=data.channels // PAIR, lanes=data.lanes // PAIR, dtype="int32")
    return replace(layer, data=paired, bfloat16=False)


class _Writer(DirectWriter):
    def multiply_add(self, total: Expr, weight: Expr, numbers: Expr, element: int | None) -> Expr:  # noqa: ARG002
        return bfloat16.multiply_add(self._machine, total, weight, numbers)


def _rounding(data: Activation) -> int:
    """Return the vector operations that round some data."""
    return bfloat16.ROUNDING * data.batch * data.blocks * data.height * data.width


def _round_image(data: Activation, paired: Activation, machine: Machine, numbers: Buffer) -> Buffer:
    """Write the rounding of the data, and return the buffer of its pairs."""
    rounded = emit.flat(T.alloc_buffer((math.prod(paired.shape),), "int32"))
    with emit.shared(data.batch * data.blocks * data.height, _rounding(data)) as work:
        row = T.Bind(work % data.height)
        block, image = T.Bind(work // data.height % data.blocks), T.Bind(work // (data.height * data.blocks))
        source, target = (T.Bind(emit.offset(place, image, block, row, 0)) for place in (data, paired))
        with T.serial(0, data.width) as column:
            vector = numbers[emit.ramp(source + column * data.lanes, data.lanes)]
            index = emit.ramp(target + column * paired.lanes, paired.lanes)
            T.buffer_store(rounded, bfloat16.round_pairs(machine, vector), [index])
    return rounded
