"""What ai.onnx.ml computes from the scores of classes and targets: post_transform, and labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from toolchain.models.converters import Node
from toolchain.models.converters.tensor.casts import cast_to

_ZERO = 1e-7  # SOFTMAX_ZERO leaves out what lies between this and its negative
_BINARY = 2


def rows(node: Node, dtype: str = "float32") -> Any:
    """Return the first input as rows of features of an element type; a vector is one row."""
    data = node.emit(cast_to(node, node.inputs[0], dtype))
    sizes = node.shape(0)
    if len(sizes) == 1:
        return node.emit(relax.op.expand_dims(data, 0))
    if len(sizes) != _BINARY:
        raise node.refusal(f"its input has {len(sizes)} axes; it takes rows of features")
    return data


def post_transform(node: Node) -> str:
    name = str(node.attributes.get("post_transform", "NONE"))
    if name not in _TRANSFORMS:
        raise node.refusal(f"its post_transform is {name!r}; the standard has {', '.join(_TRANSFORMS)}")
    return name


def apply_transform(node: Node, scores: Any, name: str) -> Any:
    return _TRANSFORMS[name](node, scores)


# ONNX Runtime transforms the scores of a single target for PROBIT only.
def transform_one_target(node: Node, scores: Any, name: str) -> Any:
    return apply_transform(node, scores, name if name == "PROBIT" else "NONE")


def two_columns(node: Node, score: Any, name: str, *, opposite: bool) -> Any:
    """Return the scores of two classes of which only the second has one, [rows, 1], as ONNX Runtime fills the first.

    Of the post_transforms, only LOGISTIC is computed. The first is the negative of the second if `opposite`, else its
    difference to 1.
    """
    if name == "PROBIT":
        raise node.refusal(
            "with PROBIT and a score of one of two classes, ONNX Runtime leaves the other class undefined"
        )
    if opposite or name == "LOGISTIC":
        first = node.emit(relax.op.negative(score))
    else:
        first = node.emit(relax.op.subtract(relax.const(1.0, score.ty.dtype.dtype), score))
    columns = node.emit(relax.op.concat([first, score], 1))
    return apply_transform(node, columns, name if name == "LOGISTIC" else "NONE")


# Without an element type, Relax would narrow an array of 64 bits.
def constant(array: Any, dtype: str = "") -> Any:
    values = np.ascontiguousarray(array, dtype or None)
    return relax.const(values, str(values.dtype))


# Text labels are numbered: their output is left out of the model.
def class_labels(node: Node) -> list[int]:
    texts = node.attributes.get("classlabels_strings", ())
    numbers = node.attributes.get("classlabels_int64s", node.attributes.get("classlabels_ints", ()))
    return list(range(len(texts))) if texts else [int(number) for number in numbers]


def best_label(node: Node, scores: Any, labels: Sequence[int]) -> Any:
    """Return the label of the greatest score of each row, of equal ones the first."""
    index = node.emit(relax.op.argmax(scores, 1))
    return node.emit(relax.op.take(constant(labels, "int64"), index, axis=0, mode="clip"))


def label_where(node: Node, condition: Any, labels: Sequence[int]) -> Any:
    """Return the second of two labels where a condition, [rows, 1], is true, and the first elsewhere."""
    flat = node.emit(relax.op.reshape(condition, (node.shape_of(condition)[0],)))
    first, second = (relax.const(label, "int64") for label in labels)
    return node.emit(relax.op.where(flat, second, first))


# Computed from the absolute value, as in ONNX Runtime: near 0 it has the same few bits.
def _logistic(node: Node, scores: Any) -> Any:
    dtype = scores.ty.dtype.dtype
    above = node.emit(relax.op.sigmoid(node.emit(relax.op.abs(scores))))
    below = node.emit(relax.op.subtract(relax.const(1.0, dtype), above))
    return node.emit(relax.op.where(node.emit(relax.op.less(scores, relax.const(0.0, dtype))), below, above))


# Scores of 0 stay 0, and are not counted.
def _softmax_zero(node: Node, scores: Any) -> Any:
    dtype = scores.ty.dtype.dtype
    greatest = node.emit(relax.op.max(scores, 1, keepdims=True))
    powers = node.emit(relax.op.exp(node.emit(relax.op.subtract(scores, greatest))))
    scale = node.emit(relax.op.exp(node.emit(relax.op.negative(greatest))))
    scaled_scores = node.emit(relax.op.multiply(scores, scale))
    is_counted = node.emit(relax.op.greater(node.emit(relax.op.abs(scores)), relax.const(_ZERO, dtype)))
    counted_powers = node.emit(relax.op.where(is_counted, powers, relax.const(0.0, dtype)))
    total = node.emit(relax.op.sum(counted_powers, 1, keepdims=True))
    return node.emit(relax.op.divide(node.emit(relax.op.where(is_counted, powers, scaled_scores)), total))


# ONNX Runtime's approximation of the inverse of the normal distribution.
def _probit(node: Node, scores: Any) -> Any:
    dtype = str(scores.ty.dtype)

    def number(value: Any) -> Any:
        return tirx.const(float(value), dtype)

    share = np.float32(0.147)
    middle, rest = np.float32(2) / (np.float32(3.14159) * share), np.float32(1) / share

    def element(score: Any) -> Any:
        x = number(2) * score - number(1)
        log = tirx.log((number(1) - x) * (number(1) + x))
        half = number(middle) + number(0.5) * log
        size = tirx.sqrt(tirx.sqrt(half * half - number(rest) * log) - half)
        return number(math.sqrt(2)) * tirx.Select(x < number(0), number(0) - size, size)

    return node.compute(
        lambda tensor: te.compute(tensor.shape, lambda *index: element(tensor(*index)), "probit"), scores, name="probit"
    )


_TRANSFORMS = {
    "NONE": lambda _node, scores: scores,
    "SOFTMAX": lambda node, scores: node.emit(relax.op.nn.softmax(scores, -1)),
    "LOGISTIC": _logistic,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}
