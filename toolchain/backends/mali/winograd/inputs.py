"""The kernel that transforms the inputs of a Winograd convolution: tiles of an image to their components.

All components of a tile are more vectors than a work-item has registers for, and so are two rows of them. So each
work-item computes a row, of four channels: the rows of the image that it is made of are four at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import sym, tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.mali.rewrite import largest_divisor, launch, write_kernel
from toolchain.backends.mali.winograd.tiling import INPUTS, LANES, Tiling

_GROUP = 64  # most work-items of a work-group

Expr = Any


def kernel(tiling: Tiling) -> tirx.PrimFunc:
    """Write the kernel: images [n, h, w, c] to components [component, tile, c], component `row * side + column`.

    Args:
        tiling: The convolution; its channels come in fours.
    """
    components = (tiling.components, tiling.tiles, tiling.inputs)

    def body(image: Any, output: Any) -> None:
        _InputsWriter(tiling, image, output).write()

    return write_kernel("winograd_inputs", {"image": tiling.image, "components": components}, body)


class _Registers:
    """Values of a work-item by constant indices: an expression without a buffer would be written again at each use."""

    def __init__(self, values: Sequence[Expr], dtype: str = f"float32x{LANES}") -> None:
        self._buffer = T.alloc_buffer((len(values),), dtype, scope="local")
        for number, value in enumerate(values):
            T.buffer_store(self._buffer, value, [number])

    def __getitem__(self, number: int) -> Expr:
        return self._buffer[number]


class _InputsWriter:
    """Writes the kernel."""

    def __init__(self, tiling: Tiling, image: Any, output: Any) -> None:
        self._tiling, self._image, self._output = tiling, image, output
        self._matrix = INPUTS[tiling.size]
        self._slots = max(sum(factor != 0 for factor in row) for row in self._matrix)

    def write(self) -> None:
        """Write the kernel: a work-group has neighbouring channels of neighbouring tiles of one row."""
        tiling = self._tiling
        blocks = tiling.inputs // LANES
        deep = largest_divisor(blocks, _GROUP // 4)
        wide = largest_divisor(tiling.across, _GROUP // deep)
        groups = {
            "group_z": tiling.side * tiling.image[0] * tiling.down,
            "group_y": tiling.across // wide,
            "group_x": blocks // deep,
        }
        with launch(**groups, item_y=wide, item_x=deep) as (row, y, x, tile, block):
            self._item(row, y * wide + tile, (x * deep + block) * LANES)

    def _item(self, row: Expr, across: Expr, channel: Expr) -> None:
        tiling = self._tiling
        component_row, line = row % tiling.side, row // tiling.side  # line: which row of tiles, of all images
        top, left = line % tiling.down * tiling.size - tiling.padding[0], across * tiling.size - tiling.padding[1]
        shared, factors = self._rows(component_row, top)

        def vector(column: int) -> Expr:
            return self._column(line // tiling.down, shared, factors, left + column, channel)

        columns = _Registers([vector(column) for column in range(tiling.side)])
        lanes = tirx.Ramp(channel, 1, LANES)
        for column, value in enumerate(_weighted(columns, weights) for weights in self._matrix):
            indices = [component_row * tiling.side + column, line * tiling.across + across, lanes]
            T.buffer_store(self._output, value, indices)

    def _rows(self, component_row: Expr, top: Expr) -> tuple[_Registers, _Registers]:
        """Return which rows of the image a row of components reads, and their factors: 0 outside of the image."""
        height, rows = self._tiling.image[1], self._slotted()
        positions = [
            top + _of_row(component_row, [row[slot][0] for row in rows], "int32") for slot in range(self._slots)
        ]
        unclamped = _Registers(positions, "int32")
        factors = []
        for slot in range(self._slots):
            factor = _of_row(component_row, [row[slot][1] for row in rows], "float32")
            inside = tirx.all(unclamped[slot] >= 0, unclamped[slot] < height)
            factors.append(tirx.Select(inside, factor, tirx.const(0.0, "float32")))
        multiplied = _Registers(factors, "float32")
        within = [tirx.max(tirx.min(unclamped[slot], height - 1), 0) for slot in range(self._slots)]
        return _Registers(within, "int32"), multiplied

    def _slotted(self) -> list[list[tuple[int, float]]]:
        """List for each row of components its rows of inputs with their factors, padded to the same number."""
        slotted = []
        for row in self._matrix:
            used = [(number, factor) for number, factor in enumerate(row) if factor]
            slotted.append(used + [(used[-1][0], 0.0)] * (self._slots - len(used)))
        return slotted

    def _column(self, image: Expr, rows: _Registers, factors: _Registers, column: Expr, channel: Expr) -> Expr:
        """Return the weighted sum of a column of inputs; columns outside of the image count as 0."""
        width, lanes = self._tiling.image[2], tirx.Ramp(channel, 1, LANES)
        within = tirx.max(tirx.min(column, width - 1), 0)
        read = [self._image[image, rows[slot], within, lanes] for slot in range(self._slots)]
        total = _wide(factors[0]) * read[0]
        for slot in range(1, self._slots):
            total = total + _wide(factors[slot]) * read[slot]
        inside = sym.Analyzer().simplify(tirx.all(column >= 0, column < width))
        counts = tirx.Select(inside, tirx.const(1.0, "float32"), tirx.const(0.0, "float32"))
        return total * _wide(counts)


def _weighted(vectors: _Registers, factors: Sequence[float]) -> Expr:
    total = None
    for number, factor in enumerate(factors):
        if factor:
            term = vectors[number] if factor == 1 else _wide(tirx.const(factor, "float32")) * vectors[number]
            total = term if total is None else total + term
    return total


def _wide(value: Expr) -> Expr:
    return tirx.Broadcast(value, LANES)


def _of_row(component_row: Expr, values: Sequence[float], dtype: str) -> Expr:
    """Return the number for a row of components, which is the same for all work-items of a group."""
    selected = tirx.const(values[-1], dtype)
    for number, value in reversed(list(enumerate(values[:-1]))):
        selected = tirx.Select(component_row == number, tirx.const(value, dtype), selected)
    return selected
