"""Fully connected layers in bfloat16: as `dense`, but each step adds the products of a pair of inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import dense, emit
from toolchain.backends.cpu.kernels.bfloat16 import emit as bfloat16
from toolchain.backends.cpu.kernels.bfloat16.emit import PAIR
from toolchain.backends.cpu.kernels.dense import Config
from toolchain.backends.cpu.kernels.emit import Argument, Buffer, Expr
from toolchain.backends.cpu.layers import Dense, Layer
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack"]

NAME = "bfloat16_dense"


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return dense.covers(layer)


def configs(layer: Dense, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    paired = _in_pairs(layer, machine)
    rounding = bfloat16.ROUNDING * layer.rows * paired.inputs * PAIR / machine.lanes
    share = rounding / emit.worker_count(rounding, machine.cores)
    # A single row waits for its weights.
    slow = bfloat16.product_cost(machine) if layer.rows > 1 else 1
    return [(config, slow * cost + share) for config, cost in dense.configs(paired, machine)]


def pack(layer: Dense, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[np.int32]:
    """Return weights [outputs, inputs] as the kernel reads them: as those of `dense`, of pairs."""
    paired = _in_pairs(layer, machine)
    return dense.pack(paired, machine, config, bfloat16.pair_up(weights, paired.inputs))


def kernel(layer: Dense, machine: Machine, config: Config) -> tirx.PrimFunc:
    paired = _in_pairs(layer, machine)

    def body(data: Buffer, *buffers: Buffer) -> None:
        _Writer(paired, machine, config, (_round_rows(layer, machine, data), *buffers)).write()

    weights = Argument("weights", dense.packed_shape(paired, machine, config), "int32")
    return bfloat16.with_definitions(emit.kernel(dense.arguments(layer, weights), body, {}), machine)


def _in_pairs(layer: Dense, machine: Machine) -> Dense:
    """Return a layer with pairs of inputs for its inputs; zeros fill up the last vector."""
    return replace(layer, inputs=-(-layer.inputs // machine.lanes) * machine.lanes // PAIR, bfloat16=False)


class _Writer(dense.DenseWriter):
    def multiply_add(self, total: Expr, weight: Expr, factor: Expr) -> Expr:
        return bfloat16.multiply_add(self._machine, total, weight, factor)


def _round_rows(layer: Dense, machine: Machine, data: Buffer) -> Buffer:
    """Write the rounding of all rows, and return the buffer of their pairs."""
    lanes, pairs = machine.lanes, _in_pairs(layer, machine).inputs
    rounded = emit.flat(T.alloc_buffer((layer.rows * pairs,), "int32"))
    vectors, rest = divmod(layer.inputs, lanes)

    def store(numbers: Expr, row: Expr, vector: Expr) -> None:
        index = emit.ramp(row * pairs + vector * (lanes // PAIR), lanes // PAIR)
        T.buffer_store(rounded, bfloat16.round_pairs(machine, numbers), [index])

    with emit.shared(layer.rows, bfloat16.ROUNDING * layer.rows * pairs * PAIR / lanes) as row:
        with T.serial(0, vectors) as vector:
            store(data[emit.ramp(row * layer.inputs + vector * lanes, lanes)], row, vector)
        if rest:
            numbers = [data[row * layer.inputs + vectors * lanes + lane] for lane in range(rest)]
            zeros = [tirx.const(0.0, "float32")] * (lanes - rest)
            store(tirx.Shuffle([*numbers, *zeros], list(range(lanes))), row, vectors)
    return rounded
