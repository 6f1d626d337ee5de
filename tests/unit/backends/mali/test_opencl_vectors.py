"""OpenCL C that TVM writes with vectors that it cannot mean, or that no GPU would load at once."""

from __future__ import annotations

import ast
import operator
from fractions import Fraction

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T  # noqa: N812 - as TVM's documentation calls it

from tests.support import opencl
from toolchain import board
from toolchain.backends.mali import opencl_vectors
from toolchain.backends.mali.backend import Mali
from toolchain.backends.mali.opencl_vectors import negate_shared_conditions, write_byte_vectors
from toolchain.errors import BuildError

KIND = board.load("opencl-local").resolved()
TARGET = Mali(KIND).target
PLAIN = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
HEAD = "__kernel void k(__global float* restrict y, __global half* restrict x, __global char* restrict c) {\n"


@pytest.mark.parametrize(
    ("expression", "divisor"),
    [
        ("12", 12),
        ("((convert_int(get_local_id(0))) * 4)", 4),
        ("(((a * 7168) + (b * 256)) - 7424)", 256),
        ("((a * 4) + 2)", 2),
        ("((a * 4) + b)", 1),
        ("((a * 24) / 6)", 4),
        ("((a * 24) / 5)", 1),
        ("((a * 8) % 12)", 4),
        ("((a * 20) >> 3)", 1),
        ("((a * 24) >> 3)", 3),
        ("((a * 3) << 2)", 12),
        ("a + 1 << 2", 4),
        ("(int)(a * 4)", 4),
        ("min(a * 8, 12)", 4),
        ("((long)a) * (long)16", 16),
        ("f(a * 8)", 1),
        ("((a < 4) ? 8 : 4)", 1),
        ("(a & 12)", 1),
        ("a * 4.0f", 1),
        ("x[4] * 4", 4),
        ("x[4 * 4]", 1),
        ("x[4 * 4", 1),
        ("(a * 12 & 7)", 4),
        ("a * 8 + 4 & b", 4),
        ("(a && 4) * 4", 1),
        ("(4", 1),
        ("", 1),
        ("-8", 8),
    ],
)
def test_divisors_of_expressions(expression, divisor):
    assert opencl_vectors.known_divisor(expression) == divisor


def test_zero_is_a_multiple_of_everything():
    assert opencl_vectors.known_divisor("0") % 16 == 0
    assert opencl_vectors.known_divisor("(a * 8) + 0") == 8


def test_divisors_hold_for_whatever_variables_are():
    """Random expressions, computed for random variables."""
    draw = np.random.default_rng(0)

    def expression(depth: int) -> str:
        if depth == 0:
            return draw.choice(["a", "b", str(draw.choice([1, 2, 3, 4, 6, 8, 12, 64]))])
        sign = draw.choice(["+", "-", "*", "/", "%", "<<", ">>"])
        right = str(draw.choice([2, 3, 4, 8, 12])) if sign in {"/", "%"} else expression(depth - 1)
        right = draw.choice(["1", "2", "3"]) if sign in {"<<", ">>"} else right
        return f"({expression(depth - 1)} {sign} {right})"

    proved = 0
    for _ in range(3000):
        text = expression(draw.integers(1, 5))
        divisor = opencl_vectors.known_divisor(text)
        proved += divisor > 1
        for _ in range(5):
            values = {"a": int(draw.integers(0, 51)), "b": int(draw.integers(0, 51))}
            assert _computed(text, values) % divisor == 0, text
    assert proved > 500


