"""The first convolution of a network in bfloat16 by the matrix unit: plain NCHW data of few channels.

The pixels of the copy are those of the result: each has all columns and channels of its window in one row of the data.
What is left of the filter are its rows. See `product`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import direct, emit
from toolchain.backends.cpu.kernels.bfloat16 import emit as bfloat16
from toolchain.backends.cpu.kernels.emit import Buffer, Expr
from toolchain.backends.cpu.kernels.tiles import product
from toolchain.backends.cpu.kernels.tiles.conv import ConvWriter
from toolchain.backends.cpu.kernels.tiles.instructions import SIDE
from toolchain.backends.cpu.kernels.tiles.product import WORDS_PER_PIXEL, Config, Filter, Product
from toolchain.backends.cpu.layers import Conv, Layer
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack"]

NAME = "bfloat16_tiles_plain"

_DEPTH = 2 * WORDS_PER_PIXEL  # numbers of a pixel of the copy
_PIXEL = 16  # cost of one of the copy, in the unit of `kernels.Candidate`


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Conv) or layer.groups != 1 or not direct.covers(layer) or layer.data.lanes != 1:
        return False
    is_narrow = layer.kernel[1] <= SIDE // 2 and layer.dilation[1] == 1
    return is_narrow and layer.out.lanes == SIDE and layer.data.channels * _columns(layer) <= _DEPTH


def _columns(layer: Conv) -> int:
    """Return the columns of a window that are copied together: 4 or 8."""
    return SIDE // 4 if layer.kernel[1] <= SIDE // 4 else SIDE // 2


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    pixels = layer.data.batch * layer.data.height * layer.out.width
    return product.candidates(_product(layer), machine, product.finish_cost(layer.epilogue), _PIXEL * pixels)


def rows_of_windows(layer: Conv) -> Filter:
    """Return what is read of the copy: windows of one column, whose pixels have all columns of the layer's."""
    return Filter(
        (layer.out.height, layer.out.width),
        (layer.kernel[0], 1),
        (layer.strides[0], 1),
        (layer.dilation[0], 1),
        (layer.padding[0], 0),
        (layer.data.height, layer.out.width),
    )


def read_at_once(layer: Conv, size: int, columns: tuple[int, int]) -> tuple[int, int]:
    """Return the first pixel whose window, so many columns of the data, lies inside, and the one behind the last."""
    (begin, end), stride, before = columns, layer.strides[1], layer.padding[1]
    inside = min(max(-(-before // stride), begin), end)
    return inside, max(min((layer.data.width - size + before) // stride + 1, end), inside)


def _product(layer: Conv) -> Product:
    return Product(rows_of_windows(layer), _DEPTH, layer.out.blocks, layer.data.batch, is_bytes=False)


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[np.int32]:  # noqa: ARG001
    """Return weights [out, in, height, width] as the kernel reads them: see `Product.packed`."""
    described, columns, (outputs, inputs, height, width) = _product(layer), _columns(layer), weights.shape
    padded = np.zeros((described.blocks * SIDE, _DEPTH // columns, columns, height), np.float32)
    padded[:outputs, :inputs, :width] = weights.transpose(0, 1, 3, 2)
    return described.pack(config, bfloat16.pair_up(padded.reshape(-1, _DEPTH, height), WORDS_PER_PIXEL))


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    described = _product(layer)

    def body(*buffers: Any) -> None:
        _PlainWriter(layer, machine, described, config, buffers).write()

    arguments = direct.arguments(layer, emit.Argument("weights", described.packed(config), "int32"))
    function = bfloat16.with_definitions(emit.kernel(arguments, body, {}), machine)
    return product.with_definitions(function, described.group(config))


class _PlainWriter(ConvWriter):
    copies_pixels_alone = False

    def copy_pixels(
        self,
        line: tuple[Buffer, Expr],
        place: tuple[Expr, Expr, Expr],
        columns: tuple[int, int],
        first: int,  # noqa: ARG002 - columns of the copy are those of the result
    ) -> None:
        layer, size, (image, _, row), (begin, end) = self._layer, _columns(self._layer), place, columns
        stride, before = layer.strides[1], layer.padding[1]
        inside, outside = read_at_once(layer, size, columns)

        def copy(part: tuple[int, int], read: Callable[[Expr, Expr], Expr]) -> None:
            with T.serial(*part) as column:
                left = T.Bind(column * stride - before)
                self.store_pixel(line, column, lambda number: self._pairs((image, row, left), number, read))

        copy((begin, inside), self._read_edge)
        copy((inside, outside), self._read_inside)
        copy((outside, end), self._read_edge)

    def _pairs(self, place: tuple[Expr, Expr, Expr], number: int, read: Callable[[Expr, Expr], Expr]) -> Expr:
        """Return 16 numbers of a pixel of the copy, in pairs: those of two or four channels."""
        layer, (image, row, left), each = self._layer, place, SIDE // _columns(self._layer)
        lines = []
        for channel in range(number * each, (number + 1) * each):
            if channel < layer.data.channels:
                lines.append(T.Bind(read(T.Bind(emit.offset(layer.data, image, channel, row, 0)), left)))
            else:
                lines.append(emit.splat(0.0, SIDE // each))
        return bfloat16.round_pairs(self._machine, T.Bind(tirx.Shuffle(lines, list(range(SIDE)))))

    def _read_inside(self, line: Expr, left: Expr) -> Expr:
        """Return the columns of a window; zeros follow, since an infinite number times zero is none."""
        size, width = _columns(self._layer), self._layer.kernel[1]
        vector = T.Bind(self._data[emit.ramp(line + left, size)])
        lanes = [lane if lane < width else size + lane for lane in range(size)]
        return tirx.Shuffle([vector, emit.splat(0.0, size)], lanes)

    def _read_edge(self, line: Expr, left: Expr) -> Expr:
        """Return the columns of a window of which some lie in the padding."""
        layer, size = self._layer, _columns(self._layer)
        last, numbers = layer.data.width - 1, []
        for column in range(size):
            place = T.Bind(left + column)
            number = self._data[line + tirx.max(tirx.min(place, last), 0)]
            is_inside = tirx.all(place >= 0, place <= last)
            zero = tirx.const(0.0, "float32")
            numbers.append(tirx.Select(is_inside, number, zero) if column < layer.kernel[1] else zero)
        return tirx.Shuffle(numbers, list(range(size)))
