"""How a tile of a tensor becomes LOAD and STORE instructions: rectangles of rows, clipped where padding begins.

A LOAD pads with zeros. Other padding is loaded from a tensor of its own, once for a slot of SRAM as long as it stays in
one place: a tensor's own rows are loaded between it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from toolchain.backends.vta.codegen.recorder import Rows
from toolchain.errors import BuildError

_MOST_PADDING = 15  # of a LOAD, on each side


@dataclass(frozen=True)
class Affine:
    """A number that depends on the loops around: a constant, and a step for each of them, from the outermost on."""

    constant: int
    steps: tuple[int, ...]

    def at(self, values: Sequence[int]) -> int:
        """Return the number in one pass of the loops."""
        return self.constant + sum(step * value for step, value in zip(self.steps, values, strict=False))

    def times(self, factor: int) -> Affine:
        """Return a multiple of the number."""
        return Affine(self.constant * factor, tuple(step * factor for step in self.steps))

    def plus(self, other: Affine) -> Affine:
        """Return the sum of two numbers within the same loops."""
        steps = tuple(step + other_step for step, other_step in zip(self.steps, other.steps, strict=True))
        return Affine(self.constant + other.constant, steps)

    def bounds(self, extents: Sequence[int]) -> tuple[int, int]:
        """Return the least and the largest number in all passes of loops with these extents."""
        far = [step * (extent - 1) for step, extent in zip(self.steps, extents, strict=False)]
        return self.constant + sum(min(0, distance) for distance in far), self.constant + sum(
            max(0, distance) for distance in far
        )


@dataclass(frozen=True)
class Clip:
    """The position of a tile's axis in its tensor; outside are zeros.

    Attributes:
        start: Index in the tensor of the tile's first element.
        step: Indices from one element to the next.
        size: Length of the tensor's axis.
    """

    start: Affine
    step: int
    size: int

    def inside(self, extent: int, values: Sequence[int]) -> tuple[int, int]:
        """Return which of the tile's elements are the tensor's: the first, and the one behind the last."""
        start = self.start.at(values)
        # Rounds up: the first element whose index is not negative.
        first = min(extent, max(0, -(start // self.step)))
        return first, max(first, min(extent, (self.size - 1 - start) // self.step + 1))


@dataclass(frozen=True)
class Axis:
    """One axis of a tile.

    Attributes:
        extent: Its elements.
        sram: Elements of SRAM from one to the next.
        dram: Elements of the tensor from one to the next.
        clip: Its position, if some of it may lie outside.
    """

    extent: int
    sram: int
    dram: int
    clip: Clip | None = None

    def joins(self, inner: Axis) -> bool:
        """Whether this axis around the other is the same as one longer axis."""
        steps = (inner.extent * inner.sram, inner.extent * inner.dram)
        return self.clip is None and inner.clip is None and (self.sram, self.dram) == steps


_UNIT = Axis(1, 1, 1)


@dataclass(frozen=True)
class Transfer:
    """The way of a tile between DRAM and SRAM.

    Attributes:
        offset: Index in the tensor, counted in elements, of the tile's first element, wherever that may lie.
        axes: Axes of the tile, the outermost first, the last two being the rows and columns of an instruction.
        elements: Size of the tile.
    """

    offset: Affine
    axes: tuple[Axis, ...]
    elements: int

    @classmethod
    def of(cls, offset: Affine, axes: Sequence[Axis], elements: int) -> Transfer:
        """Describe a tile by as few axes as possible.

        Raises:
            BuildError: Only its last two axes may reach outside of the tensor.
        """
        merged: list[Axis] = []
        # Neighbouring axes without a gap between are one, as each axis but two is a loop of instructions.
        for axis in axes:
            if merged and merged[-1].joins(axis):
                merged[-1] = Axis(merged[-1].extent * axis.extent, axis.sram, axis.dram)
            elif axis.extent > 1 or axis.clip:
                merged.append(axis)
        if not merged or merged[-1].dram != 1:
            merged.append(_UNIT)
        merged = [_UNIT] * (2 - len(merged)) + merged
        if any(axis.clip for axis in merged[:-2]):
            raise BuildError("a tile reaches outside of its tensor along more than rows and columns")
        return cls(offset, tuple(merged), elements)

    @property
    def clipped(self) -> bool:
        """Whether a tile may lie outside of its tensor."""
        return any(axis.clip for axis in self.axes)

    def inside(self, values: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return which rows, and which elements of each, are the tensor's: the first, and the one behind the last."""
        y, x = (axis.clip.inside(axis.extent, values) if axis.clip else (0, axis.extent) for axis in self.axes[-2:])
        return y, x

    def rows(self, base: int, values: Sequence[int]) -> Iterator[Rows]:
        """Yield the rectangles of one tile, with zeros around them.

        Args:
            base: Where the tile starts in SRAM.
            values: The passes of the loops around.

        Raises:
            BuildError: An instruction cannot make that many zeros.
        """
        *_, y, x = self.axes
        (top, bottom), (left, right) = self.inside(values)
        if top == bottom or left == right:
            # Each load ends with an element of the tensor, which the next load covers, or nothing reads.
            for first in range(0, self.elements, _MOST_PADDING):
                yield Rows(base + first, 0, 1, 1, 1, y_pad=(min(_MOST_PADDING, self.elements - first), 0))
            return
        # What lies outside of the tensor is made of zeros by the LOAD itself.
        pads = (top, y.extent - bottom), (left, x.extent - right)
        if max(*pads[0], *pads[1]) > _MOST_PADDING:
            raise BuildError(f"a LOAD pads by {_MOST_PADDING} zeros at most", details=f"{pads} are needed")
        start = self.offset.at(values) + top * y.dram + left
        for sram, dram in self._images():
            yield Rows(base + sram, start + dram, bottom - top, right - left, y.dram, *pads)

    def interior(self, base: int, values: Sequence[int]) -> Iterator[Rows]:
        """Yield the rectangles of one tile with nothing around them: row by row, where there is room between those.

        Args:
            base: Where the tile starts in SRAM.
            values: The passes of the loops around.
        """
        *_, y, x = self.axes
        (top, bottom), (left, right) = self.inside(values)
        if top == bottom or left == right:
            return
        start = self.offset.at(values) + left
        # A LOAD fills SRAM without gaps: rows with room for padding between them are loaded one by one.
        height = bottom - top if right - left == x.extent else 1
        for sram, dram in self._images():
            for row in range(top, bottom, height):
                sram_start = base + sram + row * x.extent + left
                yield Rows(sram_start, start + dram + row * y.dram, height, right - left, y.dram)

    def edges(self, base: int, values: Sequence[int], filling_size: int) -> Iterator[Rows]:
        """Yield the padding around the interior, as loads from the start of a tensor of padding.

        Args:
            base: Where the tile starts in SRAM.
            values: The passes of the loops around.
            filling_size: Elements of that tensor.
        """
        *_, y, x = self.axes
        (top, bottom), (left, right) = self.inside(values)
        if top == bottom or left == right:
            top = bottom  # no row has anything of the tensor
        # Padding behind a row and before the next one is one stretch of SRAM.
        starts = [0, *(row * x.extent + right for row in range(top, bottom))]
        ends = [*(row * x.extent + left for row in range(top, bottom)), y.extent * x.extent]
        for sram, _ in self._images():
            for start, end in zip(starts, ends, strict=True):
                for first in range(start, end, filling_size):
                    size = min(filling_size, end - first)
                    yield Rows(base + sram + first, 0, 1, size, size)

    def _images(self) -> Iterator[tuple[int, int]]:
        """Yield where the rows of each pass of the outer axes start, in SRAM and in the tensor."""
        # An instruction has rows and columns; all other axes become several instructions.
        outer = self.axes[:-2]
        for steps in product(*(range(axis.extent) for axis in outer)):
            sram = sum(step * axis.sram for step, axis in zip(steps, outer, strict=True))
            dram = sum(step * axis.dram for step, axis in zip(steps, outer, strict=True))
            yield sram, dram
