"""Fully connected layers on plain rows, fused with what follows them.

A tile of some rows and blocks of outputs is accumulated in registers: each weight vector is loaded once for all rows of
the tile. Weights lie in the order in which they are read. For a single row that is all there is to speed: each weight
is used once; several inputs at a time have sums of their own, so that no multiplication waits for the one before. For a
few rows, the weights that come next are fetched meanwhile: tiles of the same weights wait for nothing after the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument, multiply_add, with_definitions
from toolchain.backends.cpu.layers import Dense, Layer
from toolchain.backends.cpu.machine import Machine

NAME = "dense"

_FLOAT_BYTES = 4
_COLD = 4  # times longer than a product takes to fetch a vector of weights that no cache holds
_MOST_PARTS = 16  # of a group's rows
_FEW_ROWS = 128  # that do not hide how long weights take to come
_SPARE = 2  # registers that LLVM needs for what is under way
_AHEAD = 4096  # weights that are fetched ahead at most where all of a group are read at once

Expr = Any


@dataclass(frozen=True)
class Config:
    """How the work is cut.

    Attributes:
        rows: Rows of a tile.
        blocks: Blocks of outputs of a tile.
        inputs: Inputs that are taken at a time, with sums of their own.
    """

    rows: int
    blocks: int
    inputs: int


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return isinstance(layer, Dense) and all(
        op.kind not in {"scale", "shift"} and op.other is None for op in layer.epilogue
    )


def configs(layer: Dense, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    candidates = []
    for rows, blocks, inputs in itertools.product(range(1, 15), (1, 2, 3, 4, 6, 8, 16), (1, 2, 4, 8)):
        if rows > layer.rows or inputs > layer.inputs or blocks > _blocks(layer, machine):
            continue
        if not _fits(rows, blocks, inputs, machine):
            continue
        # Several rows have enough independent sums; only a single one needs more of them.
        if inputs > 1 and rows > 1:
            continue
        config = Config(rows, blocks, inputs)
        candidates.append((config, _estimate(layer, config, machine)))
    return sorted(candidates, key=lambda candidate: candidate[1])


def _fits(rows: int, blocks: int, inputs: int, machine: Machine) -> bool:
    """Whether the registers hold sums, weights that several rows use, and one broadcast number."""
    sums = rows * blocks * inputs
    if machine.in_order:
        # LLVM loads the weights of the next step ahead, since such a core waits for them.
        return sums + 2 * blocks * inputs + 1 + _SPARE <= machine.registers
    return sums + (blocks if rows > 1 else 1) + 1 <= machine.registers


def _estimate(layer: Dense, config: Config, machine: Machine) -> float:
    """Estimate the cost as `kernels.Candidate` defines it; a loaded operand costs as much as a product."""
    tiles = 0.0
    for start in range(0, layer.rows, config.rows):
        rows = min(config.rows, layer.rows - start)
        products, loads = rows * config.blocks, rows + config.blocks
        # A multiply-add ends about eight of its own times after it began.
        waits = 8 / config.inputs
        tiles += max(products, loads, waits) + 0.25 * rows + 0.5 * config.blocks
    groups = -(-_blocks(layer, machine) // config.blocks)
    shares = _parts(layer, machine, config)
    return tiles * layer.inputs * -(-groups * shares // _cores(layer, machine)) / shares


def pack(layer: Dense, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:
    """Return weights [outputs, inputs] as the kernel reads them.

    Returns:
        [groups of blocks, inputs, blocks of a tile, lanes].
    """
    groups, inputs, blocks, lanes = packed_shape(layer, machine, config)
    padded = np.zeros((groups * blocks * lanes, inputs), weights.dtype)
    padded[: layer.outputs] = weights
    return np.ascontiguousarray(padded.reshape(groups, blocks, lanes, inputs).transpose(0, 3, 1, 2))


def kernel(layer: Dense, machine: Machine, config: Config) -> tirx.PrimFunc:
    def body(*buffers: Any) -> None:
        DenseWriter(layer, machine, config, buffers).write()

    weights = Argument("weights", packed_shape(layer, machine, config))
    return with_definitions(emit.kernel(arguments(layer, weights), body, {}), machine)


def arguments(layer: Dense, weights: Argument) -> list[Argument]:
    """List the arguments of a layer's kernel, the result last."""
    result = (layer.rows, layer.outputs)
    bias = [Argument("bias", (layer.outputs,))] if layer.bias else []
    operands = [Argument(f"operand{number}", result) for number, op in enumerate(layer.epilogue) if op.takes_argument]
    return [Argument("data", (layer.rows, layer.inputs)), weights, *bias, *operands, Argument("out", result)]


