"""Depthwise convolution in float16: as `depthwise`; sums of many products are in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import depthwise, emit, window
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.kernels.float16 import bounds
from toolchain.backends.cpu.kernels.window import Tap, Tile
from toolchain.backends.cpu.layers import FLOAT16, Conv, Layer
from toolchain.backends.cpu.machine import Machine, half_registers

NAME = "float16_depthwise"

Config = window.Config


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return (
        isinstance(layer, Conv)
        and layer.is_depthwise
        and layer.data.lanes == layer.out.lanes > 1
        and layer.data.dtype == layer.out.dtype == FLOAT16
    )


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    return window.configs(layer, _machine(layer, machine))


def variants(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List candidates for the tuner: wider tiles, and tiles of several blocks."""
    return window.variants(layer, _machine(layer, machine))


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[np.float16]:
    """Return weights [channels, 1, height, width] as the kernel reads them: `depthwise`'s, then factors of channels."""
    ordered = depthwise.pack(layer, machine, config, weights.astype(np.float32))
    sums = np.abs(ordered).sum(axis=(1, 2))
    exponents = bounds.powers(sums)[:, None, None, :]
    return bounds.packed(ordered, exponents, sums.size)


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    out = layer.out
    size = out.blocks * layer.kernel[0] * layer.kernel[1] * out.lanes
    arguments = [
        Argument("data", layer.data.shape, FLOAT16),
        Argument("weights", (size + out.blocks * out.lanes,), FLOAT16),
        *([Argument("bias", (out.blocks, out.lanes))] if layer.bias else []),
        *emit.arguments_of(layer.epilogue, out),
        Argument("out", out.shape, FLOAT16),
    ]

    def body(data: Any, weights: Any, *rest: Any) -> None:
        *others, result = rest
        bias = others.pop(0) if layer.bias else None
        _Writer(layer, _machine(layer, machine), config, _Products(layer, weights, bias, size)).write(
            data, others, result
        )

    return emit.kernel(arguments, body, {})


def _sum_type(layer: Conv) -> str:
    return FLOAT16 if layer.kernel[0] * layer.kernel[1] <= bounds.MOST_IN_CHAIN else "float32"


def _machine(layer: Conv, machine: Machine) -> Machine:
    return half_registers(machine) if _sum_type(layer) == FLOAT16 else machine


class _Products:
    """Sums of products with weights; the factors of the channels and the bias come last."""

    def __init__(self, layer: Conv, weights: Any, bias: Any, factors: int) -> None:
        self._layer, self._weights, self._bias, self._factors = layer, weights, bias, factors
        self._lanes, self._type = layer.out.lanes, _sum_type(layer)

    def initial(self, block: Any) -> Any:  # noqa: ARG002 - the same for all blocks
        return emit.splat(0.0, self._lanes, self._type)

    @staticmethod
    def first(pixel: Any) -> Any:  # noqa: ARG004 - a pixel alone is not what is summed
        return None

    def add_pixel(self, total: Any, pixel: Any, block: Any, tap: Tap) -> Any:
        height, width = self._layer.kernel
        index = emit.ramp(((block * height + tap.row) * width + tap.column) * self._lanes, self._lanes)
        return total + T.Bind(emit.in_type(self._weights[index], self._type, self._lanes)) * pixel

    @staticmethod
    def finish(total: Any, tile: Tile, number: int) -> Any:  # noqa: ARG004 - see `scaled`
        return total

    def scaled(self, total: Any, block: Any) -> Any:
        """Return the result of a sum."""
        lanes = self._lanes
        factor = self._weights[emit.ramp(self._factors + block * lanes, lanes)]
        value = total * T.Bind(emit.in_type(factor, self._type, lanes))
        if self._bias is not None:
            value += T.Bind(emit.in_type(self._bias[emit.ramp(block * lanes, lanes)], self._type, lanes))
        return T.Bind(emit.in_type(value, FLOAT16, lanes))


class _Writer(window.WindowWriter):
    def __init__(self, layer: Conv, machine: Machine, config: Config, products: _Products) -> None:
        super().__init__(layer, machine, config, products)
        self._products, self.sum_dtype = products, _sum_type(layer)

    def load(self, data: Any, base: Any, pixels: Sequence[int]) -> Iterator[tuple[int, Any]]:
        for pixel, vector in super().load(data, base, pixels):
            yield pixel, T.Bind(emit.in_type(vector, self.sum_dtype, self._layer.out.lanes))

    def store(self, tile: Tile, totals: Sequence[Any], others: Sequence[Any], out: Any) -> None:
        width = tile.across.size
        scaled = [self._products.scaled(total, tile.block + index // width) for index, total in enumerate(totals)]
        super().store(tile, scaled, others, out)
