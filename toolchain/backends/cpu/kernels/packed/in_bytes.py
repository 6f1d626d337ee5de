"""Fully connected layers with packed weights whose data becomes bytes: the weights are multiplied as whole numbers.

All rows are rounded first (`digits`): to one byte where the file lets data be rounded, otherwise to three, which lose
no more than sums in float32 do. Each 32-bit word has the weights of an output for as many inputs as fit; the words of
several outputs are a vector, which two or three instructions split into bytes. One instruction multiplies the bytes of
four inputs and adds the products. At the end of a block of inputs, its whole sum becomes float32 and is multiplied by
the scale of the weights and the step of the data.

Some instructions take unsigned weights: a number is added to all, and each sum starts with the sum of the block's data
times minus this number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import dense, emit
from toolchain.backends.cpu.kernels.dense import Config
from toolchain.backends.cpu.kernels.emit import Argument, Expr, multiply_add
from toolchain.backends.cpu.kernels.int8 import pairs
from toolchain.backends.cpu.kernels.packed import digits as rounding
from toolchain.backends.cpu.kernels.packed import weights as packing
from toolchain.backends.cpu.kernels.packed.digits import GROUP, Digits, Rounding, padded_block
from toolchain.backends.cpu.kernels.packed.products import Products, Sums
from toolchain.backends.cpu.layers import Dense, Layer
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack"]

NAME = "packed_dense_in_bytes"

_WORD = 32  # bits
_AT_ONCE = 8  # words of data whose products are added without a loop
_AHEAD = 512  # words: fetched so early, weights come in time, and none of them are lost from the first cache
_LARGEST_BLOCK = 1 << 15  # products of more inputs may not fit an int32
_LOADING = 0.5  # vector products that a load delays others by, on average
_EXACT, _ROUNDED = 3, 1  # digits


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return dense.covers(layer) and isinstance(layer, Dense) and bool(layer.bits)


def configs(layer: Dense, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first; none if the processor cannot do it."""
    products, padded, count = Products(machine, layer.bits), padded_block(layer, machine), _digits(layer)
    fills = layer.blocks == 1 or layer.block == padded
    if machine.widens and count == _EXACT:  # not measured on Arm, and no other machine can compute such a kernel
        return []
    if not products.is_possible or count not in products.digits or not fills or padded > _LARGEST_BLOCK:
        return []
    ranked = []
    for rows, blocks in itertools.product(range(1, 9), (1, 2, 3, 4, 6, 8)):
        # Sums of each digit and of all blocks, the parts of words of weights, and data that several of them use.
        data = rows * count if blocks > 1 else 1
        registers = rows * blocks * (count + 1) + blocks * 8 // layer.bits + (data if rows > 1 else 1)
        if rows <= layer.rows and (blocks - 1) * machine.lanes < layer.outputs and registers <= machine.registers:
            config = Config(rows, blocks, 1)
            ranked.append((config, _estimate(layer, machine, config)))
    return sorted(ranked, key=lambda candidate: candidate[1])


