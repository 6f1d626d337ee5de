"""Sums of the bytes in each window of a convolution, whatever its weights.

Weights that lie on both sides of what int8 holds are int8 and an offset for each output channel: what the offset adds
to a sum of products is it times the sum of the bytes in the window. Those sums are the same for all output channels, so
they are made beforehand, at a sixteenth of what one block of products costs.
"""

from __future__ import annotations

import itertools

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Buffer, Expr
from toolchain.backends.cpu.kernels.int8 import emit as int8
from toolchain.backends.cpu.kernels.int8.emit import GROUP
from toolchain.backends.cpu.layers import Conv
from toolchain.backends.cpu.machine import Machine


def window_sums(layer: Conv, machine: Machine, data: Buffer) -> Buffer:
    """Write the sum of the bytes in each window.

    Args:
        layer: The layer; its data has the padding that it needs.
        machine: The processor.
        data: The flat buffer of the data.

    Returns:
        int32 [batch, rows, columns] of the result, flat.
    """
    out = layer.out
    result = T.alloc_buffer((out.batch * out.height * out.width,), "int32")
    T.buffer_store(result, 0, [0])  # from here on, so that TVM gives it no memory of vectors that are done with
    writer = _WindowSumWriter(layer, machine, data, result)
    rows, vectors = out.batch * out.height, layer.flops / 2 / out.channels / GROUP / machine.lanes
    with emit.shared(rows, vectors) as row:
        writer.row(row)
    return result


class _WindowSumWriter:
    def __init__(self, layer: Conv, machine: Machine, data: Buffer, result: Buffer) -> None:
        self._layer, self._machine, self._data, self._result = layer, machine, data, result
        together = machine.lanes * GROUP // layer.data.lanes
        self._step = together if layer.strides[1] == 1 and layer.out.width >= together else 1

    def row(self, row: Expr) -> None:
        """Write one row; where vectors of columns leave a rest, the last one overlaps the one before it."""
        full, rest = divmod(self._layer.out.width, self._step)
        with T.serial(0, full) as number:
            self._columns(row, T.Bind(number * self._step))
        if rest:
            self._columns(row, self._layer.out.width - self._step)

    def _columns(self, row: Expr, column: Expr) -> None:
        layer, image = self._layer, self._layer.data
        number, below = row // layer.out.height, row % layer.out.height * layer.strides[0]
        first = T.Bind(emit.offset(image, number, 0, below, column * layer.strides[1]))
        last = image.channels % image.lanes
        lanes = self._step * image.lanes // (GROUP if self._step > 1 else 1)
        # Lanes behind the last channel hold arbitrary bytes, and are not counted.
        if image.blocks == 1:
            total = self._block(emit.splat(0, lanes, "int32"), first, last or image.lanes)
        else:
            total = self._blocks(first, lanes, last)
        sums = _of_neighbours(total, lanes // self._step, self._step)
        T.buffer_store(self._result, sums, [emit.ramp(row * layer.out.width + column, self._step)])

    def _blocks(self, first: Expr, lanes: int, last: int) -> Expr:
        """Return sums over all blocks; of the last block, those channels that there are."""
        image = self._layer.data
        size, total = image.height * image.width * image.lanes, emit.Registers(1, lanes, "int32")
        total[0] = emit.splat(0, lanes, "int32")
        with T.serial(0, image.blocks - bool(last)) as block:
            total[0] = self._block(total[0], first + block * size, image.lanes)
        if last:
            total[0] = self._block(total[0], first + (image.blocks - 1) * size, last)
        return total[0]

    def _block(self, total: Expr, first: Expr, counted: int) -> Expr:
        """Return sums and the bytes of one block's windows, of so many of its channels."""
        image, (height, width), (down, across) = self._layer.data, self._layer.kernel, self._layer.dilation
        size = image.lanes * self._step
        ones_and_zeros = [tirx.Broadcast(tirx.const(value, "int8"), size) for value in (1, 0)]
        # A one for each byte that counts: those are the first ones of each pixel.
        lanes = [index if index % image.lanes < counted else size + index for index in range(size)]
        ones = tirx.Shuffle(ones_and_zeros, lanes)
        for tap, side in itertools.product(range(height), range(width)):
            offset = first + (tap * down * image.width + side * across) * image.lanes
            pixels = self._data[emit.ramp(offset, self._step * image.lanes)]
            if self._step > 1:
                four = tirx.reinterpret(emit.wide("int32", self._machine.lanes), pixels)
                total = T.Bind(int8.dot(self._machine, total, four, ones))
            else:
                wide = emit.wide("int32", image.lanes)
                total = T.Bind(total + tirx.Cast(wide, pixels) * tirx.Cast(wide, ones))
        return total


def _of_neighbours(vector: Expr, each: int, count: int) -> Expr:
    """Return a vector of sums, of so many neighbours each."""
    if each == 1:
        return vector
    bound_vector = T.Bind(vector)
    # Adding even and odd lanes halves the vector until one sum for each pixel is left.
    even, odd = (tirx.Shuffle([bound_vector], list(range(first, each * count, 2))) for first in (0, 1))
    return _of_neighbours(even + odd, each // 2, count)
