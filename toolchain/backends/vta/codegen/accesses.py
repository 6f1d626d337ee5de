"""The indices of a kernel's blocks, as linear functions of the loops around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import sym, tirx

from toolchain.backends.vta.codegen.nests import Loop
from toolchain.backends.vta.codegen.operators import SCOPES
from toolchain.backends.vta.codegen.transfers import Affine, Axis, Clip, Transfer
from toolchain.errors import BuildError

_ELEMENT = 2  # the last axes of each buffer, which lie within one element of its SRAM


@dataclass(frozen=True)
class Around:
    """The loops around a nest, from the outermost on."""

    variables: tuple[tirx.Var, ...] = ()
    extents: tuple[int, ...] = ()

    def inside(self, loops: Sequence[tirx.For]) -> Around:
        """Return these loops with others in them."""
        extents = tuple(int(loop.extent) for loop in loops)
        return Around(self.variables + tuple(loop.loop_var for loop in loops), self.extents + extents)


_DIFFERENCES: dict[type, Callable[[Any, Any], Any]] = {
    tirx.LE: lambda a, b: b - a,
    tirx.LT: lambda a, b: b - a - 1,
    tirx.GE: lambda a, b: a - b,
    tirx.GT: lambda a, b: a - b - 1,
}
"""For each comparison, a number that is not negative where it holds."""


@dataclass(frozen=True)
class Limit:
    """A number that is not negative where a nest does something.

    Attributes:
        start: The number in the first pass of the nest.
        loop: The loop of the nest that it depends on, by its place.
        step: What each pass of that loop adds to it; 0 where it depends on none.
    """

    start: Affine
    loop: int
    step: int

    def within(self, first: int, end: int, values: Sequence[int]) -> tuple[int, int]:
        """Return the passes of the loop, out of some, in which the number is not negative.

        Args:
            first: The first of them.
            end: The one behind the last.
            values: The passes of the loops around.
        """
        start = self.start.at(values)
        if not self.step:
            return first, end if start >= 0 else first
        if self.step > 0:
            return max(first, -(start // self.step)), end
        return first, min(end, start // -self.step + 1)


@dataclass(frozen=True)
class Walk:
    """The way of a nest over the elements of each SRAM.

    Attributes:
        loops: All loops of the nest.
        first: The first element of dst, src and wgt within their tiles.
    """

    loops: tuple[Loop, ...]
    first: tuple[int, int, int] = (0, 0, 0)

    @property
    def moving(self) -> tuple[Loop, ...]:
        """The loops that go from element to element."""
        return tuple(loop for loop in self.loops if loop.steps != (0, 0, 0))

    def part(self, passes: Sequence[tuple[int, int]]) -> Walk:
        """Return the way of some passes of each loop: the first of them, and the one behind the last."""
        loops, first = list[Loop](), self.first
        for loop, (start, end) in zip(self.loops, passes, strict=True):
            loops.append(Loop(end - start, *loop.steps))
            first = (first[0] + start * loop.dst, first[1] + start * loop.src, first[2] + start * loop.wgt)
        return Walk(tuple(loops), first)

    def passes(self, limits: Sequence[Limit], values: Sequence[int]) -> tuple[tuple[int, int], ...] | None:
        """Return the passes of each loop that are within all limits; None if there are none.

        Args:
            values: The passes of the loops around.
        """
        ranges = [(0, loop.extent) for loop in self.loops]
        for limit in limits:
            ranges[limit.loop] = limit.within(*ranges[limit.loop], values)
        return None if any(start >= end for start, end in ranges) else tuple(ranges)


@dataclass(frozen=True)
class Accesses:
    """Reads the indices of a nest.

    Attributes:
        around: The loops that are run while recording.
        all: These, and behind them those of the nest.
    """

    around: Around
    all: Around

    def walk(self, dst: tirx.BufferStore, src: Any = None, wgt: Any = None) -> Walk:
        """Return the nest's way over the elements of each SRAM."""
        # Operands that a nest lacks stay at element 0.
        none = (0, [0] * len(self._inner))
        sources = (none if operand is None else self._sram(operand.source, operand.indices) for operand in (src, wgt))
        firsts, columns = zip(self._sram(dst.buffer, dst.indices), *sources, strict=True)
        loops = tuple(Loop(extent, *steps) for extent, *steps in zip(self._inner, *columns, strict=True))
        return Walk(loops, (firsts[0], firsts[1], firsts[2]))

    def limits(self, condition: Any) -> tuple[Limit, ...]:
        """Return a condition on the loops as numbers of which none may be negative.

        Raises:
            BuildError: It is of another kind.
        """
        # Bounds of an image are joined by `and`: each becomes a limit of its own.
        if isinstance(condition, tirx.And):
            return self.limits(condition.a) + self.limits(condition.b)
        if isinstance(condition, tirx.EQ):  # what TVM makes of a limit that leaves the first or the last pass alone
            return self.limits(condition.a >= condition.b) + self.limits(condition.a <= condition.b)
        if type(condition) not in _DIFFERENCES:
            raise BuildError("a block has a condition that VTA cannot follow", details=str(condition))
        start, steps = self._affine(_DIFFERENCES[type(condition)](condition.a, condition.b))
        moving = [(loop, step) for loop, step in enumerate(steps) if step]
        if len(moving) > 1:
            raise BuildError("a condition depends on two loops of a nest", details=str(condition))
        return (Limit(start, *(moving or [(0, 0)])[0]),)

    def transfer(
        self, tile: tirx.Buffer, tile_indices: Sequence[Any], tensor: tirx.Buffer, indices: Sequence[Any]
    ) -> Transfer:
        """Return the way between a tile and its tensor in DRAM."""
        shape = _elements(tensor)
        strides = [prod(shape[index + 1 :]) for index in range(len(shape))]
        first, sram = self._sram(tile, tile_indices)
        if first:
            raise BuildError("a transfer starts within its tile", details=str(tile_indices))
        # A tensor in DRAM lies in rows without gaps, so each index counts by the product of the inner sizes.
        offset, axes = Affine(0, (0,) * len(self.around.extents)), []
        for size, stride, index in zip(shape, strides, list(indices)[:-_ELEMENT], strict=True):
            start, steps = self._affine(index)
            offset = offset.plus(start.times(stride))
            axes.append(self._axis(start, steps, sram, size, stride))
        return Transfer.of(offset, axes, elements_of(tile))

    @property
    def _inner(self) -> tuple[int, ...]:
        return self.all.extents[len(self.around.extents) :]

    def _axis(self, start: Affine, steps: Sequence[int], sram: Sequence[int], size: int, stride: int) -> Axis:
        # A loop of one pass moves nothing, whatever its step is.
        moving = [index for index, step in enumerate(steps) if step and self._inner[index] > 1]
        if len(moving) > 1:
            raise BuildError("two loops of a transfer run along one axis")
        extent, step, tile_step = next(((self._inner[index], steps[index], sram[index]) for index in moving), (1, 1, 0))
        lowest, highest = start.bounds(self.around.extents)
        outside = lowest < 0 or highest + (extent - 1) * step >= size
        return Axis(extent, tile_step, step * stride, Clip(start, step, size) if outside else None)

    def _sram(self, buffer: tirx.Buffer, indices: Sequence[Any]) -> tuple[int, list[int]]:
        """Return the first element within a tile, and those from one pass of each loop of the nest to the next."""
        shape = _elements(buffer)
        first, moves = 0, [0] * len(self._inner)
        for position, index in enumerate(list(indices)[:-_ELEMENT]):
            start, steps = self._affine(index)
            # The slot of a tile is chosen while recording, so within it each pass must see the same elements.
            if any(start.steps):
                raise BuildError("a tile's place in SRAM depends on the loops around it", details=str(index))
            stride = prod(shape[position + 1 :])
            first += start.constant * stride
            moves = [move + step * stride for move, step in zip(moves, steps, strict=True)]
        return first, moves

    def _affine(self, index: Any) -> tuple[Affine, tuple[int, ...]]:
        """Return an index as a number in the loops around, and the steps that those of the nest add to it."""
        equation = sym.detect_linear_equation(index, list(self.all.variables))
        if len(equation) != len(self.all.variables) + 1:
            raise BuildError("an index is not linear in its loops", details=str(index))
        *steps, constant = (int(term) for term in equation)
        count = len(self.around.variables)
        return Affine(constant, tuple(steps[:count])), tuple(steps[count:])


def memory_of(buffer: tirx.Buffer) -> Any:
    """Return the SRAM of a buffer; None if it is in DRAM."""
    return SCOPES.get(buffer.scope())


def elements_of(buffer: tirx.Buffer) -> int:
    """Return the elements of SRAM that a buffer takes."""
    return prod(_elements(buffer))


def _elements(buffer: tirx.Buffer) -> list[int]:
    return [int(extent) for extent in buffer.shape][:-_ELEMENT]
