"""How a direct convolution is cut: tiles of columns, units of output blocks, bands of tiles, chunks of input blocks.

A tile of T output columns times B output blocks is summed up in registers. A unit is those blocks and the input
channels that they read. A band is some neighbouring tiles, row after row: what one core does at a time. Where the
weights of a unit are more than the first cache holds, they are cut into chunks of input blocks, and all tiles of a band
pass over a chunk before the next: each weight comes from memory once.

With groups of channels, a unit reads those of all groups that it has output channels of. Where a group is wider than a
block and ends within one, each unit reads one group instead: what two groups have in one block is then summed up in
turns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from toolchain.backends.cpu.layers import Activation, Conv

Least = Callable[[Any, Any], Any]

_ELEMENTS = 4  # lanes of float32 up to which a multiply-add with one element of a vector costs nothing more
_FEW = 1024  # pixels
_SIDE_BY_SIDE = 8  # blocks of a unit that still leave registers for columns
_OF_ELEMENTS = 4  # those where each weight is multiplied by elements of vectors, which take registers as well
_WASTE = 1.1  # times the blocks that are needed
_LARGE = 4 << 20  # bytes of an image that are read from memory
_NEAR = 64 << 10  # bytes of a band's data that stay in the second cache
_LIGHT = 256 << 10  # bytes of all weights that stay there, too
_TAPS = 8  # of a row of the filter, at most, that are worth holding in registers


@dataclass(frozen=True)
class Config:
    """How the work is cut.

    Attributes:
        columns: Output columns of a tile, at most; tiles of a row differ by one at most.
        blocks: Output blocks of a tile.
        depth: Input blocks of a chunk.
        bands: Bands of an image.
    """

    columns: int
    blocks: int
    depth: int
    bands: int


@dataclass(frozen=True)
class Tiles:
    """Neighbouring tiles of a row that see the padding in the same way.

    Attributes:
        number: Number of the first one in its row.
        start: Its first output column.
        count: How many.
        columns: Output columns of each.
        inside: For each tap across, whether each column's input is inside the image.
    """

    number: int
    start: int
    count: int
    columns: int
    inside: tuple[tuple[bool, ...], ...]


@dataclass(frozen=True)
class DirectPlan:
    """A layer and how it is cut.

    Attributes:
        layer: The layer, flattened if it can be.
        config: The settings.
    """

    layer: Conv
    config: Config

    @cached_property
    def tiles(self) -> tuple[Tiles, ...]:
        """The tiles of one row."""
        return cut_row(self.layer, self.config.columns)

    @property
    def tiles_of_row(self) -> int:
        """How many tiles a row has."""
        return self.tiles[-1].number + self.tiles[-1].count

    @property
    def tiles_of_image(self) -> int:
        """How many tiles an image has."""
        return self.layer.out.height * self.tiles_of_row

    @property
    def tiles_of_band(self) -> int:
        """How many tiles a band has, at most."""
        return -(-self.tiles_of_image // self.config.bands)

    @property
    def is_whole(self) -> bool:
        """Whether all units read all channels."""
        return self.layer.groups == 1

    @property
    def overlaps(self) -> bool:
        """Whether each unit reads one group of channels, and may share an output block with the next."""
        outputs, lanes = self._of_group[1], self.layer.out.lanes
        return not self.is_whole and outputs > lanes and outputs % lanes > 0

    @property
    def units(self) -> int:
        """How many units there are."""
        if self.overlaps:
            return self.layer.groups * self._turns
        return -(-self.layer.out.blocks // self.config.blocks)

    @property
    def of_last(self) -> int:
        """Blocks of the last unit that the result has: all, or some of them."""
        return self.config.blocks if self.overlaps else self.layer.out.blocks - (self.units - 1) * self.config.blocks

    @property
    def _of_group(self) -> tuple[int, int]:
        """Input and output channels of a group."""
        return self.layer.data.channels // self.layer.groups, self.layer.out.channels // self.layer.groups

    @property
    def _turns(self) -> int:
        """Units of a group, where each unit reads one group."""
        return -(-_most_blocks(self.layer) // self.config.blocks)

    @cached_property
    def sources(self) -> int:
        """Input blocks that a unit reads, at most."""
        lanes = self.layer.data.lanes
        reaches = (self.reach(unit) for unit in range(self.units))
        return max(int(-(-end // lanes) - begin // lanes) for begin, end in reaches)

    @property
    def chunks(self) -> int:
        """Chunks that those are cut into."""
        return -(-self.sources // self.config.depth)

    @property
    def small_bands(self) -> int:
        """How many bands an image has if all units pass over a band before the next; 0 if that is no use."""
        data = self.layer.data
        of_image = data.blocks * data.lanes * data.height * data.width * bytes_of(self.layer)
        if not self.is_whole or self.units == 1 or of_image < _LARGE:
            return 0
        if math.prod(self.packed) * bytes_of(self.layer) > _LIGHT:
            return 0
        return min(-(-of_image // _NEAR), self.tiles_of_image)

    @property
    def is_by_band(self) -> bool:
        """Whether all units pass over a band before the next."""
        return 0 < self.small_bands <= self.config.bands

    @property
    def fetches(self) -> bool:
        """Whether the weights that come next are fetched meanwhile."""
        return self.chunks > 1 or (self.units > 1 and has_few_pixels(self.layer))

    def start(self, unit: Any, minimum: Least = min) -> Any:
        """Return the first output block of a unit.

        Args:
            unit: Its number, or an expression for it.
            minimum: Returns the less of two of those.
        """
        blocks, out = self.config.blocks, self.layer.out
        if not self.overlaps:
            return unit * blocks
        first = unit // self._turns * self._of_group[1] // out.lanes
        return minimum(first + unit % self._turns * blocks, out.blocks - blocks)

    def reach(self, unit: Any, minimum: Least = min) -> tuple[Any, Any]:
        """Return which input channels a unit reads: the first one, and the one behind the last."""
        inputs, outputs = self._of_group
        if self.is_whole:
            return 0, inputs
        if self.overlaps:
            return unit // self._turns * inputs, (unit // self._turns + 1) * inputs
        width = self.config.blocks * self.layer.out.lanes
        last = minimum((unit * width + width - 1) // outputs, self.layer.groups - 1)
        return unit * width // outputs * inputs, (last + 1) * inputs

    def owned(self, unit: int) -> tuple[int, int]:
        """Return which output channels a unit sums up: the first one, and the one behind the last."""
        outputs, lanes = self._of_group[1], self.layer.out.lanes
        width = self.config.blocks * lanes
        if not self.overlaps:
            return unit * width, min((unit + 1) * width, self.layer.out.channels)
        group, turn = divmod(unit, self._turns)
        first = group * outputs // lanes * lanes + turn * width
        return max(first, group * outputs), min(first + width, (group + 1) * outputs)

    def is_by_pixel(self, registers: int) -> bool:
        """Whether all weights of a row of the filter stay in registers while the pixels of plain data pass by."""
        width, blocks = self.layer.kernel[1], self.config.blocks
        sums = self.config.columns * blocks
        return self.layer.data.lanes == 1 and width <= _TAPS and sums + width * blocks + 1 < registers

    @property
    def packed(self) -> tuple[int, ...]:
        """Shape of the packed weights."""
        data, lanes = self.layer.data, self.layer.out.lanes
        return (self.units, self.sources, *self.layer.kernel, data.lanes, self.config.blocks, lanes)


def blocks_of_units(layer: Conv) -> list[int]:
    """List how many output blocks the units of a layer can have.

    Where no number of them is a divisor, the last unit computes some that nobody needs.
    """
    blocks = layer.out.blocks
    if DirectPlan(layer, Config(1, 1, 1, 1)).overlaps:
        largest = _most_blocks(layer)
        return sorted({-(-largest // turns) for turns in range(1, largest + 1)})
    divisors = [count for count in range(1, blocks + 1) if blocks % count == 0]
    most = _OF_ELEMENTS if is_by_element(layer) else _SIDE_BY_SIDE
    if layer.groups > 1 or blocks <= most or any(1 < count <= most for count in divisors):
        return divisors
    # With a number of blocks that is no divisor, the last unit wastes little.
    nearly = (count for count in range(2, most + 1) if -(-blocks // count) * count <= _WASTE * blocks)
    return sorted([*divisors, *nearly])


def has_few_pixels(layer: Conv) -> bool:
    """Whether weights are used for so few pixels that it takes long to bring them, in relation to their use."""
    return 1 < layer.out.height * layer.out.width <= _FEW


def _most_blocks(layer: Conv) -> int:
    """Return how many output blocks have channels of one group, at most."""
    outputs, lanes = layer.out.channels // layer.groups, layer.out.lanes
    ends = (group * outputs for group in range(layer.groups + 1))
    return max((end - 1) // lanes - begin // lanes + 1 for begin, end in itertools.pairwise(ends))


def is_by_element(layer: Conv) -> bool:
    """Whether vectors of input channels are loaded and used element by element, instead of one number at a time."""
    return layer.data.lanes == layer.out.lanes and (layer.out.lanes <= _ELEMENTS or layer.is_half)


def bytes_of(layer: Conv) -> int:
    """Return the bytes of a number that is multiplied."""
    return 2 if layer.is_half else 4


def flatten(layer: Conv) -> Conv:
    """Return what gives the same on a single row as a convolution on one, since tiles lie along rows.

    That is a pointwise convolution, which has fewer edges so, and one on a single column. Data, weights and result lie
    in the same order then.
    """
    if (layer.kernel, layer.strides, layer.padding) == ((1, 1), (1, 1), (0, 0, 0, 0)):
        return on_row(layer)
    (height, width), (top, before, bottom, after) = layer.kernel, layer.padding
    if layer.data.width > 1 or layer.data.height == 1 or (width, before, after) != (1, 0, 0):
        return layer
    # A column is a row with its axes swapped; its data lies in the same order.
    strides, dilation = layer.strides[::-1], layer.dilation[::-1]
    padding = (before, top, after, bottom)
    return replace(on_row(layer), kernel=(1, height), strides=strides, dilation=dilation, padding=padding)


def on_row(layer: Conv) -> Conv:
    """Return a layer with the pixels of its data and its result on a single row."""

    def row(activation: Activation) -> Activation:
        return replace(activation, height=1, width=activation.height * activation.width)

    epilogue = tuple(replace(op, other=row(op.other) if op.other else None) for op in layer.epilogue)
    return replace(layer, data=row(layer.data), out=row(layer.out), epilogue=epilogue)


def cut_row(layer: Conv, columns: int) -> tuple[Tiles, ...]:
    """Cut a row of the result into as few tiles as possible, of nearly the same size."""
    count = -(-layer.out.width // columns)
    small, large = divmod(layer.out.width, count)
    stride, dilation, padding = layer.strides[1], layer.dilation[1], layer.padding[1]
    # Number, how many, columns: tiles may see the padding one by one; without it, those of one size are alike.
    stretches = [(number, 1, small + (number < large)) for number in range(count)]
    if not any(layer.padding):
        stretches = [stretch for stretch in ((0, large, small + 1), (large, count - large, small)) if stretch[1]]
    groups: list[Tiles] = []
    for number, many, size in stretches:
        start = number * small + min(number, large)
        inside = tuple(
            tuple(
                0 <= column * stride + tap * dilation - padding < layer.data.width
                for column in range(start, start + size)
            )
            for tap in range(layer.kernel[1])
        )
        last = groups[-1] if groups else None
        if last and (last.columns, last.inside) == (size, inside):
            groups[-1] = replace(last, count=last.count + many)
        else:
            groups.append(Tiles(number, start, many, size, inside))
    return tuple(groups)
