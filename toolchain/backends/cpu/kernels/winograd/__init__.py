"""Winograd convolution F(4x4, 3x3) and F(2x2, 3x3) on blocked activations, fused with what follows it.

Tiles of 4x4 (2x2) results take 4 (2.25) times fewer multiplications than direct convolution, but 4 (1.8) times more
weights. Tiles are numbered through all images and worked on in chunks: transformed inputs [component][block in][tile]
[lane] times weights [component][channel in][block out][lane] give products [component][block out][tile][lane].

Transforms go by columns, then by rows. That of the inputs does the columns of a strip of tiles once for neighbours, and
reads zeros outside the image; that of the products does a column as soon as its components are there, and leaves out
rows and columns outside the result. Weights are used once or few times, so they are fetched ahead by hand: from memory
that doubles what reaches the core.

Errors: see `winograd_algebra.ERRORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import direct, emit
from toolchain.backends.cpu.kernels.direct.plan import bytes_of
from toolchain.backends.cpu.kernels.emit import Argument, multiply_add, with_definitions
from toolchain.backends.cpu.kernels.winograd import algebra
from toolchain.backends.cpu.kernels.winograd import plan as winograd_plan
from toolchain.backends.cpu.kernels.winograd.memory import Space, spaces
from toolchain.backends.cpu.kernels.winograd.plan import STRIP, Config, WinogradPlan
from toolchain.backends.cpu.layers import BFLOAT16, Conv, Layer
from toolchain.backends.cpu.machine import Machine

NAME = "winograd"

_AHEAD = 1024  # bytes for each lane: how far ahead weights are fetched


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Conv) or not has_tiles(layer):
        return False
    return {layer.data.dtype, layer.out.dtype} <= {"float32", BFLOAT16}


def has_tiles(layer: Conv) -> bool:
    """Whether a layer can be computed in tiles, whatever numbers it computes with."""
    plain = layer.groups == 1 and layer.strides == layer.dilation == (1, 1) and max(layer.padding) <= 1
    return layer.kernel == (algebra.TAPS, algebra.TAPS) and plain and layer.data.lanes == layer.out.lanes > 1


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated cost, the cheapest first."""
    return winograd_plan.configs(layer, machine)


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:
    """Transform weights [out, in, 3, 3] and return them as the kernel reads them.

    Returns:
        Single precision, [groups of blocks, components, channels in, blocks of a group, lanes].
    """
    plan = WinogradPlan(layer, machine.lanes, config)
    outputs, inputs, _, _ = weights.shape
    padded = np.zeros((plan.components, layer.out.blocks * plan.lanes, plan.inputs), np.float32)
    padded[:, :outputs, :inputs] = algebra.filters(weights, config.tile)
    split = padded.reshape(plan.components, plan.groups, config.blocks, plan.lanes, plan.inputs)
    return np.ascontiguousarray(split.transpose(1, 0, 4, 2, 3))


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    plan = WinogradPlan(layer, machine.lanes, config)

    def body(*buffers: Any) -> None:
        WinogradWriter(plan, machine, buffers).write()

    arguments = direct.arguments(layer, Argument("weights", plan.packed))
    return with_definitions(emit.kernel(arguments, body, {}), machine)


@contextmanager
def _only_if(condition: Any) -> Iterator[None]:
    with T.If(condition), T.Then():
        yield


@dataclass(frozen=True)
class _Strip:
    """Neighbouring tiles of a row; all are expressions.

    Attributes:
        image: Their image.
        row: Their row of tiles in the image.
        column: The first one's column of tiles.
        count: How many.
        number: The first one's number in its chunk.
    """

    image: Any
    row: Any
    column: Any
    count: Any
    number: Any


