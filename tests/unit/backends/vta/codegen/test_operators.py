from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm

from tests.support.vta_layers import reference, tensors
from toolchain.backends.vta.codegen.layers import Conv2d, Pool
from toolchain.backends.vta.codegen.operators import bounds, operator, shifts
from toolchain.backends.vta.isa.config import VtaConfig

LAYER = Conv2d(1, 5, 4, 16, 16, bias=False)
LAYERS = [
    Conv2d(2, 5, 4, 32, 16, (3, 2), (2, 1), (1, 0, 2, 1), 9, -100, 90, bias=True, residual_shift=4),
    Conv2d(1, 6, 5, 16, 32, (1, 3), (2, 2), (0, 1, 0, 1), 18, 0, 127, bias=False, residual_shift=9),
    Conv2d(3, 1, 1, 32, 32, shift=0, bias=True),
    Conv2d(1, 5, 4, 32, 32, (3, 3), shift=2, bias=True, alone=True, channel_shifts=True),
    Conv2d(1, 2, 2, 16, 32, shift=0, low=0, bias=False, channel_shifts=True),
    Conv2d(1, 5, 6, 16, 32, (3, 2), shift=6, padding=(2, 1, 1, 1), pool=Pool((3, 3), (2, 2), (1, 1, 0, 0))),
]


@pytest.mark.parametrize("layer", LAYERS, ids=["residual", "lifted", "dense", "apart", "own shifts", "maxima"])
def test_what_it_computes(layer):
    arguments = tensors(layer)
    buffers = [tvm.runtime.tensor(array) for array in arguments]
    tvm.tirx.build(tvm.IRModule({"main": operator(layer)}), {"kind": "llvm"}, pipeline="s_tir")["main"](*buffers)
    np.testing.assert_array_equal(buffers[-1].numpy(), reference(layer, arguments))


@pytest.mark.parametrize("layer", LAYERS[:1] + LAYERS[3:4], ids=["residual", "apart"])
def test_what_it_computes_on_an_array_of_more_rows(layer):
    config = VtaConfig(log_batch=2, log_block=3)
    arguments = tensors(layer, 0, config)
    buffers = [tvm.runtime.tensor(array) for array in arguments]
    module = tvm.IRModule({"main": operator(layer, config)})
    tvm.tirx.build(module, {"kind": "llvm"}, pipeline="s_tir")["main"](*buffers)
    np.testing.assert_array_equal(buffers[-1].numpy(), reference(layer, arguments))


def names(layer: Conv2d) -> list[str]:
    schedule = tvm.s_tir.Schedule(operator(layer))
    return [schedule.get(block).name_hint for block in schedule.get_child_blocks(schedule.get_sblock("root"))]


def test_blocks():
    full = replace(LAYER, bias=True, residual_shift=9, shift=20)
    sums = ["window", "conv", "identity", "lift", "sum", "bias_add"]
    assert names(full) == [*sums, "shift_0", "shift_1", "low", "high", "y"]
    shifted = ["window", "conv", "shift_0", "channel_shift", "low", "high", "y"]
    assert names(replace(LAYER, shift=8, channel_shifts=True)) == shifted
    assert names(replace(LAYER, shift=8)) == ["window", "conv", "shift_0", "low", "high", "y"]
    pool = Pool((2, 2), (2, 2), (0, 1, 0, 0))
    maxima = ["pool_0_1", "pool_0_0", "pool_1_0", "pool_1_1"]
    assert names(replace(LAYER, bias=True, pool=pool)) == ["window", "conv", "bias_add", *maxima, "low", "high", "y"]


@pytest.mark.parametrize(
    ("shift", "expected"), [(0, ()), (1, (1,)), (15, (15,)), (16, (15, 1)), (30, (15, 15)), (31, (15, 15, 1))]
)
def test_shifts(shift, expected):
    assert shifts(replace(LAYER, shift=shift)) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (True, True)),
        ({"shift": 10}, (True, True)),
        ({"shift": 11}, (False, True)),
        ({"shift": 12}, (False, False)),
        ({"shift": 12, "low": 0}, (True, False)),
        ({"shift": 12, "high": 63}, (False, True)),
        ({"shift": 12, "bias": True}, (True, True)),
        ({"shift": 23, "bias": True}, (True, True)),
        ({"shift": 24, "bias": True}, (False, False)),
        ({"shift": 11, "residual_shift": 0}, (True, True)),
        ({"shift": 20, "in_channels": 1 << 17}, (True, True)),
    ],
)
def test_bounds_that_have_no_effect_are_left_out(change, expected):
    assert bounds(replace(LAYER, **change)) == expected
