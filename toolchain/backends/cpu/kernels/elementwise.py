"""Post-ops on a tensor element by element, and changes of its layout: into blocks, out of blocks, channels shuffled.

Layouts change in registers: a square of one vector of pixels for each channel of a block is transposed by swapping
its halves, then the halves of those, and so on (Eklundh, "A fast computer method for matrix transposing", 1972).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.layers import BFLOAT16, FLOAT16, Activation, Layer, Map
from toolchain.backends.cpu.machine import Machine

NAME = "map"

_MOST_PARTS = 64  # of a group's tiles
_LEAST_PART = 16  # tiles: shorter loops are mostly beginnings and ends
_MOST_CODE = 128  # vectors of a tile

Expr = Any


@dataclass(frozen=True)
class Config:
    """How the work is cut.

    Attributes:
        pixels: Pixels of a tile.
    """

    pixels: int


@dataclass(frozen=True)
class _Share:
    """The tiles of one group that one iteration of the shared loop works on.

    Attributes:
        group: Which group: an image, or a block of an image.
        begin: First tile.
        end: The one behind the last.
        is_last: Whether the pixels behind the last tile belong to it too; None if nobody else could do them.
    """

    group: Expr
    begin: Expr
    end: Expr
    is_last: Expr


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Map):
        return False
    data, out = layer.data, layer.out
    blocked = {activation.lanes for activation in (data, out) if activation.lanes > 1}
    others = [op.other for op in layer.epilogue if op.other is not None]
    return (
        len(blocked) == 1
        and (data.lanes == out.lanes or not layer.shuffle)
        and all(activation.dtype in {"float32", BFLOAT16, FLOAT16} for activation in (data, out, *others))
        and all(activation.lanes in blocked for activation in others)
        and (data.batch, data.channels, data.height, data.width) == (out.batch, out.channels, out.height, out.width)
    )


def configs(layer: Map, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    layer = _flatten(layer)
    inner = _inner(layer)
    pixels = inner.width
    cost = _operations(layer) / emit.worker_count(_operations(layer), machine.cores)
    if layer.data.lanes != layer.out.lanes:
        return [(Config(inner.lanes), cost * 2)]
    # A shuffle has all blocks in one tile: that much code takes long to compile.
    limit = max(1, _MOST_CODE // inner.blocks) if layer.shuffle else _MOST_CODE
    sizes = [size for size in (8, 4, 2, 1) if size <= min(pixels, limit)]
    return [(Config(size), cost * (1 + 1 / size) + pixels % size) for size in sizes]


def kernel(layer: Map, machine: Machine, config: Config) -> tirx.PrimFunc:
    arguments = [
        Argument("data", layer.data.shape, layer.data.stored_dtype),
        *emit.arguments_of(layer.epilogue, _inner(layer)),
        Argument("out", layer.out.shape, layer.out.stored_dtype),
    ]

    def body(*buffers: Any) -> None:
        kind = (
            _ShuffleWriter
            if layer.shuffle
            else _SameLayoutWriter
            if layer.data.lanes == layer.out.lanes
            else _TransposeWriter
        )
        kind(_flatten(layer), machine, config, buffers).write()

    return emit.kernel(arguments, body, {})


def _flatten(layer: Map) -> Map:
    """Return a layer with its pixels in one row; a single pixel that goes with all stays one."""

    def row(activation: Activation) -> Activation:
        return replace(activation, height=1, width=activation.height * activation.width)

    epilogue = tuple(replace(op, other=row(op.other) if op.other else None) for op in layer.epilogue)
    return replace(layer, data=row(layer.data), out=row(layer.out), epilogue=epilogue)


def _inner(layer: Map) -> Activation:
    """Return the side of a layer that is in blocks: the epilogue is done there."""
    return layer.out if layer.out.lanes > 1 else layer.data


def _operations(layer: Map) -> int:
    """Return about how many vector operations a layer takes: a load, a store, and two for each post-op."""
    inner = _inner(layer)
    return inner.batch * inner.blocks * inner.height * inner.width * (3 + 2 * len(layer.epilogue))


def _computed_in(activation: Activation) -> str:
    """Return the type that numbers of a tensor have in registers."""
    return "float32" if activation.dtype == BFLOAT16 else activation.dtype


class _MapWriter(ABC):
    """What all kinds of kernels share: the loops around them, and the epilogue."""

    def __init__(self, layer: Map, machine: Machine, config: Config, buffers: Sequence[Any]) -> None:
        self._layer, self._machine, self._size = layer, machine, config.pixels
        self._data, *self._others, self._out = buffers
        self._inner, self._pixels = _inner(layer), layer.out.width
        self._lanes, self._blocks = self._inner.lanes, self._inner.blocks

    @abstractmethod
    def write(self) -> None:
        """Write the statements of the kernel."""

    def _shares(self, groups: int, tiles: int) -> Iterator[_Share]:
        """Open the loop that the cores share, and yield what one iteration of it works on."""
        limit = max(1, min(_MOST_PARTS, tiles // _LEAST_PART))
        operations = _operations(self._layer)
        shares = emit.count_shares(groups, limit, emit.worker_count(operations, self._machine.cores))
        tiles_per_share = -(-tiles // shares)
        with emit.shared(groups * shares, operations) as work:
            if shares == 1:
                yield _Share(work, 0, tiles, None)
            else:
                number = T.Bind(work % shares)
                end = T.Bind(tirx.min((number + 1) * tiles_per_share, tiles))
                yield _Share(
                    T.Bind(work // shares), T.Bind(tirx.min(number * tiles_per_share, tiles)), end, number == shares - 1
                )

    def _every(self, share: _Share, pixel: Callable[[Expr], None]) -> None:
        rest = self._pixels % self._size
        with T.serial(share.begin, share.end) as tile:
            for number in range(self._size):
                pixel(tile * self._size + number)
        if rest:
            with contextlib.ExitStack() as stack:
                if share.is_last is not None:
                    stack.enter_context(T.If(share.is_last))
                    stack.enter_context(T.Then())
                for number in range(rest):
                    pixel(self._pixels - rest + number)

    def _apply_epilogue(self, value: Expr, image: Expr, block: Expr, pixel: Expr) -> Expr:
        return emit.apply_epilogue(value, self._layer.epilogue, self._others, (image, block, 0, pixel), self._lanes)

    def _store(self, value: Expr, image: Expr, block: Expr, pixel: Expr) -> None:
        """Store one vector with the epilogue done to it."""
        value = self._apply_epilogue(value, image, block, pixel)
        emit.store(value, self._out, self._layer.out, (image, block, 0, pixel))

    def _finish(self, value: Expr, image: Expr, block: Expr, pixel: Expr) -> Expr:
        """Return one vector with the epilogue done to it, in the type of the result."""
        value = self._apply_epilogue(value, image, block, pixel)
        return emit.in_type(value, self._layer.out.dtype, self._lanes)

    def _load(self, image: Expr, block: Expr, pixel: Expr) -> Expr:
        offset = emit.offset(self._layer.data, image, block, 0, pixel)
        return T.Bind(emit.load(self._data, self._layer.data, offset))


class _SameLayoutWriter(_MapWriter):
    def write(self) -> None:
        for share in self._shares(self._inner.batch * self._blocks, self._pixels // self._size):
            image, block = T.Bind(share.group // self._blocks), T.Bind(share.group % self._blocks)

            def pixel(number: Expr, image: Expr = image, block: Expr = block) -> None:
                self._store(self._load(image, block, number), image, block, number)

            self._every(share, pixel)


class _ShuffleWriter(_MapWriter):
    """Shuffles channels: each vector is put together from those that hold its channels."""

    def write(self) -> None:
        for share in self._shares(self._inner.batch, self._pixels // self._size):

            def pixel(number: Expr, image: Expr = share.group) -> None:
                vectors = [self._load(image, block, number) for block in range(self._blocks)]
                for block in range(self._blocks):
                    self._store(self._collect(vectors, block), image, block, number)

            self._every(share, pixel)

    def _collect(self, vectors: Sequence[Expr], block: int) -> Expr:
        """Return the channels of one block; those that fill it up are zero."""
        lanes, channels, groups = self._lanes, self._inner.channels, self._layer.shuffle
        outputs = range(block * lanes, min((block + 1) * lanes, channels))
        sources = [channel % groups * (channels // groups) + channel // groups for channel in outputs]
        value = emit.splat(0.0, lanes, _computed_in(self._layer.data))
        # One shuffle for each vector that some of the channels come from.
        for source in sorted({channel // lanes for channel in sources}):
            lane_order = list(range(lanes))
            for lane, channel in enumerate(sources):
                if channel // lanes == source:
                    lane_order[lane] = lanes + channel % lanes
            value = T.Bind(tirx.Shuffle([value, vectors[source]], lane_order))
        return value


class _TransposeWriter(_MapWriter):
    """Brings plain NCHW into blocks, or blocks into plain NCHW."""

    def write(self) -> None:
        # Fewer pixels than lanes are no square: they are moved one by one.
        small = self._pixels < self._lanes
        tiles = self._pixels if small else -(-self._pixels // self._lanes)
        for share in self._shares(self._inner.batch * self._blocks, tiles):
            image, block = T.Bind(share.group // self._blocks), T.Bind(share.group % self._blocks)
            for channels in self._kinds(block):
                with T.serial(share.begin, share.end) as tile:
                    if small:
                        self._pixel(image, block, tile, channels)
                    else:
                        # The last tile is moved back to end with the image: some pixels are done twice.
                        first = T.Bind(tirx.min(tile * self._lanes, self._pixels - self._lanes))
                        self._square(image, block, first, channels)

    def _kinds(self, block: Expr) -> Iterator[int]:
        """Yield, in the branch for each, how many channels a block can have."""
        rest = self._inner.channels % self._lanes
        if not rest or self._blocks == 1:
            yield rest or self._lanes
            return
        with T.If(block < self._blocks - 1):
            with T.Then():
                yield self._lanes
            with T.Else():
                yield rest

    def _plain(self, image: Expr, block: Expr, channel: int, pixel: Expr) -> Expr:
        """Return where one channel of a block lies in the plain tensor."""
        layer = self._layer
        activation = layer.data if layer.data.lanes == 1 else layer.out
        return emit.offset(activation, image, block * self._lanes + channel, 0, pixel)

    def _square(self, image: Expr, block: Expr, first: Expr, channels: int) -> None:
        """Write one vector of pixels for each channel of a block."""
        lanes = self._lanes
        if self._layer.out.lanes > 1:
            dtype = _computed_in(self._layer.out)
            numbers = [self._data[emit.ramp(self._plain(image, block, row, first), lanes)] for row in range(channels)]
            rows = [T.Bind(emit.in_type(vector, dtype, lanes)) for vector in numbers]
            filler = [emit.splat(0.0, lanes, dtype)] * (lanes - channels)
            for number, value in enumerate(emit.transpose([*rows, *filler])):
                self._store(value, image, block, first + number)
            return
        pixels = [
            self._apply_epilogue(self._load(image, block, first + number), image, block, first + number)
            for number in range(lanes)
        ]
        for channel, row in enumerate(emit.transpose(pixels)[:channels]):
            numbers = emit.in_type(row, self._layer.out.dtype, lanes)
            T.buffer_store(self._out, numbers, [emit.ramp(self._plain(image, block, channel, first), lanes)])

    def _pixel(self, image: Expr, block: Expr, pixel: Expr, channels: int) -> None:
        """Write one pixel of a block, channel by channel; all at once where they lie together."""
        lanes, is_gather = self._lanes, self._layer.out.lanes > 1
        together = emit.ramp(self._plain(image, block, 0, pixel), lanes)
        if self._pixels == 1 and channels == lanes:
            if is_gather:
                self._store(T.Bind(self._data[together]), image, block, pixel)
            else:
                value = self._finish(self._load(image, block, pixel), image, block, pixel)
                T.buffer_store(self._out, value, [together])
            return
        stored = emit.on_stack(lanes, 1)
        if is_gather:
            T.buffer_store(stored, emit.splat(0.0, lanes), [emit.ramp(0, lanes)])
            for channel in range(channels):
                T.buffer_store(stored, self._data[self._plain(image, block, channel, pixel)], [channel])
            self._store(T.Bind(stored[emit.ramp(0, lanes)]), image, block, pixel)
            return
        value = self._finish(self._load(image, block, pixel), image, block, pixel)
        T.buffer_store(stored, value, [emit.ramp(0, lanes)])
        for channel in range(channels):
            T.buffer_store(self._out, stored[channel], [self._plain(image, block, channel, pixel)])
