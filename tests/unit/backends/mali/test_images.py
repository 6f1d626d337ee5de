"""Weights as images: which constants may be, and what the loads of them become."""

from __future__ import annotations

import itertools
import re

import pytest

from toolchain.backends.mali import images

NAME = f"w_{images.MARK}_64x8_ptr"
KERNEL = f"""
__kernel void one(__global float* restrict y_ptr, __global const float* restrict {NAME}) {{
  *y_ptr = 1;
  float4 found = (*(__global float4*)({NAME} + INDEX));
}}
"""


@pytest.mark.parametrize(
    ("shape", "dtype", "texels"),
    [
        ((1, 1, 512, 512), "float32", (128, 512)),
        ((1, 1, 512, 512), "float16", (128, 512)),
        ((3, 3, 64, 1, 1), "float32", None),
        ((1, 1, 12, 36), "float32", None),  # 108 texels are no whole rows
        ((3, 3, 1, 256), "float32", None),
        ((64, 96), "float32", (64, 24)),
        ((1024, 65536), "float32", (8192, 2048)),
        ((1, 1, 1, 512), "float32", None),
        ((512,), "float32", None),
        ((64, 66), "float32", None),
        ((64, 64), "int32", None),
        ((16384, 1004), "float32", None),  # 64256 rows, as its own rows are none of an image
    ],
)
def test_constants_of_whole_rows_are_images(shape, dtype, texels):
    assert images.image_size(list(shape), dtype) == texels


def places(index: str, names: dict[str, int]) -> tuple[int, int, int]:
    """Return what the three arguments of the macro are for values of the names, by C's rules."""
    source = images.read_images(KERNEL.replace("INDEX", index))
    line = next(each for each in source.splitlines() if "float4 found" in each)
    arguments = re.fullmatch(rf".*EDGE_TEXEL_float\({NAME}, (.*)\);", line)[1]
    return tuple(eval(argument, {}, names) for argument in arguments.split(", "))  # noqa: S307 - of our own text


@pytest.mark.parametrize(
    "index",
    [
        "((k * 512) + (g * 256))",
        "((((k * 2048) + (g * 256)) + (l * 4)) + 512)",
        "(((k * 96) + (l * 4)) + 36)",
        "((((k + 3) * 256) + (l * 4)) - 256)",
        "((k * (g * 256)) + (l * 4))",
        "(l * 4)",
        "256",
    ],
)
def test_a_texel_is_where_the_index_is(index):
    for values in itertools.product(range(1, 7), repeat=3):
        names = dict(zip("kgl", values, strict=True))
        number, column, row = places(index, names)
        assert number == eval(index, {}, names)  # noqa: S307
        assert (row * 64 + column) * 4 == number
        assert 0 <= column < 64


def test_what_a_loop_steps_over_in_whole_rows_leaves_the_column_alone():
    source = images.read_images(KERNEL.replace("INDEX", "((k * 2048) + (l * 4))"))
    assert "(((l * 4)) >> 2) & 63), ((k * 8) + (((l * 4)) >> 8))" in source.replace("  ", " ")


def test_the_runtime_is_told_which_argument_has_which_shape():
    source = images.read_images(KERNEL.replace("INDEX", "0"))
    assert (
        "// edge-image: 1 float 64 8\n__kernel void one(__global float* restrict y_ptr, EDGE_TEXELS(float, " in source
    )
    assert source.startswith(f"#ifdef {images.SWITCH}\n")


@pytest.mark.parametrize(
    "other",
    [
        f"float4 more = vload4(0, {NAME} + 1);",
        f"float more = {NAME}[3];",
        f"float2 more = (*(__global float2*)({NAME} + 4));",
    ],
)
def test_a_kernel_that_reads_anything_but_vectors_of_four_keeps_its_buffer(other):
    source = KERNEL.replace("INDEX", "0").replace("  *y_ptr = 1;", f"  {other}")
    assert images.read_images(source) == source


def test_an_argument_that_is_written_or_not_marked_stays():
    for name, new in ((NAME, "w_ptr"), ("const float* restrict", "float* restrict")):
        source = KERNEL.replace("INDEX", "0").replace(name, new)
        assert images.read_images(source) == source


def test_halves_are_read_by_what_mesas_compiler_survives():
    assert "read_imageh" not in images._PREAMBLE
    assert "convert_half4(EDGE_TEXEL_float(" in images._PREAMBLE
