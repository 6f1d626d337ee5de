"""Fully connected layers on any number of rows: whole tiles, and what is left in tiles of 8, 4, 2 and 1 rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import dense, emit
from toolchain.backends.cpu.kernels.dense import NAME, Config, DenseWriter
from toolchain.backends.cpu.kernels.emit import Argument, Expr, with_definitions
from toolchain.backends.cpu.layers import Dense
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph.unify import DifferentError

__all__ = ["NAME", "kernel"]

_FETCHING = 2  # tiles that fetch the weights of the next group, of however many


def kernel(
    greatest: Dense, shaped: Dense, indexed: Dense, machine: Machine, config: Config, size: tirx.Var
) -> tirx.PrimFunc:
    """Write the kernel.

    Args:
        greatest: The layer at the greatest size.
        shaped: The layer with expressions for the shapes of buffers.
        indexed: The layer with expressions for indices.
        machine: The processor.
        config: How the work is cut.
        size: The size.
    """
    if not all(isinstance(size, int) for size in shaped.weights_shape):
        raise DifferentError("the number of weights follows from the size")

    def body(*buffers: Any) -> None:
        _Writer(greatest, machine, config, buffers, indexed.rows).write()

    weights = Argument("weights", dense.packed_shape(greatest, machine, config))
    return with_definitions(emit.kernel(dense.arguments(shaped, weights), body, {}, size), machine)


class _Writer(DenseWriter):
    def __init__(self, layer: Dense, machine: Machine, config: Config, buffers: Sequence[Any], rows: Expr) -> None:
        super().__init__(layer, machine, config, buffers)
        self._rows = rows
        # Few rows may come, which do not hide how long weights take to come.
        is_cold = not dense.is_held(layer, machine) and dense.fits_twice(layer, machine, config)
        self._fetching = _FETCHING if is_cold else 0

    def _tiles(self, share: Expr, shares: int) -> Iterator[tuple[Expr, int]]:
        size = self._config.rows
        full, rest = T.Bind(self._rows // size), T.Bind(self._rows % size)
        tiles_per_share = T.Bind((full + (shares - 1)) // shares)
        with T.serial(share * tiles_per_share, tirx.min((share + 1) * tiles_per_share, full)) as tile:
            yield T.Bind(tile * size), size
        with T.If(share == shares - 1), T.Then():
            rows = 1 << (size - 1).bit_length() >> 1  # the largest power of two below the rows of a tile
            while rows:
                with T.If(rest // rows % 2 == 1), T.Then():
                    yield T.Bind(full * size + rest // (2 * rows) * (2 * rows)), rows
                rows //= 2
