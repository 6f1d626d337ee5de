"""Integers that follow from a count: what exporters compute from shapes that depend on the data.

Such a number is stored for each possible value of the count, so that sizes are compared exactly, however they were
computed: `8 - min(count, 8)` rows behind `min(count, 8)` rows are 8 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MAX_NUMBERS = 2**24  # numbers of a table: 8 sizes for each of two million values of a count


@dataclass(frozen=True, eq=False)
class Table:
    """A tensor of integers or truth values for each value of a count, which the tensor `root` has.

    The values are [values of the count, *shape]; one row, and no root, if they do not depend on a count.
    """

    root: str | None
    values: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape[1:]

    @property
    def is_constant(self) -> bool:
        return bool((self.values == self.values[:1]).all())

    def constant(self) -> Array:
        """Return the only value; a ValueError if it depends on the count."""
        if not self.is_constant:
            raise ValueError("it must not depend on the number of results")
        return np.asarray(self.values[0])

    def list(self) -> list[int]:
        return [int(number) for number in self.constant().reshape(-1)]


def fixed(value: Any) -> Table:
    """Return a table of a value that does not depend on a count."""
    return Table(None, np.asarray(value)[None])


def common_root(tables: Sequence[Table]) -> str | None:
    """Return the count that tables depend on; a ValueError if there are several."""
    roots = {table.root for table in tables if not table.is_constant}
    if len(roots) > 1:
        raise ValueError("it depends on two numbers of results")
    return roots.pop() if roots else None


def align(tables: Sequence[Table]) -> tuple[str | None, list[Array]]:
    """Return the values of tables for the same values of their count."""
    root = common_root(tables)
    rows = max((len(table.values) for table in tables if table.root == root), default=1) if root else 1
    blocks = [table.values if table.root == root and root else table.values[:1] for table in tables]
    return root, [np.broadcast_to(block, (rows, *block.shape[1:])) for block in blocks]


def compute(operator: str, attributes: Mapping[str, Any], inputs: Sequence[Table]) -> Table:
    """Return what an operator computes from tables.

    Raises:
        LookupError: It is not one that computes sizes.
        ValueError: It needs a number that does not depend on the count, or the table becomes too large.
    """
    if operator in _ELEMENTWISE:
        root, blocks = align(inputs)
        rank = max(block.ndim for block in blocks)
        blocks = [block.reshape(len(block), *[1] * (rank - block.ndim), *block.shape[1:]) for block in blocks]
        values = _ELEMENTWISE[operator](*blocks)
    else:
        rule = _SHAPED[operator]
        root, blocks = align(inputs if operator == "Concat" else inputs[:1])
        values = rule(blocks, attributes, inputs[1:])
    if values.size > _MAX_NUMBERS:
        raise ValueError("there are too many values of the number of results")
    return Table(root, np.ascontiguousarray(values))


def _divide(first: Array, second: Array) -> Array:
    # NumPy rounds down and ONNX towards zero, which is the same for these signs only.
    if (second <= 0).any() or (first < 0).any():
        raise ValueError("the sign or a division by zero depends on the number of results")
    return np.asarray(first // second)


_ELEMENTWISE: Mapping[str, Callable[..., Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": _divide,
    "Mod": lambda first, second: np.asarray(first - _divide(first, second) * second),
    "Min": lambda *arrays: np.minimum.reduce(np.broadcast_arrays(*arrays)),
    "Max": lambda *arrays: np.maximum.reduce(np.broadcast_arrays(*arrays)),
    "Neg": np.negative, "Abs": np.abs, "Not": np.logical_not, "And": np.logical_and, "Or": np.logical_or,
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "Where": np.where, "Identity": np.asarray,
}  # fmt: skip

Rest = Sequence[Table]


def _gather(blocks: list[Array], attributes: Mapping[str, Any], rest: Rest) -> Array:
    (data,) = blocks
    axis = attributes.get("axis", 0) % (data.ndim - 1) + 1
    return np.asarray(np.take(data, rest[0].constant(), axis))


def _reshape(blocks: list[Array], attributes: Mapping[str, Any], rest: Rest) -> Array:
    (data,) = blocks
    keeps = not attributes.get("allowzero", 0)
    shape = [data.shape[axis + 1] if size == 0 and keeps else size for axis, size in enumerate(rest[0].list())]
    return data.reshape(len(data), *shape) if data.size else np.zeros((len(data), *shape), data.dtype)


def _slice(blocks: list[Array], _: Mapping[str, Any], rest: Rest) -> Array:
    (data,) = blocks
    starts, ends = rest[0].list(), rest[1].list()
    axes = rest[2].list() if len(rest) > 2 else list(range(len(starts)))  # noqa: PLR2004 - starts, ends, axes, steps
    steps = rest[3].list() if len(rest) > 3 else [1] * len(starts)  # noqa: PLR2004 - as above
    chosen = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = data.shape[axis % (data.ndim - 1) + 1]
        # For NumPy, an end before the first element would count from the end again.
        last = None if step < 0 and end < -size else end
        chosen[axis % (data.ndim - 1) + 1] = slice(start, last, step)
    return data[tuple(chosen)]


def _squeeze(blocks: list[Array], attributes: Mapping[str, Any], rest: Rest) -> Array:
    (data,) = blocks
    rank = data.ndim - 1
    axes = {axis % rank for axis in attributes.get("axes") or (rest[0].list() if rest else ())}
    axes = axes or {axis for axis in range(rank) if data.shape[axis + 1] == 1}
    return data.reshape(len(data), *[size for axis, size in enumerate(data.shape[1:]) if axis not in axes])


def _unsqueeze(blocks: list[Array], attributes: Mapping[str, Any], rest: Rest) -> Array:
    (data,) = blocks
    axes = attributes.get("axes") or rest[0].list()
    rank = data.ndim - 1 + len(axes)
    return np.asarray(np.expand_dims(data, tuple(axis % rank + 1 for axis in axes)))


def _transpose(blocks: list[Array], attributes: Mapping[str, Any], _: Rest) -> Array:
    (data,) = blocks
    order = attributes.get("perm") or list(reversed(range(data.ndim - 1)))
    return data.transpose(0, *[axis + 1 for axis in order])


def _constant_of_shape(blocks: list[Array], attributes: Mapping[str, Any], _: Rest) -> Array:
    shape = Table(None, blocks[0]).list()
    value = attributes.get("value", np.zeros(1, np.float32))
    if value.dtype not in {np.dtype(kind) for kind in _DTYPES.values()}:
        raise LookupError("not whole numbers")
    return np.full((1, *shape), value.reshape(()), value.dtype)


def _expand(blocks: list[Array], _: Mapping[str, Any], rest: Rest) -> Array:
    (data,) = blocks
    shape = np.broadcast_shapes(data.shape[1:], tuple(rest[0].list()))
    data = data.reshape(len(data), *[1] * (len(shape) + 1 - data.ndim), *data.shape[1:])
    return np.broadcast_to(data, (len(data), *shape))


def _reduction(function: Callable[..., Array]) -> Callable[[list[Array], Mapping[str, Any], Rest], Array]:
    def reduce(blocks: list[Array], attributes: Mapping[str, Any], rest: Rest) -> Array:
        (data,) = blocks
        axes_named = attributes.get("axes") or (rest[0].list() if rest else None) or list(range(data.ndim - 1))
        axes = tuple(axis % (data.ndim - 1) + 1 for axis in axes_named)
        return np.asarray(function(data, axis=axes, keepdims=bool(attributes.get("keepdims", 1))))

    return reduce


_DTYPES = {7: np.int64, 6: np.int32, 9: np.bool_}  # TensorProto's INT64, INT32 and BOOL
_SHAPED: Mapping[str, Callable[[list[Array], Mapping[str, Any], Rest], Array]] = {
    "Cast": lambda blocks, attributes, _: blocks[0].astype(_DTYPES[attributes["to"]]),
    "Concat": lambda blocks, attributes, _: np.concatenate(blocks, attributes["axis"] % (blocks[0].ndim - 1) + 1),
    "ConstantOfShape": _constant_of_shape,
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
