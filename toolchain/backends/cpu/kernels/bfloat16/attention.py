"""Attention in bfloat16: as `attention`, but each step adds the products of a pair of features, or of a pair of keys.

The weights of the values, which are exponentials, are rounded too; what normalizes them is summed up before that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import attention, emit
from toolchain.backends.cpu.kernels.attention import AttentionWriter, Config
from toolchain.backends.cpu.kernels.bfloat16 import emit as bfloat16
from toolchain.backends.cpu.kernels.bfloat16.emit import PAIR
from toolchain.backends.cpu.kernels.emit import Expr
from toolchain.backends.cpu.layers import Attention, Layer
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel"]

NAME = "bfloat16_attention"


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return attention.covers(layer)


def configs(layer: Attention, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    cores = max(1, machine.cores)
    rounded = layer.keys * (layer.size + layer.value_size) / machine.lanes * bfloat16.ROUNDING
    of_queries = layer.queries * (layer.size + layer.keys) / machine.lanes * bfloat16.ROUNDING
    heads = layer.batch * layer.heads
    products = layer.queries * layer.keys * (layer.size + layer.value_size) / machine.lanes * heads / cores

    def cost(config: Config, exact: float) -> float:
        parts = attention.parts(layer, machine, config)
        return (
            exact
            + products * (bfloat16.product_cost(machine) / PAIR - 1)
            + (rounded * parts + of_queries) * heads / cores
        )

    candidates = [(config, cost(config, exact)) for config, exact in attention.configs(layer, machine)]
    return sorted(candidates, key=lambda candidate: candidate[1])


def kernel(layer: Attention, machine: Machine, config: Config) -> tirx.PrimFunc:
    def body(*buffers: Any) -> None:
        _Writer(layer, machine, config, buffers).write()

    return bfloat16.with_definitions(emit.kernel(attention.arguments(layer), body, {}), machine)


class _Writer(AttentionWriter):
    """Pairs lie as floats in the scratch memory of the scores: only their bits matter."""

    products_of_step = PAIR

    def copies_values(self) -> bool:
        return True

    def line(self, number: Expr) -> Expr:
        # The rounded queries of a tile lie before the scores.
        return super().line(number) + self._config.rows * self._layer.size // PAIR

    def store_keys(self, keys: Any, columns: Sequence[Expr], feature: Expr, block: Expr) -> None:
        step = T.Bind(feature // PAIR)
        for number in range(0, len(columns), PAIR):
            pairs = bfloat16.pair(self._machine, columns[number], columns[number + 1])
            self._store(keys, pairs, self.column(step + number // PAIR, block), self._lanes)

    def copy_values(self, scratch: Any, begin: Expr) -> None:
        layer, lanes = self._layer, self._lanes
        full, rest = divmod(layer.keys, PAIR)

        def store(step: Expr, block: Expr, second: Expr) -> None:
            first = self.value(begin, step * PAIR, block)
            target = self.first_value + step * layer.value_size + block * lanes
            self._store(scratch, bfloat16.pair(self._machine, first, second), target, lanes)

        with T.serial(0, layer.value_size // lanes) as block:
            with T.serial(0, full) as step:
                store(step, block, self.value(begin, step * PAIR + 1, block))
            if rest:
                store(full, block, emit.splat(0.0, lanes))

    def queries(self, scratch: Any, begin: Expr) -> Callable[[int, Expr], Expr]:
        layer, lanes, pairs = self._layer, self._lanes, self._layer.size // PAIR
        first = super().line(0)
        with T.serial(0, self._config.rows) as number, T.serial(0, layer.size // lanes) as vector:
            numbers = self._q[emit.ramp(begin + number * layer.q.strides[2] + vector * lanes, lanes)]
            target = first + number * pairs + vector * (lanes // PAIR)
            self._store(scratch, bfloat16.round_pairs(self._machine, numbers), target, lanes // PAIR)
        return lambda number, step: scratch[first + number * pairs + step]

    def store_weights(self, scratch: Any, line: Expr, block: Expr, value: Expr) -> None:
        # Half as wide as the scores, they only overwrite those that were read before.
        pairs = bfloat16.round_pairs(self._machine, value)
        self._store(scratch, pairs, line + block * (self._lanes // PAIR), self._lanes // PAIR)

    def multiply_add(self, total: Expr, vector: Expr, factor: Expr) -> Expr:
        pairs = (tirx.reinterpret(emit.wide("int32", self._lanes), numbers) for numbers in (vector, factor))
        return bfloat16.multiply_add(self._machine, total, *pairs)

    @staticmethod
    def _store(scratch: Any, pairs: Expr, offset: Expr, lanes: int) -> None:
        T.buffer_store(scratch, tirx.reinterpret(emit.wide("float32", lanes), pairs), [emit.ramp(offset, lanes)])
