"""Pointers that kernels only read are const; all others, and all that cannot be told, are not."""

from __future__ import annotations

import pytest

from toolchain.backends.mali.opencl_text import declare_const

HEAD = "__kernel void k(__global float* restrict x, __global float* restrict y)"


def constant(*lines: str) -> set[str]:
    """Return the names that are const in a kernel of these statements."""
    source = "\n".join(["// Function: k", f"{HEAD};", f"{HEAD} {{", *(f"  {line}" for line in lines), "}", ""])
    first, second = [line for line in declare_const(source).splitlines() if line.startswith("__kernel")]
    assert first.removesuffix(";") == second.removesuffix(" {"), "a declaration says what the definition says"
    return {name for name in "xy" if f"__global const float* restrict {name}" in first}


@pytest.mark.parametrize(
    "line",
    [
        "y[(i)] = (x[(i)] * 2.0f);",
        "y[x[0] <= 3 ? 1 : 2] = 3.0f;",
        "vstore4((vload4(0, x + (i * 4))), 0, y + (i * 4));",
        "*((__global float4*)(y + (i * 4))) = max(*((__global float4*)(x + (i * 4))), ((float4)(0.0f)));",
        "vstore2(((float2)(x[0], x[1])), 0, y + 2);",
        "if ((x[0] == 1.0f)) { vstore4(a, 0, y); }",
    ],
)
def test_what_is_only_read(line):
    declared = constant("int i = get_global_id(0);", line)
    assert declared <= {"x"}
    assert declared == {"x"} or "y[x[0]" in line


@pytest.mark.parametrize(
    "line",
    [
        "y[(i <= 3)] = x[0];",
        "y[0] += x[0];",
        "y[0]++;",
        "if (x[0] >= 0.0f) y[0] = 1.0f;",
        "*((__global float4*)(y + 4)) = ((float4)(x[0]));",
        "__global float* p = y + 3;",
        "store(y + 3, 1.0f);",
        "atomic_xchg(&(y[0]), 1.0f);",
        "vstore4(((float4)(0.0f)), 0, y + 4);",
    ],
)
def test_what_is_written_or_cannot_be_told(line):
    assert "y" not in constant(line)


def test_conditions_are_no_writes():
    assert constant("if ((x[0] <= 1.0f) && (x[1] != 2.0f)) {", "  y[0] = 1.0f;", "}") == {"x"}


def test_what_is_never_used_may_be_constant():
    assert constant("y[0] = 1.0f;") == {"x"}


def test_other_arguments_stay():
    source = "__kernel void k(__read_only image2d_t w, __global half* restrict y, int n) {\n  y[n] = 1;\n}\n"
    assert declare_const(source) == source
