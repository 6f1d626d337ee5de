"""Where the dimensions of an image are with its channels second, as ONNX has them, and last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

RANKS = {3: "W", 4: "HW", 5: "DHW"}
"""By rank of an image, its dimensions besides batch and channels."""

OP = relax.op


def order(rank: int, spatial: int | None = None) -> list[int]:
    """Return which dimension of NCHW each one of NHWC is.

    Args:
        rank: How many dimensions there are.
        spatial: How many of them are spatial: the last ones. All but two by default.
    """
    first = 2 if spatial is None else rank - spatial
    return [0, *range(first, rank), *range(1, first)]


def transposed_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with its second number last."""
    return tuple(shape[axis] for axis in order(len(shape)))


def is_flat(shape: Sequence[int]) -> bool:
    """Whether the elements of an image are in the same order in both layouts."""
    return shape[1] == 1 or math.prod(shape[2:]) == 1


def transposed(expression: Any, shape: Sequence[int]) -> Any:
    """Return an image with its channels last.

    Args:
        expression: The image, NCHW.
        shape: Its sizes.
    """
    if is_flat(shape):
        return OP.reshape(expression, list(transposed_shape(shape)))
    return OP.permute_dims(expression, order(len(shape)))


def transposed_back(expression: Any, shape: Sequence[int]) -> Any:
    """Return an image with its channels second.

    Args:
        expression: The image, NHWC.
        shape: Its sizes as NCHW.
    """
    if is_flat(shape):
        return OP.reshape(expression, list(shape))
    rank = len(shape)
    return OP.permute_dims(expression, [0, rank - 1, *range(1, rank - 1)])


def constant(array: Any, like: Any) -> Any:
    """Return an array as a constant of the element type of another expression."""
    return relax.const(np.ascontiguousarray(array), str(like.ty.dtype))


def numbers(values: Any) -> list[int]:
    """Return an attribute that is a list of whole numbers."""
    return [int(value) for value in values]
