"""Attention in bfloat16 by the matrix unit: as `attention`, but scores and results are products of tiles.

For each head, keys and values are written as tiles once. Then some tiles of queries at a time have their scores in a
buffer that stays in the first cache; their exponentials are rounded, and are the factors of the values.
"""

from __future__ import annotations

import itertools
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import attention, emit
from toolchain.backends.cpu.kernels.attention import AttentionWriter
from toolchain.backends.cpu.kernels.bfloat16 import emit as bfloat16
from toolchain.backends.cpu.kernels.emit import Buffer, Expr
from toolchain.backends.cpu.kernels.tiles import instructions, product
from toolchain.backends.cpu.kernels.tiles.instructions import SIDE, WORDS, Group
from toolchain.backends.cpu.kernels.tiles.product import Config
from toolchain.backends.cpu.layers import Attention, Layer
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel"]

NAME = "bfloat16_tiles_attention"

_STEP = 2 * SIDE  # features of a query, or keys, whose products one instruction adds
_HALF = SIDE // 2  # words of a vector that was rounded

# Costs in the unit of `kernels.Candidate`.
_PRODUCT, _LINE = 32, 2  # of two tiles, and a row of a tile
_SCORE = 24  # a vector of scores, from the product to the rounded exponential
_VECTOR = 4  # a vector of keys, values, queries or results


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return attention.covers(layer)


