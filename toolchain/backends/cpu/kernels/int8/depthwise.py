"""Depthwise convolution of bytes.

A dot product adds channels up, which is of no use here, and the loops are those of `window`. On x86, bytes become
float32, which holds the sums of a small window exactly. On Arm they become int16, whose products an instruction adds to
sums in 32 bits; two neighbouring pixels fill a register.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit, window
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.kernels.int8 import emit as int8
from toolchain.backends.cpu.kernels.int8.emit import FOUR
from toolchain.backends.cpu.kernels.window import Tap, Tile
from toolchain.backends.cpu.layers import Conv, Layer
from toolchain.backends.cpu.machine import Machine

NAME = "int8_depthwise"

Config = window.Config

_MOST_PRODUCTS = 2**24 // (255 * 255)  # of one sum, before float32 rounds
_UNEVEN = 1.2  # times longer a tile takes whose results are not stored four at a time


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Conv) or not layer.is_depthwise or not layer.data.is_bytes:
        return False
    return layer.data.lanes == layer.out.lanes > 1 and layer.kernel[0] * layer.kernel[1] <= _MOST_PRODUCTS


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their cost as `kernels.Candidate` defines it."""
    listed = [candidate for candidate in window.configs(_bare(layer), machine) if candidate[0].blocks == 1]
    if machine.widens:
        listed = [(config, cost if config.columns % FOUR == 0 else cost * _UNEVEN) for config, cost in listed]
    return sorted(listed, key=lambda candidate: candidate[1])


def _bare(layer: Conv) -> Conv:
    """Return a layer without its epilogue: `_ByteProducts` applies that, since `window` knows only floats."""
    return replace(layer, epilogue=())


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG001
    """Return weights [channels, 1, height, width] as the kernel reads them.

    Returns:
        float32 [blocks, height, width, lanes]; where bytes are widened int16, each vector twice, for two pixels.
    """
    padded = np.zeros((layer.out.blocks * machine.lanes, *layer.kernel), np.int16 if machine.widens else np.float32)
    padded[: len(weights)] = weights[:, 0]
    split = padded.reshape(layer.out.blocks, machine.lanes, *layer.kernel)
    packed = split.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(np.concatenate([packed] * _PIXELS, axis=3) if machine.widens else packed)


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    shape = (layer.out.blocks, *layer.kernel)
    if machine.widens:
        weights = Argument("weights", (*shape, _PIXELS * layer.out.lanes), "int16")
    else:
        weights = Argument("weights", (*shape, layer.out.lanes))

    def body(data: Any, *buffers: Any) -> None:
        if machine.widens:
            products = _WideProducts(layer, machine, buffers)
            writer: window.WindowWriter = _WideWindowWriter(_bare(layer), machine, config, products)
        else:
            writer = window.WindowWriter(_bare(layer), machine, config, _ByteProducts(layer, machine, buffers))
        writer.write(data, [], buffers[-1])

    return emit.kernel(int8.arguments(layer, weights), body, {})


class _ByteProducts:
    def __init__(self, layer: Conv, machine: Machine, buffers: Sequence[Any]) -> None:
        self._layer, self._lanes = layer, layer.out.lanes
        self._weights, self._sums, self._scales, parameters, *others, out = buffers
        self._zero, self._above = T.Bind(parameters[0]), T.Bind(parameters[1])
        self._finish = int8.ByteEpilogue(layer, machine, parameters, others, out)

    def initial(self, block: Any) -> Any:
        start = self._sums[emit.ramp(block * self._lanes, self._lanes)]
        return tirx.Cast(emit.wide("float32", self._lanes), start) + emit.splat(self._above, self._lanes)

    @staticmethod
    def first(pixel: Any) -> Any:  # noqa: ARG004 - a pixel alone is not what is summed
        return None

    def weight(self, block: Any, tap: Tap, lanes: int) -> Any:
        """Return the weights of one tap, which fill so many lanes."""
        height, width = self._layer.kernel
        index = (block * height + tap.row) * width + tap.column
        return T.Bind(self._weights[emit.ramp(index * lanes, lanes)])

    def add_pixel(self, total: Any, pixel: Any, block: Any, tap: Tap) -> Any:
        lanes = self._lanes
        above = T.Bind(tirx.Cast(emit.wide("float32", lanes), pixel) - emit.splat(self._zero, lanes))
        return total + above * self.weight(block, tap, lanes)

    def finish(self, total: Any, tile: Tile, number: int) -> Any:
        value = total * self._scales[emit.ramp(tile.block * self._lanes, self._lanes)]
        coordinates = (tile.image, tile.block, tile.row, tile.column + number)
        return self._finish.element(value, coordinates, self._lanes)


