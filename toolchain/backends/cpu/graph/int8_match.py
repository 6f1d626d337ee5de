"""Find what of a quantised network can be computed on bytes.

A quantised network (ONNX calls the form QDQ) computes on numbers, and rounds them to bytes and back between the
operations. From each `quantize` this looks up to the `dequantize` of the bytes that its numbers come from; what lies
between is one layer on bytes. What is done to bytes that nobody else reads joins the layer that makes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.graph import effects, operators
from toolchain.backends.cpu.graph.match import MOST_GROUPS
from toolchain.backends.cpu.kernels.int8.emit import GROUP
from toolchain.backends.cpu.kernels.int8.grids import byte_of
from toolchain.backends.cpu.layers import Activation, Conv, ImageLayer, Map, Pool, PostOp
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph import quantization as constants
from toolchain.backends.graph.quantization import Grid, Weights
from toolchain.backends.graph.values import Block, Operation, Value

_IMAGE, _MATRIX = 4, 2  # dimensions of NCHW, and of one vector for each image


@dataclass(frozen=True, eq=False)
class Use:
    """A post-op of a layer.

    Attributes:
        op: The post-op, without the place of another tensor.
        grid: Grid of `quantize`, or of the other tensor's bytes.
        other: The other tensor, in bytes.
        numbers: One number for each channel, for a post-op that takes them.
    """

    op: PostOp
    grid: Grid | None = None
    other: Value | None = None
    numbers: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Region:
    """Operations that are one layer.

    Attributes:
        bare: The layer without its epilogue.
        data: What it reads: bytes, or bytes or numbers on plain layout.
        grid: Grid of the data; `NUMBERS` for numbers.
        out: What it makes.
        made: Grid of the result; None for numbers.
        weights: Weights of a convolution.
        bias: Its bias, one number for each output channel.
        done: Its epilogue.
        alone: Whether nobody else needs its data.
    """

    bare: ImageLayer
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
        return isinstance(self.bare, Map) and self.bare.data.is_bytes and not self.done and self.made is None

    @property
    def is_copy(self) -> bool:
        """Whether it only brings bytes into blocks."""
        whole, bare = self.reads_plain and not self.done and self.grid == self.made, self.bare
        return whole and isinstance(bare, Map) and bare.data.dtype == bare.out.dtype

    @property
    def reads_plain(self) -> bool:
        """Whether its data is on plain layout."""
        return self.bare.data.lanes == 1

    @property
    def grids(self) -> list[Grid]:
        """Grids as `int8_grids.parameters` wants them."""
        return [grid for grid in (*(use.grid for use in self.done), self.made) if grid is not None]

    def layer(self, place: Callable[[Value], Activation]) -> ImageLayer:
        """Return the layer; `place` tells where bytes lie."""
        epilogue = tuple(replace(use.op, other=place(use.other)) if use.other else use.op for use in self.done)
        return replace(self.bare, epilogue=epilogue)

    def then(self, use: Use, out: Value) -> Region:
        """Return the region with one post-op more."""
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
        self._chains: dict[Value, Region | None] = {}  # what `_chain` found since bytes were taken last

    def run(self) -> dict[Value, Tensor]:
        """Return what regions make: bytes, and the numbers of a `dequantize` on plain layout."""
        for operation in self._block.operations:
            self._chains.clear()
            if constants.is_quantize(operation):
                self._quantize(operation)
            elif constants.is_dequantize(operation):
                region = self._dequantized(operation.out)
                if region is not None:
                    plain = replace(region.bare.out, lanes=1)
                    region = replace(region, bare=replace(region.bare, out=plain))
                    if self._is_covered(region) and not self._is_only_rounded(region.data):
                        self._tensors[region.out] = Tensor(plain, None, (region,))
            elif operation.inputs and operation.inputs[0] in self._bytes:
                self._on_bytes(operation)
        self._chains.clear()
        return self._tensors

    def _is_only_rounded(self, bytes_: Value) -> bool:
        """Whether bytes come from numbers on plain layout: to and from blocks is a detour for what else needs them."""
        (first, *_) = self._tensors[bytes_].regions
        return first.grid is NUMBERS and first.reads_plain

    def numbers(self, value: Value) -> Tensor | None:
        """Return numbers that a layer on bytes makes, on blocked layout, if they are not rounded to bytes."""
        maker = value.maker
        if maker is None or maker.name not in self._HANDLERS or not _is_image(value):
            return None
        region = self._HANDLERS[maker.name](self, maker)
        if region is None or isinstance(region.bare, Map) or not self._is_covered(region):
            return None
        return Tensor(region.bare.out, None, (region,))

    def place(self, value: Value) -> Activation:
        """Return where bytes lie."""
        return self._tensors[value].place

    def _is_covered(self, region: Region) -> bool:
        return kernels.covered(region.layer(self.place), self._without)

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
            bare = Map(self._numbers(source, 1), self._numbers(out, lanes))
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
        if isinstance(region.bare, Pool) and region.bare.reduce == "max" and region.grid != grid:
            return None
        joined = self._joined(region, grid)
        for one in (joined, region) if joined is not None else (region,):
            place = replace(one.bare.out, dtype=self._byte, first=part[0], held=part[1])
            made = replace(one, bare=replace(one.bare, out=place), made=grid, out=out)
            if self._is_covered(made):
                return made
        return None

    def _joined(self, region: Region, grid: Grid) -> Region | None:
        """Return a region on bytes as post-ops of the layer that makes those, if nobody else needs them.

        Args:
            region: The region.
            grid: Grid of its result.
        """
        before = self._tensors.get(region.data)
        if not isinstance(region.bare, Map) or before is None or len(before.regions) > 1 or not region.alone:
            return None
        (layer,) = before.regions
        if region.is_bytes_as_numbers and before.grid == grid:
            return layer
        return replace(layer, done=(*layer.done, Use(PostOp("quantize"), before.grid), *region.done))

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
        """Return the region that makes some numbers of bytes, with the result on blocked layout.

        Of each value once: several ask, and so does each value on the way, which would be twice as many at each step.
        """
        if value not in self._chains:
            self._chains[value] = self._chain_of(value)
        return self._chains[value]

    def _chain_of(self, value: Value) -> Region | None:
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
        return Region(Map(place, replace(place, dtype="float32")), bytes_, grid, value, alone=alone)

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
        region = Region(Map(plain, blocked), value, own, value, grid)
        if not self._is_covered(region):
            return None
        self._take(value, Tensor(blocked, grid, (region,)))
        return value

    def _on_bytes(self, operation: Operation) -> None:
        """Take what is done to bytes as they are, without a change of their grid: a maximum, vectors of pixels."""
        known, out = self._bytes.get(operation.inputs[0]), operation.out
        grid = None if known is None else self._tensors[known].grid
        if known is None or grid is None or not _is_image(out):
            return
        place = self.place(known)
        if operation.name in {"reshape", "squeeze"} and _image(operation.inputs[0]) == _image(out):
            self._bytes[out], self._alone[out] = known, self._alone[operation.inputs[0]] and _is_alone(out)
        elif operation.name == "nn.max_pool2d":
            bare = operators.pool(operation, place, replace(self._numbers(out, place.lanes), dtype=self._byte))
            region = None if bare is None else Region(bare, known, grid, out, grid)
            if region is not None and self._is_covered(region):
                self._take(out, Tensor(region.bare.out, grid, (region,)))

    def _source(self, value: Value) -> Region | None:
        """Return the region of numbers that are bytes but for their grid."""
        region = self._chain(value)
        return region if region is not None and region.is_bytes_as_numbers else None

    def _conv(self, operation: Operation) -> Region | None:
        data, weights = operation.inputs
        source, known = self._source(data), constants.weights(weights)
        if source is None or known is None:
            return None
        kernel = (known.numbers.shape[2], known.numbers.shape[3])
        bare = operators.conv(operation, self.place(source.data), self._numbers(operation.out, self._lanes), kernel)
        if bare is None:
            return None
        if not bare.is_depthwise and 1 < bare.groups <= MOST_GROUPS:
            known, bare = known.of_one_group(bare.groups), replace(bare, groups=1)
        bare = replace(bare, offset=known.has_offset and not bare.is_depthwise)
        return Region(bare, source.data, source.grid, operation.out, weights=known)

    def _matmul(self, operation: Operation) -> Region | None:
        """The product with a matrix, as a convolution of images of one pixel."""
        data, weights = operation.inputs
        source = self._source(data) if not _has_rank(data, _IMAGE) and _has_rank(weights, _MATRIX) else None
        known = constants.weights(weights) if source is not None else None
        if source is None or known is None:
            return None
        pixel = Weights(known.numbers.reshape(*known.numbers.shape, 1, 1), known.scales)
        out = self._numbers(operation.out, self._lanes)
        bare = Conv(self.place(source.data), out, (1, 1), offset=known.has_offset)
        return Region(bare, source.data, source.grid, operation.out, weights=pixel)

    def _pool(self, operation: Operation) -> Region | None:
        source = self._source(operation.inputs[0])
        if source is None:
            return None
        place = self.place(source.data)
        bare = operators.pool(operation, place, self._numbers(operation.out, place.lanes))  # until it is rounded
        return None if bare is None else Region(bare, source.data, source.grid, operation.out)

    def _mean(self, operation: Operation) -> Region | None:
        data = operation.inputs[0]
        source = self._source(data) if _has_rank(data, _IMAGE) and operators.is_over_pixels(operation) else None
        if source is None:
            return None
        place = self.place(source.data)
        out = replace(place, height=1, width=1, dtype="float32")  # until it is rounded
        return Region(Pool(place, out, "mean", (place.height, place.width)), source.data, source.grid, operation.out)

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
        return self._affine(operation) or self._joint(operation, "add")

    def _with_bias(self, operation: Operation, main: Value, other: Value) -> Region | None:
        bias = constants.known(other)
        if bias is None or main.shape != operation.out.shape:
            return None
        region = self._chain(main)
        if region is None or region.weights is None or region.bias is not None or region.done:
            return None
        numbers = _per_channel(bias, main)
        return None if numbers is None else replace(region, bias=numbers, out=operation.out)

    def _affine(self, operation: Operation) -> Region | None:
        """The sum or product with one number for each channel."""
        kind: Literal["scale", "shift"] = "scale" if operation.name == "multiply" else "shift"
        for main, other in (operation.inputs, operation.inputs[::-1]):
            known = constants.known(other)
            numbers = _per_channel(known, main) if known is not None and main.shape == operation.out.shape else None
            region = self._chain(main) if numbers is not None else None
            if region is not None:
                return region.then(Use(PostOp(kind), numbers=numbers), operation.out)
        return None

    def _multiply(self, operation: Operation) -> Region | None:
        return self._affine(operation) or self._joint(operation, "mul")

    def _joint(self, operation: Operation, kind: Literal["add", "mul"]) -> Region | None:
        """The sum or product of bytes and something else: of two that are bytes, the ones made last get the other.

        One pixel of bytes may go with all.
        """
        chains = [region for region in map(self._chain, operation.inputs) if region is not None]
        if len(chains) != len(operation.inputs):
            return None
        made, shape = list(self._tensors), operation.out.shape
        # What has all pixels and can have more done to it first: a layer, then bytes that nobody else needs, then the
        # latest.
        chains.sort(
            key=lambda one: (one.out.shape == shape, not one.is_bytes_as_numbers, one.alone, made.index(one.data))
        )
        other, main = chains
        if not other.is_bytes_as_numbers or main.out.shape != shape:
            return None
        pixel = (*_image(operation.out)[:2], 1, 1)
        if other.out.shape not in {shape, pixel} or self.place(other.data).lanes != main.bare.out.lanes:
            return None
        return main.then(Use(PostOp(kind), other.grid, other.data), operation.out)

    def _function(self, operation: Operation) -> Region | None:
        if len(operation.outputs) != 1 or not operation.inputs:
            return None
        made = effects.merged(effects.effects(operation, operation.inputs[0], 1) or [])
        if not made or not all(isinstance(one, effects.Function) for one in made):
            return None
        region = self._chain(operation.inputs[0])
        if region is None:
            return None
        for done in effects.epilogue(made, 1):
            region = region.then(Use(done.op), operation.out)
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
        "multiply": _multiply,
    }


def _has_rank(value: Value, rank: int) -> bool:
    return value.shape is not None and len(value.shape) == rank


def _is_image(value: Value) -> bool:
    """Whether a tensor is NCHW, or has vectors, each of which is an image of one pixel."""
    return any(_has_rank(value, rank) for rank in (_MATRIX, _MATRIX + 1, _IMAGE))


def _image(value: Value) -> tuple[int, int, int, int]:
    if _has_rank(value, _IMAGE):
        return value.image
    *rows, features = value.shape or ()
    return math.prod(rows), features, 1, 1


def _per_channel(numbers: NDArray[np.float64], value: Value) -> NDArray[np.float64] | None:
    """Return constants as one number for each channel of an image; None if they differ along other axes."""
    channels, rank = _image(value)[1], len(value.shape or ())
    shape = [1] * rank
    if numbers.size == 1:
        return np.broadcast_to(numbers.reshape(-1), (channels,))
    shape[1 if rank == _IMAGE else rank - 1] = channels
    missing = rank - numbers.ndim
    return numbers.reshape(-1) if [1] * missing + list(numbers.shape) == shape else None


def _is_alone(value: Value) -> bool:
    """Whether one operation alone needs a value."""
    return value.readers == 1 and not value.escapes
