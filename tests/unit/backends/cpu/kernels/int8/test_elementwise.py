"""Conversions between bytes and numbers against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support import cpu_bytes as int8
from tests.support.cpu_bytes import MACHINES, NARROW, WIDE, check
from tests.support.cpu_kernels import run
from toolchain.backends.cpu.kernels.int8 import elementwise as template
from toolchain.backends.cpu.layers import Activation, Map, PostOp
from toolchain.backends.graph.quantization import Grid


def place(data, lanes, dtype="uint8"):
    return Activation(*data, lanes, dtype=dtype)


SHAPES = [(1, 32, 3, 5), (2, 40, 7, 9), (1, 3, 5, 37), (1, 33, 1, 1), (1, 16, 1, 16), (1, 1, 20, 1)]


@pytest.mark.parametrize("width", MACHINES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("lanes", [4, 16])
def test_there_and_back(shape, lanes, width):
    numbers, bytes_ = place(shape, 1, "float32"), place(shape, lanes)
    check(template, Map(numbers, bytes_), MACHINES[width])
    check(template, Map(bytes_, numbers), MACHINES[width])


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_blocked_numbers(shape):
    numbers, bytes_ = place(shape, 16, "float32"), place(shape, 16)
    check(template, Map(numbers, bytes_), WIDE)
    check(template, Map(bytes_, replace(numbers, first=1, held=9)), WIDE)


def test_steps_on_bytes():
    bytes_ = place((1, 40, 6, 5), 16)
    other = replace(bytes_, first=1, held=5)
    epilogue = (PostOp("hard_swish"), PostOp("quantize"), PostOp("add", other=other), PostOp("relu"))
    check(template, Map(bytes_, bytes_, epilogue), WIDE)
    check(template, Map(replace(bytes_, first=2, held=7), other, (PostOp("add", other=bytes_),)), WIDE)
    check(template, int8.signed(Map(bytes_, bytes_, epilogue)), NARROW.__class__(16, 32))


def test_cores_share_a_large_tensor():
    shape = (1, 64, 90, 64)
    check(template, Map(place(shape, 1, "float32"), place(shape, 16)), WIDE)


@pytest.mark.parametrize("lanes", [4, 16])
def test_half_way_goes_to_the_even_byte(lanes):
    layer = Map(place((1, 1, 1, 16), 1, "float32"), place((1, 1, 1, 16), lanes))
    data = (np.arange(16, dtype=np.float32) - 3.5).reshape(1, 1, 1, 16)
    inputs = replace(int8.inputs_of(layer), data=data, data_grid=Grid(1.0, 0), grids=(Grid(1.0, 3),))
    arguments = int8.arguments(template, layer, WIDE, None, inputs)
    function = template.kernel(layer, WIDE, template.Config())
    actual = run(function, arguments, np.zeros(layer.out.shape, np.uint8))
    assert actual[0, 0, 0, :, 0].tolist() == [0, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15]


def test_what_lies_outside_of_a_grid_is_its_end():
    layer = Map(place((1, 1, 1, 16), 1, "float32"), place((1, 1, 1, 16), 16))
    data = np.array([1e30, -1e30, 3e38, -3e38] * 4, np.float32).reshape(1, 1, 1, 16)
    inputs = replace(int8.inputs_of(layer), data=data, data_grid=Grid(1.0, 0), grids=(Grid(0.5, 9),))
    arguments = int8.arguments(template, layer, WIDE, None, inputs)
    actual = run(template.kernel(layer, WIDE, template.Config()), arguments, np.zeros(layer.out.shape, np.uint8))
    assert actual[0, 0, 0, :, 0].tolist() == [255, 0, 255, 0] * 4


def test_what_is_not_covered():
    shape = (1, 32, 3, 5)
    numbers, plain, bytes_ = place(shape, 16, "float32"), place(shape, 1, "float32"), place(shape, 16)
    assert template.covers(Map(plain, bytes_))
    assert not template.covers(Map(plain, numbers))
    assert not template.covers(Map(plain, place(shape, 1)))
    assert not template.covers(Map(bytes_, place(shape, 4)))
    assert not template.covers(Map(plain, bytes_, (PostOp("add", other=bytes_),)))
    assert template.covers(Map(numbers, bytes_, (PostOp("add", other=bytes_),)))


def test_cost_counts_vectors_and_steps():
    bytes_ = place((1, 32, 4, 4), 16)
    (_, bare), (_, more) = (
        template.configs(Map(bytes_, bytes_, epilogue), WIDE)[0] for epilogue in ((), (PostOp("relu"),))
    )
    assert 0 < bare < more
