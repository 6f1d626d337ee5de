"""The first convolution of bytes by the matrix unit: data in one block of 4 channels, as `stem` does it for bfloat16.

Four bytes of a pixel are a word. A pixel of the copy has the words of a window's row, which lie together in the data.
"""

from __future__ import annotations

from collections.abc import Callable
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
from toolchain.backends.cpu.kernels.tiles.instructions import SIDE
from toolchain.backends.cpu.kernels.tiles.int8 import ByteWriter
from toolchain.backends.cpu.kernels.tiles.product import WORDS_PER_PIXEL, Config, Product
from toolchain.backends.cpu.kernels.tiles.stem import read_at_once, rows_of_windows
from toolchain.backends.cpu.layers import Conv, Layer
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack"]

NAME = "int8_tiles_plain"

_CHANNELS = 4
_DEPTH = _CHANNELS * WORDS_PER_PIXEL  # bytes of a pixel of the copy
_PIXEL = 4  # cost of one of the copy, in the unit of `kernels.Candidate`


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Conv) or not conv.covers(layer) or layer.offset:
        return False
    is_narrow = layer.kernel[1] <= WORDS_PER_PIXEL and layer.dilation[1] == 1
    return is_narrow and layer.data.lanes == _CHANNELS and layer.data.blocks == 1 and layer.out.lanes == SIDE


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    if machine.dot != "vpdpbusd":
        return []
    pixels = layer.data.batch * layer.data.height * layer.out.width
    return product.candidates(_product(layer), machine, product.finish_cost(layer.epilogue), _PIXEL * pixels)


def _product(layer: Conv) -> Product:
    return Product(rows_of_windows(layer), _DEPTH, layer.out.blocks, layer.data.batch, is_bytes=True)


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG001
    """Return weights [out, in, height, width] as the kernel reads them: see `Product.packed`."""
    described, (outputs, inputs, height, width) = _product(layer), weights.shape
    padded = np.zeros((described.blocks * SIDE, WORDS_PER_PIXEL, _CHANNELS, height), np.int8)
    padded[:outputs, :width, :inputs] = weights.transpose(0, 3, 1, 2)
    return described.pack(config, padded.reshape(-1, _DEPTH, height))


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    described = _product(layer)

    def body(*buffers: Any) -> None:
        _FirstWriter(layer, machine, described, config, buffers).write()

    weights = Argument("weights", described.packed(config), "int8")
    function = emit.kernel(int8.arguments(layer, weights), body, {})
    return product.with_definitions(function, described.group(config))


class _FirstWriter(ByteWriter):
    piece_words = WORDS_PER_PIXEL
    copies_pixels_alone = False

    def copy_pixels(
        self,
        line: tuple[Buffer, Expr],
        place: tuple[Expr, Expr, Expr],
        columns: tuple[int, int],
        first: int,  # noqa: ARG002 - columns of the copy are those of the result
    ) -> None:
        layer, (image, _, row), (begin, end) = self._layer, place, columns
        stride, before = layer.strides[1], layer.padding[1]
        start = T.Bind(emit.offset(layer.data, image, 0, row, 0))
        inside, outside = read_at_once(layer, WORDS_PER_PIXEL, columns)

        def copy(first: int, last: int, read: Callable[[Expr, Expr], Expr]) -> None:
            with T.serial(first, last) as column:
                words = T.Bind(read(start, T.Bind(column * stride - before)))
                self.store_pixel(line, column, lambda _: words)

        copy(begin, inside, self._edge)
        copy(inside, outside, self._inside)
        copy(outside, end, self._edge)

    def padding(self) -> Expr:
        return tirx.Broadcast(self._zero(), WORDS_PER_PIXEL)

    def _zero(self) -> Expr:
        """Return four bytes that stand for the number zero."""
        zero = tirx.Cast(self._layer.data.dtype, tirx.Cast("int32", self._parameters[0]))
        return T.Bind(tirx.reinterpret("int32", tirx.Broadcast(T.Bind(zero), _CHANNELS)))

    def _inside(self, start: Expr, left: Expr) -> Expr:
        numbers = self._data[emit.ramp(start + left * _CHANNELS, _DEPTH)]
        return tirx.reinterpret(f"int32x{WORDS_PER_PIXEL}", numbers)

    def _edge(self, start: Expr, left: Expr) -> Expr:
        """Return the words of a window of which some lie in the padding; those behind it have weights of zero."""
        last, zero, words = self._layer.data.width - 1, self._zero(), []
        for column in range(WORDS_PER_PIXEL):
            if column >= self._layer.kernel[1]:
                words.append(zero)
                continue
            place = T.Bind(left + column)
            inside = start + tirx.max(tirx.min(place, last), 0) * _CHANNELS
            word = int8.four_bytes(self._data, inside)
            words.append(tirx.Select(tirx.all(place >= 0, place <= last), word, zero))
        return tirx.Shuffle(words, list(range(WORDS_PER_PIXEL)))
