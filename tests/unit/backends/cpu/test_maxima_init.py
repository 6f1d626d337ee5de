"""Maxima that start at infinity."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tvm import te, tirx

from toolchain.backends.cpu.maxima_init import start_at_infinity


def _reduction(best: Any, dtype: str) -> tirx.PrimFunc:
    data = te.placeholder((4, 8), dtype, "data")
    run = te.reduce_axis((0, 8), "k")
    return te.create_prim_func([data, te.compute((4,), lambda row: best(data[row, run], axis=run), "most")])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("best", "sign"), [(te.max, "-"), (te.min, "")])
def test_floats(best: Any, sign: str, dtype: str) -> None:
    changed = start_at_infinity(_reduction(best, dtype)).script()
    assert f'T.{dtype}("{sign}{math.inf}")' in changed


@pytest.mark.parametrize(("best", "dtype"), [(te.max, "int32"), (te.sum, "float32")])
def test_what_starts_elsewhere(best: Any, dtype: str) -> None:
    function = _reduction(best, dtype)
    assert start_at_infinity(function).script() == function.script()


def test_a_number_of_the_model_stays() -> None:
    lowest = tirx.min_value("float32")
    data = te.placeholder((8,), "float32", "data")
    function = te.create_prim_func([data, te.compute((8,), lambda index: tirx.max(data[index], lowest), "limited")])
    assert start_at_infinity(function).script() == function.script()
