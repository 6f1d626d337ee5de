"""Floats become bytes without a call of the C library, and are those that it makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

from tests.support.cpu_kernels import ARMV7, NATIVE, assembly, run
from tests.unit.backends.cpu.schedule.test_schedule import relax_module
from toolchain.backends.cpu import schedule
from toolchain.backends.cpu.machine import machine

HALVES = np.arange(-300, 300, dtype=np.float32) / 2
NEAR = np.nextafter(HALVES, np.float32([[-np.inf], [np.inf]]))
ODD = np.array([np.nan, -np.inf, np.inf, 3e38, -3e38, 2.0**23, -(2.0**22), -0.0], np.float32)
THREE, FIVE = relax.const(np.float32(3)), relax.const(np.float32(5))
X = np.concatenate([HALVES, NEAR.ravel(), ODD])


def rounding(zero: int = 0):
    """Return the kernel that makes bytes of numbers."""
    grid = relax.const(np.float32(1)), relax.const(np.int8(zero))
    module = relax_module(lambda x: relax.op.quantize(x, *grid, out_dtype="int8"), (X.shape, "float32"))
    [function] = (item for name, item in module.functions_items() if name.name_hint != "main")
    return function.with_attr("global_symbol", "main")


@pytest.mark.parametrize("zero", [0, 3, -128])
def test_what_comes_of_it(zero):
    processor = replace(machine(NATIVE), rounds=False, limits_nan=True)
    function = schedule.schedule_kernel(rounding(zero), processor)
    assert "T.round" not in str(function)
    expected = np.where(np.isnan(X), -128, np.clip(np.rint(X) + zero, -128, 127)).astype(np.int8)
    np.testing.assert_array_equal(run(function, [X], np.zeros(X.shape, np.int8)), expected)


def test_the_code_for_armv7_has_no_call():
    code = assembly(schedule.schedule_kernel(rounding(), machine(ARMV7)), ARMV7)
    assert "nearbyint" not in code
    assert "vadd.f32" in code


def test_an_instruction_that_rounds_is_taken():
    assert "T.round" in str(schedule.schedule_kernel(rounding(), machine(NATIVE)))


def test_other_limits_stay_as_they_are():
    module = relax_module(
        lambda x: relax.op.astype(relax.op.clip(relax.op.round(x), 3, 200_000), "int32"), (X.shape, "float32")
    )
    twice = relax_module(
        lambda x: relax.op.astype(relax.op.maximum(relax.op.maximum(relax.op.round(x), THREE), FIVE), "int8"),
        (X.shape, "float32"),
    )
    for item in (module, twice):
        assert "reinterpret" not in str(schedule.schedule(item, ARMV7, 4))
