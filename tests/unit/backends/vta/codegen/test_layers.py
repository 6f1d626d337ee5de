"""The one layer of VTA: its shapes, its name in tuning records, and the layers that are tuned as one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolchain.backends.vta.codegen.layers import Conv2d, Pool, is_layer
from toolchain.backends.vta.isa.config import VtaConfig

LAYER = Conv2d(2, 9, 7, 32, 48, (3, 2), (2, 1), (1, 0, 1, 1), shift=9, low=0, high=100, residual_shift=3)
COUNTS = st.integers(1, 64)
LAYERS = st.builds(
    Conv2d, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS,
    kernel=st.tuples(COUNTS, COUNTS), stride=st.tuples(COUNTS, COUNTS), padding=st.tuples(*[st.integers(0, 15)] * 4),
    shift=st.integers(0, 31), low=st.integers(-128, 0), high=st.integers(1, 127), bias=st.booleans(),
    residual_shift=st.none() | st.integers(0, 15), channel_shifts=st.booleans(), pad=st.integers(-128, 127),
    pool=st.none() | st.builds(
        Pool, st.tuples(COUNTS, COUNTS), st.tuples(COUNTS, COUNTS), st.tuples(*[st.integers(0, 15)] * 4)
    ),
)  # fmt: skip


def test_the_arguments_of_a_kernel():
    assert (LAYER.out_height, LAYER.out_width) == (5, 7)
    out = ((2, 3, 5, 7, 1, 16), "int8")
    assert LAYER.arguments() == (
        ((2, 2, 9, 7, 1, 16), "int8"),
        ((3, 2, 3, 2, 16, 16), "int8"),
        ((3, 1, 16), "int32"),
        out,
        ((16, 16), "int8"),
        out,
    )
    bare = replace(LAYER, bias=False, residual_shift=None)
    assert [shape for shape, _ in bare.arguments()] == [(2, 2, 9, 7, 1, 16), (3, 2, 3, 2, 16, 16), out[0]]


def test_channels_that_are_shifted_by_themselves_have_a_tensor_that_says_by_how_much():
    shifted = replace(LAYER, channel_shifts=True)
    assert shifted.arguments()[2:4] == (((3, 1, 16), "int32"),) * 2
    assert "channel_shifts" not in LAYER.to_json()


def test_padding_with_another_byte_comes_from_a_tensor():
    filled = replace(LAYER, pad=-128)
    assert filled.arguments()[-2:] == (((64, 1, 16), "int8"), LAYER.arguments()[-1])
    assert replace(filled, padding=(0, 0, 0, 0)).arguments()[-2][0] == (16, 16), "nothing is padded"
    assert 'pad"' not in LAYER.to_json()


def test_blocks_are_the_configurations():
    small = VtaConfig(log_block=3)
    assert LAYER.arguments(small)[0] == ((2, 4, 9, 7, 1, 8), "int8")


def test_rows_are_the_configurations():
    """Five images fill an array of four rows twice, the second time with three rows that have none."""
    wide = VtaConfig(log_batch=2, log_block=4)
    layer = replace(LAYER, batch=5, channel_shifts=True)
    out = ((2, 3, 5, 7, 4, 16), "int8")
    assert [shape for shape, _ in layer.arguments(wide)] == [
        (2, 2, 9, 7, 4, 16), (3, 2, 3, 2, 16, 16), (3, 4, 16), (3, 4, 16), out[0], (16, 16), out[0],
    ]  # fmt: skip
    assert [replace(LAYER, batch=images).batches(wide) for images in (1, 3, 4, 5, 8)] == [1, 1, 1, 2, 2]
    assert layer.macs(wide) == layer.macs() == 5 * replace(LAYER, batch=1).macs(wide)


def test_a_block_that_stands_alone_is_as_wide_as_the_array():
    layer = Conv2d(1, 4, 4, 32, 32, (3, 3), alone=True)
    wide = VtaConfig(log_block=5)
    assert (layer.summed_channels(), layer.summed_channels(wide)) == (16, 32)
    assert layer.macs(wide) == 2 * layer.macs()


def test_multiply_adds():
    assert LAYER.macs() == 2 * 5 * 7 * 48 * 32 * 3 * 2


def test_maxima():
    layer = Conv2d(1, 8, 9, 16, 32, (3, 3), padding=(2, 2, 1, 1), pool=Pool((3, 2), (2, 3), (1, 1, 0, 0)))
    assert (layer.out_height, layer.out_width) == (4, 3)
    assert (layer.sum_height, layer.sum_width, layer.sums_of(2, 0)) == (9, 8, 5)
    assert layer.macs() == 9 * 8 * 32 * 16 * 9
    assert layer.arguments()[-1] == ((1, 2, 4, 3, 1, 16), "int8")
    assert "pool" not in LAYER.to_json()


@given(LAYERS)
def test_a_name_says_all_of_a_layer(layer):
    text = layer.to_json()
    assert Conv2d.from_json(text) == layer
    assert is_layer(text)
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "fault"),
    [('{"kind":"conv","batch":1}', ValueError), ("{}", ValueError), ("no JSON", ValueError)],
)
def test_names_of_other_layers(text, fault):
    assert not is_layer(text)
    with pytest.raises(fault):
        Conv2d.from_json(text)


def test_a_name_with_another_attribute():
    other = json.dumps({**json.loads(LAYER.to_json()), "groups": 2})
    with pytest.raises(TypeError, match="groups"):
        Conv2d.from_json(other)


@given(LAYERS)
def test_a_task_is_its_own_task(layer):
    task = layer.task()
    assert task.task() == task
    assert task.macs() == layer.macs()


@pytest.mark.parametrize(
    "change",
    [{"shift": 1}, {"shift": 15}, {"high": 60}, {"low": 5}, {"residual_shift": None}, {"residual_shift": 15}],
    ids=str,
)
def test_other_constants_are_the_same_task(change):
    assert replace(LAYER, **change).task() == LAYER.task()


def test_every_byte_of_padding_is_the_same_task():
    assert replace(LAYER, pad=-128).task() == replace(LAYER, pad=5).task() != LAYER.task()
    assert replace(LAYER, pad=5, padding=(0, 0, 0, 0)).task() == replace(LAYER, padding=(0, 0, 0, 0)).task()


@pytest.mark.parametrize(
    "change",
    [{"shift": 0}, {"shift": 16}, {"low": -128}, {"bias": False}, {"stride": (1, 1)}, {"height": 8}, {"pad": 3}],
    ids=str,
)
def test_other_instructions_are_another_task(change):
    assert replace(LAYER, **change).task() != LAYER.task()
