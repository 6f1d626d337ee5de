"""Convolutions of bytes by the matrix unit, fused with what follows them: see `product`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument, Buffer, Expr
from toolchain.backends.cpu.kernels.int8 import conv
from toolchain.backends.cpu.kernels.int8 import emit as int8
from toolchain.backends.cpu.kernels.tiles import product
from toolchain.backends.cpu.kernels.tiles.conv import filter_of
from toolchain.backends.cpu.kernels.tiles.instructions import SIDE
from toolchain.backends.cpu.kernels.tiles.product import Config, Filter, Product, ProductWriter
from toolchain.backends.cpu.layers import Conv, Layer
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack"]

NAME = "int8_tiles"

_COPY = 1  # a vector of 16 bytes
_BYTES = 4  # in 32 bits


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return isinstance(layer, Conv) and conv.covers(layer) and layer.data.lanes == SIDE and not layer.offset


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    if machine.dot != "vpdpbusd":
        return []
    vectors = layer.data.batch * layer.data.blocks * layer.data.height * layer.data.width
    return product.candidates(_product(layer), machine, product.finish_cost(layer.epilogue), _COPY * vectors)


def _product(layer: Conv) -> Product:
    shape, batch = filter_of(layer), layer.data.batch
    if conv.is_matrix(layer):
        shape, batch = Filter((1, batch), source=(1, batch)), 1
    return Product(shape, layer.data.channels, layer.out.blocks, batch, is_bytes=True)


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG001
    """Return weights [out, in, height, width] as the kernel reads them: see `Product.packed`."""
    described, (outputs, inputs, *taps) = _product(layer), weights.shape
    padded = np.zeros((described.blocks * SIDE, described.sources * described.depth, *taps), np.int8)
    padded[:outputs, :inputs] = weights
    return described.pack(config, padded)


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    described = _product(layer)

    def body(*buffers: Any) -> None:
        ByteWriter(layer, machine, described, config, buffers).write()

    weights = Argument("weights", described.packed(config), "int8")
    function = emit.kernel(int8.arguments(layer, weights), body, {})
    return product.with_definitions(function, described.group(config))


class ByteWriter(ProductWriter):
    """Writes one kernel, whose arguments are flat buffers."""

    piece_words = 4

    def __init__(self, layer: Conv, machine: Machine, described: Product, config: Config, buffers: Any) -> None:
        self._data, weights, initial, self._scales, self._parameters, *others, out = buffers
        super().__init__(described, config, machine.cores, weights, initial)
        self._layer, self._lanes = layer, machine.lanes
        self._is_matrix = conv.is_matrix(layer)
        self._epilogue = int8.ByteEpilogue(layer, machine, self._parameters, others, out)

    def piece(self, image: Expr, number: Expr, row: Expr, column: Expr) -> Expr:
        data = self._layer.data
        # Behind the last channel any byte will do: its weights are zero.
        block = tirx.min(number, data.blocks - 1) if data.blocks % _BYTES else number
        place = (column, block, 0, 0) if self._is_matrix else (image, block, row, column)
        return tirx.reinterpret("int32x4", self._data[emit.ramp(emit.offset(data, *place), SIDE)])

    def padding(self) -> Expr:
        # The byte that stands for the number zero.
        zero = tirx.Cast(self._layer.data.dtype, tirx.Cast("int32", self._parameters[0]))
        return tirx.reinterpret("int32x4", tirx.Broadcast(T.Bind(zero), SIDE))

    def finish(
        self, sums: Buffer, place: tuple[Expr, Expr], row: Expr, columns: tuple[Expr, Expr], first: Expr
    ) -> None:
        (image, group), (begin, end) = place, columns
        above = T.Bind(emit.splat(self._parameters[1], SIDE))
        together = 1 if self._is_matrix else int8.FOUR
        count = T.Bind(end - begin)
        for number in range(self._config.blocks):
            block = T.Bind(group * self._config.blocks + number)
            scale = T.Bind(self._scales[emit.ramp(block * SIDE, SIDE)])
            line = T.Bind(first + number * self._config.pixels * SIDE)

            def store(pixel: Expr, size: int, block: Expr = block, scale: Expr = scale, line: Expr = line) -> None:
                values = []
                for more in range(size):
                    total = sums[emit.ramp((line + pixel + more) * SIDE, SIDE)]
                    values.append(T.Bind((tirx.Cast(f"float32x{SIDE}", total) + above) * scale))
                column = T.Bind(begin + pixel)
                at = (column, block, 0, 0) if self._is_matrix else (image, block, row, column)
                self._epilogue.store_line(values, at)

            with T.serial(0, count // together) as pixels:
                store(T.Bind(pixels * together), together)
            if together > 1:
                with T.serial(count // together * together, count) as pixel:
                    store(pixel, 1)
