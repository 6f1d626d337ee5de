"""Limits of floats as calls of helpers: which ones, and what is written for them."""

from __future__ import annotations

import pytest
import tvm
from tvm import te, tirx

from tests.support import opencl
from toolchain.backends.mali import nan_clip


def kernel(function, dtype="float32", lanes=4):
    """Return the OpenCL C of a kernel that applies a function to each of 64 elements."""
    x = te.placeholder((64,), dtype, "x")
    y = te.compute((64,), lambda i: function(x[i]), "y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    outer, inner = schedule.split(*schedule.get_loops(schedule.get_sblock("y")), factors=[None, lanes])
    schedule.bind(outer, "threadIdx.x")
    if lanes > 1:
        schedule.vectorize(inner)
    built = tvm.compile(nan_clip.keep_nan(schedule.mod), target=opencl.target())
    return built.mod.imports[0].inspect_source()


def clipped(x):
    dtype = str(x.dtype)
    return tirx.Min(tirx.Max(x, tirx.const(-1, dtype)), tirx.const(6, dtype))


@pytest.mark.parametrize("kind", ["float", "float4", "half", "half4", "double2"])
def test_each_type_has_its_helper(kind):
    element, lanes = kind.rstrip("24"), int(kind[len(kind.rstrip("24")) :] or 1)
    source = kernel(clipped, {"float": "float32", "half": "float16", "double": "float64"}[element], lanes)
    chosen = "select(x, limit, x < limit)" if lanes > 1 else "x < limit ? limit : x"
    assert source.count(f"{kind} edge_at_least_{kind}({kind} x, {kind} limit) {{ return {chosen}; }}\n") == 1
    assert source.count(f"edge_at_most_{kind}(edge_at_least_{kind}(") == 1
    assert source.index(" edge_at_most_") < source.index("__kernel void")
    assert "max(" not in source


def test_other_maxima_stay_as_they_are():
    for source in (
        kernel(lambda x: tirx.Max(x, x * x)),
        kernel(lambda x: tirx.Max(x, tirx.const(0, "int32")), "int32"),
    ):
        assert "max(" in source
        assert "edge_" not in source


def test_the_sum_of_one_element_is_no_limit():
    """Schedules across work-items find a reduction by its form."""
    x = te.placeholder((64,), "float32", "x")
    axis = te.reduce_axis((0, 64), "k")
    function = te.create_prim_func([x, te.compute((1,), lambda i: te.max(x[axis + i], axis), "y")])
    rewritten = nan_clip.keep_nan(tvm.IRModule({"main": function}))
    tvm.ir.assert_structural_equal(rewritten["main"], function)


@pytest.mark.parametrize("outer", [tirx.Max, tirx.Min])
def test_no_nan_becomes_an_integer(outer):
    """At the lower limit, what is not a number is exchanged for it; done twice, that stays so."""

    def quantized(x):
        low, high = tirx.const(-128, "float32"), tirx.const(127, "float32")
        limited = tirx.Max(tirx.Min(x, high), low) if outer is tirx.Max else tirx.Min(tirx.Max(x, low), high)
        return limited.astype("int8")

    x = te.placeholder((64,), "float32", "x")
    function = te.create_prim_func([x, te.compute((64,), lambda i: quantized(x[i]), "y")])
    once = nan_clip.keep_nan(tvm.IRModule({"main": function}))
    tvm.ir.assert_structural_equal(nan_clip.keep_nan(once), once)
    text = once["main"].script()
    assert "toolchain_at_least(T.float32(-128.0), " in text
    assert "T.float32(127.0))" in text


def test_a_source_without_limits_has_no_helper():
    source = "__kernel void k(__global float* restrict x) { x[0] = max(x[0], x[1]); }\n"
    assert nan_clip.add_helpers(source) == source
