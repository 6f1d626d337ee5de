from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.vta_layers import RESNET, task
from toolchain.backends.vta.codegen.estimates import cycles
from toolchain.backends.vta.codegen.layers import Conv2d, Pool
from toolchain.backends.vta.codegen.tilings import Choice, Tiling
from toolchain.backends.vta.isa.config import VtaConfig

LAYER = Conv2d(1, 14, 14, 256, 256, (3, 3), padding=(1, 1, 1, 1), shift=8)
CHOICE = Choice(1, 14, 14, 2, 4, 2, 2)


def estimate(layer=LAYER, choice=CHOICE) -> float:
    return cycles(Tiling(layer, choice))


@pytest.mark.parametrize(("shape", "choice"), [(RESNET[6][0], CHOICE), (RESNET[0][0], Choice(1, 8, 28, 1, 4, 2, 2))])
def test_no_faster_than_the_array(shape, choice):
    layer = task(*shape)
    ideal = layer.macs() / 256
    assert ideal < estimate(layer, choice) < 1.25 * ideal


@pytest.mark.parametrize("config", [VtaConfig(log_batch=2), VtaConfig(log_block=5)])
def test_larger_arrays_are_faster_as_far_as_their_bus_goes(config):
    layer = replace(LAYER, batch=config.batch)
    choice = Choice(1, 7, 14, 1, 2, 2, 2)
    ideal = layer.macs(config) / (config.batch * config.block**2)
    assert ideal < cycles(Tiling(layer, choice, config)) < 2 * ideal


@pytest.mark.parametrize("slots", [(1, 1), (1, 2), (2, 1)])
def test_two_slots_are_faster(slots):
    oc_threads, h_threads = slots
    assert estimate() < estimate(choice=replace(CHOICE, oc_threads=oc_threads, h_threads=h_threads))


def test_tiny_tiles_are_slower():
    assert estimate() < estimate(choice=Choice(1, 1, 1, 1, 1, 2, 2)) / 2


@pytest.mark.parametrize(
    "change",
    [
        {"residual_shift": 3},
        {"shift": 16},
        {"low": 0, "shift": 0},
        {"kernel": (5, 5), "padding": (2,) * 4},
        {"pad": -128},  # rows by themselves
    ],
)
def test_more_work_takes_longer(change):
    plain = replace(LAYER, bias=False, shift=0 if "low" in change else 8)
    other = replace(plain, **change)
    assert estimate(other) >= estimate(plain)


def test_the_alu_takes_two_cycles_for_an_element():
    added = estimate(replace(LAYER, shift=16)) - estimate(replace(LAYER, shift=15))
    assert 2 <= added / (14 * 14 * 16) < 2.1


def test_biases_that_are_loaded_for_each_tile():
    once, each = (replace(CHOICE, tile_co=blocks) for blocks in (LAYER.out_channels // 16, 1))
    added = [estimate(choice=one) - estimate(replace(LAYER, bias=False), one) for one in (once, each)]
    assert added[0] < added[1]


def test_what_follows_maxima_is_done_to_few():
    pooled = replace(LAYER, padding=(2, 2, 1, 1), pool=Pool((3, 3), (2, 2), (1, 1, 0, 0)))
    few = Choice(1, 7, 7, 2, 4, 2, 2)
    added = estimate(replace(pooled, shift=16), few) - estimate(replace(pooled, shift=15), few)
    assert 2 <= added / (7 * 7 * 16) < 2.3
    wide = replace(pooled, pool=Pool((3, 5), (2, 2), (1, 1, 0, 0)), width=16)
    assert wide.out_width == pooled.out_width
    assert estimate(wide, few) > estimate(pooled, few)


def test_a_residual_that_needs_a_shift_of_its_own():
    assert estimate(replace(LAYER, residual_shift=7)) > estimate(replace(LAYER, residual_shift=6)) > estimate()
