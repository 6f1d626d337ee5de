"""Functions that kernels call are OpenCL C's, for numbers and vectors of them."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import tvm
from tvm import te

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
