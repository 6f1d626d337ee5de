"""Limits let NaN through, bytes are rounded without calls, and maxima start at infinity."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx

from tests.support.cpu_kernels import AARCH64, ARMV7, NATIVE, assembly, run
from tests.unit.backends.cpu.schedule.test_schedule import kernels as functions
from tests.unit.backends.cpu.schedule.test_schedule import relax_module
from toolchain.backends.cpu import kernels, schedule
from toolchain.backends.cpu.layers import Activation, Map, PostOp
from toolchain.backends.cpu.machine import machine
from toolchain.backends.cpu.numerics import start_at_infinity

# --- limits that let NaN through -------------------------------------------------------------------------------------

X = np.array([np.nan, -np.inf, -2, -0.5, 0, 0.5, 9, np.inf] * 8, np.float32)
STEPS = {
    "relu": (PostOp("relu"), np.maximum(X, 0)),
    "clip": (PostOp("clip", (-1.0, 6.0)), np.clip(X, -1, 6)),
    "leaky_relu": (PostOp("leaky_relu", (0.5,)), np.where(X < 0, X / 2, X)),
    "hard_sigmoid": (PostOp("hard_sigmoid", (0.2, 0.5)), np.clip(X * np.float32(0.2) + np.float32(0.5), 0, 1)),
}
FUNCTIONS = {"sigmoid": lambda x: 1 / (1 + np.exp(-x)), "tanh": np.tanh}


def kernel(step, target):
    """Return a kernel that does a step to an image of one row."""
    processor = machine(target)
    activation = Activation(1, processor.lanes, 1, X.size // processor.lanes, processor.lanes)
    layer = Map(activation, activation, (step,))
    return kernels.kernel(layer, processor, kernels.default(layer, processor)), activation.shape


@pytest.mark.parametrize("name", STEPS)
def test_a_step_keeps_nan(name):
    step, expected = STEPS[name]
    function, shape = kernel(step, NATIVE)
    actual = run(function, [X.reshape(shape)], np.zeros(shape, np.float32))
    np.testing.assert_allclose(actual.reshape(-1), expected, rtol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_keeps_nan(name):
    function, shape = kernel(PostOp(name), NATIVE)
    actual = run(function, [X.reshape(shape)], np.zeros(shape, np.float32))
    with np.errstate(over="ignore"):
        expected = FUNCTIONS[name](X.astype(np.float64))
    np.testing.assert_allclose(actual.reshape(-1), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_nan_becomes_the_least_byte(dtype):
    """As in ONNX Runtime; through a cast it would be another number on each processor."""

    def rounded(x):
        grid = relax.const(np.float32(0.5)), relax.const(np.array(3, dtype))
        return relax.op.dequantize(relax.op.quantize(x, *grid, out_dtype=dtype), *grid)

    module = relax_module(rounded, (X.shape, "float32"))
    [on_arm] = functions(schedule.schedule(module, AARCH64, machine(AARCH64).lanes)).values()
    assert "fmaxnm" in assembly(on_arm.with_attr("global_symbol", "main"), AARCH64)  # of a NaN and a number: the number
    [function] = functions(schedule.schedule(module, NATIVE, machine(NATIVE).lanes)).values()
    actual = run(function.with_attr("global_symbol", "main"), [X], np.zeros_like(X))
    limits = np.iinfo(dtype)
    with np.errstate(invalid="ignore"):
        expected = np.clip(np.rint(X / np.float32(0.5)) + 3, limits.min, limits.max)
    expected[np.isnan(X)] = limits.min
    np.testing.assert_array_equal(actual, (expected - 3) * np.float32(0.5))


@pytest.mark.parametrize("target", [AARCH64, ARMV7], ids=["aarch64", "armv7"])
def test_a_limit_is_one_instruction_on_arm(target):
    code = assembly(kernel(PostOp("clip", (-1.0, 6.0)), target)[0], target)
    assert code.count("max") == code.count("min") > 0
    assert not [name for name in ("fcmgt", "fcmlt", "vcgt", "vclt", "bsl", "maxnm") if name in code]


@pytest.mark.parametrize("target", [NATIVE, AARCH64], ids=["here", "aarch64"])
def test_a_kernel_without_template_keeps_nan(target):
    module = relax_module(lambda x: relax.op.clip(x, -1, 6), (X.shape, "float32"))
    [function] = functions(schedule.schedule(module, target, machine(target).lanes)).values()
    function = function.with_attr("global_symbol", "main")
    if target is AARCH64:
        assert "maxnm" not in assembly(function, target)
    else:
        np.testing.assert_array_equal(run(function, [X], np.zeros_like(X)), np.clip(X, -1, 6))


# --- rounding to bytes -----------------------------------------------------------------------------------------------

HALVES = np.arange(-300, 300, dtype=np.float32) / 2
NEAR = np.nextafter(HALVES, np.float32([[-np.inf], [np.inf]]))
ODD = np.array([np.nan, -np.inf, np.inf, 3e38, -3e38, 2.0**23, -(2.0**22), -0.0], np.float32)
THREE, FIVE = relax.const(np.float32(3)), relax.const(np.float32(5))
UNROUNDED = np.concatenate([HALVES, NEAR.ravel(), ODD])


def rounding(zero: int = 0):
    """Return the kernel that makes bytes of numbers."""
    grid = relax.const(np.float32(1)), relax.const(np.int8(zero))
    module = relax_module(lambda x: relax.op.quantize(x, *grid, out_dtype="int8"), (UNROUNDED.shape, "float32"))
    [function] = (item for name, item in module.functions_items() if name.name_hint != "main")
    return function.with_attr("global_symbol", "main")


@pytest.mark.parametrize("zero", [0, 3, -128])
def test_what_comes_of_it(zero):
    processor = replace(machine(NATIVE), rounds=False, limits_nan=True)
    function = schedule.schedule_kernel(rounding(zero), processor)
    assert "T.round" not in str(function)
    expected = np.where(np.isnan(UNROUNDED), -128, np.clip(np.rint(UNROUNDED) + zero, -128, 127)).astype(np.int8)
    np.testing.assert_array_equal(run(function, [UNROUNDED], np.zeros(UNROUNDED.shape, np.int8)), expected)


def test_the_code_for_armv7_has_no_call():
    code = assembly(schedule.schedule_kernel(rounding(), machine(ARMV7)), ARMV7)
    assert "nearbyint" not in code
    assert "vadd.f32" in code


def test_an_instruction_that_rounds_is_taken():
    assert "T.round" in str(schedule.schedule_kernel(rounding(), machine(NATIVE)))


def test_other_limits_stay_as_they_are():
    module = relax_module(
        lambda x: relax.op.astype(relax.op.clip(relax.op.round(x), 3, 200_000), "int32"), (UNROUNDED.shape, "float32")
    )
    twice = relax_module(
        lambda x: relax.op.astype(relax.op.maximum(relax.op.maximum(relax.op.round(x), THREE), FIVE), "int8"),
        (UNROUNDED.shape, "float32"),
    )
    for item in (module, twice):
        assert "reinterpret" not in str(schedule.schedule(item, ARMV7, 4))


# --- where maxima start ----------------------------------------------------------------------------------------------


def _reduction(best: Any, dtype: str) -> tirx.PrimFunc:
    data = te.placeholder((4, 8), dtype, "data")
    run = te.reduce_axis((0, 8), "k")
    return te.create_prim_func([data, te.compute((4,), lambda row: best(data[row, run], axis=run), "most")])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("best", "sign"), [(te.max, "-"), (te.min, "")])
def test_floats(best: Any, sign: str, dtype: str) -> None:
    changed = start_at_infinity(_reduction(best, dtype)).script()
    assert f'T.{dtype}("{sign}{math.inf}")' in changed


@pytest.mark.parametrize(("best", "dtype"), [(te.max, "int32"), (te.sum, "float32")])
def test_what_starts_elsewhere(best: Any, dtype: str) -> None:
    function = _reduction(best, dtype)
    assert start_at_infinity(function).script() == function.script()


def test_a_number_of_the_model_stays() -> None:
    lowest = tirx.min_value("float32")
    data = te.placeholder((8,), "float32", "data")
    function = te.create_prim_func([data, te.compute((8,), lambda index: tirx.max(data[index], lowest), "limited")])
    assert start_at_infinity(function).script() == function.script()
