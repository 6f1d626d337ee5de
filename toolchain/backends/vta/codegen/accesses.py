"""What the blocks of a kernel touch: their indices as numbers that are linear in the loops around."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import sym, tirx

from toolchain.backends.vta.codegen.nests import Loop
from toolchain.backends.vta.codegen.schedules import SCOPES
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


@dataclass(frozen=True)
class Accesses:
    """Reads the indices of a nest.

    Attributes:
        around: The loops that are run while recording.
        all: These, and behind them those of the nest.
    """

    around: Around
    all: Around

    def loops(self, dst: tirx.BufferStore, src: Any = None, wgt: Any = None) -> tuple[Loop, ...]:
        """Return the nest's loops over elements, with their steps in each SRAM."""
        columns = [self._sram(dst.buffer, dst.indices)]
        columns += [
            self._sram(one.source, one.indices) if one is not None else [0] * len(self._inner) for one in (src, wgt)
        ]
        loops = [Loop(extent, *steps) for extent, *steps in zip(self._inner, *columns, strict=True)]
        return tuple(loop for loop in loops if (loop.dst, loop.src, loop.wgt) != (0, 0, 0))

    def transfer(
        self, tile: tirx.Buffer, places: Sequence[Any], tensor: tirx.Buffer, indices: Sequence[Any]
    ) -> Transfer:
        """Return the way between a tile and its tensor in DRAM."""
        shape = _elements(tensor)
        strides = [prod(shape[index + 1 :]) for index in range(len(shape))]
        sram = self._sram(tile, places)
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
        moving = [index for index, step in enumerate(steps) if step and self._inner[index] > 1]
        if len(moving) > 1:
            raise BuildError("two loops of a transfer run along one axis")
        extent, step, place = next(((self._inner[index], steps[index], sram[index]) for index in moving), (1, 1, 0))
        least, most = start.bounds(self.around.extents)
        outside = least < 0 or most + (extent - 1) * step >= size
        return Axis(extent, place, step * stride, Clip(start, step, size) if outside else None)

    def _sram(self, buffer: tirx.Buffer, indices: Sequence[Any]) -> list[int]:
        """Return the elements from one pass of each loop of the nest to the next."""
        shape = _elements(buffer)
        found = [0] * len(self._inner)
        for position, index in enumerate(list(indices)[:-_ELEMENT]):
            start, steps = self._affine(index)
            if start.constant or any(start.steps):
                raise BuildError("a tile's place in SRAM depends on the loops around it", details=str(index))
            stride = prod(shape[position + 1 :])
            found = [one + step * stride for one, step in zip(found, steps, strict=True)]
        return found

    def _affine(self, index: Any) -> tuple[Affine, tuple[int, ...]]:
        """Return an index as a number in the loops around, and the steps that those of the nest add to it."""
        found = sym.detect_linear_equation(index, list(self.all.variables))
        if len(found) != len(self.all.variables) + 1:
            raise BuildError("an index is not linear in its loops", details=str(index))
        *steps, constant = (int(one) for one in found)
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
