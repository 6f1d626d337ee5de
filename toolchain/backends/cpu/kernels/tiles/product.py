"""Products of tiles, whatever they are for: where factors and sums lie, how the work is cut, and what it costs.

Pixels of an image are numbered row after row. The factors are copied into an image whose pixels are 64 bytes of
channels, with its padding, so that a tile of 16 pixels in a row lies together. A strided filter sees every second
pixel, for example: the copy puts these together too, as images of their own (`phases`), and every tap of the filter
finds its 16 pixels in one place. Where a filter is wider than one pixel, rows of the copy are longer than those of the
result: sums of the pixels in between are thrown away.

Where each pixel of the result sees one pixel of the data, each core copies just those pixels that it multiplies next,
if there are enough of such strips for all cores: the copy stays in the caches.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Buffer, Expr
from toolchain.backends.cpu.kernels.tiles import instructions
from toolchain.backends.cpu.kernels.tiles.instructions import SIDE, WORDS, Group
from toolchain.backends.cpu.layers import PostOp
from toolchain.backends.cpu.machine import Machine

WORDS_PER_PIXEL = 16
"""Numbers of 32 bits of a pixel: 64 bytes of channels."""

_SHARES_PER_CORE = 4  # of the work: what a busy neighbour delays is a quarter
_LARGE = 1 << 20  # bytes of weights that are not read again for each strip of pixels

# Costs in the unit of `kernels.Candidate`: half a cycle of a processor with two multiply-adds in a cycle.
_PRODUCT = 32  # of two tiles
_LINE, _FAR_LINE = 1, 3  # a row of a tile from the first cache, and from the second one
_GROUP = 60  # the begin and the end of a group of tiles
_FINISH, _POST_OP = 8, 4  # a vector of the result, and each post-op that is done to it
_LONG = 40  # a post-op of some twenty operations
_FAR_RESULT = 16  # a vector of a result that the second cache does not hold: products do not hide its way to memory


@dataclass(frozen=True)
class Config:
    """How the work is cut.

    Attributes:
        pixels: Tiles of pixels that are summed up together.
        blocks: Tiles of outputs that are summed up together.
    """

    pixels: int
    blocks: int


@dataclass(frozen=True)
class Filter:
    """What a layer reads for each pixel of its result, along both axes: down and across.

    Attributes:
        result: Pixels of the result.
        size: Taps.
        stride: Pixels from one window to the next.
        dilation: Pixels from one tap to the next.
        before: Pixels of padding before the first one.
        source: Pixels of the data.
    """

    result: tuple[int, int]
    size: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    before: tuple[int, int] = (0, 0)
    source: tuple[int, int] = (1, 1)

    def phases(self, axis: int) -> list[int]:
        """List the remainders of the taps' places by the stride: each is an image of the copy."""
        return sorted({tap * self.dilation[axis] % self.stride[axis] for tap in range(self.size[axis])})

    def reach(self, axis: int) -> int:
        """Return the rows (0) or columns (1) of an image of the copy."""
        return self.result[axis] + (self.size[axis] - 1) * self.dilation[axis] // self.stride[axis]

    @property
    def images(self) -> list[tuple[int, int]]:
        """The images of the copy: remainders down and across."""
        return list(itertools.product(self.phases(0), self.phases(1)))

    @property
    def pixels(self) -> int:
        """Pixels of all images of the copy."""
        return len(self.images) * self.reach(0) * self.reach(1)

    @property
    def positions(self) -> int:
        """Pixels from the first one of the result to the last one, in rows as long as those of the copy."""
        return (self.result[0] - 1) * self.reach(1) + self.result[1]

    @property
    def is_flat(self) -> bool:
        """Whether each pixel of the result sees the same pixel of the data."""
        return self.size == self.stride == (1, 1) and self.before == (0, 0) and self.result == self.source

    @property
    def taps(self) -> list[int]:
        """For each tap, the pixel of the copy that the first pixel of the result sees."""
        size, images = self.reach(0) * self.reach(1), self.images
        places = []
        for down, across in itertools.product(*(range(taps) for taps in self.size)):
            (row, y), (column, x) = (
                divmod(tap * self.dilation[axis], self.stride[axis]) for axis, tap in enumerate((down, across))
            )
            places.append(images.index((y, x)) * size + row * self.reach(1) + column)
        return places


