"""NaN, infinities and -0 through the operators on floats, on the CPU: what the standard and ONNX Runtime agree on.

Left out is what they do not agree on: maxima of rows and ArgMax (ONNX Runtime's depend on where a NaN stands), limits
of Clip that are left open, and PRelu with slopes that are not finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.one_node import One, agree, fed

ODD = np.array(
    [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.5, 0.5, -0.5, 88.0, -104.0, 1, 2, 3, 4, 1e-3, -3e4], np.float32
)
FINITE = np.array([-0.0, 0.0, 1.5, -2.5, 0.25], np.float32)
UNARY = (
    *("Abs", "Neg", "Sign", "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round"),
    *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Erf", "IsNaN", "IsInf"),
    *("Softplus", "Softsign", "Elu", "Selu", "LeakyRelu", "HardSigmoid", "HardSwish", "ThresholdedRelu", "Shrink"),
    *("Mish", "Gelu", "Identity"),
)
BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
CONSTANTS = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0, 0.5)
WITHOUT_HALF = {"Sign"}  # ONNX Runtime's of NaN is 0 in half precision


def table(dtype: str) -> list[One]:
    """Return every operator, with these values as data, and the binary ones with each of the constants too."""
    data: Any = ODD.astype(dtype)
    pairs = np.repeat(data, len(data)), np.tile(data, len(data))
    nodes = [fed(name, data) for name in UNARY if dtype == "float32" or name not in WITHOUT_HALF]
    nodes += [fed(name, *pairs) for name in BINARY] + [fed("Mod", *pairs, fmod=1)]
    nodes += [fed("PRelu", data, np.full(1, slope, dtype)) for slope in FINITE]
    nodes += [One(name, [data, np.array(number, dtype)]) for name in BINARY for number in CONSTANTS]
    nodes.append(One("Clip", [data, np.array(-1, dtype), np.array(2, dtype)]))
    nodes.append(fed("Where", np.isnan(data), np.zeros_like(data), data))
    rows = np.stack([data, np.roll(data, 1), np.where(np.isnan(data), 0, data).astype(dtype)])
    sums = ("ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare")
    return nodes + [One(name, [rows, np.array([1])]) for name in sums] + [fed("Softmax", rows, axis=1)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_special_values(dtype: str) -> None:
    agree(table(dtype), opset=20, rtol=1e-3)