def _computed(text: str, values: dict[str, int]) -> int:
    """Compute as C does: quotients are rounded to zero, and remainders have the dividend's sign."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Name):
            return values[node.id]
        if isinstance(node, ast.Constant):
            return int(node.value)
        assert isinstance(node, ast.BinOp)
        first, second = value(node.left), value(node.right)
        if isinstance(node.op, ast.Div):
            return int(Fraction(first, second))
        if isinstance(node.op, ast.Mod):
            return first - int(Fraction(first, second)) * second
        return PLAIN[type(node.op)](first, second)

    return value(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("v = vload4(0, y + (i * 4));", "v = (*(__global float4*)(y + (i * 4)));"),
        ("v = vload4(0, x + (i * 8));", "v = (*(__global half4*)(x + (i * 8)));"),
        ("v = vload16(0, c + 32);", "v = (*(__global char16*)(c + 32));"),
        ("vstore2(v, 0, y + (i * 2));", "(*(__global float2*)(y + (i * 2))) = v;"),
        (
            "vstore4((vload4(0, y + 4) + vload4(0, y + i)), 0, y + 0);",
            "(*(__global float4*)(y + 0)) = ((*(__global float4*)(y + 4)) + vload4(0, y + i));",
        ),
    ],
)
def test_what_is_aligned_is_accessed_as_a_whole(before, after):
    assert opencl_vectors.align_vectors(f"{HEAD}  {before}\n}}\n") == f"{HEAD}  {after}\n}}\n"


@pytest.mark.parametrize(
    "line",
    [
        "v = vload4(0, y + i);",
        "v = vload4(0, y + ((i * 4) + 2));",
        "v = vload8(0, y + (i * 4));",
        "v = vload3(0, y + (i * 12));",
        "v = vload4(i, y + 4);",
        "v = vload4(0, local_ptr + 4);",
        "v = vload4(0, y);",
        "vstore4(v, 0, local_ptr + 4);",
        "vstore4(f(a, b), 0, y + ((i * 6) + 4));",
        "v = vload_half4(0, x + 4);",
    ],
)
def test_what_may_not_be_aligned_is_left_alone(line):
    text = f"#define A\n__kernel void k(__global float* restrict y);\n{HEAD}  float4 local_ptr[4];\n  {line}\n}}\n"
    assert opencl_vectors.align_vectors(text) == text


def test_a_pointer_of_another_kernel_is_none_of_this_one():
    text = "__kernel void k(__global float* y) {\n}\n__kernel void l(__global float* x) {\n  v = vload4(0, y + 4);\n}\n"
    assert opencl_vectors.align_vectors(text) == text


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    with opencl.device(tmp_path_factory.mktemp("cache")) as opened:
        yield opened


def shifted(by: int) -> tvm.IRModule:
    """A kernel whose work-items copy four neighbours each, from so many elements further on."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((128,), "float32"), y: T.Buffer((64,), "float32")):
        for i in range(64):
            with T.sblock("copy"):
                index = T.axis.spatial(64, i)
                y[index] = x[index + by]

    schedule = s_tir.Schedule(tvm.IRModule({"main": main}))
    (loop,) = schedule.get_loops(schedule.get_sblock("copy"))
    items, lanes = schedule.split(loop, [None, 4])
    schedule.bind(items, "threadIdx.x")
    schedule.vectorize(lanes)
    return schedule.mod


@pytest.mark.parametrize(("by", "is_whole"), [(0, True), (1, False), (2, False), (8, True)])
def test_kernels_on_a_device(device, tmp_path, by, is_whole):
    """What is read from an odd place is read by its elements; the numbers are right either way."""
    compiled = tvm.compile(shifted(by), target=TARGET)
    source = compiled.mod.imports[0].inspect_source()
    assert ("(__global float4*)(x_ptr" in source) == is_whole
    assert "(__global float4*)(y_ptr" in source
    assert "vload4(" not in source
    assert "vstore4(" not in source
    compiled.export_library(str(tmp_path / "kernel.so"))
    array = np.arange(128, dtype=np.float32)
    result = tvm.runtime.tensor(np.zeros(64, np.float32), device)
    tvm.runtime.load_module(str(tmp_path / "kernel.so"))["main"](tvm.runtime.tensor(array, device), result)
    np.testing.assert_array_equal(result.numpy(), array[by : by + 64])


def test_a_tensor_that_begins_within_its_memory_is_refused(device, tmp_path):
    """Its address may not be aligned, and a kernel is handed the memory object alone."""
    tvm.compile(shifted(0), target=TARGET).export_library(str(tmp_path / "kernel.so"))
    run = tvm.runtime.load_module(str(tmp_path / "kernel.so"))["main"]
    source = tvm.runtime.tensor(np.zeros(256, np.float32), device)
    result = tvm.runtime.tensor(np.zeros(64, np.float32), device)
    view = source._create_view((128,), relative_byte_offset=4)
    with pytest.raises(ValueError, match="byte_offset"):
        run(view, result)


# --- conditions that all lanes share ---------------------------------------------------------------------------------

_SHARED = "(convert_long2(((uint2)((i == 0), (i == 0)))))"
_COMPARED = "(convert_long2((a >= ((long2)((long)0, (long)0)))))"


def test_a_shared_truth_is_negated():
    assert negate_shared_conditions(f"y = select(a, b, {_SHARED});") == f"y = select(a, b, -{_SHARED});"


def test_what_compares_vectors_stays():
    text = f"y = select(a, {_SHARED}, {_COMPARED});"
    assert negate_shared_conditions(text) == text


def test_a_truth_that_is_one_of_several_stays():
    text = "y = select(a, b, (((uint2)(c, c)) && d));"
    assert negate_shared_conditions(text) == text


def test_within_another():
    text = f"y = select(select(a, b, {_SHARED}), b, {_COMPARED}) + 1;"
    assert negate_shared_conditions(text) == f"y = select(select(a, b, -{_SHARED}), b, {_COMPARED}) + 1;"


# --- gathered bytes --------------------------------------------------------------------------------------------------


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
