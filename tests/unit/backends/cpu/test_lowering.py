"""What LLVM gets: bound values stay apart, inputs of repeated elements stay in use, and cores share equal pieces."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import prim
from tvm.script import tirx as S  # noqa: N812 - as it is called where kernels are written
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu import lowering
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.lowering import with_equal_pieces, with_inputs_apart

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": str(tvm.target.codegen.llvm_get_system_cpu())})


def chain(depth, lanes):
    """Return a kernel of x - x * x / 2, done so often to its own result."""

    def body(data, out):
        value = data[emit.ramp(0, lanes)]
        for _ in range(depth):
            value = T.Bind(value)
            value = value - value * value * emit.splat(0.5, lanes)
        T.buffer_store(out, value, [emit.ramp(0, lanes)])

    return emit.kernel([emit.Argument("data", (lanes,)), emit.Argument("out", (lanes,))], body, {})


def for_llvm(function):
    """Return a kernel as LLVM gets it."""
    module = tirx.transform.BindTarget(TARGET.with_host(TARGET))(tvm.IRModule({"main": function}))
    passes, host, _ = tirx.get_tir_pipeline(lowering.PIPELINE)
    return host()(passes(module))


def products(module):
    actual = []
    for _, function in module.functions_items():
        tvm_ffi.structural_walk(function.body, (prim.Mul, actual.append))
    return [item for item in actual if str(item.ty.dtype).startswith("float32")]


@pytest.mark.parametrize("lanes", [1, 8])
def test_what_is_bound_is_there_once(lanes):
    built = for_llvm(chain(6, lanes).with_attr("global_symbol", "main"))
    assert len(products(built)) == 6 * 2  # and not two to the power of six
    assert lowering._BOUND not in built.script()


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_function_of_a_function_of_many_more(lanes):
    data = np.linspace(0.1, 0.9, lanes).astype("float32")
    expected, out = data, tvm.runtime.tensor(np.zeros(lanes, "float32"))
    for _ in range(100):
        expected = expected - expected * expected * np.float32(0.5)
    library = tvm.tirx.build(chain(100, lanes).with_attr("global_symbol", "main"), TARGET, lowering.PIPELINE)
    library["main"](tvm.runtime.tensor(data), out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5)


def test_indices_are_seen_through():
    def body(data, out):
        activation = T.Bind(tirx.const(3, "int32") * 4)
        T.buffer_store(out, data[activation - 12], [0])

    function = emit.kernel([emit.Argument("data", (1,)), emit.Argument("out", (1,))], body, {})
    loads = []
    for _, item in for_llvm(function.with_attr("global_symbol", "main")).functions_items():
        tvm_ffi.structural_walk(item.body, (tirx.BufferStore, lambda store: loads.append(store.value)))
    assert any(int(item.indices[0]) == 0 for item in loads if isinstance(item, ir.TensorLoad))


def test_a_mark_of_tvms_script_brings_no_warning(capfd):
    def body(data, out):
        with T.seq_scope():
            T.buffer_store(out, data[emit.ramp(0, 4)], [emit.ramp(0, 4)])

    kernel = emit.kernel([emit.Argument("data", (4,)), emit.Argument("out", (4,))], body, {})
    assert "pragma_scope" in kernel.script()
    built = tvm.tirx.build(kernel, target=TARGET, pipeline=lowering.PIPELINE)
    data, out = (tvm.runtime.tensor(np.full(4, number, np.float32)) for number in (3, 0))
    built["main"](data, out)
    assert out.numpy().tolist() == [3] * 4
    assert capfd.readouterr().err == ""


# --- elements that are computed more than once -----------------------------------------------------------------------

LENGTH = 21
"""Elements of a row: of the second tile of 16, eleven have been in the first."""


def reads(function):
    """Return the names of the buffers that are read for nothing but to be in use."""
    actual = []
    tvm_ffi.structural_walk(function.body, (tirx.Evaluate, actual.append))
    return [str(item.value.source.name) for item in actual]


def kernel(body, length=LENGTH):
    """Return a kernel whose body gets its input, its result, and two buffers of the same size in between."""

    def whole(data, out):
        first, second = (T.alloc_buffer((length,), "float32") for _ in range(2))
        with T.serial(0, length) as index:
            T.buffer_store(first, data[index] + 1, [index])
        body(first, second)
        with T.serial(0, length) as index:
            T.buffer_store(out, second[index], [index])

    return emit.kernel([emit.Argument("data", (length,)), emit.Argument("out", (length,))], whole, {})


def overlapping(first, second):
    with T.serial(0, 2) as tile:
        activation = emit.ramp(tirx.min(tile * 16, LENGTH - 16), 16)
        T.buffer_store(second, first[activation] * emit.splat(2.0, 16), [activation])


def again(first, second):
    with T.serial(0, 2), T.serial(0, LENGTH) as index:
        T.buffer_store(second, first[index] * 2, [index])


def over_each_other(first, second):
    with T.serial(0, 5) as row, T.serial(0, 5) as column:
        activation = row * 4 + column
        T.buffer_store(second, first[activation] * 2, [activation])


def backwards(first, second):
    with T.serial(0, LENGTH) as index:
        T.buffer_store(second, first[LENGTH - 1 - index] * 2, [LENGTH - 1 - index])


def in_rows(first, second):
    with T.serial(0, 3) as row, T.serial(0, 7) as column:
        activation = row * 7 + column
        T.buffer_store(second, first[activation] * 2, [activation])


REPEATED = (overlapping, again, over_each_other)


@pytest.mark.parametrize("body", REPEATED)
def test_an_input_of_repeated_steps_stays_in_use_until_they_are_done(body):
    assert len(reads(with_inputs_apart(kernel(body)))) == 1


@pytest.mark.parametrize("body", [backwards, in_rows])
def test_steps_that_are_done_once_may_store_over_their_input(body):
    function = kernel(body)
    assert with_inputs_apart(function).same_as(function)


def test_sums_are_left_to_tvm():
    def summed(first, second):
        with T.serial(0, LENGTH) as index:
            T.buffer_store(second, second[0] + first[index], [0])

    assert reads(with_inputs_apart(kernel(summed))) == []


@S.prim_func(s_tir=True)
def scheduled(data: S.Buffer((LENGTH,), "float32"), out: S.Buffer((LENGTH,), "float32")):
    first = S.sblock_alloc_buffer((LENGTH,), "float32")
    second = S.sblock_alloc_buffer((LENGTH,), "float32")
    for i in range(LENGTH):
        with S.sblock("first"):
            index = S.axis.spatial(LENGTH, i)
            first[index] = data[index] + S.float32(1)
    for tile in range(2):
        for lane in S.vectorized(16):
            with S.sblock("second"):
                index = S.axis.spatial(LENGTH, S.min(tile * 16, LENGTH - 16) + lane)
                second[index] = first[index] * S.float32(2)
    for i in range(LENGTH):
        with S.sblock("third"):
            index = S.axis.spatial(LENGTH, i)
            out[index] = second[index]


def test_elements_of_overlapping_tiles_are_computed_from_what_they_were():
    data, out = np.arange(LENGTH, dtype=np.float32), tvm.runtime.tensor(np.zeros(LENGTH, np.float32))
    library = tvm.tirx.build(scheduled.with_attr("global_symbol", "main"), TARGET, lowering.PIPELINE)
    library["main"](tvm.runtime.tensor(data), out)
    np.testing.assert_array_equal(out.numpy(), (data + 1) * 2)


# --- equal pieces for the cores --------------------------------------------------------------------------------------

CORES = 2


def doubling(extent: int) -> tirx.PrimFunc:
    """Write a kernel that doubles numbers in a loop that cores share."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
        inputs, built = (T.arg(name, T.buffer((extent,), "float32")) for name in ("given", "made"))
        with T.parallel(0, extent) as i:
            T.buffer_store(built, inputs[i] * tirx.const(2, "float32"), [i])
    return builder.get()


@pytest.mark.parametrize("extent", [1, 2, 5, 8, 9, 10, 15, 16, 17, 63, 64, 100])
def test_every_iteration_is_in_one_piece(extent):
    function = with_equal_pieces(doubling(extent), CORES)
    inputs, built = np.arange(extent, dtype=np.float32), tvm.runtime.tensor(np.zeros(extent, np.float32))
    tvm.compile(tvm.IRModule({"main": function}), target="llvm")["main"](tvm.runtime.tensor(inputs), built)
    assert np.array_equal(built.numpy(), 2 * inputs)


@pytest.mark.parametrize(("extent", "iterations"), [(2, 2), (8, 8), (10, 8), (16, 16), (17, 8)])
def test_pieces_are_equal(extent, iterations):
    """A loop is left as it is where the code generator's own rounding up makes equal parts."""
    text = with_equal_pieces(doubling(extent), CORES).script()
    assert [int(actual) for actual in re.findall(r"parallel\((\d+)\)", text)] == [iterations]
