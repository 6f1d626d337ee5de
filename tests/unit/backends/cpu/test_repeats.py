"""No result is stored over its own input where some of its elements are computed twice."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as S  # noqa: N812 - as it is called where kernels are written
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu import lowering, repeats
from toolchain.backends.cpu.kernels import emit

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": str(tvm.target.codegen.llvm_get_system_cpu())})
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
    assert len(reads(repeats.with_inputs_apart(kernel(body)))) == 1


@pytest.mark.parametrize("body", [backwards, in_rows])
def test_steps_that_are_done_once_may_store_over_their_input(body):
    function = kernel(body)
    assert repeats.with_inputs_apart(function).same_as(function)


def test_sums_are_left_to_tvm():
    def summed(first, second):
        with T.serial(0, LENGTH) as index:
            T.buffer_store(second, second[0] + first[index], [0])

    assert reads(repeats.with_inputs_apart(kernel(summed))) == []


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
