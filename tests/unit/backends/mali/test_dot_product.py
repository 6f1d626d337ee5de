"""The helper for dot products of bytes: what it says to each kind of driver."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.support.parts import require
from toolchain.backends.mali import dot_product

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
    assert dot_product.add_helper("__kernel void k() {}") == "__kernel void k() {}"
    assert dot_product.add_helper(KERNEL).endswith(KERNEL)


@pytest.mark.parametrize("driver", DRIVERS)
def test_it_compiles_whatever_a_driver_offers(driver, tmp_path):
    require("a compiler of OpenCL C", "clang", shutil.which("clang") is not None)
    source, compiled = tmp_path / "kernel.cl", tmp_path / "kernel.ll"
    source.write_text(dot_product.add_helper(KERNEL), encoding="utf-8")
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