def _estimate(layer: Dense, machine: Machine, config: Config) -> float:
    """Estimate the cost as `kernels.Candidate` defines it."""
    products, count, padded = Products(machine, layer.bits), _digits(layer), padded_block(layer, machine)
    words = padded * layer.bits // _WORD
    tiles = 0.0
    for start in range(0, layer.rows, config.rows):
        rows = min(config.rows, layer.rows - start)
        loads = config.blocks * (words + 1) + rows * count * padded / GROUP
        multiplied = products.cost * config.blocks * rows * count * padded / GROUP
        unpacked = products.unpacking * config.blocks * words
        tiles += multiplied + unpacked + _LOADING * loads + config.blocks * rows * (2 * count + 2 + layer.zeros)
    groups = -(-layer.outputs // (machine.lanes * config.blocks))
    cores = emit.worker_count(tiles * layer.blocks * groups, machine.cores)
    vectors = layer.rows * layer.blocks * padded / machine.lanes
    return tiles * layer.blocks * -(-groups // cores) + rounding.OPERATIONS * count * vectors


def pack(layer: Dense, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[np.int32]:
    """Return weights as the kernel reads them.

    Args:
        weights: As `packed.weights` encodes them.

    Returns:
        [groups of blocks, blocks of inputs, vectors, blocks of a tile, lanes]. Behind the words of a block of inputs
        are the scales in float32, and then, if there are zero points, these times minus the scales.
    """
    held, raised = packing.decode(layer, weights), Products(machine, layer.bits).raised
    # Half of each word's bytes are of the first four inputs, and half of the next.
    shifts = np.arange(0, _WORD, 8, dtype=np.uint32)
    shifts = shifts if layer.bits == 8 else np.concatenate([shifts, shifts + np.uint32(4)])  # noqa: PLR2004
    return packing.in_words(held, layer, _packed_shape(layer, machine, config), shifts, raised)


def kernel(layer: Dense, machine: Machine, config: Config) -> tirx.PrimFunc:
    def body(data: Any, *buffers: Any) -> None:
        products = Products(machine, layer.bits)
        wanted = Rounding(_digits(layer), -products.raised, 1 / products.factor, layer.zeros)
        digits = rounding.round_rows(layer, machine, data, wanted)
        _Writer(layer, machine, config, (data, *buffers), digits).write()

    weights = Argument("weights", _packed_shape(layer, machine, config), "int32")
    written = emit.kernel(dense.arguments(layer, weights), body, {})
    return pairs.with_definitions(emit.with_definitions(written, machine), machine)


def _digits(layer: Dense) -> int:
    return _ROUNDED if layer.rounds else _EXACT


def _packed_shape(layer: Dense, machine: Machine, config: Config) -> tuple[int, int, int, int, int]:
    groups, _, of_tile, lanes = dense.packed_shape(layer, machine, config)
    words = padded_block(layer, machine) * layer.bits // _WORD
    return (groups, layer.blocks, words + 1 + layer.zeros, of_tile, lanes)


class _Writer(dense.DenseWriter):
    def __init__(
        self, layer: Dense, machine: Machine, config: Config, buffers: tuple[Any, ...], digits: Digits
    ) -> None:
        super().__init__(layer, machine, config, buffers)
        self._digits, self._products = digits, Products(machine, layer.bits)
        self._of_block = padded_block(layer, machine) // GROUP  # words of data
        self._words = self._of_block * layer.bits // 8  # of weights

    def sums(self, group: Expr, tile: Expr, row: Expr, rows: int) -> list[Expr]:  # noqa: ARG002
        """Write the products of a tile, block of inputs by block; return its sums, row by row."""
        layer, blocks, count = self._layer, self._config.blocks, self._digits.count
        totals = emit.Registers(rows * blocks, self._lanes)
        # Outside of the loop: see `packed.dense`.
        sums = Sums(self._products, rows * blocks * count)
        for index in range(rows * blocks):
            totals[index] = emit.splat(0.0, self._lanes)
        for index in range(rows * blocks * count):
            sums.start(index, 0)
        with T.serial(0, layer.blocks) as block:
            place = T.Bind(block * layer.rows + row)
            lines = [place + line for line in range(rows)]
            for index in range(rows * blocks * count):
                line_digit = index // blocks
                sums.start(index, self._digits.starting(lines[line_digit // count], line_digit % count))
            first = T.Bind((group * layer.blocks + block) * (self._words + 1 + layer.zeros))
            for word, words in self._steps():
                self._add(lines, sums, first + word, word, words)
            self._scale(lines, sums, totals, first + self._words)
        return [T.Bind(totals[index]) for index in range(rows * blocks)]

    def _steps(self) -> Iterator[tuple[Expr, int]]:
        """Open the loop over a block's words of weights, and yield the first one and the number of each step."""
        size = min(self._words, _AT_ONCE * self._layer.bits // 8)
        full, rest = divmod(self._words, size)
        with T.serial(0, full) as step:
            yield T.Bind(step * size), size
        if rest:
            yield full * size, rest

    def _add(self, lines: list[Expr], sums: Sums, first: Expr, word: Expr, words: int) -> None:
        """Add the products of some words of weights with all rows and digits.

        Args:
            lines: The block's numbers in all rows.
            first: The first vector of weights.
            word: Its number in the block.
            words: How many follow.
        """
        blocks, count = self._config.blocks, self._digits.count
        of_word = self._of_block // self._words
        for number in range(words):
            starts = [block * count * self._of_block + (word + number) * of_word for block in lines]
            data = [
                [T.Bind(self._digits.words[start + digit * self._of_block + part]) for part in range(of_word)]
                for start in starts
                for digit in range(count)
            ]
            for of_tile in range(blocks):
                if self._layer.rows == 1:
                    self._fetch_ahead(first + number, of_tile)
                parts = self._products.unpack(T.Bind(self._vector(first + number, of_tile)))
                for part, weights in enumerate(map(T.Bind, parts)):
                    for line_digit, of_data in enumerate(data):
                        sums.add(line_digit * blocks + of_tile, weights, of_data[part])
        sums.finish()

    def _scale(self, lines: list[Expr], sums: Sums, totals: emit.Registers, behind: Expr) -> None:
        """Add the sums of a block, times scales and steps, to the totals, with the part of its zero points."""
        blocks, count, machine = self._config.blocks, self._digits.count, self._machine
        for of_tile in range(blocks):
            scales = self._grid(behind, of_tile)
            data_sums = self._digits.totals
            zeros = None if data_sums is None else self._grid(behind + 1, of_tile)
            for line, block in enumerate(lines):
                index = line * blocks + of_tile
                of_digits = [sums[(line * count + digit) * blocks + of_tile] for digit in range(count)]
                whole = rounding.weighted(of_digits, self._lanes)
                step = emit.splat(self._digits.steps[block], self._lanes)
                total = multiply_add(machine, totals[index], T.Bind(whole * scales), step)
                if data_sums is not None:
                    data_sum = emit.splat(data_sums[block], self._lanes)
                    total = multiply_add(machine, T.Bind(total), zeros, data_sum)
                totals[index] = total

    def _fetch_ahead(self, line: Expr, of_tile: int) -> None:
        """Fetch what a row reads soon: each weight is read once, and the processor fetches no further than a page."""
        vector = (line * self._config.blocks + of_tile) * self._lanes
        emit.fetch(self._weights[vector + _AHEAD], 1)

    def _vector(self, line: Expr, of_tile: int) -> Expr:
        return self._weights[emit.ramp((line * self._config.blocks + of_tile) * self._lanes, self._lanes)]

    def _grid(self, line: Expr, of_tile: int) -> Expr:
        """Return the scales, or zero points times minus the scales, of a block of outputs."""
        return T.Bind(tirx.reinterpret(emit.wide("float32", self._lanes), self._vector(line, of_tile)))
