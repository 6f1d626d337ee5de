from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import tvm

from tests.support.vta_layers import reference, tensors
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.codegen.operators import SCOPES, schedule_kernel
from toolchain.backends.vta.codegen.tilings import Choice

LAYER = Conv2d(2, 5, 4, 32, 32, (3, 2), (1, 1), (1, 0, 1, 1), 9, -100, 90, bias=True, residual_shift=9)
PLAIN = replace(LAYER, bias=False, residual_shift=None)


@pytest.mark.parametrize(
    ("layer", "choice"),
    [
        (LAYER, Choice(1, 5, 2, 1, 2, 2, 2)),
        (LAYER, Choice(2, 1, 4, 2, 1)),
        (replace(LAYER, bias=False, residual_shift=6), Choice()),
        (replace(PLAIN, stride=(2, 2)), Choice(2, 3, 2, 2, 2)),
    ],
    ids=["lifted", "wide", "smallest", "plain"],
)
def test_tiles_change_no_result(layer, choice):
    arguments = tensors(layer)
    buffers = [tvm.runtime.tensor(array) for array in arguments]
    tvm.tirx.build(schedule_kernel(layer, choice).mod, {"kind": "llvm"}, pipeline="s_tir")["main"](*buffers)
    np.testing.assert_array_equal(buffers[-1].numpy(), reference(layer, arguments))


def test_each_tensor_has_its_memory():
    text = schedule_kernel(LAYER, Choice()).mod["main"].script()
    scopes = dict(re.findall(r'(\w+) = T.sblock_alloc_buffer\(.*scope="([\w.]+)"\)', text))
    short = {name.removesuffix("_" + scope.replace(".", "_")): SCOPES[scope].name for name, scope in scopes.items()}
    sums = ["identity", "lift", "sum", "bias_add", "bias", "shift_0", "low", "high"]
    assert short == {"window": "INP", "residual": "INP", "w": "WGT", "residual_w": "WGT"} | dict.fromkeys(sums, "ACC")


def around(layer: Conv2d, choice: Choice, block: str) -> list[int]:
    schedule = schedule_kernel(layer, choice)
    return [int(schedule.get(loop).extent) for loop in schedule.get_loops(block)]


def test_weights_stay_while_pixels_change():
    assert around(PLAIN, Choice(1, 1, 2, 2, 1), "y")[:4] == [2, 2, 5, 2]


def test_pixels_stay_while_weights_change():
    layer = Conv2d(1, 32, 32, 16, 64)
    assert around(layer, Choice(tile_h=16, tile_w=32, tile_co=2), "y")[:4] == [1, 2, 1, 2]


def test_loads_are_inside_of_the_parts_of_a_sum():
    choice = Choice(1, 5, 2, 1, 2)
    assert around(PLAIN, choice, "conv_update")[:5] == [1, 2, 1, 2, 2]
    assert around(PLAIN, choice, "window")[:5] == [1, 2, 1, 2, 2]
    assert around(PLAIN, choice, "window")[5:] == [1, 1, 7, 3, 1, 16]
    assert around(PLAIN, choice, "conv_init")[4:] == [1, 2, 5, 2, 1, 16]


def test_sums_start_from_the_residual():
    text = schedule_kernel(LAYER, Choice()).mod["main"].script()
    init = text[text.index('T.sblock("conv_init")') :].split("T.sblock", 2)[1]
    assert re.search(r"sum_local_acc_buffer\[.*\] = lift_local_acc_buffer\[", init)
