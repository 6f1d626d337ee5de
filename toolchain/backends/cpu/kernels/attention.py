"""Attention in one pass: products of queries and keys, scale, mask, softmax, and the products with the values.

For one head the keys are transposed into vectors along them once, and the values are brought together where they lie
apart, so that both are read from one end to the other. Then some queries at a time have their scores in a buffer that
stays in the first cache; the softmax's division is done to the results, of which there are fewer (Rabe and Staats,
"Self-attention does not need O(n^2) memory", arXiv:2112.05682). Tensors are views of larger ones, so that no
transposition of heads is needed around it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import prim
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument, multiply_add, with_definitions
from toolchain.backends.cpu.layers import Attention, Layer, View
from toolchain.backends.cpu.machine import Machine

NAME = "attention"

_EXP = 20  # operations of an exponential, and of what else is done to a score
_MOST_PARTS = 8  # of a head's queries: each part transposes the keys anew
_COPIED = 4  # tiles that read values which are brought together
_SIZES = 16  # multiples of which fill the vectors of any machine
HEAP = 512  # floats: TVM takes smaller buffers for vectors, and then fails to read a single float of them

Expr = Any


@dataclass(frozen=True)
class Config:
    """How the work is cut.

    Attributes:
        rows: Queries of a tile.
        blocks: Vectors of keys, or of a value, of a tile.
    """

    rows: int
    blocks: int


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer: sizes that fill the vectors of any machine."""
    return isinstance(layer, Attention) and layer.size % _SIZES == 0 and layer.value_size % _SIZES == 0


