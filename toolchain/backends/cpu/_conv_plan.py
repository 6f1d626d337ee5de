"""How a direct convolution is cut: tiles of columns, bands of lines, chunks of input channels.

A tile of T output columns times B output blocks is summed up in registers. A band is some neighbouring tiles, row after
row: what one core does at a time. Where the weights of B output blocks are more than the first cache holds, they are
cut into chunks of input blocks, and all tiles of a band pass over a chunk before the next: each weight comes from
memory once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from toolchain.backends.cpu._layers import Activation, Conv

_ELEMENTS = 4  # lanes up to which a multiply-add with one element of a vector costs nothing more
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
class Plan:
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
        return cut(self.layer, self.config.columns)

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
    def groups(self) -> int:
        """Groups of output blocks: those of a tile are one."""
        return self.layer.out.blocks // self.config.blocks

    @cached_property
    def sources(self) -> int:
        """Input blocks that a group of output blocks reads, at most."""
        lanes = self.layer.data.lanes
        reaches = (self.reach(group) for group in range(self.groups))
        return max(int(-(-end // lanes) - begin // lanes) for begin, end in reaches)

    @property
    def chunks(self) -> int:
        """Chunks that those are cut into."""
        return -(-self.sources // self.config.depth)

    @property
    def is_whole(self) -> bool:
        """Whether all groups of output blocks read all channels."""
        return self.layer.groups == 1

    def reach(self, group: Any, least: Callable[[Any, Any], Any] = min) -> tuple[Any, Any]:
        """Return which input channels a group of output blocks reads: the first one, and the one behind the last.

        Args:
            group: Its number, or an expression for it.
            least: Returns the less of two of those.
        """
        layer = self.layer
        if self.is_whole:
            return 0, layer.data.channels
        inputs, outputs = layer.data.channels // layer.groups, layer.out.channels // layer.groups
        width = self.config.blocks * layer.out.lanes
        last = least((group * width + width - 1) // outputs, layer.groups - 1)
        return group * width // outputs * inputs, (last + 1) * inputs

    def is_by_pixel(self, registers: int) -> bool:
        """Whether all weights of a row of the filter stay in registers while the pixels of plain data pass by."""
        width, blocks = self.layer.kernel[1], self.config.blocks
        sums = self.config.columns * blocks
        return self.layer.data.lanes == 1 and width <= _TAPS and sums + width * blocks + 1 < registers

    @property
    def packed(self) -> tuple[int, ...]:
        """Shape of the packed weights."""
        data, lanes = self.layer.data, self.layer.out.lanes
        return (self.groups, self.sources, *self.layer.kernel, data.lanes, self.config.blocks, lanes)


def is_by_element(layer: Conv) -> bool:
    """Whether vectors of input channels are loaded and used element by element, instead of one number at a time."""
    return layer.data.lanes == layer.out.lanes <= _ELEMENTS


def flattened(layer: Conv) -> Conv:
    """Return a pointwise convolution as one on a single row, which has fewer edges; anything else as it is."""
    if (layer.kernel, layer.strides, layer.padding) != ((1, 1), (1, 1), (0, 0, 0, 0)):
        return layer

    def row(place: Activation) -> Activation:
        return replace(place, height=1, width=place.height * place.width)

    steps = tuple(replace(step, other=row(step.other) if step.other else None) for step in layer.steps)
    return replace(layer, data=row(layer.data), out=row(layer.out), steps=steps)


def cut(layer: Conv, columns: int) -> tuple[Tiles, ...]:
    """Cut a row of the result into as few tiles as possible, of nearly the same size."""
    count = -(-layer.out.width // columns)
    small, large = divmod(layer.out.width, count)
    found: list[Tiles] = []
    for number, many, size in _stretches(layer, count, small, large):
        start = number * small + min(number, large)
        inside = _inside(layer, range(start, start + size))
        last = found[-1] if found else None
        if last and (last.columns, last.inside) == (size, inside):
            found[-1] = replace(last, count=last.count + many)
        else:
            found.append(Tiles(number, start, many, size, inside))
    return tuple(found)


def _stretches(layer: Conv, count: int, small: int, large: int) -> list[tuple[int, int, int]]:
    """List tiles as number, how many, columns: one by one if they may see the padding, else those of one size."""
    if any(layer.padding):
        return [(number, 1, small + (number < large)) for number in range(count)]
    return [found for found in ((0, large, small + 1), (large, count - large, small)) if found[1]]


def _inside(layer: Conv, columns: Sequence[int]) -> tuple[tuple[bool, ...], ...]:
    stride, dilation, left = layer.strides[1], layer.dilation[1], layer.padding[1]
    return tuple(
        tuple(0 <= column * stride + tap * dilation - left < layer.data.width for column in columns)
        for tap in range(layer.kernel[1])
    )
