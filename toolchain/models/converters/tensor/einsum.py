"""Einsum as products of matrices, which the backends are fast at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te

from toolchain.models.converters import converter
from toolchain.models.converters.node import Node

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Term:
    """A tensor and the letters of its axes."""

    value: Any
    letters: str


@converter("Einsum")
def einsum(node: Node) -> Any:
    """Convert Einsum.

    TVM computes the whole sum in one loop nest, and knows no repeated letters and no axes of one element under dots.
    """
    terms, result = _terms(node)
    sizes: dict[str, int] = {}
    for term in terms:
        for letter, size in zip(term.letters, node.shape_of(term.value), strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    plain = [_spread(node, _diagonal(node, term), sizes) for term in terms]
    made = plain.pop(0)
    while plain:
        other = plain.pop(0)
        needed = set(result).union(*(term.letters for term in plain))
        made = _product(node, made, other, needed, sizes)
    made = _summed(node, made, set(result))
    return _ordered(node, made, result, sizes).value


def _terms(node: Node) -> tuple[list[Term], str]:
    """Read the equation; dots become letters that it does not use."""
    equation = str(node.attributes["equation"]).replace(" ", "")
    left, arrow, right = equation.partition("->")
    parts = left.split(",")
    free = [letter for letter in _LETTERS if letter not in equation]
    ranks = [len(node.shape(index)) for index in range(len(parts))]
    dots = [
        rank - len(part.replace("...", "")) if "..." in part else 0 for part, rank in zip(parts, ranks, strict=True)
    ]
    most = free[: max(dots)]
    named = [part.replace("...", "".join(most[len(most) - count :])) for part, count in zip(parts, dots, strict=True)]
    if any(len(one) != rank for one, rank in zip(named, ranks, strict=True)):
        raise node.refusal(f"its equation {equation} does not fit the shapes of its inputs")
    text = "".join(named)
    implied = "".join(most) + "".join(sorted(one for one in set(text) - set(most) if text.count(one) == 1))
    result = right.replace("...", "".join(most)) if arrow else implied
    return [Term(node.input(index), one) for index, one in enumerate(named)], result


def _diagonal(node: Node, term: Term) -> Term:
    """Walk along axes of the same letter together."""
    unique = "".join(dict.fromkeys(term.letters))
    if unique == term.letters:
        return term
    shape = [node.shape_of(term.value)[term.letters.index(one)] for one in unique]

    def compute(data: Any) -> Any:
        return te.compute(shape, lambda *at: data(*(at[unique.index(one)] for one in term.letters)), name="diagonal")

    return Term(node.compute(compute, term.value, name="diagonal"), unique)


def _spread(node: Node, term: Term, sizes: dict[str, int]) -> Term:
    """Leave out axes of one element that stand for more."""
    thin = [
        axis
        for axis, (letter, size) in enumerate(zip(term.letters, node.shape_of(term.value), strict=True))
        if size != sizes[letter]
    ]
    if not thin:
        return term
    letters = "".join(letter for axis, letter in enumerate(term.letters) if axis not in thin)
    return Term(node.emit(relax.op.squeeze(term.value, thin)), letters)


def _summed(node: Node, term: Term, needed: set[str]) -> Term:
    """Sum over the letters that nothing needs any more."""
    over = [axis for axis, letter in enumerate(term.letters) if letter not in needed]
    if not over:
        return term
    letters = "".join(letter for letter in term.letters if letter in needed)
    return Term(node.emit(relax.op.sum(term.value, over)), letters)


def _ordered(node: Node, term: Term, letters: str, sizes: dict[str, int]) -> Term:
    """Put the axes into an order; those that are missing are repeated."""
    missing = [letter for letter in letters if letter not in term.letters]
    value, have = term.value, term.letters
    if missing:
        value = node.emit(relax.op.expand_dims(value, list(range(len(missing)))))
        have = "".join(missing) + have
    order = [have.index(letter) for letter in letters]
    if order != sorted(order):
        value = node.emit(relax.op.permute_dims(value, order))
    if missing:
        value = node.emit(relax.op.broadcast_to(value, [sizes[letter] for letter in letters]))
    return Term(value, letters)


def _product(node: Node, one: Term, other: Term, needed: set[str], sizes: dict[str, int]) -> Term:
    """Multiply two tensors, and sum over what only they have."""
    one, other = _summed(node, one, needed | set(other.letters)), _summed(node, other, needed | set(one.letters))
    both = [letter for letter in one.letters if letter in other.letters]
    batch = "".join(letter for letter in both if letter in needed)
    inner = "".join(letter for letter in both if letter not in needed)
    rows = "".join(letter for letter in one.letters if letter not in both)
    columns = "".join(letter for letter in other.letters if letter not in both)

    def length(letters: Sequence[str]) -> int:
        return math.prod(sizes[letter] for letter in letters)

    def matrix(term: Term, letters: str, shape: tuple[int, int, int]) -> Any:
        return node.emit(relax.op.reshape(_ordered(node, term, letters, sizes).value, shape))

    left = matrix(one, batch + rows + inner, (length(batch), length(rows), length(inner)))
    right = matrix(other, batch + inner + columns, (length(batch), length(inner), length(columns)))
    made = node.emit(relax.op.matmul(left, right))
    letters = batch + rows + columns
    return Term(node.emit(relax.op.reshape(made, [sizes[letter] for letter in letters])), letters)
