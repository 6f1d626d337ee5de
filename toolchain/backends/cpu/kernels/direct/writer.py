"""Writes the kernel of a direct convolution that is cut as a plan says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.direct.plan import DirectPlan, Tiles, bytes_of, is_by_element
from toolchain.backends.cpu.kernels.emit import multiply_add
from toolchain.backends.cpu.layers import BFLOAT16
from toolchain.backends.cpu.machine import Machine


@dataclass(frozen=True)
class _Band:
    """What one core does at a time, as expressions.

    Attributes:
        image: Image.
        first: Number of its first tile in the image.
        end: Number of the tile behind the last one.
        unit: Unit.
        block: First output block of the unit.
        begin: First input channel that the unit reads.
        stop: The one behind the last.
        chunk: Chunk.
    """

    image: Any
    first: Any
    end: Any
    unit: Any
    block: Any
    begin: Any
    stop: Any
    chunk: Any


@dataclass(frozen=True)
class Tile:
    """A tile, as expressions.

    Attributes:
        band: Its band.
        tiles: What it is one of.
        row: Its row.
        start: Its first column.
        number: Its number in the band.
        sums: Its sums: those of a block lie together.
    """

    band: _Band
    tiles: Tiles
    row: Any
    start: Any
    number: Any
    sums: emit.Registers


@dataclass(frozen=True)
class Reach:
    """What a tile reads, as expressions.

    Attributes:
        row: First row of the data, which may lie in the padding.
        begin: First row of the filter that is inside the image.
        end: The one behind the last.
        first: First block of input channels.
        sources: How many of them.
    """

    row: Any
    begin: Any
    end: Any
    first: Any
    sources: Any


_Step = Callable[[Tile, Sequence[int]], None]


class DirectWriter:
    """Writes one kernel."""

    sum_dtype = "float32"

    def __init__(self, plan: DirectPlan, machine: Machine, buffers: Sequence[Any]) -> None:
        """Take the processor, and the flat buffers of the arguments in order."""
        self._machine = machine
        self._plan, self._layer, self._lanes = plan, plan.layer, plan.layer.out.lanes
        self._data, self._weights, *rest, self._out = buffers
        self._bias = rest.pop(0) if plan.layer.bias else None
        self._others = rest

    def write(self) -> None:
        plan, bands = self._plan, self._plan.config.bands
        units = 1 if plan.overlaps else plan.units  # those of the parallel loop
        operations = self._layer.flops / (2 * self._lanes)
        with emit.shared(self._layer.out.batch * units * bands, operations) as work:
            # Groups of channels differ in work: there, each core gets some of all.
            by_unit = plan.is_whole and not plan.is_by_band
            band = T.Bind(work % bands if by_unit else work // units % bands)
            unit = T.Bind(work // bands % units if by_unit else work % units)
            first, end = (T.Bind((band + more) * plan.tiles_of_image // bands) for more in (0, 1))
            image = T.Bind(work // (units * bands))
            with (
                T.serial(0, plan.units) if plan.overlaps else nullcontext(unit) as unit,
                T.serial(0, plan.chunks) if plan.chunks > 1 else nullcontext(0) as chunk,
            ):
                block = T.Bind(plan.start(unit, tirx.min))
                begin, stop = (T.Bind(channel) for channel in plan.reach(unit, tirx.min))
                self._tiles(_Band(image, first, end, unit, block, begin, stop, chunk))

    def _tiles(self, band: _Band) -> None:
        """Let all tiles of a band pass over a chunk."""
        width = self._plan.tiles_of_row
        with T.serial(band.first // width, (band.end + width - 1) // width) as row:
            before = T.Bind(row * width)
            # A band may begin and end within a row.
            first, end = T.Bind(tirx.max(band.first - before, 0)), T.Bind(tirx.min(band.end - before, width))
            for tiles in self._plan.tiles:
                start = tirx.max(first, tiles.number)
                with T.serial(start, tirx.min(end, tiles.number + tiles.count)) as number:
                    column = T.Bind(tiles.start + (number - tiles.number) * tiles.columns)
                    sums = emit.Registers(self._plan.config.blocks * tiles.columns, self._lanes, self.sum_dtype)
                    self.compute(Tile(band, tiles, row, column, before + number - band.first, sums))

    def compute(self, tile: Tile) -> None:
        """Sum up a tile, and store its results."""
        self._begin(tile)
        self._sum_up(tile)
        self._end(tile)

    # --- where a tile's sums come from and go to -------------------------------------------------------------------

    def _begin(self, tile: Tile) -> None:
        """Begin all sums that nothing was added to so far, and load the others."""
        plan, band = self._plan, tile.band
        if plan.overlaps:
            last = tirx.max(band.unit - 1, 0)
            summed = T.Bind(tirx.Select(band.unit == 0, -1, plan.start(last, tirx.min) + plan.config.blocks - 1))
            for block in range(plan.config.blocks):
                self._either(band.block + block > summed, self._fill, self._load, tile, [block])
        elif plan.chunks > 1:
            self._either(band.chunk == 0, self._fill, self._load, tile, range(plan.config.blocks))
        else:
            self._fill(tile, range(plan.config.blocks))

    def _end(self, tile: Tile) -> None:
        """Finish all sums that nothing more is added to, and keep the others."""
        plan, band = self._plan, tile.band
        if plan.overlaps:
            following = plan.start(tirx.min(band.unit + 1, plan.units - 1), tirx.min)
            following_block = T.Bind(tirx.Select(band.unit == plan.units - 1, self._layer.out.blocks, following))
            for block in range(plan.config.blocks):
                self._either(band.block + block < following_block, self._finish, self._keep, tile, [block])
        elif plan.chunks > 1:
            self._either(band.chunk == plan.chunks - 1, self._finish, self._keep, tile, range(plan.config.blocks))
        else:
            self._finish(tile, range(plan.of_last))
            if plan.of_last < plan.config.blocks:
                with T.If(band.unit < plan.units - 1), T.Then():
                    self._finish(tile, range(plan.of_last, plan.config.blocks))

    @staticmethod
    def _either(condition: Any, this: _Step, that: _Step, tile: Tile, blocks: Sequence[int]) -> None:
        with T.If(condition):
            with T.Then():
                this(tile, blocks)
            with T.Else():
                that(tile, blocks)

    @staticmethod
    def _coordinates_of(tile: Tile, blocks: Sequence[int]) -> list[tuple[int, emit.Coordinates]]:
        """List sums of a tile: number, and image, block, row and column of the result."""
        band, columns = tile.band, tile.tiles.columns
        return [
            (block * columns + t, (band.image, band.block + block, tile.row, tile.start + t))
            for block, t in itertools.product(blocks, range(columns))
        ]

    def _indices(self, coordinates: emit.Coordinates) -> Any:
        return emit.ramp(emit.offset(self._layer.out, *coordinates), self._lanes)

    def _fill(self, tile: Tile, blocks: Sequence[int]) -> None:
        for block in blocks:
            initial = emit.splat(0.0, self._lanes)
            if self._bias is not None:
                of_result = tile.band.block + block
                if block >= self._plan.of_last:
                    of_result = tirx.min(of_result, self._layer.out.blocks - 1)
                initial = T.Bind(self._bias[emit.ramp(of_result * self._lanes, self._lanes)])
            for number, _ in self._coordinates_of(tile, [block]):
                tile.sums[number] = initial

    def _load(self, tile: Tile, blocks: Sequence[int]) -> None:
        for number, coordinates in self._coordinates_of(tile, blocks):
            tile.sums[number] = self._out[self._indices(coordinates)]

    def _keep(self, tile: Tile, blocks: Sequence[int]) -> None:
        for number, coordinates in self._coordinates_of(tile, blocks):
            T.buffer_store(self._out, tile.sums[number], [self._indices(coordinates)])

    def _finish(self, tile: Tile, blocks: Sequence[int]) -> None:
        # A long epilogue is a loop over stored sums, since many copies of its code take seconds to compile.
        if not emit.is_long(self._layer.epilogue):
            for number, coordinates in self._coordinates_of(tile, blocks):
                self._store(tile.sums[number], coordinates)
            return
        columns, stored = tile.tiles.columns, None
        if self._layer.out.dtype == BFLOAT16:  # which does not hold sums
            stored = emit.on_stack(len(blocks) * columns, self._lanes)
            for index, (number, _) in enumerate(self._coordinates_of(tile, blocks)):
                T.buffer_store(stored, tile.sums[number], [index])
        else:
            self._keep(tile, blocks)
        with T.serial(0, len(blocks) * columns) as number:
            block = T.Bind(tile.band.block + blocks[0] + number // columns)
            coordinates = (tile.band.image, block, tile.row, tile.start + number % columns)
            value = self._out[self._indices(coordinates)] if stored is None else stored[number]
            self._store(value, coordinates)

    def _store(self, value: Any, coordinates: emit.Coordinates) -> None:
        result = emit.apply_epilogue(value, self._layer.epilogue, self._others, coordinates, self._lanes)
        emit.store(result, self._out, self._layer.out, coordinates)

    # --- the sums --------------------------------------------------------------------------------------------------

    def _sum_up(self, tile: Tile) -> None:
        reach = self.reach_of(tile)
        here = T.Bind(tile.band.chunk * self._plan.config.depth)
        with (
            T.serial(here, tirx.min(here + self._plan.config.depth, reach.sources)) as source,
            T.serial(reach.begin, reach.end) as tap,
        ):
            self.add_row(tile, reach, T.Bind(source), tap)

    def reach_of(self, tile: Tile) -> Reach:
        """Write what a tile reads."""
        layer, data = self._layer, self._layer.data
        (height, _), (down, _), (top, *_), (dilation, _) = layer.kernel, layer.strides, layer.padding, layer.dilation
        # Rows of the filter that lie in the padding are left out of the loop.
        row = T.Bind(tile.row * down - top)
        begin = T.Bind(tirx.max(0, tirx.floordiv(dilation - 1 - row, dilation))) if top else 0
        end = T.Bind(tirx.min(height, tirx.floordiv(data.height - row + dilation - 1, dilation)))
        first = T.Bind(tile.band.begin // data.lanes)
        sources = T.Bind((tile.band.stop + data.lanes - 1) // data.lanes - first)
        return Reach(row, begin, end, first, sources)

    def add_row(self, tile: Tile, reach: Reach, source: Any, tap: Any) -> None:
        """Add what one row of the filter gives on one block of input channels."""
        row = reach.row + tap * self._layer.dilation[0]
        self._taps(tile, T.Bind(reach.first + source), source, tap, row)

    def _taps(self, tile: Tile, block: Any, source: Any, tap: Any, row: Any) -> None:
        plan, layer, data = self._plan, self._layer, self._layer.data
        packed = T.Bind(((tile.band.unit * plan.sources + source) * layer.kernel[0] + tap) * layer.kernel[1])
        if plan.is_by_pixel(self._machine.registers):
            across = tile.start * layer.strides[1] - layer.padding[1]
            self._pixels(tile, T.Bind(emit.offset(data, tile.band.image, block, row, across)), packed)
            return
        for first, count, inside in _alike(tile.tiles.inside):
            with T.serial(first, first + count) as column:
                across = tile.start * layer.strides[1] + column * layer.dilation[1] - layer.padding[1]
                pixel = T.Bind(emit.offset(data, tile.band.image, block, row, across))
                if plan.fetches:
                    self._fetch(packed + column, tile.number)
                if is_by_element(layer):
                    self._elements(tile, pixel, packed + column, inside)
                else:
                    self._channels(tile, block, pixel, packed + column, inside)

    def _pixels(self, tile: Tile, pixel: Any, packed: Any) -> None:
        """Add what one row of the filter gives on plain data: each number is loaded once, and used with all taps."""
        layer, blocks, lanes = self._layer, self._plan.config.blocks, self._lanes
        uses: dict[int, list[tuple[int, int]]] = {}
        for tap, inside in enumerate(tile.tiles.inside):
            for t in itertools.compress(range(tile.tiles.columns), inside):
                uses.setdefault(t * layer.strides[1] + tap * layer.dilation[1], []).append((tap, t))
        first = T.Bind(packed * (blocks * lanes))
        vectors = [self._weights[emit.ramp(first + n * lanes, lanes)] for n in range(layer.kernel[1] * blocks)]
        weights = [T.Bind(vector) for vector in vectors]
        for offset, users in sorted(uses.items()):
            number = T.Bind(emit.splat(self._data[pixel + offset], lanes))
            for tap, t in users:
                self._multiply(tile, t, number, weights[tap * blocks : (tap + 1) * blocks])

    def _fetch(self, packed: Any, number: Any) -> None:
        """Fetch this tile's share of the weights behind this chunk: of the next chunk, or of the next unit."""
        plan, (height, width) = self._plan, self._layer.kernel
        size, line_size = self._layer.data.lanes * plan.config.blocks * self._lanes, emit.LINE // bytes_of(self._layer)
        share = -(-size // (line_size * plan.tiles_of_band))
        ahead = packed + plan.config.depth * height * width
        # The tiles of a band share the fetching: each weight is fetched once for a band.
        first = T.Bind(ahead * size + number * (share * line_size))
        for line in range(share):
            emit.fetch(self._weights[first + line * line_size], 2)

    def _channels(self, tile: Tile, block: Any, pixel: Any, packed: Any, inside: Sequence[bool]) -> None:
        """Add what one tap gives: a channel's numbers are broadcast, and multiplied with all its weights."""
        data, blocks, lanes = self._layer.data, self._plan.config.blocks, self._lanes
        with T.serial(*self._own_lanes(tile, block)) as channel:
            line = T.Bind((packed * data.lanes + channel) * (blocks * lanes))
            weights = [T.Bind(self._weights[emit.ramp(line + block * lanes, lanes)]) for block in range(blocks)]
            for t in range(tile.tiles.columns):
                if inside[t]:
                    number = self._data[pixel + t * self._layer.strides[1] * data.lanes + channel]
                    self._multiply(tile, t, T.Bind(emit.splat(number, lanes)), weights)

    def _own_lanes(self, tile: Tile, block: Any) -> tuple[Any, Any]:
        """Return which lanes of an input block are channels that the unit reads: the first, and behind the last."""
        data, plan = self._layer.data, self._plan
        inputs = data.channels // self._layer.groups
        if inputs % data.lanes == 0:
            return 0, data.lanes
        end = T.Bind(tirx.min(tile.band.stop - block * data.lanes, data.lanes))
        return 0 if plan.is_whole else T.Bind(tirx.max(tile.band.begin - block * data.lanes, 0)), end

    def _elements(self, tile: Tile, pixel: Any, packed: Any, inside: Sequence[bool]) -> None:
        """Add what one tap gives: vectors of channels are loaded, and the weights multiplied with one element each."""
        data, blocks, lanes = self._layer.data, self._plan.config.blocks, self._lanes
        columns = [t for t in range(tile.tiles.columns) if inside[t]]
        offsets = [pixel + t * self._layer.strides[1] * lanes for t in columns]
        vectors = [T.Bind(self._data[emit.ramp(offset, lanes)]) for offset in offsets]
        for channel in range(lanes):
            line = (packed * data.lanes + channel) * (blocks * lanes)
            weights = [T.Bind(self._weights[emit.ramp(line + block * lanes, lanes)]) for block in range(blocks)]
            for t, vector in zip(columns, vectors, strict=True):
                self._multiply(tile, t, vector, weights, channel)

    def _multiply(self, tile: Tile, t: int, numbers: Any, weights: Sequence[Any], element: int | None = None) -> None:
        for block, weight in enumerate(weights):
            index = block * tile.tiles.columns + t
            tile.sums[index] = self.multiply_add(tile.sums[index], weight, numbers, element)

    def multiply_add(self, total: Any, weight: Any, numbers: Any, element: int | None) -> Any:
        """Return a sum with the product of two vectors added; see `emit.multiply_add`."""
        return multiply_add(self._machine, total, weight, numbers, element)


def _alike(taps: Sequence[Sequence[bool]]) -> Iterator[tuple[int, int, Sequence[bool]]]:
    """Yield neighbouring taps for which the same columns are inside the image, if any: first, how many, columns."""
    first = 0
    for inside, group in itertools.groupby(taps):
        count = sum(1 for _ in group)
        if any(inside):
            yield first, count, inside
        first += count
