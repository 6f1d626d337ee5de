"""Functions of several sizes in one with a variable."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.support.cpu_kernels import random, run
from toolchain.backends.graph.unify import DifferentError, polynomial_of, unify

SIZES = (16, 15, 13, 12)


def scaled(size, factor=2.0, column=3, rows=None):
    data = te.placeholder((size, 4), "float32", "data")
    return te.create_prim_func([data, te.compute((rows or size, column), lambda i, j: data[i, j] * factor, "out")])


@pytest.mark.parametrize(
    ("values", "polynomial"),
    [
        ((32, 30, 26, 24), (0, 2, 0)),
        ((17, 16, 14, 13), (1, 1, 0)),
        ((7, 7, 7, 7), (7, 0, 0)),
        ((256, 225, 169, 144), (0, 0, 1)),
        ((3 * 256 - 16, 3 * 225 - 15, 3 * 169 - 13, 3 * 144 - 12), (0, -1, 3)),
        ((8, 7, 6, 6), None),  # half of the size, rounded down
        ((14, 14, 13, 12), None),  # the size, but 14 at most
        ((136, 120, 91, 78), None),  # the sum of the numbers up to the size
    ],
)
def test_a_number_follows_from_the_size(values, polynomial):
    assert polynomial_of(values, SIZES) == polynomial


def test_functions_of_some_sizes_are_one():
    unified = unify([scaled(size) for size in SIZES], SIZES)
    assert unified.is_open
    whole = unified.function
    function = tirx.PrimFunc([*whole.params, unified.size], whole.body, whole.ret_type, whole.attrs)
    for size in (1, 9, 16, 30):
        data = random((size, 4))
        np.testing.assert_array_equal(run(function, [data], np.zeros((size, 3), np.float32), size), 2 * data[:, :3])


def test_equal_functions_have_no_variable():
    unified = unify([scaled(8)] * 4, SIZES)
    assert not unified.is_open
    tvm.ir.assert_structural_equal(unified.function, scaled(8))


def test_a_mean_is_divided_by_the_size():
    unified = unify([scaled(size, 1 / size) for size in SIZES], SIZES)
    assert 'T.float32(1.0) / T.Cast("float32", size)' in unified.function.script().replace("size_1", "size")


@pytest.mark.parametrize(
    ("functions", "fault"),
    [
        ([scaled(size, factor=0.5 + size) for size in SIZES], "the numbers"),
        ([scaled(size, rows=min(size, 14)) for size in SIZES], "do not follow from the size"),
        ([scaled(16), scaled(15), scaled(13).with_attr("more", "1"), scaled(12)], "number of parts"),
    ],
)
def test_functions_that_differ_otherwise_are_refused(functions, fault):
    with pytest.raises(DifferentError, match=fault):
        unify(functions, SIZES)
