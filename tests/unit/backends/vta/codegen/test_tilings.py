from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.vta_layers import RESNET, task
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.codegen.tilings import Choice, Tiling, divides, tilings
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import Memory

LAYER = Conv2d(2, 12, 8, 64, 96, (3, 3), padding=(1, 1, 1, 1), bias=True)
STRIDED = Conv2d(1, 12, 8, 64, 96, (1, 1), stride=(2, 2))


def test_a_record_of_it():
    choice = Choice(1, 2, 3, 4, 5, 2, 1)
    assert Choice.of(choice.document()) == choice


@pytest.mark.parametrize(
    "change",
    [{"tile_h": 0}, {"tile_h": "2"}, {"tile_h": 2.0}, {"tile_h": True}, {"oc_threads": 3}, {"other": 1}],
)
def test_no_record_of_it(change):
    assert Choice.of(Choice().document() | change) is None
    assert Choice.of({}) is None


def test_sizes():
    tiling = Tiling(LAYER, Choice(2, 4, 2, 2, 3))
    assert (tiling.pixels, tiling.channels, tiling.reductions) == (3 * 4, 2, 2)
    assert (tiling.out, tiling.window, tiling.weights) == (2 * 3 * 4 * 2, 2 * 2 * 6 * 4, 3 * 2 * 9)


def test_sizes_on_another_array():
    wide = VtaConfig(log_batch=1, log_block=5)
    tiling = Tiling(LAYER, Choice(1, 4, 2, 1, 3), wide)
    assert (tiling.pixels, tiling.channels, tiling.reductions) == (3 * 4, 1, 2)
    assert (tiling.out, tiling.window, tiling.weights) == (3 * 4 * 2, 6 * 4, 3 * 9)
    assert divides(LAYER, tiling.choice, wide)
    assert not divides(LAYER, Choice(2, 4, 2, 1, 3), wide)


def test_rows_that_no_output_needs_are_left_out():
    assert Tiling(STRIDED, Choice(tile_h=3, tile_w=2)).window == 3 * 3
    assert Tiling(replace(STRIDED, kernel=(3, 3), padding=(1, 1, 1, 1)), Choice(tile_h=3, tile_w=2)).window == 7 * 5


@pytest.mark.parametrize(
    ("choice", "loads"),
    [
        (Choice(2, 12, 8, 4, 6), (1, 1)),
        (Choice(1, 12, 8, 4, 6), (2, 1)),
        (Choice(2, 12, 8, 4, 3), (1, 2)),
        (Choice(2, 12, 8, 2, 6), (2, 2)),
        (Choice(2, 12, 8, 2, 3), (4, 4)),
        (Choice(2, 12, 8, 2, 3, 2, 2), (2, 4)),
        (Choice(1, 3, 4, 4, 2, 2, 2), (16 * 3, 3)),
        (Choice(1, 1, 1, 4, 2, 2, 2), (192 * 3, 3)),
        (Choice(1, 3, 4, 1, 2, 2, 2), (16 * 3 * 4, 16 * 3 * 4)),
    ],
)
def test_how_often_tiles_are_loaded(choice, loads):
    assert Tiling(LAYER, choice).loads() == loads


def test_the_larger_tensor_stays():
    layer = Conv2d(1, 32, 32, 16, 64)
    assert Tiling(layer, Choice(tile_h=16, tile_w=32)).loads() == (2, 2 * 4)
    assert Tiling(layer, Choice(tile_h=1, tile_w=1)).loads() == (1024 * 4, 4)


def test_no_more_slots_than_tiles():
    slots = Tiling(LAYER, Choice(2, 12, 8, 4, 3, 2, 2)).slots_used
    assert slots == {Memory.INP: 1, Memory.WGT: 2, Memory.ACC: 2}


@pytest.mark.parametrize("memory", ["inp", "wgt", "acc"])
def test_each_memory_may_be_too_small(memory):
    tiling = Tiling(replace(LAYER, residual_shift=3), Choice(1, 6, 4, 2, 2, 2, 2))
    sizes = {"inp": 2 * (2 * 8 * 6 + 1) + 2 * 48, "wgt": 2 * 36 + 1, "acc": 2 * 48 + 2}
    assert tiling.fits
    field = f"log_{memory}_buff_size"
    below = (sizes[memory] * DEFAULT.element_bytes(Memory[memory.upper()])).bit_length()
    assert replace(tiling, config=VtaConfig(**{field: below})).fits
    assert not replace(tiling, config=VtaConfig(**{field: below - 1})).fits


def test_the_weights_of_a_residual_take_room():
    layer, config = Conv2d(1, 4, 4, 64, 64), VtaConfig(log_wgt_buff_size=12)
    assert Tiling(layer, Choice(tile_ci=4, tile_co=4), config).fits
    assert not Tiling(replace(layer, residual_shift=0), Choice(tile_ci=4, tile_co=4), config).fits


def test_one_sum_takes_the_room_of_four():
    layer, config = Conv2d(1, 4, 4, 16, 16, bias=False), VtaConfig(log_acc_buff_size=9)
    choice = Choice(h_threads=2)
    assert Tiling(layer, choice, config).fits
    assert not Tiling(replace(layer, bias=True), choice, config).fits


def test_padding_that_no_load_makes():
    layer = Conv2d(1, 20, 20, 16, 16, (17, 17), padding=(15, 15, 15, 15))
    assert Tiling(layer, Choice()).fits
    assert not Tiling(replace(layer, padding=(16, 15, 15, 15)), Choice()).fits


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
def test_all_tilings(height, width, inputs, outputs):
    layer = Conv2d(1, height, width, 16 * inputs, 16 * outputs)
    choices = [tiling.choice for tiling in tilings(layer)]
    assert Choice() in choices
    assert len(choices) == len(set(choices))
    for choice in choices:
        assert divides(layer, choice)
        assert choice.oc_threads <= 2 >= choice.h_threads
    assert not divides(layer, Choice(tile_h=height + 1))


@pytest.mark.parametrize("shape", [shape for shape, _ in RESNET])
def test_there_are_fitting_ones(shape):
    assert sum(tiling.fits for tiling in tilings(task(*shape))) > 48
