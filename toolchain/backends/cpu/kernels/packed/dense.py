"""Fully connected layers with packed weights: as `dense`, but the weights of several inputs come in one 32-bit word.

A vector of words has the weights of as many outputs as there are lanes, for as many inputs as fit into 32 bits. Each
number is shifted to the end of its word and becomes a float there, right before it is multiplied. Products of a block
are summed with the numbers as they are; the sum is multiplied by the block's scales. Zero points need no subtraction
for each number: their product with the sum of the block's data is subtracted.

Where many rows use the weights, all weights of a group become float32 in a buffer first, which its tiles read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import dense, emit
from toolchain.backends.cpu.kernels.emit import Argument, Expr, multiply_add, with_definitions
from toolchain.backends.cpu.kernels.packed import weights as packing
from toolchain.backends.cpu.layers import Dense, Layer
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack"]

NAME = "packed_dense"

_WORD = 32  # bits
_FLOAT_BYTES = 4
_NUMBERS = 16  # of 4 bits; also the lanes of a vector that an instruction takes from so many floats
_UNPACKING = 2.5  # vector products that unpacking a vector of weights takes as long as
_STORING = 4.0  # the same for its way through a buffer
_PAGE, _WAYS = 4096, 8  # bytes from which on rows lie in the same lines of the first cache, and how many it has of each
_PUSHED_OUT = 1.15  # times longer for tiles of more such rows


@dataclass(frozen=True)
class Config(dense.Config):
    """How the work is cut: as `dense.Config`, and where weights are unpacked.

    Attributes:
        at_once: 1 to make float32 of all weights of a group before its tiles are computed, 0 to do so in each tile.
    """

    at_once: int = 0


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return dense.covers(layer) and isinstance(layer, Dense) and not layer.rounds


def configs(layer: Dense, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    ranked = []
    for settings, cost in dense.configs(layer, machine):
        config = Config(settings.rows, settings.blocks, settings.inputs)
        # A vector of words for each block, besides those that `dense` counts.
        more = config.blocks + layer.zeros * config.rows
        registers = config.rows * config.blocks * config.inputs + config.blocks + 1 + more
        if registers <= machine.registers and config.inputs <= _per_word(layer):
            unpacking = _UNPACKING / config.rows if layer.rows > 1 else _UNPACKING
            ranked.append((config, cost * (1 + unpacking)))
        group = layer.inputs * config.blocks * machine.lanes * _FLOAT_BYTES
        if layer.rows > config.rows > 1 and group <= machine.l2_bytes // 2:
            is_pushed_out = config.rows > _WAYS and not layer.inputs * _FLOAT_BYTES % _PAGE
            longer = (_PUSHED_OUT if is_pushed_out else 1) * (1 + (_UNPACKING + _STORING) / layer.rows)
            ranked.append((replace(config, at_once=1), cost * longer))
    return sorted(ranked, key=lambda candidate: candidate[1])


def pack(layer: Dense, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[np.int32]:
    """Return weights as the kernel reads them.

    Args:
        weights: As `packed.weights` encodes them.

    Returns:
        [groups of blocks, blocks of inputs, vectors, blocks of a tile, lanes]. Behind the words of a block of inputs
        are the scales in float32, and then, if there are zero points, these times minus the scales.
    """
    shifts = np.arange(0, _WORD, layer.bits, dtype=np.uint32)
    return packing.in_words(packing.decode(layer, weights), layer, _packed_shape(layer, machine, config), shifts)


def kernel(layer: Dense, machine: Machine, config: Config) -> tirx.PrimFunc:
    def body(*buffers: Any) -> None:
        _Writer(layer, machine, config, buffers).write()

    weights = Argument("weights", _packed_shape(layer, machine, config), "int32")
    return with_definitions(emit.kernel(dense.arguments(layer, weights), body, {}), machine)


def _per_word(layer: Dense) -> int:
    return _WORD // layer.bits


def _words(layer: Dense) -> int:
    """Return the words of a block of inputs, for each output."""
    return -(-layer.block // _per_word(layer))


def _packed_shape(layer: Dense, machine: Machine, config: Config) -> tuple[int, int, int, int, int]:
    groups, _, of_tile, lanes = dense.packed_shape(layer, machine, config)
    return (groups, layer.blocks, _words(layer) + 1 + layer.zeros, of_tile, lanes)


@dataclass(frozen=True)
class _Block:
    """A block of inputs of a tile of some rows and a group of blocks of outputs."""

    group: Expr
    row: Expr
    rows: int
    number: Expr
    inputs: int


def _look_up(indices: Expr) -> Expr:
    """Return the float32 of 4 bits in two's complement, the lowest ones of each lane."""
    signed = [
        tirx.const(float(number if number < _NUMBERS // 2 else number - _NUMBERS), "float32")
        for number in range(_NUMBERS)
    ]
    table = tirx.Shuffle(signed, list(range(_NUMBERS)))
    return tirx.call_llvm_pure_intrin(f"float32x{_NUMBERS}", "llvm.x86.avx512.permvar.sf.512", table, indices)


class _Writer(dense.DenseWriter):
    _config: Config
    _floats: dense.DenseWriter  # writes the products with a group's weights in float32

    def begin(self, group: Expr) -> None:
        """Write float32 weights of a group into a buffer, if all tiles read them from there."""
        layer, config, lanes = self._layer, self._config, self._lanes
        if not config.at_once:
            return
        one_group = replace(layer, bits=0, block=0, zeros=False, outputs=config.blocks * lanes)
        weights = emit.flat(T.alloc_buffer((layer.inputs * config.blocks * lanes,), "float32"))
        self._floats = dense.DenseWriter(
            one_group, self._machine, config, (self._data, weights, *([self._bias] if layer.bias else []), self._out)
        )
        for block, inputs in self._blocks_of_inputs():
            first = T.Bind((group * layer.blocks + block) * (_words(layer) + 1 + layer.zeros))
            grids = [self._grid(first + _words(layer) + number) for number in range(1 + layer.zeros)]
            self._unpack_block(_Block(group, 0, 0, block, inputs), first, grids, weights)

    def _unpack_block(self, part: _Block, first: Expr, grids: list[list[Expr]], weights: Any) -> None:
        layer, lanes, blocks = self._layer, self._lanes, self._config.blocks
        per_word = _per_word(layer)

        def unpack(word: Expr, numbers: int) -> None:
            for of_tile in range(blocks):
                words = T.Bind(self._vector(first + word, of_tile))
                for number in range(numbers):
                    value = self._unpacked(words, number) * grids[0][of_tile]
                    value = value + grids[1][of_tile] if layer.zeros else value
                    line = part.number * layer.block + word * per_word + number
                    T.buffer_store(weights, value, [emit.ramp((line * blocks + of_tile) * lanes, lanes)])

        with T.serial(0, part.inputs // per_word) as word:
            unpack(word, per_word)
        if part.inputs % per_word:
            unpack(part.inputs // per_word, part.inputs % per_word)

    def sums(self, group: Expr, tile: Expr, row: Expr, rows: int) -> list[Expr]:
        """Write the products of a tile, block of inputs by block; return its sums, row by row."""
        layer, lanes, count = self._layer, self._lanes, rows * self._config.blocks
        if self._config.at_once:
            return self._floats.sums(0, tile, row, rows)
        sums = emit.Registers(count * self._config.inputs, lanes)
        data_sums = emit.Registers(rows * layer.zeros, lanes)
        # Here, outside of the loop over the blocks: TVM's StorageRewrite lets buffers share their memory that are used
        # within one loop alone, even those that are in use at the same time.
        self._clear(sums, count * self._config.inputs)
        self._clear(data_sums, rows * layer.zeros)
        if layer.blocks == 1:
            return self._of_block(_Block(group, row, rows, 0, layer.inputs), sums, data_sums)
        totals = emit.Registers(count, lanes)
        self._clear(totals, count)
        for block, inputs in self._blocks_of_inputs():
            for index, value in enumerate(self._of_block(_Block(group, row, rows, block, inputs), sums, data_sums)):
                totals[index] = totals[index] + value
            self._clear(sums, count * self._config.inputs)
            self._clear(data_sums, rows * layer.zeros)
        return [T.Bind(totals[index]) for index in range(count)]

    def _clear(self, registers: emit.Registers, count: int) -> None:
        for index in range(count):
            registers[index] = emit.splat(0.0, self._lanes)

    def _blocks_of_inputs(self) -> Iterator[tuple[Expr, int]]:
        """Open the loop over the blocks of inputs, and yield number and inputs of each."""
        full, rest = divmod(self._layer.inputs, self._layer.block)
        with T.serial(0, full) as block:
            yield block, self._layer.block
        if rest:
            yield full, rest

    def _of_block(self, part: _Block, sums: emit.Registers, data_sums: emit.Registers) -> list[Expr]:
        """Write the products of a tile with a block of inputs; return their sums times the scales.

        Registers hold zeros before.
        """
        config, lanes, layer, rows = self._config, self._lanes, self._layer, part.rows
        count, per_word = rows * config.blocks, _per_word(layer)
        first = T.Bind((part.group * layer.blocks + part.number) * (_words(layer) + 1 + layer.zeros))

        def add(word: Expr, numbers: int) -> None:
            words = [T.Bind(self._vector(first + word, of_tile)) for of_tile in range(config.blocks)]
            for number in range(numbers):
                vectors = [T.Bind(self._unpacked(vector, number)) for vector in words]
                for line in range(rows):
                    offset = (part.row + line) * layer.inputs + part.number * layer.block + word * per_word + number
                    factor = T.Bind(emit.splat(self._data[offset], lanes))
                    if layer.zeros:
                        data_sums[line] = data_sums[line] + factor
                    for of_tile, vector in enumerate(vectors):
                        index = (number % config.inputs * rows + line) * config.blocks + of_tile
                        sums[index] = self.multiply_add(sums[index], vector, factor)

        with T.serial(0, part.inputs // per_word) as word:
            add(word, per_word)
        if part.inputs % per_word:
            add(part.inputs // per_word, part.inputs % per_word)
        totals = [sums[index] for index in range(count)]
        for apart in range(1, config.inputs):
            totals = [T.Bind(total + sums[apart * count + index]) for index, total in enumerate(totals)]
        behind = T.Bind(first + _words(layer))
        return self._scaled(totals, behind, [data_sums[line] for line in range(rows * layer.zeros)])

    def _scaled(self, totals: list[Expr], behind: Expr, data_sums: list[Expr]) -> list[Expr]:
        """Return sums times the scales of a block, which lie behind its words, with the part of its zero points."""
        blocks = self._config.blocks
        scales = self._grid(behind)
        scaled = [T.Bind(total * scales[index % blocks]) for index, total in enumerate(totals)]
        if not data_sums:
            return scaled
        zeros = self._grid(behind + 1)
        return [
            T.Bind(multiply_add(self._machine, value, zeros[index % blocks], data_sums[index // blocks]))
            for index, value in enumerate(scaled)
        ]

    def _grid(self, line: Expr) -> list[Expr]:
        """Return the scales, or zero points times minus the scales, of the outputs of a tile."""
        kind = emit.wide("float32", self._lanes)
        return [T.Bind(tirx.reinterpret(kind, self._vector(line, of_tile))) for of_tile in range(self._config.blocks)]

    def _vector(self, line: Expr, of_tile: int) -> Expr:
        return self._weights[emit.ramp((line * self._config.blocks + of_tile) * self._lanes, self._lanes)]

    def _unpacked(self, words: Expr, number: int) -> Expr:
        """Return a number of each word as float32."""
        bits, lanes = self._layer.bits, self._lanes
        if bits == 4 and self._machine.permutes:  # noqa: PLR2004 - which 16 floats stand for
            return _look_up(words >> emit.splat(bits * number, lanes, "int32") if number else words)
        left = _WORD - bits * (number + 1)
        if left:
            words = words << emit.splat(left, lanes, "int32")
        return emit.in_type(words >> emit.splat(_WORD - bits, lanes, "int32"), "float32", lanes)