class WinogradWriter:
    """Writes one kernel.

    Attributes:
        dtype: Type of what is transformed, and of its products; rows of products are transformed in float32.
    """

    dtype = "float32"

    def __init__(self, plan: WinogradPlan, machine: Machine, buffers: Sequence[Any]) -> None:
        self._plan, self._layer, self._lanes, self._tile = plan, plan.layer, plan.lanes, plan.config.tile
        self._machine, self._cores = machine, machine.cores
        self._cost = winograd_plan.cost(plan, machine) * machine.cores
        self._data, self._weights, *rest, self._out = buffers
        self._bias = rest.pop(0) if plan.layer.bias else None
        self._others = rest
        self._more: list[Space] = []

    def write(self) -> None:
        if self._plan.fused(self._cores):
            self._write_fused()
        else:
            self._write_in_two()

    def _write_fused(self) -> None:
        plan = self._plan
        with emit.shared(plan.chunks, self._cost) as chunk:
            sizes = plan.transformed_size, plan.columns_size, plan.halves_size, plan.products_size
            transformed, columns, halves, products, *self._more = self._spaces(*sizes, *self.more_sizes())
            with T.serial(0, self._layer.data.blocks) as block:
                self._transform_inputs(chunk, block, transformed, 0, columns)
            with T.serial(0, plan.groups) as group:
                self._group(chunk, group, transformed, 0, halves, products)

    def _write_in_two(self) -> None:
        plan, blocks, shares = self._plan, self._layer.data.blocks, self._plan.shares(self._cores)
        size = plan.transformed_size
        # All inputs are transformed before any product: the cores meet once in between.
        (transformed,) = self._spaces(plan.chunks * size)
        with T.parallel(0, plan.chunks * shares) as work:
            (columns,) = self._spaces(plan.columns_size)
            chunk, share = T.Bind(work // shares), T.Bind(work % shares)
            with T.serial(T.Bind(share * blocks // shares), T.Bind((share + 1) * blocks // shares)) as block:
                self._transform_inputs(chunk, block, transformed, T.Bind(chunk * size), columns)
        with T.parallel(0, plan.chunks * plan.groups) as work:
            sizes = plan.halves_size, plan.products_size
            halves, products, *self._more = self._spaces(*sizes, *self.more_sizes())
            chunk, group = T.Bind(work % plan.chunks), T.Bind(work // plan.chunks)
            self._group(chunk, group, transformed, T.Bind(chunk * size), halves, products)

    def _spaces(self, *sizes: int) -> list[Space]:
        return spaces(self._lanes, self.dtype, *sizes)

    def _ramp(self, base: Any) -> Any:
        return emit.ramp(base, self._lanes)

    @contextmanager
    def _strips(self, chunk: Any) -> Iterator[_Strip]:
        plan = self._plan
        first = T.Bind(chunk * plan.chunk)
        last = T.Bind(tirx.min(first + plan.chunk, plan.all_tiles) - 1)
        with T.serial(T.Bind(first // plan.across), T.Bind(last // plan.across + 1)) as row:
            begin = T.Bind(tirx.max(first - row * plan.across, 0))
            end = T.Bind(tirx.min(last + 1 - row * plan.across, plan.across))
            image = T.Bind(row // plan.down) if self._layer.out.batch > 1 else 0
            image_row = T.Bind(row % plan.down) if self._layer.out.batch > 1 else row
            with T.serial(0, T.Bind((end - begin + STRIP - 1) // STRIP)) as number:
                column = T.Bind(begin + number * STRIP)
                count, number_in_chunk = (
                    T.Bind(tirx.min(end - column, STRIP)),
                    T.Bind(row * plan.across + column - first),
                )
                yield _Strip(image, image_row, column, count, number_in_chunk)

    # --- inputs ------------------------------------------------------------------------------------------------

    def _transform_inputs(self, chunk: Any, block: Any, transformed: Space, base: Any, columns: Space) -> None:
        """Transform the inputs of a chunk and a block of channels."""
        plan, side = self._plan, self._plan.side
        with self._strips(chunk) as strip:
            self._transform_columns(block, strip, columns)
            with T.serial(0, strip.count) as tile:
                offset = T.Bind(base + (block * plan.chunk + strip.number + tile) * self._lanes)
                with T.serial(0, side) as row:
                    start = T.Bind(tile * self._tile * side + row)
                    vectors = [columns.vector((start + column * side) * self._lanes) for column in range(side)]
                    for column, value in enumerate(algebra.inputs(vectors, self._lanes)):
                        transformed.store(value, offset + (column * side + row) * plan.input_line)

    def _transform_columns(self, block: Any, strip: _Strip, columns: Space) -> None:
        """Transform the columns of a strip; those outside the image become zero."""
        data, (top, before, *_) = self._layer.data, self._layer.padding
        first = T.Bind(strip.column * self._tile - before)
        count = T.Bind(strip.count * self._tile + 2)
        begin = T.Bind(tirx.max(0 - first, 0)) if before else 0
        end = T.Bind(tirx.min(count, data.width - first))
        # Columns of the padding, left and right.
        for outside in ((0, begin), (end, count)):
            with T.serial(*outside) as column:
                self._store_column(columns, column, [emit.splat(0.0, self._lanes, self.dtype)] * self._plan.side)
        for rows, inside in self._kinds_of_rows():
            with _only_if(tirx.all(strip.row >= rows.start, strip.row < rows.stop)):
                pixel = T.Bind(emit.offset(data, strip.image, block, strip.row * self._tile - top, first))
                with T.serial(begin, end) as column:
                    starts = [pixel + (row * data.width + column) * data.stored_lanes for row in range(len(inside))]
                    vectors = [
                        T.Bind(self.input(emit.load(self._data, data, start)))
                        if real
                        else emit.splat(0.0, self._lanes, self.dtype)
                        for start, real in zip(starts, inside, strict=True)
                    ]
                    self._store_column(columns, column, algebra.inputs(vectors, self._lanes))

    def input(self, vector: Any) -> Any:
        """Return a vector of the data as it is transformed."""
        return vector

    def _store_column(self, columns: Space, column: Any, values: Sequence[Any]) -> None:
        for row, value in enumerate(values):
            columns.store(value, (column * self._plan.side + row) * self._lanes)

    def _kinds_of_rows(self) -> list[tuple[range, tuple[bool, ...]]]:
        """List which rows of tiles see the edges in the same way, and which of their inputs are inside the image."""
        top, height = self._layer.padding[0], self._layer.data.height
        kinds: list[tuple[range, tuple[bool, ...]]] = []
        for row in range(self._plan.down):
            inside = tuple(0 <= row * self._tile - top + i < height for i in range(self._plan.side))
            if kinds and kinds[-1][1] == inside:
                kinds[-1] = (range(kinds[-1][0].start, row + 1), inside)
            else:
                kinds.append((range(row, row + 1), inside))
        return kinds

    # --- weights: `compact` transforms them in the kernel ------------------------------------------------------

    def more_sizes(self) -> tuple[int, ...]:
        """Elements of the memory that a core needs beside that of its sums; it becomes `_more`."""
        return ()

    def prepare_column(self, group: Any, column: Any) -> None:
        """Prepare the weights of a column of components, for a group of output blocks."""

    def panel(self, group: Any, component: Any, row: Any) -> Any:  # noqa: ARG002 - the row, for those of one column
        """Return where the weights of a component begin."""
        plan = self._plan
        return (group * plan.components + component) * plan.inputs * plan.config.blocks * self._lanes

    def weight(self, offset: Any) -> Any:
        return T.Bind(self._weights[self._ramp(offset)])

    # --- products ----------------------------------------------------------------------------------------------

    def _group(self, chunk: Any, group: Any, transformed: Space, base: Any, halves: Space, products: Space) -> None:
        """Multiply the inputs of a chunk with the weights of a group of output blocks, and write the results."""
        plan, side = self._plan, self._plan.side
        with T.serial(0, side) as column:
            self.prepare_column(group, column)
            with T.serial(0, side) as row, T.serial(0, plan.config.passes) as pass_number:
                self._products(T.Bind(column * side + row), row, pass_number, group, transformed, base, products)
            with T.serial(0, plan.config.blocks * plan.chunk) as number:
                offset = T.Bind(number * self._lanes)
                vectors = [products.vector(offset + row * plan.output_line) for row in range(side)]
                for row, value in enumerate(algebra.outputs(vectors, self._lanes)):
                    halves.store(value, offset + (row * side + column) * plan.output_line)
        self._transform_outputs(chunk, group, halves)

    def _products(  # noqa: PLR0913, PLR0917 - a product has that many coordinates
        self, component: Any, row: Any, pass_number: Any, group: Any, transformed: Space, base: Any, products: Space
    ) -> None:
        """Multiply one component: `tiles` tiles of a chunk with a group of output blocks."""
        plan, config, lanes = self._plan, self._plan.config, self._lanes
        outputs = [(block, tile) for block in range(config.blocks) for tile in range(config.tiles)]
        panel = T.Bind(self.panel(group, component, row))

        def add(sums: emit.Registers, first: Any, end: Any) -> None:
            self._add_blocks(sums, component, pass_number, panel, transformed, base, first, end)

        for (block, tile), total in zip(outputs, self.sums(len(outputs), add), strict=True):
            offset = row * plan.output_line + (block * plan.chunk + pass_number * config.tiles + tile) * lanes
            products.store(total, offset)

    def sums(self, count: int, add: Callable[[emit.Registers, Any, Any], None]) -> list[Any]:
        """Return sums over all blocks of input channels; `add` adds what some of them give to sums in registers."""
        sums = emit.Registers(count, self._lanes)
        for number in range(count):
            sums[number] = emit.splat(0.0, self._lanes)
        add(sums, 0, self._layer.data.blocks)
        return [sums[number] for number in range(count)]

    def _add_blocks(  # noqa: PLR0913, PLR0917 - a product has that many coordinates
        self,
        sums: emit.Registers,
        component: Any,
        pass_number: Any,
        panel: Any,
        transformed: Space,
        base: Any,
        first: Any,
        end: Any,
    ) -> None:
        """Add what some blocks of input channels give."""
        plan, config, lanes = self._plan, self._plan.config, self._lanes
        step = config.blocks * lanes
        with T.serial(first, end) as block:
            tiles = T.Bind(
                base + component * plan.input_line + (block * plan.chunk + pass_number * config.tiles) * lanes
            )
            if plan.by_element:
                self.fetch_ahead(panel, pass_number, block, lanes * step)
                weights = T.Bind(panel + block * lanes * step)
                vectors = [transformed.vector(tiles + t * lanes) for t in range(config.tiles)]
                for channel in range(lanes):
                    self._add(sums, vectors, weights + channel * step, channel)
            else:
                full = plan.inputs % lanes == 0
                with T.serial(0, lanes if full else T.Bind(tirx.min(plan.inputs - block * lanes, lanes))) as channel:
                    self.fetch_ahead(panel, pass_number, block * lanes + channel, step)
                    numbers = [transformed.number(tiles + channel + t * lanes) for t in range(config.tiles)]
                    self._add(sums, numbers, T.Bind(panel + (block * lanes + channel) * step))

    def _add(self, sums: Any, numbers: Sequence[Any], line: Any, element: int | None = None) -> None:
        blocks = self._plan.config.blocks
        weights = [self.weight(line + block * self._lanes) for block in range(blocks)]
        for tile, number in enumerate(numbers):
            value = T.Bind(number)
            for block, weight in enumerate(weights):
                index = block * len(numbers) + tile
                sums[index] = multiply_add(self._machine, sums[index], weight, value, element)

    def fetch_ahead(self, panel: Any, pass_number: Any, number: Any, elements: int) -> None:
        """Fetch weights while others are used; each pass through a panel fetches its share of the next one.

        Args:
            panel: Where the weights of this component and group start.
            number: The use of `elements` weights in this pass.
            elements: How many are used at once.
        """
        plan, of_line = self._plan, emit.LINE // bytes_of(self._layer)
        lines = -(-elements // (of_line * plan.config.passes))
        if plan.config.passes == 1:
            first = panel + number * elements + _AHEAD * self._lanes // 4
        else:
            size = plan.inputs * plan.config.blocks * self._lanes
            first = panel + size + (pass_number * (size // elements) + number) * lines * of_line
        for line in range(lines):
            emit.fetch(self._weights[first + line * of_line], 1)

    # --- results -----------------------------------------------------------------------------------------------

    def _transform_outputs(self, chunk: Any, group: Any, halves: Space) -> None:
        """Transform products whose columns are done to results, and store them."""
        plan, out, tile = self._plan, self._layer.out, self._tile
        complete = out.height % tile == 0
        with T.serial(0, plan.config.blocks) as number, self._strips(chunk) as strip:
            block = T.Bind(group * plan.config.blocks + number)
            rows = tile if complete else T.Bind(tirx.min(tile, out.height - strip.row * tile))
            with T.serial(0, rows) as row, T.serial(0, strip.count) as offset:
                start = (row * plan.side) * plan.output_line + (
                    number * plan.chunk + strip.number + offset
                ) * self._lanes
                self._store_row(halves, T.Bind(start), block, strip, T.Bind(strip.column + offset), row)

    def _store_row(self, halves: Space, start: Any, block: Any, strip: _Strip, across: Any, row: Any) -> None:
        plan, tile, lanes = self._plan, self._tile, self._lanes
        # Columns of the last tile of a row that are inside the result.
        last = self._layer.out.width - (plan.across - 1) * tile
        vectors = [halves.vector(start + column * plan.output_line) for column in range(plan.side)]
        results = algebra.outputs([T.Bind(emit.in_type(vector, "float32", lanes)) for vector in vectors], lanes)
        finish = self.finish(block)

        def store(columns: range) -> None:
            for column in columns:
                coordinates = (strip.image, block, strip.row * tile + row, across * tile + column)
                value = finish(results[column])
                value = emit.apply_epilogue(value, self._layer.epilogue, self._others, coordinates, lanes)
                emit.store(value, self._out, self._layer.out, coordinates)

        store(range(last))
        if last < tile:
            with _only_if(across < plan.across - 1):
                store(range(last, tile))

    def finish(self, block: Any) -> Callable[[Any], Any]:
        """Return what makes a result of a transformed sum of an output block, before the epilogue."""
        if self._bias is None:
            return lambda value: value
        bias = T.Bind(self._bias[self._ramp(block * self._lanes)])
        return lambda value: value + bias