# --- bytes as int16 --------------------------------------------------------------------------------------------------

_PIXELS = 2
"""Pixels of four channels in a vector of int16."""


@dataclass(frozen=True)
class _WidePixel:
    """A pixel above its grid's zero.

    Attributes:
        vector: int16, four for each of some pixels.
        number: Which of them.
    """

    vector: Any
    number: int

    def times(self, machine: Machine, weights: Any) -> Any:
        """Return products in 32 bits; `weights` are there for each of the pixels (Arm ARM: SMULL, SMULL2)."""
        lanes = machine.lanes
        factors = []
        for vector, number in ((self.vector, self.number), (weights, self.number)):
            own = list(range(number * lanes, (number + 1) * lanes))
            factors.append(tirx.Shuffle([vector], own) if vector.ty.dtype.lanes > lanes else vector)
        name = "arm.neon.vmulls" if machine.dot == "vmull" else "aarch64.neon.smull"
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", f"llvm.{name}.v{lanes}i32", *factors)


class _WideProducts(_ByteProducts):
    def __init__(self, layer: Conv, machine: Machine, buffers: Sequence[Any]) -> None:
        super().__init__(layer, machine, buffers)
        self._machine = machine
        below = tirx.Cast("int16", emit.splat(0.0, 1) - self._zero)
        self._below = {pixels: T.Bind(emit.splat(below, pixels * self._lanes)) for pixels in (1, _PIXELS)}

    def initial(self, block: Any) -> Any:
        return T.Bind(self._sums[emit.ramp(block * self._lanes, self._lanes)])

    def widen(self, bytes_: Any, pixels: int) -> Any:
        """Return neighbouring pixels above their grid's zero, as int16 (Arm ARM: SADDW)."""
        return T.Bind(tirx.Cast(f"int16x{pixels * self._lanes}", bytes_) + self._below[pixels])

    def add_pixel(self, total: Any, pixel: _WidePixel, block: Any, tap: Tap) -> Any:
        return total + pixel.times(self._machine, self.weight(block, tap, _PIXELS * self._lanes))

    def store(self, tile: Tile, totals: Sequence[Any]) -> None:
        """Store the results of the windows of a tile of one block."""
        lanes = self._lanes
        scale, above = T.Bind(self._scales[emit.ramp(tile.block * lanes, lanes)]), emit.splat(self._above, lanes)
        values = [(tirx.Cast(f"float32x{lanes}", total) + above) * scale for total in totals]
        self._finish.store_line(values, (tile.image, tile.block, tile.row, tile.column))


class _WideWindowWriter(window.WindowWriter):
    sum_dtype = "int32"

    def __init__(self, layer: Conv, machine: Machine, config: Config, products: _WideProducts) -> None:
        super().__init__(layer, machine, config, products)
        self._products, self._lanes = products, layer.out.lanes

    def load(self, data: Any, base: Any, pixels: Sequence[int]) -> Iterator[tuple[int, Any]]:
        remaining = list(pixels)
        while remaining:
            first = remaining[0]
            count = _PIXELS if first + 1 in remaining[1:2] else 1
            bytes_ = data[emit.ramp(base + first * self._lanes, count * self._lanes)]
            vector = self._products.widen(bytes_, count)
            for number in range(count):
                yield remaining.pop(0), _WidePixel(vector, number)

    def store(self, tile: Tile, totals: Sequence[Any], others: Sequence[Any], out: Any) -> None:  # noqa: ARG002
        self._products.store(tile, totals)
