"""Winograd's kernels with weights in their own size give what ONNX Runtime gives, and are used only to save memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import cpu_kernels
from tests.support.cpu_kernels import MIDDLE, NARROW, WIDE
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.kernels.winograd import Config, compact
from toolchain.backends.cpu.layers import PostOp

DEEP = cpu_kernels.layer_of((1, 512, 28, 28), 512, (3, 3), 16, padding=(1, 1, 1, 1))


def layer_of(data, channels, lanes=16, **options):
    return cpu_kernels.layer_of(data, channels, (3, 3), lanes, padding=(1, 1, 1, 1), **options)


@pytest.mark.parametrize("fused", [0, 1])
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW], ids=lambda machine: str(machine.lanes))
def test_machines_and_tiles(machine, tile, fused):
    layer = layer_of((1, 17, 7, 10), 33, machine.lanes)
    config = next(config for config, _ in compact.configs(layer, machine) if config.tile == tile)
    cpu_kernels.check(compact, layer, machine, replace(config, fused=fused))


@pytest.mark.parametrize("config", [Config(4, 2, 3, 2, 1), Config(4, 4, 2, 3, 0), Config(2, 5, 4, 2, 0)])
def test_settings_and_steps(config):
    layer = layer_of((2, 20, 11, 17), 96, epilogue=(PostOp("add"), PostOp("relu")))
    cpu_kernels.check(compact, layer, WIDE, config)


def test_weights_have_their_own_size():
    config = compact.configs(DEEP, WIDE)[0][0]
    weights = cpu_kernels.random((512, 512, 3, 3))
    assert compact.pack(DEEP, WIDE, config, weights).size == weights.size


def templates_of(*without: str) -> set[str]:
    ranked = kernels.candidates(DEEP, WIDE, without=frozenset(without))
    return {candidate.choice.template for candidate in ranked}


def test_it_is_used_where_larger_weights_are_left_out():
    assert compact.NAME not in templates_of()
    assert kernels.default(DEEP, WIDE, without=frozenset({kernels.LARGER_WEIGHTS})).template == compact.NAME
    assert not templates_of("winograd", kernels.LARGER_WEIGHTS) & {"winograd", compact.NAME}
    assert not templates_of(kernels.LARGER_WEIGHTS) & {"winograd"}


def test_small_pictures_are_computed_directly():
    """The transform of the weights takes longer than it saves."""
    small = layer_of((1, 512, 7, 7), 512)
    assert kernels.default(small, WIDE, without=frozenset({kernels.LARGER_WEIGHTS})).template == "direct"
