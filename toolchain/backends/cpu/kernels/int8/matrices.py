"""Products of bytes as matrices, for Arm cores with i8mm: SMMLA adds 32 products, two pixels by two outputs.

A vector holds eight channels of two pixels, or of two outputs. A sum holds both outputs of the first pixel, then those
of the second one; they are put side by side in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.int8.pairs import GROUP
from toolchain.backends.cpu.layers import Activation, Conv
from toolchain.backends.cpu.machine import Machine

TOGETHER = 2
"""Blocks of input channels that are multiplied at once."""

_HALVES = 2  # vectors of weights for the four outputs of a block
_OPERANDS = 3  # registers for weights


def fits(layer: Conv, machine: Machine) -> bool:
    """Whether a layer is computed so: blocks of four channels come in pairs."""
    return machine.i8mm and layer.data.lanes == GROUP and layer.data.blocks % TOGETHER == 0


def couples(rows: int, columns: int) -> int:
    """Return how many couples of neighbouring pixels a tile has; the last pixel of a row may be alone."""
    return rows * -(-columns // 2)


def registers(rows: int, columns: int, blocks: int) -> int:
    """Return the vector registers that a tile takes."""
    count = couples(rows, columns)
    return count * (_HALVES * blocks + 1) + _OPERANDS


def packed(split: NDArray[np.int8], blocks: int) -> NDArray[np.int8]:
    """Return weights [out, in, height, width] as [groups, pairs of blocks in, height, width, blocks, halves, 2, 8]."""
    outputs, inputs, height, width = split.shape
    eight = TOGETHER * GROUP
    parts = split.reshape(outputs // (blocks * GROUP), blocks, _HALVES, 2, inputs // eight, eight, height, width)
    return parts.transpose(0, 4, 6, 7, 1, 2, 3, 5)


def pixels(
    size: tuple[int, int], load: Callable[[int, int, int, int], Any], *, reads_quads: bool, side_by_side: bool
) -> Iterator[Any]:
    """Yield eight channels of each couple of pixels of a tile.

    Args:
        size: Rows and columns of the tile.
        load: Returns so many neighbouring fours of channels as int32, of a block (0 or 1) from a row and a column on.
        reads_quads: Whether neighbouring pixels lie together.
        side_by_side: Whether both blocks of a pixel lie together.
    """
    rows, columns = size
    for below in range(rows):
        for right in range(0, columns, 4 if reads_quads else 2):
            rest = columns - right
            if reads_quads and rest >= 4:  # noqa: PLR2004 - a vector of fours
                quads = [load(block, below, right, 4) for block in range(TOGETHER)]
                yield from (_bytes(tirx.Shuffle(quads, order)) for order in ([0, 4, 1, 5], [2, 6, 3, 7]))
                continue
            for first in range(right, min(right + 4 if reads_quads else right + 2, columns), 2):
                if reads_quads and first + 1 < columns:
                    twos = [load(block, below, first, 2) for block in range(TOGETHER)]
                    yield _bytes(tirx.Shuffle(twos, [0, 2, 1, 3]))
                    continue
                couple = (first, min(first + 1, columns - 1))
                if side_by_side:
                    fours = [load(0, below, column, 2) for column in couple]
                else:
                    fours = [load(block, below, column, 1) for column in couple for block in range(TOGETHER)]
                yield _bytes(tirx.Shuffle(fours, [0, 1, 2, 3]))


def _bytes(fours: Any) -> Any:
    return T.Bind(tirx.reinterpret(f"int8x{4 * GROUP}", fours))


def add(sums: emit.Registers, data: Sequence[Any], count: int, weight_of: Callable[[int], Any]) -> None:
    """Add the products of couples of pixels with so many vectors of weights: the halves of all blocks of a tile."""
    for half in range(count):
        weight = weight_of(half)
        for number, couple in enumerate(data):
            index = half * len(data) + number
            arguments = ("llvm.aarch64.neon.smmla.v4i32.v16i8", sums[index], couple, weight)
            sums[index] = tirx.call_llvm_pure_intrin("int32x4", *arguments)


def sums_of(sums: emit.Registers, block: int, size: tuple[int, int]) -> list[Any]:
    """Return the sums of a block of outputs for each pixel of a tile."""
    rows, columns = size
    count, found = couples(rows, columns), []
    for below in range(rows):
        for right in range(columns):
            number = below * couples(1, columns) + right // 2
            halves = [sums[(_HALVES * block + half) * count + number] for half in range(_HALVES)]
            found.append(T.Bind(tirx.Shuffle(halves, [2, 3, 6, 7] if right % 2 else [0, 1, 4, 5])))
    return found


def distance(data: Activation) -> int:
    """Return how far apart the same pixel of two neighbouring blocks is."""
    return data.height * data.width * data.lanes