def configs(layer: Attention, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first; none without the unit."""
    if not machine.tiles:
        return []
    shapes = itertools.starmap(Config, itertools.product((1, 2), (1, 2, 4, 6)))
    candidates = [
        (config, _estimate(layer, config, machine))
        for config in shapes
        if Group(config.pixels, config.blocks, is_bytes=False).fits
        and (config.pixels == 1 or layer.queries > SIDE)
        and _key_tiles(layer) % config.blocks == 0
    ]
    return sorted(candidates, key=lambda candidate: candidate[1])


def _key_tiles(layer: Attention) -> int:
    """Return the tiles of 16 keys: an even number, as results add up 32 keys at a time."""
    return -(-layer.keys // _STEP) * 2


def _value_blocks(layer: Attention, config: Config) -> int:
    """Return how many tiles of values are multiplied together: so many that none are left."""
    tiles = layer.value_size // SIDE
    return next(blocks for blocks in range(config.blocks, 0, -1) if tiles % blocks == 0)


def _estimate(layer: Attention, config: Config, machine: Machine) -> float:
    keys, values, rows = _key_tiles(layer), layer.value_size // SIDE, config.pixels * SIDE

    def products(tiles: int, blocks: int, steps: int) -> float:
        each = max(_PRODUCT * config.pixels * blocks, _LINE * SIDE * (config.pixels + blocks))
        return tiles / blocks * steps * each

    tile = products(keys, config.blocks, -(-layer.size // _STEP))
    tile += products(values, _value_blocks(layer, config), keys // 2)
    tile += rows * (keys * _SCORE + (layer.size + layer.value_size) / SIDE * _VECTOR)
    head = -(-layer.queries // rows) * tile
    head += (
        attention.parts(layer, machine, _rows_of(config))
        * layer.keys
        * (layer.size + layer.value_size)
        / SIDE
        * _VECTOR
    )
    return head * layer.batch * layer.heads / machine.cores


def _rows_of(config: Config) -> attention.Config:
    """Return how attention in float32 cuts its work if it has the same queries in a tile."""
    return attention.Config(config.pixels * SIDE, config.blocks)


def kernel(layer: Attention, machine: Machine, config: Config) -> tirx.PrimFunc:
    def body(*buffers: Any) -> None:
        _TilesWriter(layer, machine, config, buffers).write()

    function = bfloat16.with_definitions(emit.kernel(attention.arguments(layer), body, {}), machine)
    for group in {_scores(layer, config), _results(layer, config)}:
        function = product.with_definitions(function, group)
    return function


# Scores and results of a query lie together.


def _scores(layer: Attention, config: Config) -> Group:
    return Group(config.pixels, config.blocks, is_bytes=False, row=_key_tiles(layer) * SIDE)


def _results(layer: Attention, config: Config) -> Group:
    return Group(config.pixels, _value_blocks(layer, config), is_bytes=False, row=max(layer.value_size, _STEP))


class _TilesWriter(AttentionWriter):
    """Everything lies in one scratch buffer of floats: pairs of bfloat16 too, of which only the bits matter."""

    def __init__(self, layer: Attention, machine: Machine, config: Config, buffers: Any) -> None:
        super().__init__(layer, machine, _rows_of(config), buffers)
        self._rows = config.pixels * SIDE
        self._keys, self._values = _key_tiles(layer), layer.value_size // SIDE
        self._steps = -(-layer.size // _STEP)
        self._of_scores, self._of_results = _scores(layer, config), _results(layer, config)
        # Where keys, values, queries, weights, factors and scores begin; results take the place of the scores.
        sizes = [self._keys * self._steps * WORDS, self._keys // 2 * self._values * WORDS]
        sizes += [self._steps * self._rows * SIDE, self._keys // 2 * self._rows * SIDE, self._rows]
        scores = self._rows * max(self._of_scores.row, self._of_results.row)
        starts = [0, *itertools.accumulate([*sizes, scores])]
        (
            _,
            self._first_value,
            self._first_query,
            self._first_weight,
            self._first_factor,
            self._first_score,
            self._size,
        ) = starts

    def write(self) -> None:
        layer, shares = self._layer, self._parts
        instructions.check_permission()
        tiles = -(-layer.queries // self._rows)
        share = -(-tiles // shares)
        with emit.shared(layer.batch * layer.heads * shares, self.operations) as work:
            head = T.Bind(work // shares % layer.heads)
            batch = T.Bind(work // (shares * layer.heads))
            scratch = emit.flat(T.alloc_buffer((self._size,), "float32"))
            instructions.begin()
            self._write_keys(scratch, self.bind_start(layer.k, batch, head))
            self._write_values(scratch, self.bind_start(layer.v, batch, head))
            begin = T.Bind(work % shares * share)
            with T.serial(begin, T.Bind(tirx.min(begin + share, tiles))) as tile:
                self._tile(scratch, batch, head, T.Bind(tile * self._rows))
            instructions.end()

    # --- tiles of keys and values ----------------------------------------------------------------------------------

    def _write_keys(self, scratch: Buffer, begin: Expr) -> None:
        """Write tiles of 16 keys: each of their 16 rows has a pair of features of all keys."""
        layer, blocks = self._layer, self._of_scores.blocks
        full, rest = divmod(layer.keys, SIDE)

        def square(tile: Expr, count: int) -> None:
            for step in range(self._steps):
                lines = [self._key(begin, T.Bind(tile * SIDE + number), step) for number in range(count)]
                lines += [emit.splat(0.0, SIDE)] * (SIDE - count)
                first = T.Bind(((tile // blocks * self._steps + step) * blocks + tile % blocks) * WORDS)
                for number, column in enumerate(emit.transpose(lines)):
                    T.buffer_store(scratch, column, [emit.ramp(first + number * SIDE, SIDE)])

        with T.serial(0, full) as tile:
            square(tile, SIDE)
        if rest:
            square(full, rest)

    def _key(self, begin: Expr, key: Expr, step: int) -> Expr:
        """Return 32 features of a key, in pairs; those behind the last are zero."""
        return self._pairs_of(self._k, begin + key * self._layer.k.strides[2], step)

    def _pairs_of(self, buffer: Buffer, first: Expr, step: int) -> Expr:
        halves = []
        for vector in range(2 * step, 2 * step + 2):
            is_feature = vector * SIDE < self._layer.size
            numbers = buffer[emit.ramp(first + vector * SIDE, SIDE)] if is_feature else emit.splat(0.0, SIDE)
            halves.append(T.Bind(bfloat16.round_pairs(self._machine, numbers)))
        return T.Bind(tirx.reinterpret(emit.wide("float32", SIDE), tirx.Shuffle(halves, list(range(SIDE)))))

    def _write_values(self, scratch: Buffer, begin: Expr) -> None:
        """Write tiles of 32 keys: each of their 16 rows has a pair of keys for 16 features of the values."""
        pairs, rest = divmod(self._layer.keys, 2)

        def store(pair: Expr, second: bool) -> None:  # noqa: FBT001 - whether there is one
            with T.serial(0, self._values) as block:
                numbers = [self.value(begin, pair * 2, block)]
                numbers.append(self.value(begin, pair * 2 + 1, block) if second else emit.splat(0.0, SIDE))
                word = bfloat16.pair(self._machine, *(T.Bind(number) for number in numbers))
                self._store_value(scratch, pair, block, word)

        with T.serial(0, pairs) as pair:
            store(pair, second=True)
        if rest:
            store(pairs, second=False)
        # Weights behind the last key are zero, whose products with anything must be zero too.
        with T.serial(pairs + rest, self._keys * _HALF) as pair, T.serial(0, self._values) as block:
            self._store_value(scratch, pair, block, emit.splat(0, SIDE, "int32"))

    def _store_value(self, scratch: Buffer, pair: Expr, block: Expr, word: Expr) -> None:
        blocks, steps = self._of_results.blocks, self._keys // 2
        tile = (block // blocks * steps + pair // SIDE) * blocks + block % blocks
        place = self._first_value + tile * WORDS + pair % SIDE * SIDE
        T.buffer_store(scratch, tirx.reinterpret(emit.wide("float32", SIDE), word), [emit.ramp(place, SIDE)])

    # --- tiles of queries ------------------------------------------------------------------------------------------

    def line(self, number: Expr) -> Expr:
        return self._first_score + number * self._of_scores.row

    def store_weights(self, scratch: Buffer, line: Expr, block: Expr, value: Expr) -> None:
        pairs = tirx.reinterpret(emit.wide("float32", _HALF), bfloat16.round_pairs(self._machine, value))
        number = T.Bind((line - self._first_score) // self._of_scores.row)
        place = self._first_weight + (block // 2 * self._rows + number) * SIDE + block % 2 * _HALF
        T.buffer_store(scratch, pairs, [emit.ramp(place, _HALF)])

    def _tile(self, scratch: Buffer, batch: Expr, head: Expr, row: Expr) -> None:
        layer = self._layer
        count = T.Bind(tirx.min(layer.queries - row, self._rows))
        first = T.Bind(self.bind_start(layer.q, batch, head) + row * layer.q.strides[2])
        with T.serial(0, count) as number:
            for step in range(self._steps):
                pairs = self._pairs_of(self._q, first + number * layer.q.strides[2], step)
                place = self._first_query + (step * self._rows + number) * SIDE
                T.buffer_store(scratch, pairs, [emit.ramp(place, SIDE)])
        self._multiply(scratch, self._of_scores, (self._keys, self._steps), (self._first_query, 0))
        masks = None
        if layer.mask is not None:
            masks = T.Bind(self.bind_start(layer.mask, batch, head) + row * layer.mask.strides[2])
        with T.serial(0, count) as number:
            self._weigh(scratch, number, masks)
        steps = self._keys // 2
        self._multiply(scratch, self._of_results, (self._values, steps), (self._first_weight, self._first_value))
        out = T.Bind(self.bind_start(layer.out, batch, head) + row * layer.out.strides[2])
        with T.serial(0, count) as number:
            factor = T.Bind(emit.splat(scratch[self._first_factor + number], SIDE))
            with T.serial(0, self._values) as block:
                total = scratch[emit.ramp(self._first_score + number * self._of_results.row + block * SIDE, SIDE)]
                place = out + number * layer.out.strides[2] + block * SIDE
                T.buffer_store(self._out, total * factor, [emit.ramp(place, SIDE)])

    def _multiply(self, scratch: Buffer, group: Group, size: tuple[int, int], factors: tuple[int, int]) -> None:
        """Write the products of tiles of queries with (tiles, steps) of others, which begin at `factors`."""
        (tiles, steps), (numbers, weights) = size, factors
        with T.serial(0, tiles // group.blocks) as number:
            sums = scratch[self._first_score + number * (group.blocks * SIDE)]
            instructions.start(group, sums, None)
            with T.serial(0, steps) as step:
                line = weights + (number * steps + step) * (group.blocks * WORDS)
                instructions.step(group, sums, scratch[numbers + step * (self._rows * SIDE)], scratch[line])
            instructions.store(group, sums)

    def _weigh(self, scratch: Buffer, number: Expr, masks: Expr | None) -> None:
        """Replace the scores of a query by weights."""
        line = T.Bind(self.line(number))
        view = self._layer.mask
        mask = None if masks is None or view is None else T.Bind(masks + number * view.strides[2])
        with T.serial(0, self._vectors) as block:
            place = emit.ramp(line + block * SIDE, SIDE)
            T.buffer_store(scratch, self.mask_scores(scratch[place], mask, block), [place])
        T.buffer_store(scratch, self.exponentials(scratch, number), [self._first_factor + number])
        for block in range(self._vectors, self._keys):
            self.store_weights(scratch, line, block, emit.splat(0.0, SIDE))
