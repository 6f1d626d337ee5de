"""Direct convolution on blocked activations, fused with what follows it.

A tile of T output columns times B output blocks is accumulated in registers: each weight vector is loaded once for T
columns, each input number is broadcast once for B blocks. Rows and columns of the padding are left out of the loops
instead of being copied into a padded image. With groups of channels, output blocks read the channels of those groups
that they touch. The first layer of a network reads plain NCHW.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.direct import cost
from toolchain.backends.cpu.kernels.direct.plan import Config, DirectPlan, flatten
from toolchain.backends.cpu.kernels.direct.writer import DirectWriter
from toolchain.backends.cpu.kernels.emit import Argument, with_definitions
from toolchain.backends.cpu.layers import BFLOAT16, Conv, Layer
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack"]

NAME = "direct"


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Conv) or layer.is_depthwise:
        return False
    data, out = layer.data, layer.out
    if out.dtype == BFLOAT16 and layer.groups > 1:  # sums of several groups would meet in the result
        return False
    return data.dtype == "float32" and out.dtype in {"float32", BFLOAT16} and data.lanes in {1, out.lanes}


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    return cost.candidates(layer, machine)


def variants(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List candidates for the tuner: every tile, and other chunks and bands of the cheapest tiles."""
    return cost.variants(layer, machine)


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG001
    """Return weights [out, in, height, width] as the kernel reads them; zeros where a channel does not read another.

    Returns:
        [units, blocks in, height, width, lanes in, blocks of a tile, lanes].
    """
    layer = flatten(layer)
    weights = weights.reshape(*weights.shape[:2], *layer.kernel)
    plan = DirectPlan(layer, config)
    lanes, lanes_in, blocks = layer.out.lanes, layer.data.lanes, config.blocks
    # Per unit, its output channels by its input channels: zeros stay where they belong to different groups.
    packed = np.zeros((plan.units, blocks * lanes, plan.sources * lanes_in, *layer.kernel), weights.dtype)
    outputs, inputs = layer.out.channels // layer.groups, layer.data.channels // layer.groups
    for unit in range(plan.units):
        (begin, end), (first, last) = plan.reach(unit), plan.owned(unit)
        row, column = plan.start(unit) * lanes, begin // lanes_in * lanes_in
        # Only the channels of its own group are copied for each output channel.
        for group in range(begin // inputs, end // inputs):
            top, bottom = max(first, group * outputs), min(last, (group + 1) * outputs)
            where = slice(group * inputs - column, (group + 1) * inputs - column)
            packed[unit, max(top - row, 0) : max(bottom - row, 0), where] = weights[top : max(top, bottom)]
    split = packed.reshape(plan.units, blocks, lanes, plan.sources, lanes_in, *layer.kernel)
    return np.ascontiguousarray(split.transpose(0, 3, 5, 6, 4, 1, 2))


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    plan = DirectPlan(flatten(layer), config)

    def body(*buffers: Any) -> None:
        DirectWriter(plan, machine, buffers).write()

    return with_definitions(emit.kernel(arguments(layer, Argument("weights", plan.packed)), body, {}), machine)


def arguments(layer: Conv, weights: Argument) -> list[Argument]:
    """List the arguments of a layer's kernel, the result last."""
    bias = [Argument("bias", (layer.out.blocks, layer.out.lanes))] if layer.bias else []
    operands = emit.arguments_of(layer.epilogue, layer.out)
    data, out = (
        Argument(name, place.shape, place.stored_dtype) for name, place in (("data", layer.data), ("out", layer.out))
    )
    return [data, weights, *bias, *operands, out]
