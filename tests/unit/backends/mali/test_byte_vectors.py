"""Bytes that a kernel gathers into a vector."""

from __future__ import annotations

import pytest

from toolchain.backends.mali.byte_vectors import write_byte_vectors
from toolchain.errors import BuildError


def lanes(*values: str) -> str:
    return "|".join(f"((0x000000ff << {8 * lane}) & ({value} << {8 * lane}))" for lane, value in enumerate(values))


@pytest.mark.parametrize("kind", ["char", "uchar"])
@pytest.mark.parametrize("array", ["__global {}* restrict x", "{} x"])
def test_they_are_a_vector_of_the_arrays_type(kind, array):
    head = f"__kernel void k(__global float* y, {array.format(kind)}) {{ y[0] = convert_int4("
    values = ["x[v.s0]", "x[(v.s1 + (2))]", "x[v.s2]", "x[v.s3]"]
    expected = f"{head}(({kind}4)({', '.join(values)}))) + (({kind}2)(x[0], x[1])); }}"
    assert write_byte_vectors(f"{head}{lanes(*values)}) + {lanes('x[0]', 'x[1]')}; }}") == expected


def test_sixteen_are_one_vector():
    values = [f"x[{lane}]" for lane in range(16)]
    assert (
        write_byte_vectors(f"(__global char* x) {lanes(*values)};")
        == f"(__global char* x) ((char16)({', '.join(values)}));"
    )


def test_each_kernel_has_names_of_its_own():
    text = "(__global char* x) {} (__global uchar* x) " + lanes("x[0]", "x[1]")
    assert write_byte_vectors(text).endswith("((uchar2)(x[0], x[1]))")


def test_other_sources_stay():
    text = "x[0] = 0x000000ff & (y[0] << 8);"
    assert write_byte_vectors(text) == text


@pytest.mark.parametrize("values", [("f(1)", "f(2)"), ("x[0]", "y[0]"), ("z[0]", "z[1]")])
def test_what_is_not_understood_is_refused(values):
    with pytest.raises(BuildError, match="gathered into"):
        write_byte_vectors("(__global char* x, __global uchar* y, __global int* z) " + lanes(*values))
