"""Fully connected layers with mostly zero weights; see the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import dense, emit
from toolchain.backends.cpu.kernels.emit import Argument, with_definitions
from toolchain.backends.cpu.kernels.sparse import weights as sparse
from toolchain.backends.cpu.kernels.sparse.tiles import Config, TileWriter, Work
from toolchain.backends.cpu.layers import Dense, Layer
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack"]

NAME = "sparse_dense"

Expr = Any


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return dense.covers(layer) and isinstance(layer, Dense) and layer.vectors > 0


def configs(layer: Dense, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    return _work(layer, machine).configs(machine)


def pack(layer: Dense, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:
    """Return weights [outputs, inputs] as `sparse.Packing` describes them."""
    work = _work(layer, machine)
    return sparse.pack(weights, np.arange(layer.inputs) * work.stride(config), work.packing)


def kernel(layer: Dense, machine: Machine, config: Config) -> tirx.PrimFunc:
    """Write the kernel of a layer."""
    work = _work(layer, machine)

    def body(*buffers: Any) -> None:
        _Writer(layer, machine, work, config, buffers).write()

    arguments = dense.arguments(layer, Argument("weights", (work.packing.size,), "int32"))
    return with_definitions(emit.kernel(arguments, body, {}), machine)


def _work(layer: Dense, machine: Machine) -> Work:
    return Work(1, layer.rows, layer.inputs, sparse.packing(layer, machine), gathers=layer.rows > 1)


class _Writer(TileWriter):
    def __init__(self, layer: Dense, machine: Machine, work: Work, config: Config, buffers: Sequence[Any]) -> None:
        super().__init__(machine, work, config, buffers[0], buffers[1])
        self._layer = layer
        # What comes after the sums is as with dense weights, a block at a time.
        self._rows = dense.DenseWriter(layer, machine, dense.Config(config.pixels, 1, 1), buffers)

    def gather(self, gathered: Any, image: Expr, first: Expr, pixels: int) -> None:  # noqa: ARG002 - there is one
        inputs, lanes = self._layer.inputs, self._lanes
        whole = inputs // lanes * lanes
        for column in range(0, pixels, lanes):
            rows = [T.Bind((first + row) * inputs) for row in range(column, min(column + lanes, pixels))]
            with T.serial(0, whole // lanes) as block:
                start = T.Bind(block * lanes)
                vectors = [T.Bind(self._data[emit.ramp(row + start, lanes)]) for row in rows]
                self.store_transposed(gathered, start, column, vectors)
            with T.serial(whole, inputs) as number:
                for index, row in enumerate(rows, column):
                    T.buffer_store(gathered, self._data[row + number], [number * self._stride + index])

    def finish(self, totals: Sequence[Expr], image: Expr, block: Expr, first: Expr) -> None:  # noqa: ARG002
        for outputs in self._rows.ends(block):
            self._rows.finish(totals, block, first, len(totals), outputs)
