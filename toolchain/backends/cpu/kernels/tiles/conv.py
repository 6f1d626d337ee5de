"""Convolutions in bfloat16 by the matrix unit: see `product`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import direct, emit
from toolchain.backends.cpu.kernels.bfloat16 import emit as bfloat16
from toolchain.backends.cpu.kernels.emit import Buffer, Expr
from toolchain.backends.cpu.kernels.tiles import product
from toolchain.backends.cpu.kernels.tiles.instructions import SIDE
from toolchain.backends.cpu.kernels.tiles.product import WORDS_PER_PIXEL, Config, Filter, Product, ProductWriter
from toolchain.backends.cpu.layers import BFLOAT16, Conv, Layer, on_floats
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "filter_of", "kernel", "pack"]

NAME = "bfloat16_tiles"

_COPYING = 2  # vector operations that copy one vector of data


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Conv) or layer.groups != 1 or not direct.covers(on_floats(layer)):
        return False
    if layer.data.dtype == BFLOAT16 and layer.data.channels % bfloat16.PAIR:
        return False
    return layer.data.lanes == layer.out.lanes == SIDE


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    vectors = layer.data.batch * layer.data.blocks * layer.data.height * layer.data.width
    if layer.kernel == (1, 1):  # pixels between those that a stride takes are not read
        vectors = vectors * layer.out.height * layer.out.width // (layer.data.height * layer.data.width)
    copying = (_COPYING if layer.data.dtype == BFLOAT16 else bfloat16.ROUNDING) * vectors
    return product.candidates(_product(layer), machine, product.finish_cost(layer.epilogue), copying)


def filter_of(layer: Conv) -> Filter:
    """Return what a convolution reads."""
    return Filter(
        (layer.out.height, layer.out.width),
        layer.kernel,
        layer.strides,
        layer.dilation,
        layer.padding[:2],
        (layer.data.height, layer.data.width),
    )


def _product(layer: Conv) -> Product:
    return Product(filter_of(layer), layer.data.channels, layer.out.blocks, layer.data.batch, is_bytes=False)


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[np.int32]:  # noqa: ARG001
    """Return weights [out, in, height, width] as the kernel reads them: see `Product.packed`."""
    described = _product(layer)
    padded = np.zeros((described.blocks * SIDE, *weights.shape[1:]), np.float32)
    padded[: len(weights)] = weights
    return described.pack(config, bfloat16.pair_up(padded, described.sources * WORDS_PER_PIXEL))


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    described = _product(layer)

    def body(*buffers: Any) -> None:
        ConvWriter(layer, machine, described, config, buffers).write()

    arguments = direct.arguments(layer, emit.Argument("weights", described.packed(config), "int32"))
    function = bfloat16.with_definitions(emit.kernel(arguments, body, {}), machine)
    return product.with_definitions(function, described.group(config))


class ConvWriter(ProductWriter):
    """Writes one kernel, whose arguments are flat buffers."""

    def __init__(self, layer: Conv, machine: Machine, described: Product, config: Config, buffers: Any) -> None:
        self._data, weights, *rest, self._out = buffers
        super().__init__(described, config, machine.cores, weights, rest.pop(0) if layer.bias else None)
        self._layer, self._machine, self._others = layer, machine, rest

    def piece(self, image: Expr, number: Expr, row: Expr, column: Expr) -> Expr:
        data = self._layer.data
        block = tirx.min(number, data.blocks - 1) if data.blocks % 2 else number
        start = emit.offset(data, image, block, row, column)
        if data.dtype == BFLOAT16:
            return self._rounded_piece(number, start)
        vector = self._data[emit.ramp(start, SIDE)]
        # What follows the last channel may be any number, whose product with zero need not be zero.
        if data.channels % (2 * SIDE):
            channels = emit.ramp(number * SIDE, SIDE)
            is_channel = channels < emit.splat(data.channels, SIDE, "int32")
            vector = tirx.Select(is_channel, vector, emit.splat(0.0, SIDE))
        return bfloat16.round_pairs(self._machine, T.Bind(vector))

    def _rounded_piece(self, number: Expr, start: Expr) -> Expr:
        """Return a piece of data that is in bfloat16 already."""
        pairs, channels = SIDE // bfloat16.PAIR, self._layer.data.channels
        vector = self._data[emit.ramp(start, pairs)]
        if channels % (2 * SIDE):
            is_pair = emit.ramp(number * pairs, pairs) < emit.splat(channels // bfloat16.PAIR, pairs, "int32")
            vector = tirx.Select(is_pair, vector, emit.splat(0, pairs, "int32"))
        return T.Bind(vector)

    def finish(
        self, sums: Buffer, place: tuple[Expr, Expr], row: Expr, columns: tuple[Expr, Expr], first: Expr
    ) -> None:
        out, (image, group), (begin, end) = self._layer.out, place, columns
        for number in range(self._config.blocks):
            block = T.Bind(group * self._config.blocks + number)
            line = T.Bind(first + number * self._config.pixels * SIDE)
            with T.serial(0, end - begin) as pixel:
                coordinates = (image, block, row, T.Bind(begin + pixel))
                value = T.Bind(sums[emit.ramp((line + pixel) * SIDE, SIDE)])
                result = emit.apply_epilogue(value, self._layer.epilogue, self._others, coordinates, SIDE)
                emit.store(result, self._out, out, coordinates)
