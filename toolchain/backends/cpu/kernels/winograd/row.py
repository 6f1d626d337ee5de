"""Winograd convolution along a row, F(4, 3) and F(4, 4): filters of one row, as speech and audio networks have.

A filter of more than 4 taps is cut into parts of 4. The next part reads the inputs 4 pixels further on, which is what
the next tile of 4 results reads with the first part: so each input is transformed once, and the products of all parts
are summed up before they are transformed back. That takes 2 (with 4k taps 2.3) times fewer multiplications.

The taps of a filter with dilation d see each d-th pixel. So the row is d rows without dilation that take turns, and the
tiles of each lie together. A chunk is some neighbouring tiles of such a row: a core transforms its inputs, multiplies
them with all weights, group of output blocks by group, and transforms the products to results.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.direct.plan import flatten
from toolchain.backends.cpu.kernels.emit import Argument, multiply_add, with_definitions
from toolchain.backends.cpu.kernels.winograd.line import Line
from toolchain.backends.cpu.kernels.winograd.memory import Space, spaces
from toolchain.backends.cpu.layers import Conv, Layer
from toolchain.backends.cpu.machine import Machine

NAME = "winograd_row"

TILE = 4
"""Results of a tile, and the taps of a part of a filter that has several."""

_FEWEST_TAPS, _MOST_TAPS = 3, 16
_LEAST_LANES = 8  # machines with fewer multiply directly by one element of a vector

# In units of one vector multiply-add.
_LOAD, _GEMM, _MOVE, _TRANSFORM = 0.1, 4.0, 1.4, 30.0
_CACHE = 0.06  # a byte from a cache behind the first level
_MEMORY = 0.3  # a byte from memory, for each of the cores
_LEAST_SUMS = 8  # latency times throughput of multiply-adds
_BAND = 40.0  # to begin a chunk
_MOST_TILES, _MOST_PASSES = 14, 16


@dataclass(frozen=True)
class Config:
    """How the work is cut.

    Attributes:
        tiles: Tiles whose sums are kept in registers at once.
        passes: How often that is done before the next weights are taken.
        blocks: Output blocks whose sums are kept in registers at once.
    """

    tiles: int
    passes: int
    blocks: int


@dataclass(frozen=True)
class RowPlan:
    """Sizes that follow from a layer and its settings.

    Attributes:
        layer: The layer, on a row.
        config: The settings.
    """

    layer: Conv
    config: Config

    @property
    def line(self) -> Line:
        """The transforms."""
        taps = self.layer.kernel[1]
        return Line(TILE, min(taps, TILE))

    @property
    def parts(self) -> int:
        """Parts of the filter."""
        return -(-self.layer.kernel[1] // TILE)

    @property
    def rows(self) -> int:
        """Rows without dilation that an image has."""
        return self.layer.dilation[1]

    @property
    def tiles_of_row(self) -> int:
        """Tiles of the longest of those rows."""
        longest = -(-self.layer.out.width // self.rows)
        return -(-longest // TILE)

    @property
    def chunk(self) -> int:
        """Tiles of a chunk."""
        return self.config.tiles * self.config.passes

    @property
    def chunks_of_row(self) -> int:
        """Chunks of a row; the last one may be incomplete."""
        return -(-self.tiles_of_row // self.chunk)

    @property
    def chunks(self) -> int:
        """All chunks."""
        return self.layer.out.batch * self.rows * self.chunks_of_row

    @property
    def groups(self) -> int:
        """Groups of output blocks."""
        return self.layer.out.blocks // self.config.blocks

    @property
    def packed(self) -> tuple[int, ...]:
        """Shape of the packed weights."""
        data, lanes = self.layer.data, self.layer.out.lanes
        return (self.groups, self.line.components, self.parts, data.blocks * lanes, self.config.blocks, lanes)

    # One vector more than is needed keeps the components of a tile out of the same set of the cache.

    @property
    def slots(self) -> int:
        """Tiles whose inputs a chunk reads."""
        return self.chunk + self.parts - 1

    @property
    def input_line(self) -> int:
        """Elements of one component of a chunk's inputs: [blocks in][slots][lanes]."""
        return (self.layer.data.blocks * self.slots + 1) * self.layer.out.lanes

    @property
    def output_line(self) -> int:
        """Elements of one component of a chunk's products for a group: [blocks of a group][tiles][lanes]."""
        return (self.config.blocks * self.chunk + 1) * self.layer.out.lanes


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Conv) or layer.groups != 1:
        return False
    layer = flatten(layer)
    (height, width), data, out = layer.kernel, layer.data, layer.out
    is_row = data.height == out.height == height == 1 and _FEWEST_TAPS <= width <= _MOST_TAPS
    is_plain = layer.strides[1] == 1 and layer.padding[0] == layer.padding[2] == 0
    return is_row and is_plain and data.lanes == out.lanes >= _LEAST_LANES and data.dtype == out.dtype == "float32"


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first: the best of each group of blocks."""
    layer = flatten(layer)
    best = []
    for blocks in (count for count in range(1, 8) if layer.out.blocks % count == 0):
        tried = [
            (config, _cost(RowPlan(layer, config), machine))
            for tiles, passes in itertools.product(range(1, _MOST_TILES + 1), range(1, _MOST_PASSES + 1))
            if tiles * blocks + blocks + 1 <= machine.registers
            and RowPlan(layer, config := Config(tiles, passes, blocks)).tiles_of_row + tiles > tiles * passes
        ]
        best += sorted(tried, key=lambda candidate: candidate[1])[:1]
    return sorted(best, key=lambda candidate: candidate[1])


def _cost(plan: RowPlan, machine: Machine) -> float:
    """Estimate the time of the busiest core."""
    (tiles, passes, blocks), data = (plan.config.tiles, plan.config.passes, plan.config.blocks), plan.layer.data
    components, inputs = plan.line.components, plan.parts * data.blocks * machine.lanes
    step = max(tiles * blocks, tiles + blocks, _LEAST_SUMS) + _LOAD * (tiles + blocks)
    bytes_of_step = blocks * machine.lanes * 4
    far = passes if inputs * bytes_of_step > machine.l1_bytes else 1
    products = components * passes * (inputs * step + 2 * tiles * blocks + _GEMM)
    weights = components * inputs * bytes_of_step * _CACHE * (1 + 0.2 * (far - 1))
    moved = sum(op.other is not None for op in plan.layer.epilogue) + 1
    finish = plan.chunk * blocks * (_TRANSFORM + TILE * len(plan.layer.epilogue) + _MOVE * (components + TILE * moved))
    transform = plan.slots * data.blocks * (_TRANSFORM + 2 * _MOVE * components)
    resident = 4 * components * plan.input_line
    again = plan.groups * _CACHE * resident if 2 * resident > machine.l2_bytes else 0.0
    each = transform + plan.groups * (products + weights + finish) + again + _BAND
    # The first chunk of each core waits for weights from memory.
    from_memory = plan.groups * components * inputs * bytes_of_step * _MEMORY
    return max(each, from_memory) + (-(-plan.chunks // machine.cores) - 1) * each


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:
    """Transform weights and return them in single precision, as `RowPlan.packed` has them."""
    layer = flatten(layer)
    plan = RowPlan(layer, config)
    outputs, inputs = weights.shape[:2]
    data, lanes, taps = layer.data, machine.lanes, plan.line.taps
    padded = np.zeros((layer.out.blocks * lanes, data.blocks * lanes, plan.parts * taps))
    padded[:outputs, :inputs, : layer.kernel[1]] = weights.reshape(outputs, inputs, -1)
    parts = padded.reshape(plan.groups, config.blocks, lanes, data.blocks * lanes, plan.parts, taps)
    transformed = np.tensordot(parts, plan.line.filters, axes=(5, 1))
    return np.ascontiguousarray(transformed.transpose(0, 5, 4, 3, 1, 2).astype(np.float32))


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    plan, out = RowPlan(flatten(layer), config), layer.out
    arguments = [Argument("data", layer.data.shape), Argument("weights", plan.packed)]
    if layer.bias:
        arguments.append(Argument("bias", (out.blocks, out.lanes)))
    arguments += [*emit.arguments_of(layer.epilogue, out), Argument("out", out.shape)]

    def body(*buffers: Any) -> None:
        _RowWriter(plan, machine, buffers).write()

    return with_definitions(emit.kernel(arguments, body, {}), machine)


@dataclass(frozen=True)
class _Chunk:
    """A chunk, as expressions.

    Attributes:
        image: Its image.
        row: Its row without dilation, which is also that row's first pixel.
        first: Its first tile in the row.
        passes: How many passes it takes.
    """

    image: Any
    row: Any
    first: Any
    passes: Any


class _RowWriter:
    def __init__(self, plan: RowPlan, machine: Machine, buffers: Sequence[Any]) -> None:
        self._plan, self._layer, self._lanes, self._machine = plan, plan.layer, plan.layer.out.lanes, machine
        self._data, self._weights, *rest, self._out = buffers
        self._bias = rest.pop(0) if plan.layer.bias else None
        self._others = rest

    def write(self) -> None:
        plan, components = self._plan, self._plan.line.components
        with emit.shared(plan.chunks, _cost(plan, self._machine) * self._machine.cores) as work:
            inputs, edge, products = spaces(
                self._lanes,
                "float32",
                components * plan.input_line,
                components * self._lanes,
                components * plan.output_line,
            )
            row = T.Bind(work // plan.chunks_of_row)
            first = T.Bind(work % plan.chunks_of_row * plan.chunk)
            tiles = T.Bind(tirx.min(plan.chunk, plan.tiles_of_row - first))
            passes = T.Bind((tiles + plan.config.tiles - 1) // plan.config.tiles)
            chunk = _Chunk(T.Bind(row // plan.rows), T.Bind(row % plan.rows), first, passes)
            slots = T.Bind(passes * plan.config.tiles + plan.parts - 1)
            with T.serial(0, self._layer.data.blocks) as block, T.serial(0, slots) as slot:
                self._transform_inputs(chunk, block, slot, inputs, edge)
            with T.serial(0, plan.groups) as group:
                with T.serial(0, components) as component, T.serial(0, passes) as number:
                    self._products(group, component, number, inputs, products)
                with T.serial(0, plan.config.blocks) as block, T.serial(0, tiles) as tile:
                    self._transform_products(chunk, T.Bind(group * plan.config.blocks + block), block, tile, products)

    def _transform_inputs(self, chunk: _Chunk, block: Any, slot: Any, inputs: Space, edge: Space) -> None:
        """Transform what a tile reads of a block of channels; zeros stand for what is outside the image."""
        plan, data, lanes = self._plan, self._layer.data, self._lanes
        step, count = plan.rows, plan.line.components
        first = T.Bind((chunk.first + slot) * (TILE * step) + chunk.row - self._layer.padding[1])
        start = T.Bind(emit.offset(data, chunk.image, block, 0, first))
        target = T.Bind((block * plan.slots + slot) * lanes)

        def transform(vectors: Sequence[Any]) -> None:
            for component, value in enumerate(plan.line.inputs(vectors, lanes)):
                inputs.store(value, target + component * plan.input_line)

        with T.If(tirx.all(first >= 0, first + (count - 1) * step < data.width)):
            with T.Then():
                ramps = [emit.ramp(start + number * (step * lanes), lanes) for number in range(count)]
                transform([T.Bind(self._data[ramp]) for ramp in ramps])
            with T.Else():
                with T.serial(0, count) as number:
                    pixel = T.Bind(first + number * step)
                    with T.If(tirx.all(pixel >= 0, pixel < data.width)):
                        with T.Then():
                            edge.store(self._data[emit.ramp(start + number * (step * lanes), lanes)], number * lanes)
                        with T.Else():
                            edge.store(emit.splat(0.0, lanes), number * lanes)
                transform([edge.vector(number * lanes) for number in range(count)])

    def _products(self, group: Any, component: Any, number: Any, inputs: Space, products: Space) -> None:
        """Multiply one component of some tiles of a chunk with the weights of a group of output blocks."""
        plan, config, lanes, data = self._plan, self._plan.config, self._lanes, self._layer.data
        sums = emit.Registers(config.blocks * config.tiles, lanes)
        for index in range(config.blocks * config.tiles):
            sums[index] = emit.splat(0.0, lanes)
        step = config.blocks * lanes
        panel = T.Bind((group * plan.line.components + component) * plan.parts)
        with T.serial(0, plan.parts) as part, T.serial(0, data.blocks) as block:
            slots = T.Bind(component * plan.input_line + (block * plan.slots + number * config.tiles + part) * lanes)
            line = T.Bind((((panel + part) * data.blocks + block) * lanes) * step)
            with T.serial(0, lanes) as channel:
                ramps = [emit.ramp(line + channel * step + b * lanes, lanes) for b in range(config.blocks)]
                weights = [T.Bind(self._weights[ramp]) for ramp in ramps]
                for tile in range(config.tiles):
                    value = T.Bind(inputs.number(slots + channel + tile * lanes))
                    for b, weight in enumerate(weights):
                        index = b * config.tiles + tile
                        sums[index] = multiply_add(self._machine, sums[index], weight, value)
        for b, tile in itertools.product(range(config.blocks), range(config.tiles)):
            offset = component * plan.output_line + (b * plan.chunk + number * config.tiles + tile) * lanes
            products.store(sums[b * config.tiles + tile], offset)

    def _transform_products(self, chunk: _Chunk, block: Any, own: Any, tile: Any, products: Space) -> None:
        """Transform the products of a tile to results, and store those that are inside the image."""
        plan, lanes, step = self._plan, self._lanes, self._plan.rows
        start = T.Bind((own * plan.chunk + tile) * lanes)
        vectors = [products.vector(start + number * plan.output_line) for number in range(plan.line.components)]
        results = plan.line.outputs(vectors, lanes)
        if self._bias is not None:
            bias = T.Bind(self._bias[emit.ramp(block * lanes, lanes)])
            results = [T.Bind(result + bias) for result in results]
        first = T.Bind((chunk.first + tile) * (TILE * step) + chunk.row)
        for number, result in enumerate(results):
            column = first + number * step
            if self._layer.out.width % (TILE * step):
                with T.If(column < self._layer.out.width), T.Then():
                    self._store(result, (chunk.image, block, 0, column))
            else:
                self._store(result, (chunk.image, block, 0, column))

    def _store(self, value: Any, coordinates: emit.Coordinates) -> None:
        value = emit.apply_epilogue(value, self._layer.epilogue, self._others, coordinates, self._lanes)
        T.buffer_store(self._out, value, [emit.ramp(emit.offset(self._layer.out, *coordinates), self._lanes)])
