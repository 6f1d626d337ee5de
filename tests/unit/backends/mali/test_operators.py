"""Operators whose kernels from TVM are slow or wrong on a Mali, and which operators become one kernel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.support.nets import node
from tests.unit.backends.mali.test_schedules import (  # noqa: F401 - a fixture
    check,
    compiled,
    device,
    net,
    sources,
    weights,
)
from toolchain.backends.mali.operators import replace_erf, use_gpu_kernels
from toolchain.errors import InputError
from toolchain.models.converters.sequence.recurrence import Activation, Recurrence
from toolchain.models.converters.sequence.recurrence_kernel import generic_kernel

# --- the error function ----------------------------------------------------------------------------------------------

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
    assert str(replace_erf(builder.get())).count("R.erf(") == calls


# --- running sums ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "axis"), [((2, 300), 1), ((2, 300), 0), ((2, 7, 65), 2)])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 1)])
def test_running_sums(shape, axis, exclusive, reverse, device, tmp_path):  # noqa: F811 - the fixture
    nodes = [node("CumSum", ["x", "axis"], ["y"], exclusive=exclusive, reverse=reverse)]
    finished = check(net(nodes, shape, {"axis": np.array(axis, np.int64)}), device, tmp_path)
    names = [variable.name_hint for variable in finished.get_global_vars()]
    assert ("running_before" in names) == (shape[axis] > 64)


# --- recurrences -----------------------------------------------------------------------------------------------------

TARGET = tvm.target.Target(
    {"kind": "opencl", "device": "mali", "max_threads_per_block": 64, "max_shared_memory_per_block": 2048}
)
RNN = Recurrence("rnn", 3, 2, 100, (False, True), (Activation("tanh"),))


def test_a_block_for_each_direction_and_sequence():
    module = tvm.IRModule({"kernel": generic_kernel(RNN)})
    text = use_gpu_kernels(module, TARGET)["kernel"].script()
    assert 'T.launch_thread("blockIdx.x", 4)' in text
    assert 'T.launch_thread("threadIdx.x", 56)' in text


def test_a_state_that_no_block_holds_is_refused():
    wide = Recurrence("rnn", 3, 2, 300, (False,), (Activation("tanh"),))
    with pytest.raises(InputError, match="300 units is too large"):
        use_gpu_kernels(tvm.IRModule({"kernel": generic_kernel(wide)}), TARGET)


# --- fused operators -------------------------------------------------------------------------------------------------

SHAPE = (1, 8, 6, 6)
GATE = [
    node("Conv", ["x", "k"], ["a"]),
    node("GlobalAveragePool", ["a"], ["m"]),
    node("Conv", ["m", "k"], ["c"]),
    node("Sigmoid", ["c"], ["g"]),
    node("Mul", ["a", "g"], ["y"]),
]
RESIDUAL = [node("Conv", ["x", "k"], ["a"]), node("Conv", ["a", "k"], ["b"]), node("Add", ["a", "b"], ["y"])]
SCALED = [node("Conv", ["x", "k"], ["a"]), node("Mul", ["a", "s"], ["y"])]
BOTH = [*GATE[:-1], node("Mul", ["a", "g"], ["z"]), node("Conv", ["z", "k"], ["d"]), node("Mul", ["d", "s"], ["y"])]


@pytest.mark.parametrize(
    ("nodes", "fused"),
    [(GATE, 0), (RESIDUAL, 1), (SCALED, 1), (BOTH, 1)],
    ids=["a gate", "a residual", "a scale", "a gate and a scale of the same shape"],
)
def test_a_gate_is_computed_once_and_not_for_each_pixel(nodes, fused, device, tmp_path):  # noqa: F811 - the fixture
    constants = {"k": weights(8, 8, 1, 1), "s": weights(8, 1, 1)}
    used = {name: array for name, array in constants.items() if any(name in each.input for each in nodes)}
    proto = net(nodes, SHAPE, used)
    kernels = [
        variable.name_hint
        for variable, _ in check(proto, device, tmp_path).functions_items()
        if "conv2d" in variable.name_hint
    ]
    assert sum("multiply" in kernel or "add" in kernel for kernel in kernels) == fused


def test_what_is_set_apart_is_still_fused_with_its_like(tmp_path):
    finished, _ = compiled(
        net(
            [*GATE[:-1], node("Mul", ["a", "g"], ["z"]), node("Relu", ["z"], ["y"])], SHAPE, {"k": weights(8, 8, 1, 1)}
        ),
        tmp_path,
    )
    names = [name.name_hint for name, function in finished.functions_items() if isinstance(function, tirx.PrimFunc)]
    assert any("multiply" in name_ and "relu" in name_ for name_ in names)