def _blocks(layer: Dense, machine: Machine) -> int:
    return -(-layer.outputs // machine.lanes)


def packed_shape(layer: Dense, machine: Machine, config: Config) -> tuple[int, int, int, int]:
    """Return the shape of what `pack` returns."""
    groups = -(-_blocks(layer, machine) // config.blocks)
    return (groups, layer.inputs, config.blocks, machine.lanes)


def _parts(layer: Dense, machine: Machine, config: Config) -> int:
    """Return into how many shares the rows of each group of blocks are cut."""
    groups = -(-_blocks(layer, machine) // config.blocks)
    return emit.count_shares(groups, max(1, min(_MOST_PARTS, layer.rows // config.rows)), _cores(layer, machine))


def _cores(layer: Dense, machine: Machine) -> int:
    return emit.worker_count(_operations(layer, machine), machine.cores)


def _operations(layer: Dense, machine: Machine) -> int:
    """Return how long a layer takes, in vector products."""
    loads = _blocks(layer, machine) * layer.inputs
    return loads * max(layer.rows, 1 if is_held(layer, machine) else _COLD)


def _fetches(layer: Dense, machine: Machine, config: Config) -> bool:
    """Whether weights that come next are fetched meanwhile: where no cache holds them, and few rows use them."""
    if layer.rows == 1 or layer.rows > _FEW_ROWS or is_held(layer, machine):
        return False
    return _tiles(layer, config) == 1 or fits_twice(layer, machine, config)


def fits_twice(layer: Dense, machine: Machine, config: Config) -> bool:
    """Whether the second cache holds the weights of two groups."""
    return 2 * _size(layer, machine, config) * _FLOAT_BYTES <= machine.l2_bytes


def _size(layer: Dense, machine: Machine, config: Config) -> int:
    return layer.inputs * config.blocks * machine.lanes


def _tiles(layer: Dense, config: Config) -> int:
    """Return how many tiles use the weights of a group."""
    return -(-layer.rows // config.rows)


def is_held(layer: Dense, machine: Machine) -> bool:
    """Whether the second cache holds the weights from one run to the next, beside all else."""
    loads = _blocks(layer, machine) * layer.inputs
    return loads * machine.lanes * _FLOAT_BYTES <= machine.l2_bytes // 2


class DenseWriter:
    """Writes one kernel, whose arguments are flat buffers."""

    sum_dtype = "float32"

    def __init__(self, layer: Dense, machine: Machine, config: Config, buffers: Sequence[Any]) -> None:
        self._layer, self._machine, self._config, self._lanes = layer, machine, config, machine.lanes
        self._data, self._weights, *rest, self._out = buffers
        self._bias = rest.pop(0) if layer.bias else None
        self._others = rest
        self._groups = -(-_blocks(layer, machine) // config.blocks)
        # The tiles of a group that fetch the weights of the next one together; 0 if none does.
        self._fetching = _tiles(layer, config) if _fetches(layer, machine, config) else 0

    def write(self) -> None:
        shares = _parts(self._layer, self._machine, self._config)
        with emit.shared(self._groups * shares, _operations(self._layer, self._machine)) as work:
            group = T.Bind(work // shares)
            self.begin(group)
            for row, rows in self._tiles(T.Bind(work % shares), shares):
                sums = self.sums(group, T.Bind(row // self._config.rows), row, rows)
                for last in self.ends(group):
                    self.finish(sums, group, row, rows, last)

    def begin(self, group: Expr) -> None:
        """Write what is done once for a group of blocks and a part of the rows."""

    def _tiles(self, share: Expr, shares: int) -> Iterator[tuple[Expr, int]]:
        """Open the loops over the tiles of a part, and yield first row and rows of each."""
        size = self._config.rows
        full, rest = divmod(self._layer.rows, size)
        tiles_per_share = -(-full // shares)
        begin, end = (
            (share * tiles_per_share, tirx.min((share + 1) * tiles_per_share, full)) if shares > 1 else (0, full)
        )
        with T.serial(begin, end) as tile:
            yield T.Bind(tile * size), size
        if rest and shares > 1:
            with T.If(share == shares - 1), T.Then():
                yield full * size, rest
        elif rest:
            yield full * size, rest

    def sums(self, group: Expr, tile: Expr, row: Expr, rows: int) -> list[Expr]:
        """Write the products of a tile; return its sums, row by row."""
        steps, rest = divmod(self._layer.inputs, self._config.inputs)
        return self.products(group, tile, row, rows, 0, steps, rest)

    def products(  # noqa: PLR0913, PLR0917 - a tile and a part of the inputs have that many coordinates
        self, group: Expr, tile: Expr, row: Expr, rows: int, begin: Expr, step_count: int, rest: int
    ) -> list[Expr]:
        """Write the products of a tile with some of the inputs; return its sums, row by row.

        Args:
            begin: The first input.
            step_count: How often inputs are taken.
            rest: How many more there are.
        """
        layer, blocks, step = self._layer, self._config.blocks, self._config.inputs
        count = rows * blocks
        sums = emit.Registers(count * step, self._lanes, self.sum_dtype)
        for index in range(count * step):
            sums[index] = emit.splat(0.0, self._lanes, self.sum_dtype)

        def add(first: Expr, inputs: int) -> None:
            for number in range(inputs):
                line = T.Bind((group * layer.inputs + first + number) * blocks * self._lanes)
                weights = [
                    T.Bind(self._weights[emit.ramp(line + block * self._lanes, self._lanes)]) for block in range(blocks)
                ]
                if self._fetching:
                    self._fetch(group, tile, first + number)
                for line_row in range(rows):
                    offset = (row + line_row) * layer.inputs + first + number
                    factor = T.Bind(emit.splat(self._data[offset], self._lanes))
                    for block, weight in enumerate(weights):
                        index = (number * rows + line_row) * blocks + block
                        sums[index] = self.multiply_add(sums[index], weight, factor)

        with T.serial(0, step_count) as steps:
            add(T.Bind(begin + steps * step), step)
        add(begin + step_count * step, rest)
        totals = [sums[index] for index in range(count)]
        # Sums of the inputs that were taken at a time are added up at the end.
        for number in range(1, step):
            totals = [T.Bind(total + sums[number * count + index]) for index, total in enumerate(totals)]
        return [T.Bind(total) for total in totals]

    def multiply_add(self, total: Expr, weight: Expr, factor: Expr) -> Expr:
        """Return a sum with the product of two vectors added."""
        return multiply_add(self._machine, total, weight, factor)

    def _fetch(self, group: Expr, tile: Expr, number: Expr) -> None:
        """Fetch the share of one input and one tile of the next group's weights.

        Behind the last group it fetches memory that is not used, which does no harm.
        """
        layer, of_line = self._layer, emit.LINE // _FLOAT_BYTES
        size, tiles = _size(layer, self._machine, self._config), self._fetching
        lines = -(-size // of_line)
        share = -(-lines // (layer.inputs * tiles))
        ahead = size if tiles > 1 else min(size, _AHEAD)
        line_index = tirx.min((tile * layer.inputs + number) * share, lines - share)
        first = T.Bind(group * size + ahead + line_index * of_line)
        for line in range(share):
            emit.fetch(self._weights[first + line * of_line], 2)

    def ends(self, group: Expr) -> Iterator[int]:
        """Yield, in the branch for each, how many outputs a group can have."""
        each = self._config.blocks * self._lanes
        rest = self._layer.outputs % each
        if not rest or self._groups == 1:
            yield rest or each
            return
        with T.If(group < self._groups - 1):
            with T.Then():
                yield each
            with T.Else():
                yield rest

    def finish(self, sums: Sequence[Expr], group: Expr, row: Expr, rows: int, outputs: int) -> None:
        """Write the bias, the epilogue and the stores of a tile whose group has so many outputs."""
        lanes, blocks = self._lanes, self._config.blocks
        if rows == 1 or not (outputs % lanes or emit.is_long(self._layer.epilogue)):
            for offset in range(rows):
                self._line(sums[offset * blocks : (offset + 1) * blocks], group, row + offset, outputs)
            return
        # A loop, since many copies of such code take seconds to compile.
        stored = emit.on_stack(rows * blocks, lanes)
        for index, total in enumerate(sums):
            T.buffer_store(stored, total, [index])
        with T.serial(0, rows) as offset:
            self._line([stored[offset * blocks + block] for block in range(blocks)], group, row + offset, outputs)

    def _line(self, totals: Sequence[Expr], group: Expr, row: Expr, outputs: int) -> None:
        """Store the results of one row of a tile: whole vectors, then what is left one by one."""
        lanes = self._lanes
        for block in range(-(-outputs // lanes)):
            output = (group * self._config.blocks + block) * lanes
            if (block + 1) * lanes <= outputs:
                self._store(totals[block], row, output, lanes)
                continue
            stored = emit.numbers_on_stack(lanes)
            T.buffer_store(stored, totals[block], [emit.ramp(0, lanes)])
            with T.serial(0, outputs % lanes) as lane:
                self._store(stored[lane], row, output + lane, 1)

    def _store(self, total: Expr, row: Expr, output: Expr, lanes: int) -> None:
        """Store some results that lie together, with bias and epilogue."""
        value = T.Bind(total)
        if self._bias is not None:
            value = T.Bind(value + self._bias[emit.ramp(output, lanes)])
        indices = emit.ramp(row * self._layer.outputs + output, lanes)
        operands = iter(self._others)
        for op in self._layer.epilogue:
            operand = next(operands)[indices] if op.takes_argument else None
            value = T.Bind(emit.apply_post_op(op, value, operand, lanes))
        T.buffer_store(self._out, value, [indices])
