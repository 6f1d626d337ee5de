"""Find what of a quantised network can be computed on bytes.

A quantised network (ONNX calls the form QDQ) computes on numbers, and rounds them to bytes and back between the
operations. From each `quantize` this looks up to the `dequantize` of the bytes that its numbers come from; what lies
between is one layer on bytes. What is done to bytes that nobody else reads joins the layer that makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.cpu import _templates
from toolchain.backends.cpu._graph import effects
from toolchain.backends.cpu._graph import int8_constants as constants
from toolchain.backends.cpu._graph.int8_constants import Weights
from toolchain.backends.cpu._graph.values import Block, Operation, Value, four, pair
from toolchain.backends.cpu._layers import (
    Activation,
    QuantizedConv,
    QuantizedLayer,
    QuantizedMap,
    QuantizedPool,
    Step,
)
from toolchain.backends.cpu._machine import Machine
from toolchain.backends.cpu._templates.int8_emit import GROUP
from toolchain.backends.cpu._templates.int8_grids import Grid, byte_of, is_byte

_IMAGE, _ROWS = 4, 2  # dimensions of NCHW, and of one vector for each image


@dataclass(frozen=True, eq=False)
class Use:
    """A step of a layer.

    Attributes:
        step: The step, without the place of another tensor.
        grid: Grid of `quantize`, or of the other tensor's bytes.
        other: The other tensor, in bytes.
    """

    step: Step
    grid: Grid | None = None
    other: Value | None = None


@dataclass(frozen=True, eq=False)
class Region:
    """Operations that are one layer.

    Attributes:
        bare: The layer without its steps.
        data: What it reads: bytes, or bytes or numbers on plain layout.
        grid: Grid of the data; `NUMBERS` for numbers.
        out: What it makes.
        made: Grid of the result; None for numbers.
        weights: Weights of a convolution.
        bias: Its bias, one number for each output channel.
        done: Its steps.
        alone: Whether nobody else needs its data.
    """

    bare: QuantizedLayer
    data: Value
    grid: Grid
    out: Value
    made: Grid | None = None
    weights: Weights | None = None
    bias: NDArray[np.float64] | None = None
    done: tuple[Use, ...] = ()
    alone: bool = False

    @property
    def is_bytes_as_numbers(self) -> bool:
        """Whether it is nothing but the `dequantize` of bytes."""
        return isinstance(self.bare, QuantizedMap) and is_byte(self.bare.data) and not self.done and self.made is None

    @property
    def reads_plain(self) -> bool:
        """Whether its data is on plain layout."""
        return self.bare.data.lanes == 1

    @property
    def grids(self) -> list[Grid]:
        """Grids as `int8_grids.parameters` wants them."""
        return [grid for grid in (*(use.grid for use in self.done), self.made) if grid is not None]

    def layer(self, place: Callable[[Value], Activation]) -> QuantizedLayer:
        """Return the layer; `place` tells where bytes lie."""
        steps = tuple(replace(use.step, other=place(use.other)) if use.other else use.step for use in self.done)
        return replace(self.bare, steps=steps)

    def then(self, use: Use, out: Value) -> Region:
        """Return the region with one step more."""
        return replace(self, done=(*self.done, use), out=out)


@dataclass(frozen=True, eq=False)
class Tensor:
    """What regions make.

    Attributes:
        place: Where it lies.
        grid: Its grid; None for numbers.
        regions: What makes it, or one after the other what makes its parts.
    """

    place: Activation
    grid: Grid | None
    regions: tuple[Region, ...]


NUMBERS = Grid(1.0, 0)
"""Stands for the grid of a tensor of numbers."""


class Matcher:
    """Goes through a block once, in order."""

    def __init__(self, block: Block, machine: Machine, without: frozenset[str]) -> None:
        self._block, self._without = block, without
        self._lanes, self._byte = machine.lanes, byte_of(machine)
        self._tensors: dict[Value, Tensor] = {}
        self._bytes: dict[Value, Value] = {}  # by bytes of the model, those that are the same here
        self._alone: dict[Value, bool] = {}  # by bytes of the model, whether only one operation needs them

    def run(self) -> dict[Value, Tensor]:
        """Return what regions make: bytes, and the numbers of a `dequantize` on plain layout."""
        for operation in self._block.operations:
            if constants.is_quantize(operation):
                self._quantize(operation)
            elif constants.is_dequantize(operation):
                region = self._dequantized(operation.out)
                if region is not None:
                    plain = replace(region.bare.out, lanes=1)
                    region = replace(region, bare=replace(region.bare, out=plain))
                    if self._is_covered(region):
                        self._tensors[region.out] = Tensor(plain, None, (region,))
        return self._tensors

    def numbers(self, value: Value) -> Tensor | None:
        """Return numbers that a layer on bytes makes, on blocked layout, if they are not rounded to bytes."""
        maker = value.maker
        if maker is None or maker.name not in self._HANDLERS or not _is_image(value):
            return None
        region = self._HANDLERS[maker.name](self, maker)
        if region is None or isinstance(region.bare, QuantizedMap) or not self._is_covered(region):
            return None
        return Tensor(region.bare.out, None, (region,))

    def place(self, value: Value) -> Activation:
        """Return where bytes lie."""
        return self._tensors[value].place

    def _is_covered(self, region: Region) -> bool:
        return _templates.covered(region.layer(self.place), self._without)

    def _take(self, out: Value, tensor: Tensor) -> None:
        self._tensors[out] = tensor
        self._bytes[out], self._alone[out] = out, _is_alone(out)

    def _quantize(self, operation: Operation) -> None:
        grid, out = constants.grid_of(operation, self._byte), operation.out
        if grid is None or not _is_image(out):
            return
        source = operation.inputs[0]
        region = self._chain(source)
        if region is not None and region.is_bytes_as_numbers and region.grid == grid:
            self._bytes[out], self._alone[out] = region.data, region.alone and _is_alone(out)
        elif not self._concatenated(source, grid, out):
            lanes = GROUP if _image(source)[1] <= GROUP else self._lanes
            bare = QuantizedMap(self._numbers(source, 1), self._numbers(out, lanes))
            for one in (region, Region(bare, source, NUMBERS, source)):
                made = self._rounded(one, grid, out) if one is not None else None
                if made is not None:
                    self._take(out, Tensor(made.bare.out, grid, (made,)))
                    return

    def _rounded(self, region: Region, grid: Grid, out: Value, part: tuple[int, int] = (0, 0)) -> Region | None:
        """Return a region with its result rounded to bytes, together with what makes its data if that is possible.

        Args:
            region: The region.
            grid: Grid of the bytes.
            out: The bytes, or the tensor that they are a part of.
            part: First block and number of blocks of that tensor.
        """
        if isinstance(region.bare, QuantizedPool) and region.bare.reduce == "max" and region.grid != grid:
            return None
        joined = self._joined(region, grid)
        for one in (joined, region) if joined is not None else (region,):
            place = replace(one.bare.out, dtype=self._byte, first=part[0], held=part[1])
            made = replace(one, bare=replace(one.bare, out=place), made=grid, out=out)
            if self._is_covered(made):
                return made
        return None

    def _joined(self, region: Region, grid: Grid) -> Region | None:
        """Return a region on bytes as steps of the layer that makes those, if nobody else needs them.

        Args:
            region: The region.
            grid: Grid of its result.
        """
        before = self._tensors.get(region.data)
        if not isinstance(region.bare, QuantizedMap) or before is None or len(before.regions) > 1 or not region.alone:
            return None
        (layer,) = before.regions
        if region.is_bytes_as_numbers and before.grid == grid:
            return layer
        return replace(layer, done=(*layer.done, Use(Step("quantize"), before.grid), *region.done))

    def _concatenated(self, source: Value, grid: Grid, out: Value) -> bool:
        """Take the bytes of a concatenation, each of whose inputs is written where it belongs."""
        maker = source.maker
        if maker is None or maker.name != "concat" or not _is_alone(source) or not _has_rank(out, _IMAGE):
            return False
        place = replace(self._numbers(out, self._lanes), dtype=self._byte)
        made, first = [], 0
        for value in maker.inputs if int(maker.attributes.axis) % _IMAGE == 1 else ():
            region = self._chain(value) if first % self._lanes == 0 else None
            if region is None or region.bare.out.lanes != self._lanes:
                return False
            rounded = self._rounded(region, grid, out, (first // self._lanes, place.blocks))
            if rounded is None:
                return False
            made.append(rounded)
            first += region.bare.out.channels
        if made:
            self._take(out, Tensor(place, grid, tuple(made)))
        return bool(made)

    def _numbers(self, value: Value, lanes: int) -> Activation:
        return Activation(*_image(value), lanes)

    def _chain(self, value: Value) -> Region | None:
        """Return the region that makes some numbers of bytes, with the result on blocked layout."""
        maker = value.maker
        if maker is None or not _is_image(value):
            return None
        if constants.is_dequantize(maker):
            return self._dequantized(value)
        if not _is_alone(value):
            return None
        handle = self._HANDLERS.get(maker.name, Matcher._function)
        return handle(self, maker)

    def _dequantized(self, value: Value) -> Region | None:
        operation = value.maker
        if operation is None or not _is_image(value):
            return None
        bytes_ = self._bytes.get(operation.inputs[0]) or self._given(operation)
        if bytes_ is None:
            return None
        grid = self._tensors[bytes_].grid
        if grid is None or constants.grid_of(operation, self._byte) != grid:
            return None
        place = self.place(bytes_)
        alone = self._alone[operation.inputs[0]] and _is_alone(value)
        return Region(QuantizedMap(place, replace(place, dtype="float32")), bytes_, grid, value, alone=alone)

    def _given(self, operation: Operation) -> Value | None:
        """Bring bytes into blocks that do not come from a `quantize`: those of the network's input, for example."""
        value, grid = operation.inputs[0], constants.grid_of(operation, self._byte)
        made_here = value.maker is not None and constants.is_quantize(value.maker)
        if grid is None or made_here or value.constant is not None or value.variable is None:
            return None
        few = _image(value)[1] <= GROUP
        plain = replace(self._numbers(value, 1), dtype=value.dtype)
        blocked = replace(self._numbers(value, GROUP if few else self._lanes), dtype=self._byte)
        own = constants.grid_of(operation, value.dtype) or grid
        region = Region(QuantizedMap(plain, blocked), value, own, value, grid)
        if not self._is_covered(region):
            return None
        self._take(value, Tensor(blocked, grid, (region,)))
        return value

    def _source(self, value: Value) -> Region | None:
        """Return the region of numbers that are bytes but for their grid."""
        region = self._chain(value)
        return region if region is not None and region.is_bytes_as_numbers else None

    def _conv(self, operation: Operation) -> Region | None:
        data, weights = operation.inputs
        attributes, source = operation.attributes, self._source(data)
        layouts = (str(attributes.data_layout), str(attributes.kernel_layout), str(attributes.out_layout))
        if layouts != ("NCHW", "OIHW", "NCHW") or source is None:
            return None
        known = constants.weights(weights)
        if known is None:
            return None
        bare = QuantizedConv(
            self.place(source.data),
            self._numbers(operation.out, self._lanes),
            (known.numbers.shape[2], known.numbers.shape[3]),
            pair(attributes.strides),
            four(attributes.padding),
            pair(attributes.dilation),
            int(attributes.groups),
        )
        return Region(bare, source.data, source.grid, operation.out, weights=known)

    def _matmul(self, operation: Operation) -> Region | None:
        """The product with a matrix, as a convolution of images of one pixel."""
        data, weights = operation.inputs
        source = self._source(data) if _has_rank(data, _ROWS) and _has_rank(weights, _ROWS) else None
        known = constants.weights(weights) if source is not None else None
        if source is None or known is None:
            return None
        pixel = Weights(known.numbers.reshape(*known.numbers.shape, 1, 1), known.scales)
        bare = QuantizedConv(self.place(source.data), self._numbers(operation.out, self._lanes), (1, 1))
        return Region(bare, source.data, source.grid, operation.out, weights=pixel)

    def _pool(self, operation: Operation) -> Region | None:
        attributes, source = operation.attributes, self._source(operation.inputs[0])
        plain = str(attributes.layout) == "NCHW" and set(map(int, attributes.dilation)) == {1}
        if source is None or not plain:
            return None
        mean = operation.name == "nn.avg_pool2d"
        bare = QuantizedPool(
            self.place(source.data),
            self._numbers(operation.out, self.place(source.data).lanes),  # until they are rounded
            "mean" if mean else "max",
            pair(attributes.pool_size),
            pair(attributes.strides),
            four(attributes.padding),
            mean and bool(attributes.count_include_pad),
        )
        return Region(bare, source.data, source.grid, operation.out)

    def _mean(self, operation: Operation) -> Region | None:
        data, axes = operation.inputs[0], operation.attributes.axis
        if not _has_rank(data, _IMAGE) or axes is None or sorted(int(axis) % _IMAGE for axis in axes) != [2, 3]:
            return None
        source = self._source(data)
        if source is None:
            return None
        place = self.place(source.data)
        out = replace(place, height=1, width=1, dtype="float32")  # until it is rounded
        return Region(
            QuantizedPool(place, out, "mean", (place.height, place.width)), source.data, source.grid, operation.out
        )

    def _reshape(self, operation: Operation) -> Region | None:
        """Images of one pixel as vectors, or the other way round."""
        source = self._source(operation.inputs[0])
        if source is None or _image(operation.inputs[0]) != _image(operation.out):
            return None
        return replace(source, out=operation.out)

    def _add(self, operation: Operation) -> Region | None:
        for main, other in (operation.inputs, operation.inputs[::-1]):
            region = self._with_bias(operation, main, other)
            if region is not None:
                return region
        return self._sum(operation)

    def _with_bias(self, operation: Operation, main: Value, other: Value) -> Region | None:
        bias = constants.known(other)
        if bias is None or main.shape != operation.out.shape:
            return None
        region = self._chain(main)
        if region is None or region.weights is None or region.bias is not None or region.done:
            return None
        channels = region.bare.out.channels
        along = [1] * len(operation.out.shape or ())
        along[1] = channels
        missing = len(along) - bias.ndim
        fits = [1] * missing + list(bias.shape) == along
        return replace(region, bias=bias.reshape(-1), out=operation.out) if fits else None

    def _sum(self, operation: Operation) -> Region | None:
        """The sum of bytes and something else: of two that are bytes, the ones made last get the other added."""
        chains = [region for region in map(self._chain, operation.inputs) if region is not None]
        if operation.inputs[0].shape != operation.inputs[1].shape or len(chains) != len(operation.inputs):
            return None
        made = list(self._tensors)
        # What can have more done to it first: a layer, then bytes that nobody else needs, then the latest.
        chains.sort(key=lambda one: (not one.is_bytes_as_numbers, one.alone, made.index(one.data)))
        other, main = chains
        if not other.is_bytes_as_numbers:
            return None
        return main.then(Use(Step("add"), other.grid, other.data), operation.out)

    def _function(self, operation: Operation) -> Region | None:
        if len(operation.outputs) != 1 or not operation.inputs:
            return None
        made = effects.merged(effects.effects(operation, operation.inputs[0], 1) or [])
        if not made or not all(isinstance(one, effects.Function) for one in made):
            return None
        region = self._chain(operation.inputs[0])
        if region is None:
            return None
        for done in effects.steps(made, 1):
            region = region.then(Use(done.step), operation.out)
        return region

    _HANDLERS: ClassVar[dict[str, Callable[[Matcher, Operation], Region | None]]] = {
        "nn.conv2d": _conv,
        "matmul": _matmul,
        "nn.max_pool2d": _pool,
        "nn.avg_pool2d": _pool,
        "mean": _mean,
        "reshape": _reshape,
        "squeeze": _reshape,
        "add": _add,
    }


def _has_rank(value: Value, rank: int) -> bool:
    return value.shape is not None and len(value.shape) == rank


def _is_image(value: Value) -> bool:
    """Whether a tensor is NCHW, or has one vector for each image."""
    return _has_rank(value, _IMAGE) or _has_rank(value, _ROWS)


def _image(value: Value) -> tuple[int, int, int, int]:
    batch, channels, height, width = (*(value.shape or ()), 1, 1)[:_IMAGE]
    return batch, channels, height, width


def _is_alone(value: Value) -> bool:
    """Whether one operation alone needs a value."""
    return value.readers == 1 and not value.escapes
