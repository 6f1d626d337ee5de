"""Einsum as products of matrices, which the backends are fast at, and Det."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te

from toolchain.models.converters import Node, converter

_MAX_ROWS = 32  # of Det: each row is a kernel or two
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Term:
    """A tensor and the letters of its axes."""

    value: Any
    letters: str


# TVM computes the whole sum in one loop nest, and supports neither repeated letters nor broadcast axes under dots.
@converter("Einsum")
def einsum(node: Node) -> Any:
    terms, letters = _parse(node)
    sizes: dict[str, int] = {}
    for term in terms:
        for letter, size in zip(term.letters, node.shape_of(term.value), strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    operands = [_drop_broadcast(node, _take_diagonal(node, term), sizes) for term in terms]
    result = operands.pop(0)
    while operands:
        other = operands.pop(0)
        # Every other letter can be summed out with this product.
        needed = set(letters).union(*(term.letters for term in operands))
        result = _multiply(node, result, other, needed, sizes)
    result = _sum_out(node, result, set(letters))
    return _permute(node, result, letters, sizes).value


# Dots become letters that the equation does not use.
def _parse(node: Node) -> tuple[list[Term], str]:
    equation = str(node.attributes["equation"]).replace(" ", "")
    left, arrow, right = equation.partition("->")
    parts = left.split(",")
    free = [letter for letter in _LETTERS if letter not in equation]
    ranks = [len(node.shape(index)) for index in range(len(parts))]
    dot_counts = [
        rank - len(part.replace("...", "")) if "..." in part else 0 for part, rank in zip(parts, ranks, strict=True)
    ]
    dot_letters = free[: max(dot_counts)]
    terms = [
        part.replace("...", "".join(dot_letters[len(dot_letters) - count :]))
        for part, count in zip(parts, dot_counts, strict=True)
    ]
    if any(len(term) != rank for term, rank in zip(terms, ranks, strict=True)):
        raise node.refusal(f"its equation {equation} does not fit the shapes of its inputs")
    text = "".join(terms)
    implied = "".join(dot_letters) + "".join(
        sorted(term for term in set(text) - set(dot_letters) if text.count(term) == 1)
    )
    result = right.replace("...", "".join(dot_letters)) if arrow else implied
    return [Term(node.input(index), term) for index, term in enumerate(terms)], result


def _take_diagonal(node: Node, term: Term) -> Term:
    """Merge axes of the same letter."""
    unique = "".join(dict.fromkeys(term.letters))
    if unique == term.letters:
        return term
    shape = [node.shape_of(term.value)[term.letters.index(letter)] for letter in unique]

    def compute(data: Any) -> Any:
        return te.compute(
            shape, lambda *index: data(*(index[unique.index(letter)] for letter in term.letters)), name="diagonal"
        )

    return Term(node.compute(compute, term.value, name="diagonal"), unique)


def _drop_broadcast(node: Node, term: Term, sizes: dict[str, int]) -> Term:
    """Remove axes of one element that stand for longer ones."""
    dropped = [
        axis
        for axis, (letter, size) in enumerate(zip(term.letters, node.shape_of(term.value), strict=True))
        if size != sizes[letter]
    ]
    if not dropped:
        return term
    letters = "".join(letter for axis, letter in enumerate(term.letters) if axis not in dropped)
    return Term(node.emit(relax.op.squeeze(term.value, dropped)), letters)


def _sum_out(node: Node, term: Term, needed: set[str]) -> Term:
    """Sum over the letters that are not needed any more."""
    over = [axis for axis, letter in enumerate(term.letters) if letter not in needed]
    if not over:
        return term
    letters = "".join(letter for letter in term.letters if letter in needed)
    return Term(node.emit(relax.op.sum(term.value, over)), letters)


def _permute(node: Node, term: Term, letters: str, sizes: dict[str, int]) -> Term:
    """Put the axes into an order; missing ones are broadcast."""
    missing = [letter for letter in letters if letter not in term.letters]
    value, present = term.value, term.letters
    if missing:
        value = node.emit(relax.op.expand_dims(value, list(range(len(missing)))))
        present = "".join(missing) + present
    order = [present.index(letter) for letter in letters]
    if order != sorted(order):
        value = node.emit(relax.op.permute_dims(value, order))
    if missing:
        value = node.emit(relax.op.broadcast_to(value, [sizes[letter] for letter in letters]))
    return Term(value, letters)


def _multiply(node: Node, left: Term, right: Term, needed: set[str], sizes: dict[str, int]) -> Term:
    """Multiply two tensors, and sum over letters that only they have."""
    # Letters of one operand are summed first, which makes the product smaller.
    left, right = _sum_out(node, left, needed | set(right.letters)), _sum_out(node, right, needed | set(left.letters))
    shared = [letter for letter in left.letters if letter in right.letters]
    batch = "".join(letter for letter in shared if letter in needed)
    inner = "".join(letter for letter in shared if letter not in needed)
    rows = "".join(letter for letter in left.letters if letter not in shared)
    columns = "".join(letter for letter in right.letters if letter not in shared)

    def length(letters: Sequence[str]) -> int:
        return math.prod(sizes[letter] for letter in letters)

    def matrix(term: Term, letters: str, shape: tuple[int, int, int]) -> Any:
        return node.emit(relax.op.reshape(_permute(node, term, letters, sizes).value, shape))

    left_matrix = matrix(left, batch + rows + inner, (length(batch), length(rows), length(inner)))
    right_matrix = matrix(right, batch + inner + columns, (length(batch), length(inner), length(columns)))
    product = node.emit(relax.op.matmul(left_matrix, right_matrix))
    letters = batch + rows + columns
    return Term(node.emit(relax.op.reshape(product, [sizes[letter] for letter in letters])), letters)


# Elimination with the greatest pivot of each column.
@converter("Det")
def det(node: Node) -> Any:
    *batch, rows, columns = node.shape(0)
    if rows != columns or rows > _MAX_ROWS:
        raise node.refusal(
            f"its matrices are {rows} x {columns}; square ones of up to {_MAX_ROWS} rows can be compiled"
        )
    matrix = node.emit(relax.op.reshape(node.input(0), (math.prod(batch), rows, rows)))
    result = None
    for size in range(rows, 0, -1):
        pivot, matrix = _eliminate(node, matrix, size)
        result = pivot if result is None else node.emit(relax.op.multiply(result, pivot))
    return relax.op.reshape(result, tuple(batch))


def _eliminate(node: Node, matrix: Any, size: int) -> tuple[Any, Any]:
    """Return the signed pivot, [batch], and the matrix without its row and column."""
    dtype = node.dtype(0)
    zero, unity = relax.const(0, dtype), relax.const(1, dtype)
    column = node.emit(relax.op.strided_slice(matrix, [2], [0], [1]))
    pivot_row = node.emit(relax.op.argmax(node.emit(relax.op.abs(column)), axis=1, keepdims=True))
    numbers = relax.const(np.arange(size, dtype=np.int64).reshape(1, size, 1))
    is_pivot = node.emit(relax.op.equal(numbers, pivot_row))
    row = node.emit(relax.op.sum(node.emit(relax.op.where(is_pivot, matrix, zero)), axis=1, keepdims=True))
    pivot = node.emit(relax.op.strided_slice(row, [2], [0], [1]))
    # Swapping two rows changes the sign of the determinant.
    sign = relax.op.where(relax.op.equal(pivot_row, relax.const(0, "int64")), unity, relax.const(-1, dtype))
    signed = node.emit(relax.op.reshape(node.emit(relax.op.multiply(pivot, sign)), (-1,)))
    if size == 1:
        return signed, None
    first = node.emit(relax.op.strided_slice(matrix, [1], [0], [1]))
    swapped = node.emit(relax.op.where(is_pivot, first, matrix))
    swapped = node.emit(relax.op.strided_slice(swapped, [1], [1], [size]))
    # A pivot of 0 makes the determinant 0; the rest must only not become NaN.
    divisor = relax.op.where(relax.op.equal(pivot, zero), unity, pivot)
    factors = relax.op.divide(relax.op.strided_slice(swapped, [2], [0], [1]), divisor)
    rest = node.emit(relax.op.subtract(swapped, relax.op.multiply(factors, row)))
    return signed, node.emit(relax.op.strided_slice(rest, [2], [1], [size]))
