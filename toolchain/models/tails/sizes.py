"""Whole numbers that follow from a count: what exporters compute from shapes that depend on the data.

Such a number is kept for each value that the count can have, so that sizes are compared exactly, however they were
computed: `8 - min(count, 8)` rows behind `min(count, 8)` rows are 8 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MOST = 2**24
"""Numbers of a table: 8 sizes for each of two million values of a count."""


@dataclass(frozen=True, eq=False)
class Table:
    """A tensor of whole numbers, or of truth values, for each value of a count.

    Attributes:
        root: The tensor that has the count; None where the numbers do not depend on one.
        values: [values of the count, *shape]; one row if they do not depend on it.
    """

    root: str | None
    values: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.values.shape[1:]

    @property
    def is_constant(self) -> bool:
        """Whether it has the same value for each value of the count."""
        return bool((self.values == self.values[:1]).all())

    def constant(self) -> Array:
        """Return the only value.

        Raises:
            ValueError: It depends on the count.
        """
        if not self.is_constant:
            raise ValueError("it must not depend on the number of results")
        return np.asarray(self.values[0])

    def list(self) -> list[int]:
        """Return the only value as a list; as `constant`."""
        return [int(number) for number in self.constant().reshape(-1)]


def fixed(value: Any) -> Table:
    """Return a table of what does not depend on a count."""
    return Table(None, np.asarray(value)[None])


def common_root(tables: Sequence[Table]) -> str | None:
    """Return the count that tables depend on.

    Raises:
        ValueError: They depend on several.
    """
    roots = {table.root for table in tables if not table.is_constant}
    if len(roots) > 1:
        raise ValueError("it depends on two numbers of results")
    return roots.pop() if roots else None


def aligned(tables: Sequence[Table]) -> tuple[str | None, list[Array]]:
    """Return the values of tables for the same values of their count."""
    root = common_root(tables)
    rows = max((len(table.values) for table in tables if table.root == root), default=1) if root else 1
    parts = [table.values if table.root == root and root else table.values[:1] for table in tables]
    return root, [np.broadcast_to(part, (rows, *part.shape[1:])) for part in parts]


def computed(operator: str, attributes: Mapping[str, Any], inputs: Sequence[Table]) -> Table:
    """Return what an operator computes from tables.

    Raises:
        LookupError: It is not among those that compute sizes.
        ValueError: It needs one number that does not depend on the count, or the table becomes too large.
    """
    if operator in _EACH:
        root, parts = aligned(inputs)
        rank = max(part.ndim for part in parts)
        parts = [part.reshape(len(part), *[1] * (rank - part.ndim), *part.shape[1:]) for part in parts]
        values = _EACH[operator](*parts)
    else:
        rule = _SHAPED[operator]
        root, parts = aligned(inputs if operator == "Concat" else inputs[:1])
        values = rule(parts, attributes, inputs[1:])
    if values.size > _MOST:
        raise ValueError("there are too many values of the number of results")
    return Table(root, np.ascontiguousarray(values))


def _quotient(first: Array, second: Array) -> Array:
    if (second <= 0).any() or (first < 0).any():
        raise ValueError("the sign or a division by zero depends on the number of results")
    return np.asarray(first // second)


def _remainder(first: Array, second: Array) -> Array:
    return np.asarray(first - _quotient(first, second) * second)


_EACH: Mapping[str, Callable[..., Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": _quotient, "Mod": _remainder,
    "Min": lambda *parts: np.minimum.reduce(np.broadcast_arrays(*parts)),
    "Max": lambda *parts: np.maximum.reduce(np.broadcast_arrays(*parts)),
    "Neg": np.negative, "Abs": np.abs, "Not": np.logical_not, "And": np.logical_and, "Or": np.logical_or,
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "Where": np.where, "Identity": np.asarray,
}  # fmt: skip

Rest = Sequence[Table]


def _gather(parts: list[Array], attributes: Mapping[str, Any], rest: Rest) -> Array:
    (data,) = parts
    axis = attributes.get("axis", 0) % (data.ndim - 1) + 1
    return np.asarray(np.take(data, rest[0].constant(), axis))


def _reshape(parts: list[Array], attributes: Mapping[str, Any], rest: Rest) -> Array:
    (data,) = parts
    keeps = not attributes.get("allowzero", 0)
    shape = [data.shape[at + 1] if size == 0 and keeps else size for at, size in enumerate(rest[0].list())]
    return data.reshape(len(data), *shape) if data.size else np.zeros((len(data), *shape), data.dtype)


def _slice(parts: list[Array], _: Mapping[str, Any], rest: Rest) -> Array:
    (data,) = parts
    starts, ends = rest[0].list(), rest[1].list()
    axes = rest[2].list() if len(rest) > 2 else list(range(len(starts)))  # noqa: PLR2004 - starts, ends, axes, steps
    steps = rest[3].list() if len(rest) > 3 else [1] * len(starts)  # noqa: PLR2004 - as above
    chosen = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = data.shape[axis % (data.ndim - 1) + 1]
        last = None if step < 0 and end < -size else end
        chosen[axis % (data.ndim - 1) + 1] = slice(start, last, step)
    return data[tuple(chosen)]


def _squeeze(parts: list[Array], attributes: Mapping[str, Any], rest: Rest) -> Array:
    (data,) = parts
    rank = data.ndim - 1
    named = attributes.get("axes") or (rest[0].list() if rest else None)
    axes = {axis % rank for axis in named} if named else {at for at in range(rank) if data.shape[at + 1] == 1}
    return data.reshape(len(data), *[size for at, size in enumerate(data.shape[1:]) if at not in axes])


def _unsqueeze(parts: list[Array], attributes: Mapping[str, Any], rest: Rest) -> Array:
    (data,) = parts
    named = attributes.get("axes") or rest[0].list()
    rank = data.ndim - 1 + len(named)
    return np.asarray(np.expand_dims(data, tuple(axis % rank + 1 for axis in named)))


def _transpose(parts: list[Array], attributes: Mapping[str, Any], _: Rest) -> Array:
    (data,) = parts
    order = attributes.get("perm") or list(reversed(range(data.ndim - 1)))
    return data.transpose(0, *[axis + 1 for axis in order])


def _concat(parts: list[Array], attributes: Mapping[str, Any], _: Rest) -> Array:
    return np.concatenate(parts, attributes["axis"] % (parts[0].ndim - 1) + 1)


def _cast(parts: list[Array], attributes: Mapping[str, Any], _: Rest) -> Array:
    return parts[0].astype(_WHOLE[attributes["to"]])


def _filled(parts: list[Array], attributes: Mapping[str, Any], _: Rest) -> Array:
    shape = Table(None, parts[0]).list()
    value = attributes.get("value", np.zeros(1, np.float32))
    if value.dtype not in {np.dtype(kind) for kind in _WHOLE.values()}:
        raise LookupError("not whole numbers")
    return np.full((1, *shape), value.reshape(()), value.dtype)


def _expand(parts: list[Array], _: Mapping[str, Any], rest: Rest) -> Array:
    (data,) = parts
    shape = np.broadcast_shapes(data.shape[1:], tuple(rest[0].list()))
    data = data.reshape(len(data), *[1] * (len(shape) + 1 - data.ndim), *data.shape[1:])
    return np.broadcast_to(data, (len(data), *shape))


def _reduction(function: Callable[..., Array]) -> Callable[[list[Array], Mapping[str, Any], Rest], Array]:
    def reduced(parts: list[Array], attributes: Mapping[str, Any], rest: Rest) -> Array:
        (data,) = parts
        named = attributes.get("axes") or (rest[0].list() if rest else None) or list(range(data.ndim - 1))
        axes = tuple(axis % (data.ndim - 1) + 1 for axis in named)
        return np.asarray(function(data, axis=axes, keepdims=bool(attributes.get("keepdims", 1))))

    return reduced


_WHOLE = {7: np.int64, 6: np.int32, 9: np.bool_}  # TensorProto's INT64, INT32 and BOOL
_SHAPED: Mapping[str, Callable[[list[Array], Mapping[str, Any], Rest], Array]] = {
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Expand": _expand,
    "Gather": _gather,
    "ReduceMax": _reduction(np.max),
    "ReduceMin": _reduction(np.min),
    "ReduceProd": _reduction(np.prod),
    "ReduceSum": _reduction(np.sum),
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
