"""Depthwise convolution of bytes.

A dot product adds channels up, which is of no use here: bytes become float32, which holds the sums of a small window
exactly, and the loops are those of `window`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit, window
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.kernels.int8 import emit as int8
from toolchain.backends.cpu.kernels.window import Tap, Tile
from toolchain.backends.cpu.layers import Conv, Layer
from toolchain.backends.cpu.machine import Machine

NAME = "int8_depthwise"

Config = window.Config

_MOST_PRODUCTS = 2**24 // (255 * 255)  # of one sum, before float32 rounds


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Conv) or not layer.is_depthwise or not layer.data.is_bytes:
        return False
    return layer.data.lanes == layer.out.lanes > 1 and layer.kernel[0] * layer.kernel[1] <= _MOST_PRODUCTS


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their cost as `kernels.Candidate` defines it."""
    return [candidate for candidate in window.configs(_bare(layer), machine) if candidate[0].blocks == 1]


def _bare(layer: Conv) -> Conv:
    """Return a layer without its epilogue: `_ByteProducts` applies that, since `window` knows only floats."""
    return replace(layer, epilogue=())


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG001
    """Return weights [channels, 1, height, width] as the kernel reads them: float32 [blocks, height, width, lanes]."""
    padded = np.zeros((layer.out.blocks * machine.lanes, *layer.kernel), np.float32)
    padded[: len(weights)] = weights[:, 0]
    split = padded.reshape(layer.out.blocks, machine.lanes, *layer.kernel)
    return np.ascontiguousarray(split.transpose(0, 2, 3, 1))


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    weights = Argument("weights", (layer.out.blocks, *layer.kernel, layer.out.lanes))

    def body(data: Any, *buffers: Any) -> None:
        window.WindowWriter(_bare(layer), machine, config, _ByteProducts(layer, buffers)).write(data, [], buffers[-1])

    return emit.kernel(int8.arguments(layer, weights), body, {})


class _ByteProducts:
    def __init__(self, layer: Conv, buffers: Sequence[Any]) -> None:
        self._layer, self._lanes = layer, layer.out.lanes
        self._weights, self._sums, self._scales, parameters, *others, out = buffers
        self._zero, self._above = T.Bind(parameters[0]), T.Bind(parameters[1])
        self._finish = int8.ByteEpilogue(layer, parameters, others, out)

    def initial(self, block: Any) -> Any:
        start = self._sums[emit.ramp(block * self._lanes, self._lanes)]
        return tirx.Cast(emit.wide("float32", self._lanes), start) + emit.splat(self._above, self._lanes)

    @staticmethod
    def first(pixel: Any) -> Any:  # noqa: ARG004 - a pixel alone is not what is summed
        return None

    def add_pixel(self, total: Any, pixel: Any, block: Any, tap: Tap) -> Any:
        (height, width), lanes = self._layer.kernel, self._lanes
        index = (block * height + tap.row) * width + tap.column
        above = T.Bind(tirx.Cast(emit.wide("float32", lanes), pixel) - emit.splat(self._zero, lanes))
        return total + above * T.Bind(self._weights[emit.ramp(index * lanes, lanes)])

    def finish(self, total: Any, tile: Tile, number: int) -> Any:
        value = total * self._scales[emit.ramp(tile.block * self._lanes, self._lanes)]
        coordinates = (tile.image, tile.block, tile.row, tile.column + number)
        return self._finish.element(value, coordinates, self._lanes)
