"""Windows that slide over each channel alone: the loops that depthwise convolution and pooling share.

A row of the result is cut into tiles of some columns. Tiles (and rows) that see the padding in the same way share code
that leaves out the taps in the padding, so that no padded copy of the image is needed. With few taps all of a tile is
straight-line code; with many, the taps down are a loop, and tiles of several blocks keep the multipliers busy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.layers import Conv, Pool
from toolchain.backends.cpu.machine import Machine

_MOST_UNROLLED = 9  # taps: with more, straight-line code for each kind of edge takes seconds to compile
_LONGEST = 160  # operations of a row of taps: more are too much code
_HELD_WEIGHTS = 5  # weights of a row of taps that are worth a register each
_LOADED_AT_ONCE = 5  # registers for each column of a tile, where LLVM loads all of its pixels and weights first
_MOVED = 3  # times longer than a product takes to move a vector between the caches
_WIDEST = 14  # columns of a tile of straight-line code
_MOST_PARTS = 8  # of an image's rows

Expr = Any


@dataclass(frozen=True)
class Config:
    """How the work is cut.

    Attributes:
        columns: Output columns of a tile.
        blocks: Blocks of a tile.
    """

    columns: int
    blocks: int


@dataclass(frozen=True)
class Side:
    """Windows along one side of an image.

    Attributes:
        size: Pixels of the image.
        windows: Pixels of the result.
        taps: Pixels of a window.
        stride: Distance of windows.
        dilation: Distance of the pixels of a window.
        before: Padding before the image.
        after: Padding behind the image.
    """

    size: int
    windows: int
    taps: int
    stride: int
    dilation: int
    before: int
    after: int

    def inside(self, window: int) -> tuple[bool, ...]:
        """Tell of each tap of a window whether it is inside the image."""
        first = window * self.stride - self.before
        return tuple(0 <= first + tap * self.dilation < self.size for tap in range(self.taps))

    def padded(self, window: int) -> int:
        """Return how many taps of a window are inside the image with its padding."""
        first = window * self.stride - self.before
        return sum(first + tap * self.dilation < self.size + self.after for tap in range(self.taps))


@dataclass(frozen=True)
class Span:
    """Neighbouring tiles that see the padding in the same way.

    Attributes:
        start: First window.
        count: Tiles.
        inside: Of each window of a tile and each tap, whether it is inside the image.
        padded: Of each window of a tile, how many taps are inside the image with its padding.
    """

    start: int
    count: int
    inside: tuple[tuple[bool, ...], ...]
    padded: tuple[int, ...]

    @property
    def size(self) -> int:
        """Windows of a tile."""
        return len(self.inside)


@dataclass(frozen=True)
class Tap:
    """Where in its window a pixel is: row and column. Behind a loop over rows, `row` is an expression."""

    row: Expr
    column: int


@dataclass(frozen=True)
class Tile:
    """The position of a tile.

    Attributes:
        image: Image of the batch.
        block: First block.
        row: Row of the result.
        column: First column of the result.
        across: How its columns see the padding.
        down: How its row sees the padding; None if that is known only as it runs.
        taps: First tap down that is inside the image, and the one behind the last.
        padded: How many taps down are inside the image with its padding.
    """

    image: Expr
    block: Expr
    row: Expr
    column: Expr
    across: Span
    down: Span | None
    taps: tuple[Expr, Expr]
    padded: Expr


class Reduction(Protocol):
    """What is done with the pixels of a window."""

    def initial(self, block: Expr) -> Expr:
        """Return what a sum begins with."""

    def first(self, pixel: Expr) -> Expr | None:
        """Return the sum of nothing but a pixel, if that is less work than adding it to the initial value."""

    def add_pixel(self, total: Expr, pixel: Expr, block: Expr, tap: Tap) -> Expr:
        """Return a sum with one pixel more."""

    def finish(self, total: Expr, tile: Tile, number: int) -> Expr:
        """Return the result for the window in column `number` of a tile."""


def sides(layer: Conv | Pool) -> tuple[Side, Side]:
    """Return how windows lie down and across an image."""
    data, out, (top, before, bottom, after) = layer.data, layer.out, layer.padding
    taps, strides, dilation = layer.kernel, layer.strides, layer.dilation
    return (
        Side(data.height, out.height, taps[0], strides[0], dilation[0], top, bottom),
        Side(data.width, out.width, taps[1], strides[1], dilation[1], before, after),
    )


def spans(side: Side, size: int) -> list[Span]:
    """Cut windows into tiles of some size and the rest, and put like ones together."""
    groups: list[Span] = []
    for start in range(0, side.windows, size):
        windows = range(start, min(start + size, side.windows))
        view = tuple(side.inside(window) for window in windows), tuple(side.padded(window) for window in windows)
        last = groups[-1] if groups else None
        if last and (last.inside, last.padded) == view:
            groups[-1] = Span(last.start, last.count + 1, *view)
        else:
            groups.append(Span(start, 1, *view))
    return groups


def is_unrolled(layer: Conv | Pool) -> bool:
    """Whether all taps of a window are straight-line code."""
    return layer.kernel[0] * layer.kernel[1] <= _MOST_UNROLLED


def configs(layer: Conv | Pool, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    width = layer.out.width
    # Wider tiles of straight-line code are not faster, and they take long to compile.
    full = width if width <= 14 else 1  # noqa: PLR2004
    widths, multiples = ((*range(1, 9), full), (1,)) if is_unrolled(layer) else ((*range(1, 15), 20, 28), (1, 2, 4))
    return _fitting(layer, machine, sorted({min(columns, width) for columns in widths}), multiples)


def variants(layer: Conv | Pool, machine: Machine) -> list[tuple[Config, float]]:
    """List candidates for a tuner, which may take longer to compile: wider tiles, and tiles of several blocks."""
    return _fitting(layer, machine, range(1, min(layer.out.width, _WIDEST) + 1), (1, 2, 4))


def _fitting(
    layer: Conv | Pool, machine: Machine, widths: Iterable[int], multiples: Sequence[int]
) -> list[tuple[Config, float]]:
    """List the tiles of some columns and blocks that fit into the registers, the cheapest first."""
    candidates = []
    for columns, blocks in itertools.product(widths, multiples):
        registers = columns * blocks + min(layer.kernel[1], _HELD_WEIGHTS) + 2
        if machine.loads_apart:
            registers = max(registers, columns * blocks * _LOADED_AT_ONCE)
        long = columns * blocks * layer.kernel[1] > _LONGEST
        if layer.out.blocks % blocks or registers > machine.registers or (long and columns * blocks > 1):
            continue
        config = Config(columns, blocks)
        candidates.append((config, _estimate(layer, config, machine)))
    return sorted(candidates, key=lambda candidate: candidate[1])


def _estimate(layer: Conv | Pool, config: Config, machine: Machine) -> float:
    """Estimate the cost as `kernels.Candidate` defines it."""
    down, across = sides(layer)
    row = 0.0
    for span in spans(across, config.columns):
        products = sum(map(sum, span.inside)) * config.blocks
        loads = (len(_pixels(across, span)) + across.taps) * config.blocks
        stores = span.size * config.blocks / down.taps
        # A loop waits for each sum of a row of taps; straight-line code goes on with the next tile meanwhile.
        waits = 0 if is_unrolled(layer) else 8 * across.taps
        row += span.count * (max(products, loads, waits) + 0.25 * loads + 2 * stores + 6 / down.taps + 2)
    rows = sum(sum(down.inside(window)) for window in range(down.windows))
    groups = layer.out.batch * layer.out.blocks // config.blocks
    cores = emit.worker_count(operations(layer), machine.cores)
    shares = emit.count_shares(groups, min(_MOST_PARTS, layer.out.height), cores)
    return row * rows * -(-groups * shares // cores) / shares


def operations(layer: Conv | Pool) -> int:
    """Return how long a layer takes, in vector operations: by its products, or by what it reads and writes."""
    data, out = (
        activation.batch * activation.blocks * activation.height * activation.width
        for activation in (layer.data, layer.out)
    )
    return max(out * layer.kernel[0] * layer.kernel[1], _MOVED * (data + out))


def _pixels(side: Side, span: Span) -> dict[int, list[tuple[int, int]]]:
    """Return which windows of a tile see each pixel, and with which tap; pixels count from the tile's first tap."""
    users: dict[int, list[tuple[int, int]]] = {}
    for number, inside in enumerate(span.inside):
        for tap, is_inside in enumerate(inside):
            if is_inside:
                users.setdefault(number * side.stride + tap * side.dilation, []).append((number, tap))
    return dict(sorted(users.items()))


