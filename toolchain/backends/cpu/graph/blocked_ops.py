"""Operations of Relax that are done on blocked tensors as they are, or nearly: those that keep channels apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from toolchain.backends.graph.values import Operation, Value

# Where blocks are filled up with zeros, only what makes finite numbers of them: others would spoil the sums of a layer.
_ALWAYS_FINITE = frozenset(
    [
        *(
            "abs",
            "erf",
            "exp",
            "sqrt",
            "square",
            "sin",
            "cos",
            "atan",
            "sinh",
            "cosh",
            "asinh",
            "floor",
            "ceil",
            "round",
        ),
        *("sign", "nn.gelu", "nn.gelu_tanh", "nn.selu", "nn.softplus"),
        *("add", "subtract", "multiply", "maximum", "minimum"),
    ]
)
_ELEMENT_WISE = _ALWAYS_FINITE | frozenset({"log", "rsqrt", "divide", "power"})
_RESIZE, _PRELU = "image.resize2d", "nn.prelu"


def can_run_blocked(operation: Operation, lanes: int) -> bool:
    """Whether an operation can be done on tensors in blocks of some lanes."""
    out, call = operation.out, operation.call
    if not out.is_image or call is None or str(call.op.name) != f"relax.{operation.name}":
        return False
    data = operation.inputs[0]
    if operation.name == _RESIZE:
        return data.is_image and str(operation.attributes.layout) == "NCHW"
    if operation.name == _PRELU:
        slope = operation.inputs[1]
        return data.is_image and slope.constant is not None and int(operation.attributes.axis) == 1
    # Lanes behind the last channel are computed too; a NaN or an infinity there would reach the next layer's sums.
    filled = out.image[1] % lanes != 0
    if operation.name not in (_ALWAYS_FINITE if filled else _ELEMENT_WISE):
        return False
    return all(
        (value.shape is not None and math.prod(value.shape) == 1)
        if value.constant is not None
        else value.shape == out.shape
        for value in operation.inputs
    )


def run_blocked(operation: Operation, blocked: Mapping[Value, Any], arguments: list[Any], lanes: int) -> Any:
    """Return the expression of an operation on blocked tensors.

    Args:
        blocked: The variables of its tensors in blocks.
        arguments: Arguments of the call, with those variables in place of the plain ones.
        lanes: Lanes of the blocks.
    """
    write = _WRITERS.get(operation.name)
    if write is not None:
        return write(operation, blocked[operation.inputs[0]], lanes)
    call = operation.call
    return relax.Call(call.op, arguments, call.attrs, call.ty_args)


def _resize(operation: Operation, data: Any, lanes: int) -> Any:
    how = operation.attributes
    return relax.op.image.resize2d(
        data,
        operation.call.args[1],
        roi=list(how.roi),
        layout=f"NCHW{lanes}c",
        method=str(how.method),
        coordinate_transformation_mode=str(how.coordinate_transformation_mode),
        rounding_method=str(how.rounding_method),
        cubic_alpha=float(how.cubic_alpha),
        cubic_exclude=int(how.cubic_exclude),
        extrapolation_value=float(how.extrapolation_value),
    )


def _prelu(operation: Operation, data: Any, lanes: int) -> Any:
    """Return max(x, 0) + slope * min(x, 0)."""
    channels, slopes = operation.out.image[1], operation.inputs[1].array
    # Slopes in blocks as well; lanes behind the last channel hold zeros, and stay zero.
    padded: NDArray[np.float32] = np.zeros((1, -(-channels // lanes), 1, 1, lanes), np.float32)
    padded.reshape(-1)[:channels] = slopes
    below = relax.op.multiply(relax.op.minimum(data, relax.const(0.0, "float32")), relax.const(padded, "float32"))
    return relax.op.add(relax.op.nn.relu(data), below)


_WRITERS: dict[str, Callable[[Operation, Any, int], Any]] = {_RESIZE: _resize, _PRELU: _prelu}
