"""Activation functions that TVM converts only for 32-bit floats, or only for some shapes.

The standard defines most of them by functions, but only from opset 18 on: older models need these converters.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from toolchain.models.converters import Node, converter


# TVM's supports 32-bit floats only.
@converter("Elu")
def elu(node: Node) -> Any:
    return _exponential(node, 1.0, node.attributes.get("alpha", 1.0))


@converter("Celu")
def celu(node: Node) -> Any:
    """Compute alpha * (exp(x / alpha) - 1) below zero."""
    alpha = node.attributes.get("alpha", 1.0)
    return _exponential(node, 1.0, alpha, 1 / alpha)


# As `elu`.
@converter("Selu")
def selu(node: Node) -> Any:
    alpha, gamma = node.attributes.get("alpha", 1.6732632), node.attributes.get("gamma", 1.0507010)
    return _exponential(node, gamma, alpha * gamma)


def _exponential(node: Node, above: float, below: float, inside: float = 1.0) -> Any:
    """Return `above` * x for x >= 0, and `below` * (exp(`inside` * x) - 1) under it."""
    data, dtype = node.inputs[0], node.dtype(0)

    def const(value: float) -> Any:
        return relax.const(value, dtype)

    # Both branches of a `where` are computed: the exponential must not overflow where it is not used.
    low = relax.op.minimum(data, const(0))
    low = low if inside == 1 else relax.op.multiply(low, const(inside))
    low = relax.op.multiply(const(below), relax.op.subtract(relax.op.exp(low), const(1)))
    high = data if above == 1 else relax.op.multiply(data, const(above))
    return relax.op.where(relax.op.less(data, const(0)), low, high)


# TVM nests three functions, which take a compiler minutes when they are polynomials.
@converter("Mish")
def mish(node: Node) -> Any:
    """Compute x * tanh(log(1 + exp(x))), without the logarithm."""
    data, dtype = node.inputs[0], node.dtype(0)
    # tanh(log(1 + e)) is n / (n + 2) with n = e * (e + 2); beyond the limit that is 1, and n does not overflow.
    power = node.emit(relax.op.exp(relax.op.minimum(data, relax.const(_MISH_IS_LINEAR[dtype], dtype))))
    two = relax.const(2, dtype)
    ratio = node.emit(relax.op.multiply(power, relax.op.add(power, two)))
    return relax.op.multiply(data, relax.op.divide(ratio, relax.op.add(ratio, two)))


_MISH_IS_LINEAR = {"float16": 5.0, "float32": 20.0, "float64": 40.0}


# TVM's supports 32-bit floats only, and makes NaN of negative infinity.
@converter("ThresholdedRelu")
def thresholded_relu(node: Node) -> Any:
    data, dtype = node.inputs[0], node.dtype(0)
    limit = relax.const(node.attributes.get("alpha", 1.0), dtype)
    return relax.op.where(relax.op.greater(data, limit), data, relax.const(0, dtype))


# TVM's converts limits of integers to floats.
@converter("Shrink")
def shrink(node: Node) -> Any:
    data, dtype = node.inputs[0], node.dtype(0)
    limit, bias = (relax.const(node.attributes.get(name, value), dtype) for name, value in _SHRINK)
    below = relax.op.where(
        relax.op.less(data, relax.op.negative(limit)), relax.op.add(data, bias), relax.const(0, dtype)
    )
    return relax.op.where(relax.op.greater(data, limit), relax.op.subtract(data, bias), below)


_SHRINK = (("lambd", 0.5), ("bias", 0.0))


_IMAGE_RANK = 4


# TVM's operator supports one axis of slopes, and tensors of up to four axes.
@converter("PRelu")
def prelu(node: Node) -> Any:
    data, slope = node.inputs[:2]
    shape, slopes = node.shape(0), node.shape(1)
    if len(slopes) == 1 and len(shape) > 1 and slopes[0] == shape[1] != shape[-1]:  # before opset 7: of channels
        slopes = (*slopes, *[1] * (len(shape) - 2))
        slope = node.emit(relax.op.reshape(slope, slopes))
    varying = [axis for axis, size in enumerate(slopes) if size != 1]
    if 0 < len(shape) <= _IMAGE_RANK and len(varying) <= 1 and node.dtype(0).startswith("float"):
        axis = len(shape) - len(slopes) + varying[0] if varying else len(shape) - 1
        return relax.op.nn.prelu(data, relax.op.reshape(slope, (max(slopes, default=1),)), axis)
    below = relax.op.less(data, relax.const(0, node.dtype(0)))
    return relax.op.where(below, relax.op.multiply(data, slope), data)
