"""Normalizations by mean and variance, or by a norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from toolchain.models.converters import UPSTREAM, Node, as_operator, converter
from toolchain.models.converters.tensor.casts import cast_to, dtype_name

_FLOAT = 1  # ONNX's number of float32


def _normalize(node: Node, data: Any, axes: Sequence[int], epsilon: float) -> tuple[Any, Any, Any]:
    """Return (x - mean) / sqrt(variance + epsilon), the mean, and the reciprocal of the root."""
    dtype = str(data.ty.dtype)
    mean = node.emit(relax.op.mean(data, list(axes), keepdims=True))
    # The difference of mean square and squared mean would lose the bits of a small variance.
    centred = node.emit(relax.op.subtract(data, mean))
    variance = node.emit(relax.op.mean(relax.op.multiply(centred, centred), list(axes), keepdims=True))
    root = node.emit(relax.op.sqrt(relax.op.add(variance, relax.const(epsilon, dtype))))
    scale = node.emit(relax.op.divide(relax.const(1, dtype), root))
    return node.emit(relax.op.multiply(centred, scale)), mean, scale


def _wide(node: Node) -> str:
    """Return the element type of the computation: `stash_type`, or at least 32 bits."""
    if node.dtype(0) == "float64":
        return "float64"
    return dtype_name(node, node.attributes.get("stash_type", _FLOAT))


def _scale_and_shift(node: Node, value: Any, scale: Any, bias: Any) -> Any:
    """Return value * scale + bias, in their element type."""
    dtype = node.dtype(0)
    value = cast_to(node, value, dtype)
    value = value if scale is None else node.emit(relax.op.multiply(value, cast_to(node, scale, dtype)))
    return value if bias is None else relax.op.add(value, cast_to(node, bias, dtype))


# TVM's has 0 as its second and third output, and fails if all axes are normalized.
@converter("LayerNormalization")
def layer_normalization(node: Node) -> Any:
    rank = len(node.shape(0))
    axes, epsilon = list(range(node.attributes.get("axis", -1) % rank, rank)), node.attributes.get("epsilon", 1e-5)
    normalized = tuple(node.shape(0)[axis] for axis in axes)
    scale, bias = node.inputs[1], node.input(2)
    # Relax's own operator, which backends have kernels for, takes scales of the normalized shape only.
    fits = node.shape(1) == normalized and (bias is None or node.shape(2) == normalized)
    if node.outputs == 1 and fits and len(normalized) < len(node.shape(0)) and node.dtype(0) == "float32":
        bias = relax.const(np.zeros(normalized, "float32")) if bias is None else bias
        return relax.op.nn.layer_norm(node.inputs[0], scale, bias, axes, epsilon)
    data = node.emit(cast_to(node, node.inputs[0], _wide(node)))
    value, mean, reciprocal = _normalize(node, data, axes, epsilon)
    return [_scale_and_shift(node, value, scale, bias), mean, reciprocal][: node.outputs]


@converter("InstanceNormalization")
def instance_normalization(node: Node) -> Any:
    rank = len(node.shape(0))
    data = node.emit(cast_to(node, node.inputs[0], _wide(node)))
    value, _, _ = _normalize(node, data, range(2, rank), node.attributes.get("epsilon", 1e-5))
    return _scale_and_shift(node, value, *(_per_channel(node, weight, rank) for weight in node.inputs[1:3]))


# Its first version, with scale and bias by group, is no longer in the standard.
@converter("GroupNormalization")
def group_normalization(node: Node) -> Any:
    shape, groups = node.shape(0), node.attributes["num_groups"]
    if shape[1] % groups:
        raise node.refusal(f"{shape[1]} channels are not a multiple of {groups} groups")
    # Groups become an axis of their own, so that the mean covers one of them.
    within = (groups, shape[1] // groups)
    data = relax.op.reshape(cast_to(node, node.inputs[0], _wide(node)), (shape[0], *within, *shape[2:]))
    value, _, _ = _normalize(node, node.emit(data), range(2, len(shape) + 1), node.attributes.get("epsilon", 1e-5))
    value = node.emit(relax.op.reshape(value, shape))
    return _scale_and_shift(node, value, *(_per_channel(node, weight, len(shape)) for weight in node.inputs[1:3]))


def _per_channel(node: Node, weight: Any, rank: int) -> Any:
    return node.emit(relax.op.reshape(weight, (-1, *[1] * (rank - 2))))


# TVM's computes the variance as the difference of two large numbers.
@converter("MeanVarianceNormalization")
def mean_variance(node: Node) -> Any:
    axes = [axis % len(node.shape(0)) for axis in node.attributes.get("axes", [0, 2, 3])]
    data = node.emit(cast_to(node, node.inputs[0], _wide(node)))
    mean = node.emit(relax.op.mean(data, axes, keepdims=True))
    rest = node.emit(relax.op.subtract(data, mean))
    deviation = relax.op.sqrt(relax.op.mean(relax.op.multiply(rest, rest), axes, keepdims=True))
    value = relax.op.divide(rest, relax.op.add(deviation, relax.const(1e-9, _wide(node))))
    return cast_to(node, node.emit(value), node.dtype(0))


# A norm of 0 leaves the zeros as they are.
@converter("LpNormalization")
def lp_normalization(node: Node) -> Any:
    axis, power = node.attributes.get("axis", -1), node.attributes.get("p", 2)
    wide = _wide(node)
    data = node.emit(cast_to(node, node.inputs[0], wide))
    size = node.emit(relax.op.sum(relax.op.abs(data) if power == 1 else data * data, axis, keepdims=True))
    norm = node.emit(size if power == 1 else relax.op.sqrt(size))
    divisor = relax.op.where(relax.op.equal(norm, relax.const(0, wide)), relax.const(1, wide), norm)
    return cast_to(node, node.emit(relax.op.divide(data, divisor)), node.dtype(0))


# TVM's has its own momentum for running statistics, and an unbiased variance.
@converter("BatchNormalization")
def batch_normalization(node: Node) -> Any:
    rank, epsilon, wide = len(node.shape(0)), node.attributes.get("epsilon", 1e-5), _wide(node)
    if node.attributes.get("training_mode", 0):
        return _training_outputs(node, rank, epsilon)
    if node.outputs > 1:
        raise node.refusal("its statistics are outputs although it is not in training mode")
    values = [cast_to(node, value, wide) for value in node.inputs]
    outputs = node.emit(relax.op.nn.batch_norm(*values, axis=1, epsilon=epsilon, training=False))
    return cast_to(node, node.emit(outputs[0]), node.dtype(0))


# The statistics of this batch, and the running ones.
def _training_outputs(node: Node, rank: int, epsilon: float) -> list[Any]:
    axes, wide = [0, *range(2, rank)], _wide(node)
    data = node.emit(cast_to(node, node.inputs[0], wide))
    value, mean, _ = _normalize(node, data, axes, epsilon)
    centred = relax.op.subtract(data, mean)
    variance = relax.op.mean(relax.op.multiply(centred, centred), axes)
    result = [_scale_and_shift(node, value, *(_per_channel(node, weight, rank) for weight in node.inputs[1:3]))]
    momentum = node.attributes.get("momentum", 0.9)
    for old, new in zip(node.inputs[3:], (relax.op.squeeze(mean, axes), variance), strict=True):
        dtype = str(old.ty.dtype)
        old_share = relax.op.multiply(old, relax.const(momentum, dtype))
        result.append(
            relax.op.add(
                old_share, relax.op.multiply(cast_to(node, node.emit(new), dtype), relax.const(1 - momentum, dtype))
            )
        )
    return result[: node.outputs]


# TVM's mixes half precision with constants in single precision.
@converter("LRN")
def local_response_normalization(node: Node) -> Any:
    wide = "float32" if node.dtype(0) == "float16" else node.dtype(0)
    data = node.emit(cast_to(node, node.inputs[0], wide))
    return cast_to(node, as_operator(node, f"{UPSTREAM}LRN", [data], dict(node.attributes)), node.dtype(0))
