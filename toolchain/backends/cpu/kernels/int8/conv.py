"""Convolution of bytes through the processor's dot products, fused with what follows it.

A tile of R rows times C columns times B blocks of the result is summed in registers: four channels of a pixel are one
32-bit number that all lanes get, and each weight vector (four channels in, a block of channels out) is loaded once for
all pixels of the tile. Where there is padding, the image is copied into a larger one first: at a quarter of float32's
bytes that costs less than keeping the edges apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.kernels.int8 import emit as int8
from toolchain.backends.cpu.kernels.int8 import matrices, pairs, windows
from toolchain.backends.cpu.kernels.int8.emit import GROUP
from toolchain.backends.cpu.layers import Activation, Conv, Layer
from toolchain.backends.cpu.machine import Machine

NAME = "int8"

_MOST = 2**31 - 1  # that a sum may be
_COPIED = 64  # bytes that are copied at a time
_WIDEST = 28  # columns of a tile
_TALLEST = 4  # rows of a tile
_QUAD = 4  # pixels
_UNROLLED = 2  # blocks of channels that a pointwise convolution adds in one step of its loop

# Costs in the unit of `kernels.Candidate`.
_LOAD = 0.1  # a load that products hide
_FINISH, _POST_OP = 6, 4  # a vector of the result, and each post-op that is done to it
_TILE = 20
_STREAM = 5  # a weight vector that is not in the first cache
_LATENCY = 10  # sums that must be under way to keep two dot products a cycle going


@dataclass(frozen=True)
class Config:
    """How the work is cut.

    Attributes:
        rows: Output rows of a tile; for a pointwise convolution, rows that are seen as one long one.
        columns: Output columns of a tile.
        blocks: Output blocks of a tile.
    """

    rows: int
    columns: int
    blocks: int


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Conv) or layer.groups != 1 or not layer.data.is_bytes:
        return False
    # A sum that overflows int32 would be wrong without a sign of it.
    largest_sum = 255 * (255 if layer.offset else 128) * math.prod(layer.weights_shape[1:])
    return layer.data.lanes % GROUP == 0 and largest_sum <= _MOST


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their cost as `kernels.Candidate` defines it; none without dot products."""
    candidates = []
    tallest = layer.out.height if _is_pointwise(layer) else min(_TALLEST, layer.out.height)
    shapes = itertools.product(range(1, tallest + 1), range(1, _WIDEST + 1), (1, 2, 3, 4, 6, 8))
    for rows, columns, blocks in shapes if machine.dot else ():
        config = Config(rows, columns, blocks)
        flat, rows_of_tile = _flatten(layer, config)
        is_even = layer.out.blocks % blocks == 0 and not (_is_pointwise(layer) and layer.out.height % rows)
        if matrices.fits(layer, machine):
            registers = matrices.registers(rows_of_tile, columns, blocks)
        else:
            operands = blocks + (pairs.registers(machine) if machine.adds_pairs else 1)
            registers = rows_of_tile * columns * blocks + operands
        if is_even and columns <= flat.out.width and registers <= machine.registers:
            candidates.append((config, _estimate(layer, config, machine)))
    return sorted(candidates, key=lambda candidate: candidate[1])