@dataclass(frozen=True)
class Product:
    """A product of matrices, as a convolution of images.

    Attributes:
        filter: What is read for each pixel.
        channels: Channels of the data.
        blocks: Blocks of 16 outputs.
        batch: Images.
        is_bytes: Whether the factors are uint8 and int8; otherwise they are bfloat16.
    """

    filter: Filter
    channels: int
    blocks: int
    batch: int
    is_bytes: bool

    @property
    def depth(self) -> int:
        """Channels of a pixel of the copy."""
        return WORDS_PER_PIXEL * (4 if self.is_bytes else 2)

    @cached_property
    def sources(self) -> int:
        """Pixels of the copy that hold all channels, one behind the other."""
        return -(-self.channels // self.depth)

    @property
    def operations(self) -> float:
        """Vector operations of the same work without the unit, for `emit.shared`."""
        steps = self.sources * len(self.filter.taps)
        return self.batch * self.filter.positions * self.blocks * steps * self.depth / _PRODUCT

    @property
    def result_bytes(self) -> int:
        """Bytes of the result: float32, or bytes again."""
        height, width = self.filter.result
        return self.batch * height * width * self.blocks * SIDE * (1 if self.is_bytes else 4)

    def group(self, config: Config) -> Group:
        """Return the tiles that are summed up together."""
        return Group(config.pixels, config.blocks, self.is_bytes)

    def strips(self, config: Config) -> int:
        """Return how many groups of tiles the pixels of an image are."""
        return -(-self.filter.positions // (config.pixels * SIDE))

    def copies_strips(self, config: Config, cores: int) -> bool:
        """Whether a strip of pixels is copied when it is multiplied, and not the whole data before."""
        weights = self.sources * self.blocks * WORDS * 4
        return self.filter.is_flat and weights <= _LARGE and self.batch * self.strips(config) >= 2 * cores

    def packed(self, config: Config) -> tuple[int, ...]:
        """Return the shape of the weights: [groups, sources, taps, blocks, 16 words, 16 outputs], and 4 of bytes."""
        taps = len(self.filter.taps)
        fours = (4,) if self.is_bytes else ()
        return (self.blocks // config.blocks, self.sources, taps, config.blocks, SIDE, SIDE, *fours)

    def pack(self, config: Config, words: NDArray[Any]) -> NDArray[Any]:
        """Return weights [16 * blocks, words of the channels, (4,) taps] as the kernel reads them."""
        groups, sources, taps, blocks, *_ = self.packed(config)
        fours = (4,) if self.is_bytes else ()
        split = words.reshape(groups, blocks, SIDE, sources, SIDE, *fours, taps)
        last = split.ndim - 1
        order = (0, 3, last, 1, 4, 2, *range(5, last))
        return np.ascontiguousarray(split.transpose(order))


def finish_cost(epilogue: Sequence[PostOp]) -> float:
    """Return what a vector of the result costs."""
    return _FINISH + (_LONG if emit.is_long(epilogue) else 0) + _POST_OP * len(epilogue)


def candidates(product: Product, machine: Machine, finish: float, copy: float) -> list[tuple[Config, float]]:
    """List how the work can be cut with the estimated costs, the cheapest first; none without the unit.

    Args:
        finish: Cost of what is done to a vector of the result.
        copy: Cost of the copy by one core.
    """
    if not machine.tiles:
        return []
    shared = copy / emit.worker_count(copy, machine.cores)
    found = [
        (config, shared + _cost(product, config, machine, finish))
        for config in itertools.starmap(Config, itertools.product((1, 2, 3, 4, 6), (1, 2, 3, 4, 6)))
        if product.group(config).fits and product.blocks % config.blocks == 0
    ]
    return sorted(found, key=lambda candidate: candidate[1])


def _cost(product: Product, config: Config, machine: Machine, finish: float) -> float:
    tiles, taps = config.pixels * config.blocks, len(product.filter.taps)
    steps = product.sources * taps
    weights = steps * config.blocks * WORDS * 4
    line = _LINE if 2 * weights < machine.l1_bytes else _FAR_LINE
    # Taps look at nearly the same pixels.
    pixels = SIDE * config.pixels * (_FAR_LINE / taps + _LINE)
    step = max(_PRODUCT * tiles, pixels + SIDE * config.blocks * line)
    group = steps * step + tiles * SIDE * finish + _GROUP
    if product.result_bytes > machine.l2_bytes:
        group += tiles * SIDE * _FAR_RESULT
    groups = product.batch * product.strips(config) * product.blocks // config.blocks
    return -(-groups // emit.worker_count(groups * group, machine.cores)) * group


# --- the kernel ------------------------------------------------------------------------------------------------------


class ProductWriter(ABC):
    """Writes the copy and the products; what is read and what becomes of the sums is that of a subclass."""

    piece_words = 8
    """Numbers of 32 bits that are copied at once."""
    copies_pixels_alone = True
    """Whether a pixel of the copy is one pixel of the data, and not a window."""

    def __init__(self, product: Product, config: Config, cores: int, weights: Buffer, initial: Buffer | None) -> None:
        """Take the flat buffers of the packed weights, and of what the sums start from."""
        self._product, self._config, self._cores = product, config, cores
        self._weights, self._initial = weights, initial

    @abstractmethod
    def piece(self, image: Expr, number: Expr, row: Expr, column: Expr) -> Expr:
        """Return some neighbouring channels of a pixel, as `piece_words` numbers of 32 bits.

        Args:
            number: Which ones; behind the last channel, anything that products with zero leave zero.
        """

    def padding(self) -> Expr:
        """Return a piece of the padding."""
        return emit.splat(0, self.piece_words, "int32")

    @abstractmethod
    def finish(
        self, sums: Buffer, place: tuple[Expr, Expr], row: Expr, columns: tuple[Expr, Expr], first: Expr
    ) -> None:
        """Write what becomes of the sums of some pixels in a row.

        Args:
            sums: The group's sums: [blocks, pixels, 16].
            place: Image, and number of the group of blocks.
            row: Their row in the result.
            columns: The first column, and the one behind the last.
            first: Number of the first pixel in `sums`.
        """

    def write(self) -> None:
        product, config = self._product, self._config
        instructions.check_permission()
        if self.copies_pixels_alone and product.copies_strips(config, self._cores):
            self._write_strips()
            return
        copied = self._copy()
        groups, strips = product.blocks // config.blocks, product.strips(config)
        work = product.batch * groups * strips
        shares = min(work, _SHARES_PER_CORE * self._cores) if self._cores > 1 else 1
        with emit.shared(shares, product.operations) as share:
            first, last = (T.Bind((share + more) * work // shares) for more in (0, 1))
            sums = emit.flat(T.alloc_buffer((config.pixels * config.blocks * WORDS,), product.group(config).sum_dtype))
            instructions.begin()
            with T.serial(first, last) as number:
                image, group = T.Bind(number // (groups * strips)), T.Bind(number // strips % groups)
                first_pixel = T.Bind(number % strips * (config.pixels * SIDE))
                base = T.Bind(image * (product.sources * product.filter.pixels) + first_pixel)
                self._sum_up(sums, (copied, base, product.filter.pixels), (image, group), first_pixel)
            instructions.end()

    def _write_strips(self) -> None:
        """Write the copy and all products of each strip of pixels."""
        product, config = self._product, self._config
        strips, size = product.strips(config), config.pixels * SIDE
        work = product.batch * strips
        shares = min(work, _SHARES_PER_CORE * self._cores) if self._cores > 1 else 1
        with emit.shared(shares, product.operations) as share:
            first, last = (T.Bind((share + more) * work // shares) for more in (0, 1))
            sums = emit.flat(T.alloc_buffer((config.blocks * size * SIDE,), product.group(config).sum_dtype))
            copied = emit.flat(T.alloc_buffer((product.sources * size * WORDS_PER_PIXEL,), "int32"))
            instructions.begin()
            with T.serial(first, last) as number:
                image, first_pixel = T.Bind(number // strips), T.Bind(number % strips * size)
                self._copy_strip(copied, image, first_pixel)
                with T.serial(0, product.blocks // config.blocks) as group:
                    self._sum_up(sums, (copied, 0, size), (image, group), first_pixel)
            instructions.end()

    def _copy_strip(self, copied: Buffer, image: Expr, first: Expr) -> None:
        product, size, pieces = self._product, self._config.pixels * SIDE, WORDS_PER_PIXEL // self.piece_words
        count = T.Bind(tirx.min(product.filter.positions - first, size))
        with T.serial(0, product.sources) as source, T.serial(0, count) as pixel:
            target = T.Bind((source * size + pixel) * WORDS_PER_PIXEL)
            for number in range(pieces):
                value = self.piece(image, source * pieces + number, 0, T.Bind(first + pixel))
                T.buffer_store(copied, value, [emit.ramp(target + number * self.piece_words, self.piece_words)])

    def _sum_up(self, sums: Buffer, copy: tuple[Buffer, Expr, int], place: tuple[Expr, Expr], first: Expr) -> None:
        """Write the sums of a group of tiles, and what becomes of them.

        Args:
            sums: Memory for them.
            copy: The copy, where the group's first pixel lies in it, and pixels from one source to the next.
            place: Image and number of the group of blocks.
            first: The group's first pixel in the result.
        """
        product, (copied, begin, apart), (_, group) = self._product, copy, place
        taps, blocks, tiles = product.filter.taps, self._config.blocks, product.group(self._config)
        initial = None if self._initial is None else self._initial[group * (blocks * SIDE)]
        instructions.start(tiles, sums[0], initial)
        with T.serial(0, product.sources) as source:
            base = T.Bind(begin + source * apart)
            line = T.Bind((group * product.sources + source) * (len(taps) * blocks * WORDS))
            for number, tap in enumerate(taps):
                numbers = copied[(base + tap) * WORDS_PER_PIXEL]
                scale = 4 if product.is_bytes else 1
                instructions.step(tiles, sums[0], numbers, self._weights[(line + number * (blocks * WORDS)) * scale])
        instructions.store(tiles, sums[0])
        self._rows(sums, place, first)

    def _rows(self, sums: Buffer, place: tuple[Expr, Expr], first: Expr) -> None:
        """Write what becomes of a group's sums, row by row of the result."""
        shape, size = self._product.filter, self._config.pixels * SIDE
        (height, width), long = shape.result, shape.reach(1)
        if width == long:  # neighbours in the copy are neighbours in the result
            self.finish(sums, place, 0, (first, T.Bind(tirx.min(first + size, height * width))), 0)
            return
        with T.serial(first // long, tirx.min((first + size - 1) // long + 1, height)) as row:
            before = T.Bind(row * long)
            begin = T.Bind(tirx.max(first - before, 0))
            end = T.Bind(tirx.max(tirx.min(first + size - before, width), begin))
            self.finish(sums, place, row, (begin, end), T.Bind(before + begin - first))

    def _copy(self) -> Buffer:
        """Write the copy of the data; return its flat buffer of 32-bit numbers."""
        product, shape = self._product, self._product.filter
        height, width = shape.reach(0), shape.reach(1)
        # The last tiles reach behind the last pixel.
        count = product.batch * product.sources * shape.pixels + self._config.pixels * SIDE
        copied = emit.flat(T.alloc_buffer((count * WORDS_PER_PIXEL,), "int32"))
        lines = product.batch * product.sources * len(shape.phases(0)) * height
        per_line = len(shape.phases(1)) * width * WORDS_PER_PIXEL / self.piece_words
        with emit.shared(lines, 2 * lines * per_line) as work:
            row, rest = T.Bind(work % height), T.Bind(work // height)
            phase, source = T.Bind(rest % len(shape.phases(0))), T.Bind(rest // len(shape.phases(0)) % product.sources)
            image = T.Bind(rest // (len(shape.phases(0)) * product.sources))
            start = T.Bind(
                ((image * product.sources + source) * len(shape.images) + phase * len(shape.phases(1)))
                * (height * width)
                + row * width
            )
            first = _choose(phase, shape.phases(0))
            above = T.Bind(row * shape.stride[0] + first - shape.before[0])
            for number, across in enumerate(shape.phases(1)):
                line = (copied, T.Bind(start + number * (height * width)))
                self._copy_row(line, (image, source, above), across)
        return copied

    def _copy_row(self, line: tuple[Buffer, Expr], place: tuple[Expr, Expr, Expr], across: int) -> None:
        """Write a row of an image of the copy: padding, pixels of the data, padding."""
        shape, (image, source, above) = self._product.filter, place
        width, stride = shape.reach(1), shape.stride[1]
        begin = min(max(-((across - shape.before[1]) // stride), 0), width)
        end = max(min((shape.source[1] - 1 - across + shape.before[1]) // stride + 1, width), begin)

        def fill(first: int, last: int) -> None:
            if last > first:
                empty = T.Bind(self.padding())
                with T.serial(first, last) as column:
                    self.store_pixel(line, column, lambda _: empty)

        def row() -> None:
            fill(0, begin)
            self.copy_pixels(line, (image, source, above), (begin, end), across - shape.before[1])
            fill(end, width)

        if _is_inside(shape):
            row()
            return
        with T.If(tirx.all(above >= 0, above < shape.source[0])):
            with T.Then():
                row()
            with T.Else():
                fill(0, width)

    def copy_pixels(
        self, line: tuple[Buffer, Expr], place: tuple[Expr, Expr, Expr], columns: tuple[int, int], first: int
    ) -> None:
        """Write the copy of some pixels of a row.

        Args:
            line: The copy, and where the row begins in it.
            place: Image, source and row of the data.
            columns: The first column of the copy, and the one behind the last.
            first: Column of the data that the first column of the copy has.
        """
        (image, source, row), stride = place, self._product.filter.stride[1]
        pieces = WORDS_PER_PIXEL // self.piece_words
        with T.serial(*columns) as column:
            x = T.Bind(column * stride + first)
            self.store_pixel(line, column, lambda number: self.piece(image, source * pieces + number, row, x))

    def store_pixel(self, line: tuple[Buffer, Expr], column: Expr, value: Callable[[int], Expr]) -> None:
        """Write a pixel of the copy; `value` returns its pieces by number."""
        copied, start = line
        for number in range(WORDS_PER_PIXEL // self.piece_words):
            index = (start + column) * WORDS_PER_PIXEL + number * self.piece_words
            T.buffer_store(copied, value(number), [emit.ramp(index, self.piece_words)])


def _is_inside(shape: Filter) -> bool:
    """Whether all rows of the copy are rows of the data."""
    last = (shape.reach(0) - 1) * shape.stride[0] + shape.phases(0)[-1]
    return not shape.before[0] and last < shape.source[0]


def _choose(number: Expr, values: Sequence[int]) -> Expr:
    """Return one of some numbers that are known here."""
    steps = {second - first for first, second in itertools.pairwise(values)}
    if len(values) == 1:
        return values[0]
    if len(steps) == 1:
        return T.Bind(values[0] + number * steps.pop())
    chosen = tirx.const(values[-1], "int32")
    for place, value in reversed(list(enumerate(values[:-1]))):
        chosen = tirx.Select(number == place, tirx.const(value, "int32"), chosen)
    return T.Bind(chosen)


def with_definitions(function: tirx.PrimFunc, group: Group) -> tirx.PrimFunc:
    """Return a kernel together with the instructions that it uses."""
    own, portable = (instructions.definitions(group, has_instructions=has) for has in (True, False))
    return emit.with_llvm(function, own, portable)
