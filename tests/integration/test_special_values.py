"""NaN, infinities and -0 through operators on floats, on CPU and OpenCL: what the standard and ONNX Runtime agree on.

Left out is what they do not agree on: maxima of rows and ArgMax (ONNX Runtime's depend on where a NaN stands), limits
of Clip that are left open, and PRelu with slopes that are not finite.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.support import nets, opencl, opencl_runtimes, paths
from tests.support.nets import node, value
from tests.support.one_node import One, agree, agree_model, fed
from tests.support.operator_cases import OPENCL, PROCESSOR

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


WRONG_IN_VECTORS = {"Sin", "Tan"}  # in PoCL, which returns 0.008 for 0.001 beside -30000, NaN and infinity
LANES = 4  # of a vector of OpenCL: each value is in whole ones


def table(dtype: str, repeats: int = 1) -> list[One]:
    """Return every operator, with these values as data, and the binary ones with each of the constants too."""
    data: Any = np.tile(ODD.astype(dtype), repeats)
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


@pytest.mark.nightly
@pytest.mark.parametrize("repeats", [1, LANES])
def test_special_values_on_opencl(repeats: int) -> None:
    opencl.require_opencl()
    nodes = [node for node in table("float32", repeats) if repeats == 1 or node.operator not in WRONG_IN_VECTORS]
    agree(nodes, opset=20, rtol=1e-3, kind=OPENCL)


@pytest.mark.nightly
@pytest.mark.parametrize(("dtype", "repeats"), [("float32", LANES), ("float16", 1), ("float16", LANES)])
def test_special_values_on_another_opencl(dtype: str, repeats: int) -> None:
    """Intel's has half precision, which PoCL lacks; each process has one OpenCL."""
    opencl_runtimes.require_one(opencl_runtimes.INTEL)
    script = (
        f"from {__name__} import OPENCL, agree, table\n"
        f"agree(table({dtype!r}, {repeats}), opset=20, rtol=1e-3, kind=OPENCL)"
    )
    environment = os.environ | opencl_runtimes.environment(opencl_runtimes.INTEL)
    completed = subprocess.run(
        [sys.executable, "-c", script], cwd=paths.ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr[-2000:]


@pytest.mark.parametrize("kind", [PROCESSOR, OPENCL])
@pytest.mark.parametrize(
    ("operator", "attributes"),
    [("Relu", {}), ("Clip", {}), ("HardSigmoid", {}), ("HardSwish", {}), ("LeakyRelu", {}), ("PRelu", {})],
)
def test_nan_goes_through_what_follows_a_layer(operator: str, attributes: dict[str, Any], kind: str) -> None:
    """A pixel that is not a number is none in any channel behind a layer, and its neighbours are as without it."""
    if kind == OPENCL:
        opencl.require_opencl()
    random = np.random.default_rng(0)
    more = {"Clip": {"low": np.float32(-1), "high": np.float32(2)}, "PRelu": {"slope": np.float32(0.25)}}
    constants = more.get(operator, {})
    proto = nets.model(
        [node("Conv", ["x", "w", "b"], ["c"]), node(operator, ["c", *constants], ["y"], **attributes)],
        [value("x", (1, 16, 8, 8))],
        [value("y", (1, 32, 8, 8))],
        {
            "w": random.standard_normal((32, 16, 1, 1)).astype(np.float32),
            "b": random.standard_normal(32).astype(np.float32),
            **constants,
        },
    )
    pixels = random.standard_normal((1, 16, 8, 8)).astype(np.float32)
    pixels[0, 3, 2, 5] = np.nan
    agree_model(proto, [pixels], kind=kind)


@pytest.mark.parametrize("kind", [PROCESSOR, OPENCL])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_nan_becomes_the_least_integer(dtype: Any, kind: str) -> None:
    if kind == OPENCL:
        opencl.require_opencl()
    data = np.tile(ODD, LANES)
    quantized = fed("QuantizeLinear", data, np.float32(0.5), np.array(3, dtype))
    agree([One(quantized.operator, quantized.inputs)], kind=kind)