class WindowWriter:
    """Writes the loops of one kernel."""

    sum_dtype = "float32"

    def __init__(self, layer: Conv | Pool, machine: Machine, config: Config, reduction: Reduction) -> None:
        self._layer, self._machine, self._config, self._reduction = layer, machine, config, reduction
        self._down, self._across = sides(layer)

    def write(self, data: Any, others: Sequence[Any], out: Any) -> None:
        """Write the kernel.

        Args:
            data: Flat buffer of the data.
            others: Flat buffers that the epilogue takes.
            out: Flat buffer of the result.
        """
        layer, blocks = self._layer, self._config.blocks
        groups = layer.out.blocks // blocks
        cores = emit.worker_count(operations(layer), self._machine.cores)
        shares = emit.count_shares(layer.out.batch * groups, min(_MOST_PARTS, layer.out.height), cores)
        with emit.shared(layer.out.batch * groups * shares, operations(layer)) as work:
            image = T.Bind(work // (groups * shares))
            block = T.Bind(work // shares % groups * blocks)
            for down, row in self._rows(T.Bind(work % shares), shares):
                taps, padded = self._taps(down, row)
                for across in spans(self._across, self._config.columns):
                    with T.serial(0, across.count) as number:
                        column = T.Bind(across.start + number * across.size)
                        self._tile(Tile(image, block, row, column, across, down, taps, padded), data, others, out)

    def _rows(self, share: Expr, shares: int) -> Iterator[tuple[Span | None, Expr]]:
        """Open a loop over the rows of each kind in a part, and yield the row."""
        height = self._layer.out.height
        rows_per_share = -(-height // shares)
        every = spans(self._down, 1) if is_unrolled(self._layer) else [None]
        for down in every:
            start, count = (down.start, down.count) if down else (0, height)
            begin, end = 0, count
            if shares > 1:
                begin = T.Bind(tirx.max(share * rows_per_share - start, 0))
                end = T.Bind(tirx.max(tirx.min((share + 1) * rows_per_share - start, count), begin))
            with T.serial(begin, end) as number:
                yield down, T.Bind(start + number)

    def _taps(self, down: Span | None, row: Expr) -> tuple[tuple[Expr, Expr], Expr]:
        """Return `Tile.taps` and `Tile.padded` of a row."""
        side = self._down
        if down is not None:
            inside = [tap for tap, is_inside in enumerate(down.inside[0]) if is_inside] or [0]
            return (inside[0], inside[-1] + 1), down.padded[0]

        def before(size: int) -> Expr:
            """Return the first tap that lies at `size` or behind."""
            return tirx.max(0, tirx.min(side.taps, tirx.floordiv(size - first + side.dilation - 1, side.dilation)))

        first = T.Bind(row * side.stride - side.before)
        return (T.Bind(before(0)), T.Bind(before(side.size))), T.Bind(before(side.size + side.after))

    def _tile(self, tile: Tile, data: Any, others: Sequence[Any], out: Any) -> None:
        totals = self._reduce_in_loop(tile, data) if tile.down is None else self._reduce_unrolled(tile, tile.down, data)
        self.store(tile, totals, others, out)

    def store(self, tile: Tile, totals: Sequence[Expr], others: Sequence[Any], out: Any) -> None:
        """Store the results of all windows of a tile, block by block."""
        layer, width = self._layer, tile.across.size
        values = [T.Bind(self._reduction.finish(total, tile, index % width)) for index, total in enumerate(totals)]
        for block in range(self._config.blocks):
            line = values[block * width : (block + 1) * width]
            coordinates = (tile.image, tile.block + block, tile.row, tile.column)
            emit.store_pixels(line, layer.epilogue, others, out, layer.out, coordinates)

    def _reduce_unrolled(self, tile: Tile, down: Span, data: Any) -> list[Expr]:
        """Reduce all windows of a tile in straight-line code."""
        # None until a window sees its first pixel, which a pool takes as it is.
        totals: list[Expr | None] = [None] * (self._config.blocks * tile.across.size)
        for row, is_inside in enumerate(down.inside[0]):
            if is_inside:
                self._add(tile, totals, data, row)
        return [self._initial(tile, index) if total is None else total for index, total in enumerate(totals)]

    def _reduce_in_loop(self, tile: Tile, data: Any) -> list[Expr]:
        """Reduce all windows of a tile with a loop over the taps down."""
        count = self._config.blocks * tile.across.size
        sums = emit.Registers(count, self._layer.out.lanes, self.sum_dtype)
        for index in range(count):
            sums[index] = self._initial(tile, index)
        with T.serial(*tile.taps) as row:
            totals: list[Expr | None] = [sums[index] for index in range(count)]
            self._add(tile, totals, data, row)
            for index, total in enumerate(totals):
                sums[index] = total
        return [sums[index] for index in range(count)]

    def _initial(self, tile: Tile, index: int) -> Expr:
        return self._reduction.initial(tile.block + index // tile.across.size)

    def _add(self, tile: Tile, totals: list[Expr | None], data: Any, row: Expr) -> None:
        """Add one row of taps to all windows of a tile."""
        layer, across = self._layer, self._across
        line = tile.row * self._down.stride + row * self._down.dilation - self._down.before
        for block in range(self._config.blocks):
            start = tile.column * across.stride - across.before
            # It may lie before the buffer: only pixels inside the image are added to it and read.
            base = T.Bind(emit.offset(layer.data, tile.image, tile.block + block, line, start))
            users = _pixels(across, tile.across)
            for pixel, vector in self.load(data, base, list(users)):
                for number, column in users[pixel]:
                    index = block * tile.across.size + number
                    totals[index] = self._add_pixel(tile, index, totals[index], vector, Tap(row, column))

    def load(self, data: Any, base: Expr, pixels: Sequence[int]) -> Iterator[tuple[int, Expr]]:
        """Yield each of some pixels of a row with its channels, as the reduction takes them; `base` is pixel 0's."""
        place = self._layer.data
        for pixel in pixels:
            yield pixel, T.Bind(emit.load(data, place, base + pixel * place.stored_lanes))

    def _add_pixel(self, tile: Tile, index: int, total: Expr | None, pixel: Expr, tap: Tap) -> Expr:
        if total is None:
            first = self._reduction.first(pixel)
            if first is not None:
                return first
            total = self._initial(tile, index)
        return T.Bind(self._reduction.add_pixel(total, pixel, tile.block + index // tile.across.size, tap))
