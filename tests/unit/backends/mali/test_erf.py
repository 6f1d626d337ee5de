"""The error function as a quotient: how exact it is on an OpenCL device, and that it is vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support.nets import node
from tests.unit.backends.mali.test_schedules import compiled, device, net, sources  # noqa: F401 - a fixture
from toolchain.backends.mali import erf

ENDS = (0.0, -0.0, 1e-30, -1e-30, 3.9999, -3.9999, 4.0, -4.0, 4.0001, 1e30, -1e30, math.inf, -math.inf)


@pytest.fixture
def run(device, tmp_path):  # noqa: F811 - the fixture
    def computed(array):
        executable = compiled(net([node("Erf", ["x"], ["y"])], array.shape), tmp_path)[1]
        executable.export_library(str(tmp_path / "net.so"))
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "net.so")), device)
        return machine["main"](tvm.runtime.tensor(array, device)).numpy()

    return computed


def test_it_is_within_five_in_ten_millions(run):
    x = np.concatenate([np.linspace(-5, 5, 20001), ENDS]).astype(np.float32)
    expected = np.array([math.erf(number) for number in x.astype(float)])
    result = run(x)
    assert np.abs(result - expected).max() <= 5e-7
    large = np.abs(expected) > 0
    assert np.abs(result[large] / expected[large] - 1).max() <= 5e-7


def test_nan_stays_nan_and_its_neighbours_what_they_are(run):
    result = run(np.array([np.nan, 1, np.nan, -9], np.float32))
    assert np.isnan(result).tolist() == [True, False, True, False]
    assert result[3] == -1


def test_it_is_plain_arithmetic_on_vectors(tmp_path):
    code = sources(compiled(net([node("Erf", ["x"], ["y"])], (4, 8)), tmp_path)[1])
    assert "erf(" not in code
    assert "float4" in code


@pytest.mark.parametrize(("dtype", "calls"), [("float16", 0), ("float32", 0), ("float64", 1)])
def test_double_precision_keeps_the_functions_own(dtype, calls):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([8], dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(relax.op.erf(x)))
        builder.emit_func_output(result)
    assert str(erf.replace_erf(builder.get())).count("R.erf(") == calls
