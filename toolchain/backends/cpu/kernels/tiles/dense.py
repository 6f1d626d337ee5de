"""Fully connected layers in bfloat16 by the matrix unit: rows are the pixels of an image. See `product`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import dense, emit
from toolchain.backends.cpu.kernels.bfloat16 import emit as bfloat16
from toolchain.backends.cpu.kernels.emit import Buffer, Expr
from toolchain.backends.cpu.kernels.tiles import product
from toolchain.backends.cpu.kernels.tiles.instructions import SIDE
from toolchain.backends.cpu.kernels.tiles.product import WORDS_PER_PIXEL, Config, Filter, Product, ProductWriter
from toolchain.backends.cpu.layers import Dense, Layer
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack"]

NAME = "bfloat16_tiles_dense"


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return isinstance(layer, Dense) and dense.covers(layer) and layer.inputs % SIDE == 0


def configs(layer: Dense, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    copy = bfloat16.ROUNDING * layer.rows * layer.inputs / SIDE
    return product.candidates(_product(layer), machine, product.finish_cost(layer.epilogue), copy)


def _product(layer: Dense) -> Product:
    rows = Filter((1, layer.rows), source=(1, layer.rows))
    return Product(rows, layer.inputs, -(-layer.outputs // SIDE), 1, is_bytes=False)


def pack(layer: Dense, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[np.int32]:  # noqa: ARG001
    """Return weights [outputs, inputs] as the kernel reads them: see `Product.packed`."""
    described = _product(layer)
    padded = np.zeros((described.blocks * SIDE, layer.inputs), np.float32)
    padded[: layer.outputs] = weights
    return described.pack(config, bfloat16.pair_up(padded, described.sources * WORDS_PER_PIXEL))


def kernel(layer: Dense, machine: Machine, config: Config) -> tirx.PrimFunc:
    described = _product(layer)

    def body(*buffers: Any) -> None:
        _DenseWriter(layer, machine, described, config, buffers).write()

    weights = emit.Argument("weights", described.packed(config), "int32")
    function = bfloat16.with_definitions(emit.kernel(dense.arguments(layer, weights), body, {}), machine)
    return product.with_definitions(function, described.group(config))


class _DenseWriter(ProductWriter):
    def __init__(self, layer: Dense, machine: Machine, described: Product, config: Config, buffers: Any) -> None:
        self._data, weights, *_ = buffers
        super().__init__(described, config, machine.cores, weights, None)
        self._layer, self._machine = layer, machine
        # Bias, epilogue and the last outputs are the same as in float32.
        self._rows_of_result = dense.DenseWriter(layer, machine, dense.Config(1, config.blocks, 1), buffers)

    def piece(self, image: Expr, number: Expr, row: Expr, column: Expr) -> Expr:  # noqa: ARG002
        inputs = self._layer.inputs
        vectors = inputs // SIDE
        if vectors % 2 == 0:
            return bfloat16.round_pairs(self._machine, self._data[emit.ramp(column * inputs + number * SIDE, SIDE)])
        # The last pixel of the copy has half of the channels; an infinite number times zero is none.
        vector = self._data[emit.ramp(column * inputs + tirx.min(number, vectors - 1) * SIDE, SIDE)]
        is_input = emit.splat(number, SIDE, "int32") < emit.splat(vectors, SIDE, "int32")
        return bfloat16.round_pairs(self._machine, T.Bind(tirx.Select(is_input, vector, emit.splat(0.0, SIDE))))

    def finish(
        self,
        sums: Buffer,
        place: tuple[Expr, Expr],
        row: Expr,  # noqa: ARG002
        columns: tuple[Expr, Expr],
        first: Expr,
    ) -> None:
        (_, group), (begin, end), blocks = place, columns, self._config.blocks
        lines = [first + number * self._config.pixels * SIDE for number in range(blocks)]
        for outputs in self._rows_of_result.ends(group):
            with T.serial(0, end - begin) as number:
                totals = [T.Bind(sums[emit.ramp((line + number) * SIDE, SIDE)]) for line in lines]
                self._rows_of_result.finish(totals, group, T.Bind(begin + number), 1, outputs)
