"""A panel of an operand copied together before many tiles use it, as a matrix product does it with its second matrix.

Rows that lie kilobytes apart share few sets of a cache and fill the table of pages: a panel of them does not stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from toolchain.backends.cpu._fallback.expr import Expr, Var, coefficient, conditions, item_bytes, rewritten, substituted
from toolchain.backends.cpu._fallback.loops import Steps, Tile, number, repeated
from toolchain.backends.cpu._fallback.stages import Axis, Stage
from toolchain.backends.cpu._fallback.vector import vectorized

Stmt = Any

_FAR_BYTES = 1024
_LEAST_USES = 6
_LEAST_DEPTH = 64


def panel(stage: Stage, vector: Axis, steps: Steps) -> Expr | None:
    """Return the load to copy together, if that pays.

    Args:
        stage: A reduction.
        vector: The axis of its elements along which vectors lie.
        steps: The loops over tiles, the outermost first.
    """
    place = [axis for axis, _ in steps].index(vector)
    inner = steps[place + 1 :]
    uses = prod(ceil(axis.extent / length) for axis, length in inner)
    if uses < _LEAST_USES or any(True for value in stage.values for _ in conditions(value)):
        return None
    for load in (load for load in stage.loads() if coefficient(load.indices[0], vector.var) == 1):
        rows = [abs(coefficient(load.indices[0], axis.var) or 0) for axis in _rows(stage, load)]
        still = all(coefficient(load.indices[0], axis.var) == 0 for axis, _ in inner)
        far = rows and min(rows) * item_bytes(str(load.ty.dtype)) >= _FAR_BYTES
        if still and far and prod(axis.extent for axis in _rows(stage, load)) >= _LEAST_DEPTH:
            return load
    return None


def _rows(stage: Stage, load: Expr) -> list[Axis]:
    return [axis for axis in stage.reduced if coefficient(load.indices[0], axis.var) != 0]


def with_panel(stage: Stage, load: Expr, vector: Axis, tile: Tile, lanes: int) -> tuple[Stage, list[Stmt]]:
    """Copy a panel together.

    Args:
        stage: The reduction.
        load: What is loaded from the panel.
        vector: The axis along which vectors lie.
        tile: Where the panel starts on the axes outside of it and on `vector`, and how long it is there.
        lanes: Elements of a vector.

    Returns:
        The reduction that loads from the panel, and the statements that fill it.
    """
    start, width = tile[vector.var]
    rows = _rows(stage, load)
    buffer = tirx.decl_buffer((prod(axis.extent for axis in rows) * width,), str(load.ty.dtype), "panel")
    outside = {var: at for var, (at, _) in tile.items()}

    def row(axes: Sequence[Axis], place: dict[Var, Expr]) -> list[Stmt]:
        if axes:
            return repeated(axes[0].extent, lambda at: row(axes[1:], {**place, axes[0].var: at}))
        return [step for first in range(0, width, lanes) for step in vectors(first, place)]

    def vectors(first: int, place: dict[Var, Expr]) -> list[Stmt]:
        def lane(at: Expr) -> list[Stmt]:
            there = {**outside, **place, vector.var: start + (number(first) + at)}
            value = tirx.BufferLoad(load.source, [substituted(load.indices[0], there)])
            return [tirx.BufferStore(buffer, value, [_row_number(rows, place) * width + (number(first) + at)])]

        return vectorized(min(lanes, width - first), lane)

    own = {axis.var: axis.var for axis in rows}

    def from_panel(part: Expr) -> Expr | None:
        if type(part) is not ir.TensorLoad or not tvm_ffi.structural_equal(part, load):
            return None
        return tirx.BufferLoad(buffer, [_row_number(rows, own) * width + (vector.var - start)])

    return stage.mapped(lambda expr: rewritten(expr, from_panel)), [tirx.AllocBuffer(buffer), *row(rows, {})]


def _row_number(rows: Sequence[Axis], place: dict[Var, Expr]) -> Expr:
    found: Expr = number(0)
    for axis in rows:
        found = found * axis.extent + place[axis.var]
    return found