def configs(layer: Attention, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    candidates = []
    for rows, blocks in itertools.product(range(1, 13), (1, 2, 3, 4, 6, 8)):
        # Sums, a vector for each block and one broadcast number stay in registers.
        if rows > layer.queries or rows * blocks + blocks + 1 > machine.registers:
            continue
        config = Config(rows, blocks)
        candidates.append((config, _estimate(layer, config, machine)))
    return sorted(candidates, key=lambda candidate: candidate[1])


def _estimate(layer: Attention, config: Config, machine: Machine) -> float:
    """Estimate the cost as `kernels.Candidate` defines it; a loaded operand costs as much as a product."""
    keys, values = -(-layer.keys // machine.lanes), layer.value_size // machine.lanes
    tile = max(config.rows * config.blocks, config.rows + config.blocks, 8) + 0.25 * config.rows + 0.5 * config.blocks
    tiles = -(-keys // config.blocks) * layer.size + -(-values // config.blocks) * layer.keys
    each = tiles * tile + keys * config.rows * _EXP
    count = layer.batch * layer.heads * -(-layer.queries // config.rows)
    return each * count / emit.worker_count(operations(layer, machine), machine.cores)


def parts(layer: Attention, machine: Machine, config: Config) -> int:
    """Return in how many parts the queries of a head are cut; each brings keys and values together anew."""
    tiles = -(-layer.queries // config.rows)
    cores = emit.worker_count(operations(layer, machine), machine.cores)
    return emit.count_shares(layer.batch * layer.heads, min(_MOST_PARTS, tiles), cores)


def operations(layer: Attention, machine: Machine) -> float:
    """Return how long a layer takes, in vector products."""
    scores = layer.batch * layer.heads * layer.queries * layer.keys
    return scores * (layer.size + layer.value_size + _EXP) / machine.lanes


def kernel(layer: Attention, machine: Machine, config: Config) -> tirx.PrimFunc:
    def body(*buffers: Any) -> None:
        AttentionWriter(layer, machine, config, buffers).write()

    return with_definitions(emit.kernel(arguments(layer), body, {}), machine)


def arguments(layer: Attention) -> list[Argument]:
    """List the arguments of a layer's kernel, the result last."""
    views = [("q", layer.q), ("k", layer.k), ("v", layer.v), ("mask", layer.mask), ("out", layer.out)]
    return [Argument(name, view.shape) for name, view in views if view is not None]


class AttentionWriter:
    """Writes one kernel, whose arguments are flat buffers."""

    products_of_step = 1  # of each lane

    def __init__(self, layer: Attention, machine: Machine, config: Config, buffers: Sequence[Any]) -> None:
        self._layer, self._machine, self._config, self._lanes = layer, machine, config, machine.lanes
        self._tile_rows = config.rows
        self._q, self._k, self._v, *mask, self._out = buffers
        self._mask: Any = mask[0] if mask else None
        self._vectors = -(-layer.keys // machine.lanes)
        self._vectors_per_read = min(config.blocks, self._vectors)  # vectors of keys that are read together
        self._filled = -(-self._vectors // self._vectors_per_read) * self._vectors_per_read
        self._width = self._filled * machine.lanes
        self._functions = emit.functions(machine.lanes)
        self._tiles = -(-layer.queries // config.rows)
        self._parts = parts(layer, machine, config)
        self._copies = self.copies_values()

    @property
    def operations(self) -> float:
        """Vector operations of the whole layer."""
        return operations(self._layer, self._machine)

    def copies_values(self) -> bool:
        """Whether the values of a head are brought together first."""
        return self._tiles // self._parts >= _COPIED and self._layer.v.strides[2] > self._layer.value_size

    def write(self) -> None:
        layer, rows, tiles, shares = self._layer, self._config.rows, self._tiles, self._parts
        share = -(-tiles // shares)
        with emit.shared(layer.batch * layer.heads * shares, self.operations) as work:
            head = T.Bind(work // shares % layer.heads)
            batch = T.Bind(work // (shares * layer.heads))
            # One buffer: TVM lets two of the same size share their memory when views of both are in use.
            scratch = emit.flat(T.alloc_buffer((max(self.line(rows), HEAP),), "float32"))
            self._transpose(scratch, self.bind_start(layer.k, batch, head))
            if self._copies:
                self.copy_values(scratch, self.bind_start(layer.v, batch, head))
            begin = T.Bind(work % shares * share)
            with T.serial(begin, T.Bind(tirx.min(begin + share, tiles))) as tile:
                # The last tile is moved back to end with the queries: some are done twice.
                self._tile(scratch, batch, head, T.Bind(tirx.min(tile * rows, layer.queries - rows)))

    @staticmethod
    def bind_start(view: View, batch: Expr, head: Expr) -> Expr:
        return T.Bind(view.offset + batch * view.strides[0] + head * view.strides[1])

    @property
    def _features(self) -> int:
        """Steps that the products of a query and a key take."""
        return self._layer.size // self.products_of_step

    @property
    def rows_of_values(self) -> int:
        """Steps that the products of a query's weights and the values take."""
        return -(-self._layer.keys // self.products_of_step)

    @property
    def first_value(self) -> int:
        """Offset of the values that are brought together: behind the keys."""
        return self._features * self._width

    def line(self, number: Expr) -> Expr:
        """Return the offset of the scores of a query of the tile: behind keys and values."""
        values = self.rows_of_values * self._layer.value_size if self._copies else 0
        return self.first_value + values + number * self._width

    def column(self, step: Expr, block: Expr) -> Expr:
        """Return the offset of a step's vector of keys: those that are read together lie together."""
        group, position = block // self._vectors_per_read, block % self._vectors_per_read
        return ((group * self._features + step) * self._vectors_per_read + position) * self._lanes

    def value(self, begin: Expr, key: Expr, block: Expr) -> Expr:
        """Return one vector of the values of a head."""
        return self._v[emit.ramp(begin + key * self._layer.v.strides[2] + block * self._lanes, self._lanes)]

    def copy_values(self, scratch: Any, begin: Expr) -> None:
        """Bring the values of a head together, where they lie apart: tile after tile reads them."""
        layer, lanes = self._layer, self._lanes
        with T.serial(0, layer.keys) as key, T.serial(0, layer.value_size // lanes) as block:
            target = self.first_value + key * layer.value_size + block * lanes
            T.buffer_store(scratch, self.value(begin, key, block), [emit.ramp(target, lanes)])

    def _transpose(self, keys: Any, begin: Expr) -> None:
        """Bring the keys of a head into vectors along them; those behind the last are zero."""
        lanes = self._lanes
        full, rest = divmod(self._layer.keys, lanes)
        with T.serial(0, self._layer.size // lanes) as vector:
            feature = T.Bind(vector * lanes)
            if full:
                with T.serial(0, full) as block:
                    self._square(keys, begin, feature, block, lanes)
            if rest:
                self._square(keys, begin, feature, full, rest)
            for block in range(self._vectors, self._filled):
                self._square(keys, begin, feature, block, 0)

    def _square(self, keys: Any, begin: Expr, feature: Expr, block: Expr, count: int) -> None:
        lanes, stride = self._lanes, self._layer.k.strides[2]
        first = T.Bind(block * lanes)
        rows = [
            T.Bind(self._k[emit.ramp(begin + (first + number) * stride + feature, lanes)]) for number in range(count)
        ]
        rows += [emit.splat(0.0, lanes)] * (lanes - count)
        self.store_keys(keys, emit.transpose(rows), feature, block)

    def store_keys(self, keys: Any, columns: Sequence[Expr], feature: Expr, block: Expr) -> None:
        """Store some features of a vector of keys, one vector for each."""
        for number, column in enumerate(columns):
            T.buffer_store(keys, column, [emit.ramp(self.column(feature + number, block), self._lanes)])

    def _tile(self, scratch: Any, batch: Expr, head: Expr, row: Expr) -> None:
        layer, rows, lanes = self._layer, self._tile_rows, self._lanes
        begin = T.Bind(self.bind_start(layer.q, batch, head) + row * layer.q.strides[2])
        masks = self.masks(scratch, batch, head, row)

        def weights(step: Expr, block: Expr) -> Expr:
            return scratch[emit.ramp(self.column(step, block), lanes)]

        query = self.queries(scratch, begin)
        of_scores = self._filled, self._vectors_per_read
        for block, sums, blocks in self._products(self._features, of_scores, weights, query):
            for number, column in itertools.product(range(rows), range(blocks)):
                mask = None if masks is None else masks(number)
                value = self.mask_scores(sums[number * blocks + column], mask, block + column)
                T.buffer_store(scratch, value, [emit.ramp(self.line(number) + (block + column) * lanes, lanes)])
        factors = emit.on_stack(rows, lanes)
        with T.serial(0, rows) as number:
            T.buffer_store(factors, emit.splat(self.exponentials(scratch, number), lanes), [number])
        self._results(scratch, factors, batch, head, row)

    def masks(self, scratch: Any, batch: Expr, head: Expr, row: Expr) -> Callable[[int], Expr] | None:  # noqa: ARG002 - others copy them
        """Return where the mask of each query of a tile begins; None without a mask."""
        view = self._layer.mask
        if view is None:
            return None
        first = T.Bind(self.bind_start(view, batch, head) + row * view.strides[2])
        return lambda number: first + number * view.strides[2]

    def queries(self, scratch: Any, begin: Expr) -> Callable[[int, Expr], Expr]:  # noqa: ARG002 - others copy them
        """Return what reads a step's factor of a query of a tile, which begins there."""
        stride = self._layer.q.strides[2]
        return lambda number, step: self._q[begin + number * stride + step]

    def _products(
        self,
        depth: Expr,
        size: tuple[Expr, int],
        weights: Callable[[Expr, Expr], Expr],
        factor: Callable[[int, Expr], Expr],
    ) -> Iterator[tuple[Expr, list[Expr], int]]:
        """Write the products of the tile's rows with a matrix of some vectors, so many of them at a time."""
        rows, (vectors, blocks) = self._tile_rows, size
        with T.serial(0, -(-vectors // blocks)) as group:
            block = T.Bind(tirx.min(group * blocks, vectors - blocks))
            sums = emit.Registers(rows * blocks, self._lanes)
            for column in range(rows * blocks):
                sums[column] = emit.splat(0.0, self._lanes)
            # One number in all lanes for each row, times the vectors that all rows share.
            with T.serial(0, depth) as step:
                line = [T.Bind(weights(step, block + column)) for column in range(blocks)]
                for number in range(rows):
                    number_vector = T.Bind(emit.splat(factor(number, step), self._lanes))
                    for column, vector in enumerate(line):
                        index = number * blocks + column
                        sums[index] = self.multiply_add(sums[index], vector, number_vector)
            yield block, [T.Bind(sums[column]) for column in range(rows * blocks)], blocks

    def multiply_add(self, total: Expr, vector: Expr, factor: Expr) -> Expr:
        """Return a sum with the product of two vectors added."""
        return multiply_add(self._machine, total, vector, factor)

    def mask_scores(self, value: Expr, mask: Expr, block: Expr) -> Expr:
        """Return scores with scale and mask; keys behind the last are never the largest, and weigh nothing."""
        layer, lanes = self._layer, self._lanes
        if layer.scale != 1:
            value = value * self._functions.number(layer.scale)
        if mask is not None:
            value = value + self._mask_vector(mask, block)
        # Lanes behind the last key get minus infinity: their exponentials are zero.
        if layer.keys % lanes:
            lane = emit.splat(block * lanes, lanes, "int32") + tirx.Ramp(tirx.const(0, "int32"), 1, lanes)
            inside = lane < emit.splat(layer.keys, lanes, "int32")
            value = prim.Select(inside, value, self._functions.number(-math.inf))
        return T.Bind(value)

    def _mask_vector(self, begin: Expr, block: Expr) -> Expr:
        """Return the mask of some keys; it is not read behind its end."""
        lanes, keys = self._lanes, self._layer.keys
        rest = keys % lanes
        if not rest:
            return self._mask[emit.ramp(begin + tirx.min(block, self._vectors - 1) * lanes, lanes)]
        if keys < lanes:
            filler = [tirx.const(0.0, "float32")] * (lanes - keys)
            return T.Bind(
                tirx.Shuffle([*(self._mask[begin + key] for key in range(keys)), *filler], list(range(lanes)))
            )
        # The last vector is loaded from its end, and its lanes are moved to the front.
        vector = T.Bind(self._mask[emit.ramp(begin + tirx.min(block * lanes, keys - lanes), lanes)])
        last = tirx.Shuffle([vector, vector], list(range(lanes - rest, 2 * lanes - rest)))
        return prim.Select(block < self._vectors - 1, vector, last)

    def exponentials(self, scratch: Any, number: Expr) -> Expr:
        """Replace the scores of a query by their exponentials, and return the factor that normalizes them."""
        lanes, functions = self._lanes, self._functions
        maxima, total = emit.Registers(1, lanes), emit.Registers(1, lanes)
        maxima[0], total[0] = functions.number(-math.inf), functions.number(0.0)
        line = T.Bind(self.line(number))
        with T.serial(0, self._vectors) as block:
            maxima[0] = tirx.max(scratch[emit.ramp(line + block * lanes, lanes)], maxima[0])
        # Exponentials of differences from the largest score cannot overflow.
        largest = T.Bind(emit.splat(_fold_lanes(maxima[0], lanes, tirx.max), lanes))
        with T.serial(0, self._vectors) as block:
            value = functions.exp(scratch[emit.ramp(line + block * lanes, lanes)] - largest)
            self.store_weights(scratch, line, block, value)
            total[0] = total[0] + value
        return tirx.const(1.0, "float32") / _fold_lanes(total[0], lanes, lambda first, second: first + second)

    def store_weights(self, scratch: Any, line: Expr, block: Expr, value: Expr) -> None:
        """Store the weights of a vector of keys in the place of their scores."""
        T.buffer_store(scratch, value, [emit.ramp(T.Bind(line + block * self._lanes), self._lanes)])

    def _results(self, scratch: Any, factors: Any, batch: Expr, head: Expr, row: Expr) -> None:
        layer, rows, lanes = self._layer, self._tile_rows, self._lanes
        values, out = self.bind_start(layer.v, batch, head), self.bind_start(layer.out, batch, head)

        def weights(step: Expr, block: Expr) -> Expr:
            if self._copies:
                return scratch[emit.ramp(self.first_value + step * layer.value_size + block * lanes, lanes)]
            return self.value(values, step, block)

        def score(number: int, step: Expr) -> Expr:
            return scratch[self.line(number) + step]

        vectors = layer.value_size // lanes
        of_values = vectors, min(self._config.blocks, vectors)
        for block, sums, blocks in self._products(self.rows_of_values, of_values, weights, score):
            for number, column in itertools.product(range(rows), range(blocks)):
                index = out + (row + number) * layer.out.strides[2] + (block + column) * lanes
                value = sums[number * blocks + column] * factors[number]
                T.buffer_store(self._out, value, [emit.ramp(index, lanes)])


def _fold_lanes(vector: Expr, lanes: int, combine: Callable[[Expr, Expr], Expr]) -> Expr:
    vector = T.Bind(vector)
    while lanes > 1:
        lanes //= 2
        halves = [tirx.Shuffle([vector], list(range(first, first + lanes))) for first in (0, lanes)]
        vector = T.Bind(combine(*halves))
    return vector