def _estimate(layer: Conv, config: Config, machine: Machine) -> float:
    quads, apart = _reads_quads(layer, machine), layer.strides[1] > 1 or is_matrix(layer)
    by_matrices, tiles_of_images = matrices.fits(layer, machine), is_matrix(layer)
    layer, rows = _flatten(layer, config)
    steps = layer.kernel[0] * layer.kernel[1] * layer.data.blocks * layer.data.lanes // GROUP
    streamed = steps * config.blocks * machine.lanes * GROUP > machine.l1_bytes
    finish = _FINISH + _POST_OP * len(layer.epilogue)
    strip = 0.0
    for _, count, columns in _cuts(layer.out.width, config.columns):
        pixels, single_loads = rows * columns, rows * columns
        if quads:
            single_loads = rows * (columns % _QUAD)
        products, loads = pixels * config.blocks, single_loads + (pixels - single_loads) // _QUAD + config.blocks
        stream = _STREAM * config.blocks if streamed else 0
        if machine.adds_pairs:
            pieces = columns if apart else sum(1 for _ in int8.pieces(columns, _QUAD))
            each = max(pairs.cost(machine, pixels, rows * pieces, config.blocks, unpaired=layer.unpaired), stream)
        elif by_matrices:
            couples = matrices.couples(rows, columns)
            moves = (couples + columns % _QUAD) if quads else couples * (3 if tiles_of_images else 5)
            each = (max(2 * couples * config.blocks, _LATENCY) + moves + _LOAD * 2 * config.blocks) / matrices.TOGETHER
            each = max(each, stream)
        else:
            each = max(products, loads, _LATENCY, stream) + _LOAD * loads
        strip += count * (each * steps + products * finish + _TILE)
    strips = layer.out.batch * (layer.out.blocks // config.blocks) * layer.out.height / rows
    return -(-strips // machine.cores) * strip


def _is_pointwise(layer: Conv) -> bool:
    return (layer.kernel, layer.strides, layer.padding) == ((1, 1), (1, 1), (0, 0, 0, 0))


def is_matrix(layer: Conv) -> bool:
    """Whether a layer is a product of matrices: each image has one pixel."""
    return _is_pointwise(layer) and layer.data.height == layer.data.width == 1 < layer.data.batch


def _flatten(layer: Conv, config: Config) -> tuple[Conv, int]:
    """Return a layer as its kernel sees it, and the rows of a tile.

    Some rows of a pointwise convolution are one long row: that has fewer edges. So are images of one pixel, which is
    what the rows of a matrix are: a tile loads each weight vector once for several of them.
    """
    if not _is_pointwise(layer):
        return layer, config.rows

    def long(activation: Activation) -> Activation:
        if is_matrix(layer):
            return replace(activation, batch=1, width=activation.batch)
        if activation.height == activation.width == 1:  # it goes with all pixels
            return activation
        return replace(activation, height=activation.height // config.rows, width=activation.width * config.rows)

    epilogue = tuple(replace(op, other=long(op.other) if op.other else None) for op in layer.epilogue)
    return replace(layer, data=long(layer.data), out=long(layer.out), epilogue=epilogue), 1


def _cuts(extent: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the start, number and size of the equal pieces, then of what is left."""
    full, rest = divmod(extent, size)
    if full:
        yield 0, full, size
    if rest:
        yield full * size, 1, rest


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:
    """Return weights [out, in, height, width] as the kernel reads them.

    Returns:
        int8 [groups of blocks, blocks in, height, width, fours of lanes in, blocks of a tile, lanes * 4].
    """
    lanes, data = machine.lanes, layer.data
    outputs, inputs, height, width = weights.shape
    padded = np.zeros((layer.out.blocks * lanes, data.blocks * data.lanes, height, width), np.int8)
    padded[:outputs, :inputs] = weights
    if matrices.fits(layer, machine):
        by_couples = matrices.packed(padded, config.blocks)
        return np.ascontiguousarray(by_couples).reshape(_packed_shape(layer, machine, config))
    halves = 2 if machine.adds_pairs else 1  # the first two channels of all lanes, then the other two
    split = padded.reshape(
        *(-1, config.blocks, lanes, data.blocks, data.lanes // GROUP, halves, GROUP // halves, height, width)
    )
    packed = split.transpose(0, 3, 7, 8, 4, 1, 5, 2, 6)
    return np.ascontiguousarray(packed).reshape(_packed_shape(layer, machine, config))


def _packed_shape(layer: Conv, machine: Machine, config: Config) -> tuple[int, ...]:
    fours = layer.data.lanes // GROUP
    groups = layer.out.blocks // config.blocks
    return (groups, layer.data.blocks, *layer.kernel, fours, config.blocks, machine.lanes * GROUP)


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:

    def body(*buffers: Any) -> None:
        _ByteConvWriter(layer, machine, config, buffers).write()

    weights = Argument("weights", _packed_shape(layer, machine, config), "int8")
    return pairs.with_definitions(emit.kernel(int8.arguments(layer, weights), body, {}), machine)


class _ByteConvWriter:
    def __init__(self, layer: Conv, machine: Machine, config: Config, buffers: Sequence[Any]) -> None:
        self._layer, self._rows = _flatten(layer, config)
        self._machine, self._config, self._reads_quads = machine, config, _reads_quads(layer, machine)
        self._by_matrices = matrices.fits(layer, machine)
        self._data, self._weights, self._sums, self._scales, *rest, out = buffers
        self._offsets = rest.pop(0) if layer.offset else None
        self._windows: Any = None  # sums of the bytes of each window, if they are needed
        self._parameters, *others = rest
        self._images = layer if is_matrix(layer) else None  # those of one pixel that a long row is made of
        self._finish = int8.ByteEpilogue(self._images or self._layer, machine, self._parameters, others, out)

    def write(self) -> None:
        if any(self._layer.padding):
            self._pad()
        if self._offsets is not None:
            self._windows = windows.window_sums(self._images or self._layer, self._machine, self._data)
        layer, config = self._layer, self._config
        groups, strips = layer.out.blocks // config.blocks, -(-layer.out.height // self._rows)
        products = layer.flops / 2 / (GROUP * self._machine.lanes)
        with emit.shared(layer.out.batch * groups * strips, products) as work:
            image = T.Bind(work // (groups * strips))
            # A core goes through all weights for few rows, or through all rows for few weights: the larger stay close.
            if layer.data.height * layer.data.width > layer.kernel[0] * layer.kernel[1] * layer.out.channels:
                group, strip = T.Bind(work % groups), T.Bind(work // groups % strips)
            else:
                group, strip = T.Bind(work // strips % groups), T.Bind(work % strips)
            row = T.Bind(strip * self._rows)
            (_, strips_of_full_height, rows), *rest = _cuts(layer.out.height, self._rows)
            if not rest:
                self._row(rows, image, group, row)
                return
            with T.If(strip < strips_of_full_height):
                with T.Then():
                    self._row(rows, image, group, row)
                with T.Else():
                    self._row(rest[0][2], image, group, row)

    def _row(self, rows: int, image: Any, group: Any, row: Any) -> None:
        for start, count, columns in _cuts(self._layer.out.width, self._config.columns):
            with T.serial(0, count) as number:
                self._tile(rows, columns, (image, group, row, T.Bind(start + number * columns)))

    def _tile(self, rows: int, columns: int, coordinates: emit.Coordinates) -> None:
        lanes, blocks, count = self._machine.lanes, self._config.blocks, rows * columns
        image, group, row, column = coordinates
        # Bias, zero of the data and offset of the weights are in the start of the sums: see `grids.sums`.
        sums = emit.Registers(blocks * count, lanes, "int32")
        if self._by_matrices:
            self._multiply(sums, (rows, columns), coordinates)
        for block in range(blocks):
            channels = emit.ramp((group * blocks + block) * lanes, lanes)
            start = T.Bind(self._sums[channels])
            for number, more in enumerate(self._offset(channels, (rows, columns), coordinates)):
                begin = start if more is None else start + more
                index = block * count + number
                sums[index] = begin + sums[index] if self._by_matrices else begin
        if not self._by_matrices:
            self._reduce(sums, (rows, columns), coordinates)
        # The fraction of the biases that the integer sums cannot hold.
        above = T.Bind(emit.splat(self._parameters[1], lanes))
        for block in range(blocks):
            scale = T.Bind(self._scales[emit.ramp((group * blocks + block) * lanes, lanes)])
            floats = [tirx.Cast(f"float32x{lanes}", sums[block * count + number]) for number in range(count)]
            values = [(number_vector + above) * scale for number_vector in floats]
            for below in range(rows):
                line = values[below * columns : (below + 1) * columns]
                self._store(line, (image, group * blocks + block, row + below, column))

    def _offset(self, channels: Any, size: tuple[int, int], coordinates: emit.Coordinates) -> Iterator[Any]:
        """Yield what the offset of the weights adds to each sum of a tile, if they have one."""
        (rows, columns), (image, _, row, column), out = size, coordinates, self._layer.out
        offset = None if self._offsets is None else T.Bind(self._offsets[channels])
        for below, right in itertools.product(range(rows), range(columns)):
            index = ((image * out.height) + row + below) * out.width + column + right
            yield None if offset is None else offset * emit.splat(tirx.Cast("int32", self._windows[index]), out.lanes)

    def _store(self, line: Sequence[Any], coordinates: emit.Coordinates) -> None:
        """Write neighbouring columns of the result."""
        if self._images is None:
            self._finish.store_line(line, coordinates)
            return
        _, block, _, column = coordinates
        for number, value in enumerate(line):
            self._finish.store(value, (column + number, block, 0, 0), self._machine.lanes)

    def _multiply(self, sums: emit.Registers, size: tuple[int, int], coordinates: emit.Coordinates) -> None:
        """Write the products of all channels and taps, by matrices, to the sums of a tile."""
        blocks, (height, width) = self._config.blocks, self._layer.kernel
        count, lanes = 2 * blocks * matrices.couples(*size), self._machine.lanes
        totals = emit.Registers(count, lanes, "int32")
        for number in range(count):
            totals[number] = emit.splat(0, lanes, "int32")
        steps = self._layer.data.blocks // matrices.TOGETHER
        with T.serial(0, steps) as step, T.serial(0, height) as tap, T.serial(0, width) as side:
            pixel, line = self._place(coordinates, (step, tap, side), matrices.TOGETHER)
            first, wide = T.Bind(line * (lanes * GROUP)), lanes * GROUP
            couples = list(self._couples(size, pixel))

            def weight_of(half: int, first: Any = first, wide: int = wide) -> Any:
                return T.Bind(self._weights[emit.ramp(first + half * wide, wide)])

            matrices.add(totals, couples, 2 * blocks, weight_of)
        for block in range(blocks):
            for number, total in enumerate(matrices.sums_of(totals, block, size)):
                sums[block * size[0] * size[1] + number] = total

    def _couples(self, size: tuple[int, int], pixel: Any) -> Iterator[Any]:
        """Yield eight channels of each two pixels of a tile."""
        data, (down, across) = (self._images or self._layer).data, self._layer.strides
        apart = across if self._images is None else data.held or data.blocks

        def load(block: int, below: int, right: int, count: int) -> Any:
            offset = pixel + block * matrices.distance(data)
            offset += (below * down * data.width + right * apart) * data.lanes
            fours = emit.wide("int32", count)
            return T.Bind(tirx.reinterpret(fours, self._data[emit.ramp(offset, count * GROUP)]))

        together = matrices.distance(data) == data.lanes
        return matrices.pixels(size, load, reads_quads=self._reads_quads, side_by_side=together)

    def _place(self, coordinates: emit.Coordinates, step: tuple[Any, Any, Any], together: int = 1) -> tuple[Any, Any]:
        """Return where the first pixel of a tile and its weights lie, of so many blocks of channels, at one tap."""
        layer, data = self._layer, self._layer.data
        (height, width), (image, group, row, column) = layer.kernel, coordinates
        (down, across), (reach, spread), (number, tap, side) = layer.strides, layer.dilation, step
        source = number * together
        if self._images is None:
            place = (image, source, row * down + tap * reach, column * across + side * spread)
            pixel = T.Bind(emit.offset(data, *place))
        else:
            pixel = T.Bind(emit.offset(self._images.data, column, source, 0, 0))
        vectors = together * data.lanes // GROUP * self._config.blocks
        line = (((group * (data.blocks // together) + number) * height + tap) * width + side) * vectors
        return pixel, T.Bind(line)

    def _reduce(self, sums: emit.Registers, size: tuple[int, int], coordinates: emit.Coordinates) -> None:
        """Add the products of all channels and taps to the sums of a tile."""
        blocks, (height, width) = self._layer.data.blocks, self._layer.kernel
        is_short = self._machine.adds_pairs and height * width == 1  # the loop takes a share of such steps
        together = _UNROLLED if is_short and blocks % _UNROLLED == 0 else 1
        with T.serial(0, blocks // together) as step, T.serial(0, height) as tap, T.serial(0, width) as side:
            for source in range(together):
                self._add_block(sums, size, coordinates, (step * together + source, tap, side))

    def _add_block(
        self, sums: emit.Registers, size: tuple[int, int], coordinates: emit.Coordinates, step: tuple[Any, Any, Any]
    ) -> None:
        """Add the products of one block of channels (the first of `step`) at one tap (the others)."""
        layer, blocks = self._layer, self._config.blocks
        wide, count = self._machine.lanes * GROUP, size[0] * size[1]
        pixel, line = self._place(coordinates, step)
        for four in range(layer.data.lanes // GROUP):
            first = line + four * blocks
            weights = [T.Bind(self._weights[emit.ramp((first + block) * wide, wide)]) for block in range(blocks)]
            if self._machine.adds_pairs:
                loaded = self._load_pixels(size, pixel + four * GROUP)
                pairs.add(self._machine, sums, loaded, weights, unpaired=layer.unpaired)
                continue
            for number, channels in enumerate(self._fours(size, pixel + four * GROUP)):
                for block, weight in enumerate(weights):
                    index = block * count + number
                    sums[index] = int8.dot(self._machine, sums[index], channels, weight)

    def _load_pixels(self, size: tuple[int, int], pixel: Any) -> list[tuple[Any, int]]:
        """Load four channels of each pixel of a tile, neighbouring pixels together; say how many each load has."""
        (rows, columns), (down, across), data = size, self._layer.strides, self._layer.data
        apart = across if self._images is None else data.held or data.blocks
        largest = _QUAD if apart == 1 and data.lanes == GROUP else 1
        loaded = []
        for below in range(rows):
            for first, together in int8.pieces(columns, largest):
                offset = pixel + (below * down * data.width + first * apart) * data.lanes
                loaded.append((pairs.load(self._data, offset, together), together))
        return loaded

    def _fours(self, size: tuple[int, int], pixel: Any) -> Iterator[Any]:
        """Yield four channels of each pixel of a tile, in each lane."""
        (rows, columns), (down, across), data = size, self._layer.strides, self._layer.data
        quads = columns // _QUAD * _QUAD if self._reads_quads else 0
        apart = across if self._images is None else data.held or data.blocks
        for below, right in itertools.product(range(rows), range(columns)):
            offset = pixel + (below * down * data.width + right * apart) * data.lanes
            if right >= quads:
                four = int8.four_bytes(self._data, offset)
            else:
                if right % _QUAD == 0:
                    quad = T.Bind(tirx.reinterpret(f"int32x{_QUAD}", self._data[emit.ramp(offset, _QUAD * GROUP)]))
                four = tirx.Shuffle([quad], [right % _QUAD])
            yield T.Bind(emit.splat(four, self._machine.lanes))

    def _pad(self) -> None:
        """Copy the data into an image with the padding around it, and take that for the data."""
        layer, data = self._layer, self._layer.data
        # As large as the windows reach, which may be less than the image with its padding.
        padded = replace(data.standalone(), height=_reach(layer, 0), width=_reach(layer, 1))
        image = T.alloc_buffer((math.prod(padded.shape),), data.dtype)
        # The byte that stands for the number zero.
        zero = T.Bind(tirx.Cast(data.dtype, tirx.Cast("int32", self._parameters[0])))
        rows = data.batch * data.blocks * padded.height
        with emit.shared(rows, rows * padded.width * data.lanes / _COPIED) as work:
            row = T.Bind(work % padded.height)
            block, number = T.Bind(work // padded.height % data.blocks), T.Bind(work // (padded.height * data.blocks))
            self._pad_row(padded, image, zero, (number, block, row))
        self._data, self._layer = image, replace(layer, data=padded)

    def _pad_row(self, padded: Activation, image: Any, zero: Any, coordinates: tuple[Any, Any, Any]) -> None:
        (number, block, row), data, top = coordinates, self._layer.data, self._layer.padding[0]
        before = min(self._layer.padding[1], padded.width)
        inside = min(data.width, padded.width - before)
        start = T.Bind(emit.offset(padded, number, block, row, 0))
        source = T.Bind(emit.offset(data, number, block, row - top, 0))

        def store(value: Any, offset: Any, size: int) -> None:
            T.buffer_store(image, value, [emit.ramp(start + offset, size)])

        def fill(first: int, count: int) -> None:
            begin = first * data.lanes
            _move_bytes(
                count * data.lanes, lambda offset, size: store(tirx.Broadcast(zero, size), begin + offset, size)
            )

        def copy(offset: Any, size: int) -> None:
            store(self._data[emit.ramp(source + offset, size)], before * data.lanes + offset, size)

        with T.If(tirx.all(row >= top, row < top + data.height)):
            with T.Then():
                fill(0, before)
                _move_bytes(inside * data.lanes, copy)
                fill(before + inside, padded.width - before - inside)
            with T.Else():
                fill(0, padded.width)


def _reads_quads(layer: Conv, machine: Machine) -> bool:
    """Whether neighbouring pixels are loaded together: where products take any lane of a vector for all lanes."""
    one_row = layer.strides[1] == 1 and not is_matrix(layer)
    return machine.dot == "sdot" and layer.data.lanes == GROUP and one_row


def _reach(layer: Conv, axis: int) -> int:
    """Return how many rows (0) or columns (1) of the padded image are looked at."""
    windows = (layer.out.height, layer.out.width)[axis]
    return (windows - 1) * layer.strides[axis] + (layer.kernel[axis] - 1) * layer.dilation[axis] + 1


def _move_bytes(size: int, move: Callable[[Any, int], None]) -> None:
    """Write the moving of neighbouring bytes: `move` is called with a start and a number of bytes, a power of two."""
    position = 0
    for width in (_COPIED, 32, 16, 8, 4):
        count = (size - position) // width
        if count:
            with T.serial(0, count) as number:
                move(position + number * width, width)
        position += count * width
