"""Functions of OpenCL C: their names and types, the helpers for dot products and for limits."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import tvm
from tvm import te, tirx

from tests.support import opencl
from tests.support.parts import require
from toolchain.backends.mali import opencl_functions

OF_TWO = {"atan2", "copysign", "hypot", "nextafter"}


def written(name: str, dtype: str, lanes: int) -> str:
    """Return the OpenCL C of a kernel that calls a function once for each work-item."""
    function = getattr(tvm.tirx, name)
    x = te.placeholder((64,), dtype, name="x")
    y = te.compute((64,), lambda i: function(x[i], x[63 - i]) if name in OF_TWO else function(x[i]), name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    outer, inner = schedule.split(*schedule.get_loops(schedule.get_sblock("y")), factors=[None, lanes])
    schedule.bind(outer, "threadIdx.x")
    if lanes > 1:
        schedule.vectorize(inner)
    built = tvm.compile(schedule.mod, target=opencl.target())
    return built.mod.imports[0].inspect_source()


@pytest.mark.parametrize("name", opencl_functions.NAMES)
@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 1), ("float32", 4), ("float16", 1)])
def test_each_is_called_by_its_name_and_compiles(name, dtype, lanes, tmp_path):
    require("a compiler of OpenCL C", "clang", shutil.which("clang") is not None)
    text = written(name, dtype, lanes)
    assert re.search(rf"\b{name}\(", text), text
    source = tmp_path / "kernel.cl"
    source.write_text(text, encoding="utf-8")
    options = ["-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header", "-target", "spir64", "-fsyntax-only"]
    subprocess.run(["clang", *options, source], check=True)


@pytest.mark.parametrize(
    ("dtype", "text"), [("float16", "(half)(INFINITY)"), ("float64", "(double)(INFINITY)"), ("float32", ", INFINITY")]
)
def test_infinite_arguments_have_the_type_of_the_others(dtype, text):
    x = te.placeholder((64,), dtype, "x")
    y = te.compute((64,), lambda i: tvm.tirx.pow(x[i], tvm.tirx.const(float("inf"), dtype)), "y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    schedule.bind(*schedule.get_loops(schedule.get_sblock("y")), "threadIdx.x")
    built = tvm.compile(opencl_functions.cast_infinities(schedule.mod), target=opencl.target())
    assert text in built.mod.imports[0].inspect_source()


# --- dot products of bytes -------------------------------------------------------------------------------------------

KERNEL = (
    "__kernel void k(__global int4* a) { a[0] = edge_dot4_int4(a[1], a[2]) + edge_dot4_int1(1, 2); }\n"
    "__kernel void l(__global int3* a, __global int16* b) {\n"
    "  a[0] = edge_dot4_int3(a[1], a[2]); b[0] = edge_dot4_int16(b[1], b[2]);\n"
    "}\n"
)
DRIVERS = {
    "none": [],
    "Arm's": ["cl_arm_integer_dot_product_int8"],
    "Khronos's": ["cl_khr_integer_dot_product", "__opencl_c_integer_dot_product_input_4x8bit_packed"],
    "Khronos's without packed bytes": ["cl_khr_integer_dot_product"],
}


def test_only_kernels_that_call_it_have_it():
    assert opencl_functions.add_dot_helpers("__kernel void k() {}") == "__kernel void k() {}"
    assert opencl_functions.add_dot_helpers(KERNEL).endswith(KERNEL)


@pytest.mark.parametrize("driver", DRIVERS)
def test_it_compiles_whatever_a_driver_offers(driver, tmp_path):
    require("a compiler of OpenCL C", "clang", shutil.which("clang") is not None)
    source, compiled = tmp_path / "kernel.cl", tmp_path / "kernel.ll"
    source.write_text(opencl_functions.add_dot_helpers(KERNEL), encoding="utf-8")
    command = [
        "-x",
        "cl",
        "-cl-std=CL2.0",
        "-target",
        "spir64",
        "-Xclang",
        "-finclude-default-header",
        "-Werror=implicit",
    ]
    defined = [f"-D{macro}" for macro in DRIVERS[driver]]
    subprocess.run(["clang", *command, *defined, "-S", "-emit-llvm", "-O1", "-o", compiled, source], check=True)
    assert "edge_dot4_int1" in compiled.read_text(encoding="utf-8")


# --- limits that let NaN through -------------------------------------------------------------------------------------


def kernel(function, dtype="float32", lanes=4):
    """Return the OpenCL C of a kernel that applies a function to each of 64 elements."""
    x = te.placeholder((64,), dtype, "x")
    y = te.compute((64,), lambda i: function(x[i]), "y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    outer, inner = schedule.split(*schedule.get_loops(schedule.get_sblock("y")), factors=[None, lanes])
    schedule.bind(outer, "threadIdx.x")
    if lanes > 1:
        schedule.vectorize(inner)
    built = tvm.compile(opencl_functions.keep_nan(schedule.mod), target=opencl.target())
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
    rewritten = opencl_functions.keep_nan(tvm.IRModule({"main": function}))
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
    once = opencl_functions.keep_nan(tvm.IRModule({"main": function}))
    tvm.ir.assert_structural_equal(opencl_functions.keep_nan(once), once)
    text = once["main"].script()
    assert "toolchain_at_least(T.float32(-128.0), " in text
    assert "T.float32(127.0))" in text


def test_a_source_without_limits_has_no_helper():
    source = "__kernel void k(__global float* restrict x) { x[0] = max(x[0], x[1]); }\n"
    assert opencl_functions.add_limit_helpers(source) == source
