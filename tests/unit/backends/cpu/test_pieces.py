"""Loops that cores share, in equal pieces."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu import pieces

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
    function = pieces.with_equal_pieces(doubling(extent), CORES)
    inputs, built = np.arange(extent, dtype=np.float32), tvm.runtime.tensor(np.zeros(extent, np.float32))
    tvm.compile(tvm.IRModule({"main": function}), target="llvm")["main"](tvm.runtime.tensor(inputs), built)
    assert np.array_equal(built.numpy(), 2 * inputs)


@pytest.mark.parametrize(("extent", "iterations"), [(2, 2), (8, 8), (10, 8), (16, 16), (17, 8)])
def test_pieces_are_equal(extent, iterations):
    """A loop is left as it is where the code generator's own rounding up makes equal parts."""
    text = pieces.with_equal_pieces(doubling(extent), CORES).script()
    assert [int(actual) for actual in re.findall(r"parallel\((\d+)\)", text)] == [iterations]
