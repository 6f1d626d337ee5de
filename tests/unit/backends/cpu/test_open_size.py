"""Kernels for every size from those for some sizes."""

from __future__ import annotations

import pytest
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.open_size import OpenSettings, kernel
from toolchain.backends.graph.unify import DifferentError

SIZES = (24, 23, 16, 11, 8)


def doubled(size, loop):
    """Return a kernel that doubles so many numbers."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        x, y = (T.arg(name, T.buffer((tirx.const(size, "int64"),), "float32")) for name in "xy")
        with loop(0, tirx.const(size, "int64")) as index:
            T.buffer_store(y, x[index] * tirx.const(2, "float32"), [index])
    return builder.get()


@pytest.mark.parametrize("is_vector", [False, True])
def test_vectors_as_long_as_the_size_are_not_joined(is_vector):
    """What is computed is scheduled once more then."""
    scheduled = []

    def schedule(module):
        scheduled.append(module)
        return module

    lowered = [doubled(size, T.serial) for size in SIZES]
    written = [doubled(size, T.vectorized if is_vector else T.serial) for size in SIZES]
    result = kernel(lowered, written, SIZES, OpenSettings(None, {}, schedule))
    assert bool(scheduled) == is_vector
    assert str(result.params[-1].name) == "size"


def test_what_differs_is_an_error():
    lowered = [doubled(size % 10, T.serial) for size in SIZES]
    with pytest.raises(DifferentError, match="do not follow from the size"):
        kernel(lowered, lowered, SIZES, OpenSettings(None, {}, lambda module: module))
