"""Sources taken apart, and their loops."""

from __future__ import annotations

import pytest

from toolchain.backends.mali.cost import sources
from toolchain.errors import InputError

TVM = """// Function: a_kernel
__kernel void a_kernel(__global float* restrict y);
__kernel void b_kernel(__global float* restrict y);
__kernel void a_kernel(__global float* restrict y) {
  for (int i = 0; i < 64; ++i) { y[i] = 1; }
}

// Function: b_kernel
__kernel void a_kernel(__global float* restrict y);
__kernel void b_kernel(__global float* restrict y);
__kernel void b_kernel(__global float* restrict y) {
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 9; k += 2) { y[i] += k; }
    for (int k = 0; k < n; ++k) { y[i] += k; }
  }
}
"""
OWN = """#define N 3 /* a kernel void x( in a comment */
float twice(float x) { while (x < N) x *= 2; return x; }
kernel __attribute__((reqd_work_group_size(8, 1, 1))) void one(global float* y) { y[0] = twice(1); }
__kernel void two(__global float* y) { y[1] = 2; }
"""


def test_a_module_of_tvm_comes_apart() -> None:
    kernels = sources.kernels(TVM)
    assert [kernel.name for kernel in kernels] == ["a_kernel", "b_kernel"]
    assert all(kernel.source.count("__kernel") == 1 for kernel in kernels)


def test_a_file_with_two_kernels_comes_apart() -> None:
    first, two = sources.kernels(OWN)
    assert (first.name, two.name) == ("one", "two")
    assert "void two" not in first.source
    assert "twice(1)" not in two.source
    assert "float twice" in two.source


def test_nothing_comes_of_nothing() -> None:
    assert sources.kernels("") == ()
    assert sources.kernels("__kernel void a(") == ()
    assert sources.kernels("__kernel void a(__global int* x);") == ()


def test_loops_have_turns_and_those_without_bounds_are_open() -> None:
    _, kernel = sources.kernels(TVM)
    loops = sources.loops(kernel.source)
    assert [loop.trips for loop in loops.bounded] == [4, 5]
    assert loops.unbounded == 1
    outer, inner = loops.bounded
    assert outer.holds(inner)
    assert not inner.holds(outer)
    assert sources.total_trips(inner, loops.bounded) == 20


def test_loops_of_functions_are_open() -> None:
    kernel, _ = sources.kernels(OWN)
    assert sources.loops(kernel.source) == sources.Loops((), 1)


def test_a_doubled_body_runs_for_other_values() -> None:
    (kernel, _) = sources.kernels(TVM)
    (loop,) = sources.loops(kernel.source).bounded
    twice = sources.double_body(kernel.source, loop)
    assert twice.count("y[i] = 1;") == 2
    assert "i_later = i + 64" in twice
    assert twice.count("{") == twice.count("}")


def test_the_longest_loops_remain() -> None:
    _, kernel = sources.kernels(TVM)
    bounded = sources.loops(kernel.source).bounded
    assert sources.remaining_loops(bounded, 1) == (bounded[1],)
    assert sources.remaining_loops(bounded, 0) == ()
    assert sources.remaining_loops(bounded, 5) == bounded


HELPER = "float helper(float v) { for (int c = 0; c < 1000; ++c) { v *= 2; } return v; }\n"
LOOP = "__kernel void one(__global float* y) { for (int c = 0; c < 64; ++c) { y[c] += 1; } }\n"


@pytest.mark.parametrize("text", [HELPER + LOOP, LOOP + HELPER])
def test_only_loops_within_the_kernel_are_its_own(text: str) -> None:
    (kernel,) = sources.kernels(text)
    loops = sources.loops(kernel.source)
    assert [loop.trips for loop in loops.bounded] == [64]
    assert loops.unbounded == 1


@pytest.mark.parametrize(
    "line",
    [
        "#define OPEN {\n",
        "#define OPEN \\\n  {\n",
        '__constant char text[] = "{ // /*";\n',
        "__constant char letter = '{'; // don't {\n",
        '/* { " */\n',
    ],
)
def test_braces_that_are_no_code_do_not_count(line: str) -> None:
    inside = LOOP.replace("{ y[c]", "{\n" + line + "y[c]")
    for text in (line + LOOP + HELPER, inside + HELPER, LOOP + line + HELPER):
        (kernel,) = sources.kernels(text)
        loops = sources.loops(kernel.source)
        assert ([loop.trips for loop in loops.bounded], loops.unbounded) == ([64], 1)
        (loop,) = loops.bounded
        assert sources.double_body(kernel.source, loop).count("y[c] += 1;") == 2


def test_loops_of_macros_are_open() -> None:
    (kernel,) = sources.kernels("#define AGAIN for (int k = 0; k < 9; ++k) {\n" + LOOP.replace("y[c]", "AGAIN y[c]"))
    assert sources.loops(kernel.source).unbounded == 1


def test_what_is_too_long_is_refused() -> None:
    with pytest.raises(InputError, match="at most 4194304 are allowed"):
        sources.kernels(LOOP + " " * (1 << 22))
