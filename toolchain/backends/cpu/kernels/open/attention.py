"""Attention for any number of queries and keys: lanes behind the last key are masked, also those of a whole vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir import prim
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import attention, emit
from toolchain.backends.cpu.kernels.attention import NAME, AttentionWriter, Config
from toolchain.backends.cpu.kernels.emit import Expr, with_definitions
from toolchain.backends.cpu.layers import Attention
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph.unify import DifferentError

__all__ = ["NAME", "kernel"]


def kernel(
    greatest: Attention, shaped: Attention, indexed: Attention, machine: Machine, config: Config, size: tirx.Var
) -> tirx.PrimFunc:
    """Write the kernel; arguments as of a fully connected layer's."""
    fixed = ("batch", "heads", "size", "value_size", "scale")
    if not all(type(getattr(shaped, name)) is type(getattr(greatest, name)) for name in fixed):
        raise DifferentError("the batch or the features of an attention follow from the size")

    def body(*buffers: Any) -> None:
        _Writer(greatest, machine, config, buffers, indexed).write()

    return with_definitions(emit.kernel(attention.arguments(shaped), body, {}, size), machine)


class _Writer(AttentionWriter):
    """Offsets in the buffer of scores are those of the greatest size."""

    def __init__(
        self, greatest: Attention, machine: Machine, config: Config, buffers: Sequence[Any], layer: Attention
    ) -> None:
        super().__init__(greatest, machine, config, buffers)
        layer = replace(layer, queries=_expression(layer.queries), keys=_expression(layer.keys))
        self._greatest, self._layer = greatest, layer
        self._scratch: Any = None
        lanes, together = self._lanes, self._vectors_per_read
        self._vectors = (layer.keys + (lanes - 1)) // lanes
        self._filled = (self._vectors + (together - 1)) // together * together
        self._first_mask = self.line(config.rows)
        self._mask_rows = 0 if greatest.mask is None else 1 if greatest.mask.strides[2] == 0 else config.rows

    def line(self, number: Expr) -> Expr:
        values = self._greatest.keys * self._greatest.value_size if self._copies else 0
        return self.first_value + values + number * self._width

    def write(self) -> None:
        layer, rows, shares = self._layer, self._config.rows, self._parts
        heads, operations = self._greatest.heads, attention.operations(self._greatest, self._machine)
        with emit.shared(self._greatest.batch * heads * shares, operations) as work:
            self._vectors, self._filled = T.Bind(self._vectors), T.Bind(self._filled)
            head, batch = T.Bind(work // shares % heads), T.Bind(work // (shares * heads))
            size = max(self._first_mask + self._mask_rows * self._width, attention.HEAP)
            scratch = emit.flat(T.alloc_buffer((size,), "float32"))
            self._transpose(scratch, self.bind_start(layer.k, batch, head))
            if self._copies:
                self.copy_values(scratch, self.bind_start(layer.v, batch, head))
            with T.If(layer.queries >= rows):
                with T.Then():
                    self._share(scratch, batch, head, work % shares)
                if rows > 1:
                    with T.Else():
                        self._tile_rows = 1
                        self._share(scratch, batch, head, work % shares)

    def _share(self, scratch: Any, batch: Expr, head: Expr, share: Expr) -> None:
        """Write the loop over the tiles of a share of the queries."""
        layer, rows, shares = self._layer, self._tile_rows, self._parts
        tiles = T.Bind((layer.queries + (rows - 1)) // rows)
        tiles_per_share = T.Bind((tiles + (shares - 1)) // shares)
        begin = T.Bind(share * tiles_per_share)
        with T.serial(begin, T.Bind(tirx.min(begin + tiles_per_share, tiles))) as tile:
            self._tile(scratch, batch, head, T.Bind(tirx.min(tile * rows, layer.queries - rows)))

    def _transpose(self, keys: Any, begin: Expr) -> None:
        layer, lanes = self._layer, self._lanes
        full = T.Bind(layer.keys // lanes)
        with T.serial(0, layer.size // lanes) as vector:
            feature = T.Bind(vector * lanes)
            with T.serial(0, full) as block:
                self._square(keys, begin, feature, block, lanes)
            with T.serial(full, self._vectors) as block:
                # Behind the last key it is read again: those lanes are masked.
                places = (tirx.min(block * lanes + number, layer.keys - 1) for number in range(lanes))
                starts = [T.Bind(begin + place * layer.k.strides[2] + feature) for place in places]
                rows = [T.Bind(self._k[emit.ramp(start, lanes)]) for start in starts]
                self.store_keys(keys, emit.transpose(rows), feature, block)
            with T.serial(self._vectors, self._filled) as block:
                self._square(keys, begin, feature, block, 0)

    def masks(self, scratch: Any, batch: Expr, head: Expr, row: Expr) -> Callable[[int], Expr] | None:
        """Copy the masks of a tile, so that whole vectors of them can be read."""
        layer, lanes = self._layer, self._lanes
        if layer.mask is None or self._mask is None:
            return None
        apart = layer.mask.strides[2]
        first = T.Bind(self.bind_start(layer.mask, batch, head) + row * apart)
        full = T.Bind(layer.keys // lanes)
        with T.serial(0, min(self._mask_rows, self._tile_rows)) as number:
            source, target = T.Bind(first + number * apart), T.Bind(self._first_mask + number * self._width)
            with T.serial(0, full) as block:
                vector = self._mask[emit.ramp(source + block * lanes, lanes)]
                T.buffer_store(scratch, vector, [emit.ramp(target + block * lanes, lanes)])
            with T.serial(full * lanes, layer.keys) as key:
                T.buffer_store(scratch, self._mask[source + key], [target + key])
        self._scratch = scratch
        return lambda number: self._first_mask + (number * self._width if self._mask_rows > 1 else 0)

    def mask_scores(self, value: Expr, mask: Expr | None, block: Expr) -> Expr:
        layer, lanes = self._layer, self._lanes
        if layer.scale != 1:
            value = value * self._functions.number(layer.scale)
        if mask is not None:
            value = value + self._scratch[emit.ramp(mask + block * lanes, lanes)]
        lane = emit.splat(block * lanes, lanes, "int32") + tirx.Ramp(tirx.const(0, "int32"), 1, lanes)
        inside = lane < emit.splat(layer.keys, lanes, "int32")
        return T.Bind(prim.Select(inside, value, self._functions.number(-math.inf)))


def _expression(value: Expr) -> Expr:
    return tirx.const(value, "int32") if isinstance(value, int) else value
