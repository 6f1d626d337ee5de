"""What tiles are computed of: which kernels have one reduction, and how it reads."""

from __future__ import annotations

import pytest
from tvm import s_tir, te, tirx, topi

from toolchain.backends.mali import layers


def convolution(size=14, ci=16, co=32, window=3, stride=1) -> tirx.PrimFunc:
    x = te.placeholder((1, size, size, ci), name="x")
    w = te.placeholder((window, window, ci, co), name="w")
    return te.create_prim_func([x, w, topi.nn.relu(topi.nn.conv2d_nhwc(x, w, stride, window // 2, 1))])


def elementwise(size) -> tirx.PrimFunc:
    x = te.placeholder((size, 4), name="x")
    return te.create_prim_func([x, topi.nn.relu(x)])


def test_a_convolution_stages_what_it_pads_and_returns_its_activation():
    layer = layers.layer_of(convolution())
    assert layer.reads.channel is not None
    assert layer.blocks.reduction.iters[layer.reads.channel].dom == 16
    assert [layer.blocks.reduction.iters[axis].dom for axis in layer.reads.windows] == [3, 3]
    assert layer.reads.staged == (0,)
    assert len(layer.blocks.sources) == 1
    assert layer.schedule.get(layer.result).name_hint == "compute"


def test_without_a_reduction_or_with_two_there_is_no_tile():
    x = te.placeholder((4, 32), name="x")
    twice = te.create_prim_func([x, topi.nn.softmax(x)])
    assert layers.layer_of(elementwise(4)) is None
    assert layers.layer_of(twice) is None


def test_loops_of_an_open_extent_are_none_for_tiles():
    for size, expected in ((4, 4), (tirx.Var("n", "int64"), None)):
        schedule = s_tir.Schedule(elementwise(size))
        (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
        loop = schedule.get_loops(block)[0]
        if expected is None:
            with pytest.raises(layers.UnsuitedError):
                layers.extent_of(schedule, loop)
        else:
            assert layers.extent_of(schedule, loop) == expected


@pytest.mark.parametrize(("extent", "divisor"), [(8, 4), (6, 3), (2, 2), (7, 1)])
def test_the_first_divisor_counts(extent, divisor):
    assert layers.divisor(extent, layers.CHANNELS) == divisor
