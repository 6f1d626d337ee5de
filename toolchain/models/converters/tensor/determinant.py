"""Det, by elimination with the greatest pivot of each column."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from toolchain.models.converters import converter
from toolchain.models.converters.node import Node

_MOST = 32  # rows: each is a kernel or two


@converter("Det")
def det(node: Node) -> Any:
    """Convert Det of matrices of up to 32 rows."""
    *batch, rows, columns = node.shape(0)
    if rows != columns or rows > _MOST:
        raise node.refusal(f"its matrices are {rows} x {columns}; square ones of up to {_MOST} rows can be compiled")
    matrix = node.emit(relax.op.reshape(node.input(0), (math.prod(batch), rows, rows)))
    result = None
    for size in range(rows, 0, -1):
        pivot, matrix = _eliminated(node, matrix, size)
        result = pivot if result is None else node.emit(relax.op.multiply(result, pivot))
    return relax.op.reshape(result, tuple(batch))


def _eliminated(node: Node, matrix: Any, size: int) -> tuple[Any, Any]:
    """Return the signed pivot, [batch], and what is left without its row and column."""
    dtype = node.dtype(0)
    zero, one = relax.const(0, dtype), relax.const(1, dtype)
    column = node.emit(relax.op.strided_slice(matrix, [2], [0], [1]))
    place = node.emit(relax.op.argmax(node.emit(relax.op.abs(column)), axis=1, keepdims=True))
    numbers = relax.const(np.arange(size, dtype=np.int64).reshape(1, size, 1))
    is_pivot = node.emit(relax.op.equal(numbers, place))
    row = node.emit(relax.op.sum(node.emit(relax.op.where(is_pivot, matrix, zero)), axis=1, keepdims=True))
    pivot = node.emit(relax.op.strided_slice(row, [2], [0], [1]))
    sign = relax.op.where(relax.op.equal(place, relax.const(0, "int64")), one, relax.const(-1, dtype))
    signed = node.emit(relax.op.reshape(node.emit(relax.op.multiply(pivot, sign)), (-1,)))
    if size == 1:
        return signed, None
    first = node.emit(relax.op.strided_slice(matrix, [1], [0], [1]))
    swapped = node.emit(relax.op.where(is_pivot, first, matrix))
    swapped = node.emit(relax.op.strided_slice(swapped, [1], [1], [size]))
    divisor = relax.op.where(relax.op.equal(pivot, zero), one, pivot)
    factors = relax.op.divide(relax.op.strided_slice(swapped, [2], [0], [1]), divisor)
    rest = node.emit(relax.op.subtract(swapped, relax.op.multiply(factors, row)))
    return signed, node.emit(relax.op.strided_slice(rest, [2], [1], [size]))
