"""Depthwise convolution on blocked activations, fused with what follows it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit, window
from toolchain.backends.cpu.kernels.emit import Argument, multiply_add, with_definitions
from toolchain.backends.cpu.kernels.window import Tap, Tile
from toolchain.backends.cpu.layers import BFLOAT16, Conv, Layer
from toolchain.backends.cpu.machine import Machine

NAME = "depthwise"

Config = window.Config


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return (
        isinstance(layer, Conv)
        and layer.is_depthwise
        and layer.data.lanes == layer.out.lanes > 1
        and {layer.data.dtype, layer.out.dtype} <= {"float32", BFLOAT16}
    )


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    return window.configs(layer, machine)


def variants(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List candidates for the tuner: wider tiles, and tiles of several blocks."""
    return window.variants(layer, machine)


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG001
    """Return weights [channels, 1, height, width] as the kernel reads them: [blocks, height, width, lanes]."""
    channels, _, height, width = weights.shape
    # Lanes behind the last channel have zero weights, so that they stay zero.
    padded = np.zeros((layer.out.blocks * machine.lanes, height, width), weights.dtype)
    padded[:channels] = weights[:, 0]
    split = padded.reshape(layer.out.blocks, machine.lanes, height, width)
    return np.ascontiguousarray(split.transpose(0, 2, 3, 1))


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    out = layer.out
    arguments = [
        Argument("data", layer.data.shape, layer.data.stored_dtype),
        Argument("weights", (out.blocks, *layer.kernel, out.lanes)),
    ]
    if layer.bias:
        arguments.append(Argument("bias", (out.blocks, out.lanes)))
    arguments += [*emit.arguments_of(layer.epilogue, out), Argument("out", out.shape, out.stored_dtype)]

    def body(data: Any, weights: Any, *rest: Any) -> None:
        *others, result = rest
        bias = others.pop(0) if layer.bias else None
        window.WindowWriter(layer, machine, config, _DepthwiseProducts(layer, machine, weights, bias)).write(
            data, others, result
        )

    return with_definitions(emit.kernel(arguments, body, {}), machine)


class _DepthwiseProducts:
    """Sums of products with weights. Weights of small kernels stay in registers: LLVM moves their loads up."""

    def __init__(self, layer: Conv, machine: Machine, weights: Any, bias: Any) -> None:
        self._layer, self._machine, self._weights, self._bias = layer, machine, weights, bias

    def initial(self, block: Any) -> Any:
        lanes = self._layer.out.lanes
        return emit.splat(0.0, lanes) if self._bias is None else self._bias[emit.ramp(block * lanes, lanes)]

    @staticmethod
    def first(pixel: Any) -> Any:  # noqa: ARG004 - a pixel alone is not what is summed
        return None

    def add_pixel(self, total: Any, pixel: Any, block: Any, tap: Tap) -> Any:
        (height, width), lanes = self._layer.kernel, self._layer.out.lanes
        index = (block * height + tap.row) * width + tap.column
        weight = T.Bind(self._weights[emit.ramp(index * lanes, lanes)])
        return multiply_add(self._machine, total, weight, pixel)

    @staticmethod
    def finish(total: Any, tile: Tile, number: int) -> Any:  # noqa: ARG004 - some reductions need the place
        return total
