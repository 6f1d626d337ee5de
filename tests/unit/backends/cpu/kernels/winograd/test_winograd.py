"""The Winograd template: every kernel gives what ONNX Runtime gives, and its choice of settings is the measured one."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.support import cpu_kernels as kernels
from tests.support.cpu_kernels import AARCH64, ARMV7, MIDDLE, NARROW, WIDE
from toolchain.backends.cpu.kernels import direct as conv
from toolchain.backends.cpu.kernels import winograd
from toolchain.backends.cpu.kernels.winograd import Config, algebra
from toolchain.backends.cpu.kernels.winograd.plan import WinogradPlan
from toolchain.backends.cpu.layers import Conv, Pool, PostOp
from toolchain.backends.cpu.machine import Machine

SAME, VALID = (1, 1, 1, 1), (0, 0, 0, 0)


def layer_of(data, channels, lanes=16, padding=SAME, **options) -> Conv:
    return kernels.layer_of(data, channels, (3, 3), lanes, padding=padding, **options)


def best(layer, machine, tile, fused) -> Config:
    candidates = (config for config, _ in winograd.configs(layer, machine) if config.tile == tile)
    return replace(next(candidates), fused=fused)


def check(layer, machine, config) -> None:
    kernels.check(winograd, layer, machine, config)


# --- what it covers --------------------------------------------------------------------------------------------

PLAIN = layer_of((1, 16, 8, 8), 32)


@pytest.mark.parametrize(
    ("layer", "covered"),
    [
        (PLAIN, True),
        (layer_of((1, 16, 8, 8), 32, padding=VALID), True),
        (layer_of((1, 16, 8, 8), 32, padding=(0, 1, 1, 0)), True),
        (layer_of((1, 20, 8, 8), 30, 8, epilogue=(PostOp("relu"),)), True),
        (layer_of((1, 16, 8, 8), 32, padding=(2, 2, 2, 2)), False),
        (layer_of((1, 16, 8, 8), 32, strides=(2, 2)), False),
        (layer_of((1, 16, 8, 8), 32, dilation=(2, 2)), False),
        (layer_of((1, 32, 8, 8), 32, groups=2), False),
        (layer_of((1, 3, 8, 8), 32, plain=True), False),
        (kernels.layer_of((1, 16, 8, 8), 32, (1, 1), 16), False),
        (kernels.layer_of((1, 16, 8, 8), 32, (3, 1), 16), False),
        (replace(PLAIN, data=replace(PLAIN.data, dtype="float16")), False),
        (Pool(PLAIN.data, PLAIN.data, "max", (3, 3), padding=SAME), False),
    ],
)
def test_covers(layer, covered):
    assert winograd.covers(layer) == covered


# --- results ---------------------------------------------------------------------------------------------------

SIZES = [(1, 1), (1, 5), (2, 3), (3, 2), (5, 7), (7, 7), (13, 14), (14, 13), (17, 35), (35, 17), (55, 3)]


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("size", SIZES)
def test_sizes(size, tile):
    layer = layer_of((1, 16, *size), 16)
    check(layer, WIDE, best(layer, WIDE, tile, fused=SIZES.index(size) % 2))


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("padding", [VALID, (1, 0, 0, 1), (0, 1, 1, 0), (0, 0, 1, 1)])
def test_padding(padding, tile):
    layer = layer_of((1, 16, 9, 14), 16, padding=padding)
    check(layer, WIDE, best(layer, WIDE, tile, fused=1))


@pytest.mark.parametrize("channels", [(3, 5), (17, 33), (40, 24)])
@pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW], ids=lambda machine: str(machine.lanes))
def test_channels_and_lanes(machine, channels):
    layer = layer_of((1, channels[0], 7, 10), channels[1], machine.lanes)
    check(layer, machine, best(layer, machine, 4, fused=1))


@pytest.mark.parametrize(
    "config",
    [
        Config(4, 3, 1, 1, 1),
        Config(4, 3, 1, 1, 0),
        Config(4, 2, 3, 2, 1),
        Config(4, 4, 2, 3, 0),
        Config(2, 5, 4, 2, 0),
        Config(2, 7, 1, 6, 1),
        Config(4, 9, 2, 6, 0),  # all in one step each: one scope
    ],
)
def test_settings(config):
    layer = layer_of((1, 20, 11, 17), 96)
    check(layer, WIDE, config)


@pytest.mark.parametrize("config", [Config(4, 2, 3, 3, 0), Config(2, 3, 1, 2, 1)])
def test_settings_of_machines_that_multiply_by_an_element(config):
    layer = layer_of((1, 10, 11, 17), 24, 4)
    check(layer, NARROW, config)


def test_images_share_chunks():
    layer = layer_of((3, 16, 6, 5), 16)  # 4 tiles each, 3 at once
    check(layer, WIDE, Config(4, 3, 1, 1, 1))
    check(layer, WIDE, Config(4, 3, 1, 1, 0))


@pytest.mark.parametrize("cores", [1, 3, 4])
def test_cores(cores):
    machine = replace(WIDE, cores=cores)
    layer = layer_of((1, 64, 20, 20), 64)
    check(layer, machine, best(layer, machine, 4, fused=cores % 2))


@pytest.mark.parametrize("tile", [2, 4])
def test_parts_and_steps(tile):
    layer = layer_of(
        (2, 20, 9, 6), 40, epilogue=(PostOp("scale"), PostOp("shift"), PostOp("add"), PostOp("leaky_relu", (0.1,)))
    )
    data, out = replace(layer.data, first=1, held=4), replace(layer.out, first=2, held=6)
    other = replace(layer.out, first=1, held=5)
    epilogue = tuple(replace(op, other=other) if op.other else op for op in layer.epilogue)
    check(replace(layer, data=data, out=out, epilogue=epilogue), WIDE, Config(tile, 3, 2, 3, 1))


@pytest.mark.parametrize(
    "epilogue", [(), (PostOp("relu"),), (PostOp("clip", (0.0, 6.0)),), (PostOp("silu"), PostOp("mul"))]
)
def test_steps_without_bias(epilogue):
    layer = layer_of((1, 16, 6, 7), 20, bias=False, epilogue=epilogue)
    check(layer, WIDE, Config(4, 2, 1, 2, 1))


# --- errors ----------------------------------------------------------------------------------------------------


def exact(data, weights):
    """Return the convolution with a border of zeros, in double precision."""
    padded = np.pad(data.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nihwyx,oiyx->nohw", windows, weights.astype(np.float64), optimize=True)


def error(template, layer, config) -> float:
    """Return the largest error against double precision, as a share of the largest result."""
    inputs = kernels.inputs_of(layer)
    arguments = kernels.arguments(template, layer, WIDE, config, inputs)
    result = kernels.run(template.kernel(layer, WIDE, config), arguments, np.zeros(layer.out.shape, np.float32))
    expected = exact(inputs.data, inputs.weights)
    return float(abs(kernels.unblocked(result, layer.out) - expected).max() / abs(expected).max())


@pytest.mark.parametrize("channels", [64, 512])
@pytest.mark.parametrize("tile", [2, 4])
def test_error_is_what_is_told(tile, channels):
    layer = layer_of((1, channels, 12, 12), 16, bias=False)
    assert error(winograd, layer, best(layer, WIDE, tile, fused=1)) < algebra.ERRORS[tile] / 2


def test_error_is_little_more_than_that_of_direct_convolution():
    layer = layer_of((1, 256, 12, 12), 16, bias=False)
    direct = error(conv, layer, conv.configs(layer, WIDE)[0][0])
    assert error(winograd, layer, best(layer, WIDE, 4, fused=1)) < 3 * direct


def test_weights_are_transformed_in_double_precision():
    weights = kernels.random((16, 16, 3, 3))
    for tile in (2, 4):
        layer = layer_of((1, 16, 8, 8), 16)
        packed = winograd.pack(layer, WIDE, Config(tile, 4, 1, 1, 1), weights)
        exact = algebra.filters(weights, tile).transpose(0, 2, 1)
        assert packed.dtype == np.float32
        assert exact.dtype == np.float64
        np.testing.assert_array_equal(packed[0, :, :, 0], exact.astype(np.float32))


def test_weights_of_channels_that_do_not_exist_are_zero():
    layer = layer_of((1, 6, 8, 8), 5, 4)
    packed = winograd.pack(layer, NARROW, Config(4, 2, 1, 2, 1), np.ones(layer.weights_shape, np.float32))
    assert packed.shape == WinogradPlan(layer, 4, Config(4, 2, 1, 2, 1)).packed == (1, 36, 8, 2, 4)
    assert packed[:, 0, :6, 0].all()
    assert not packed[:, :, 6:].any()
    assert not packed[:, :, :, 1, 1:].any()


# --- settings --------------------------------------------------------------------------------------------------

LAYERS = [(64, 64, 56), (128, 128, 28), (96, 208, 14), (512, 512, 7), (3, 5, 1), (16, 48, 110)]


@pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW, Machine(4, 16, cores=2)], ids=str)
@pytest.mark.parametrize(("inputs", "outputs", "size"), LAYERS)
def test_candidates(inputs, outputs, size, machine):
    layer = layer_of((1, inputs, size, size), outputs, machine.lanes)
    candidates = winograd.configs(layer, machine)
    costs = [cost for _, cost in candidates]
    assert costs == sorted(costs)
    assert len({config for config, _ in candidates}) == len(candidates) >= 2
    assert {config.tile for config, _ in candidates} == {2, 4}
    for config, _ in candidates:
        assert layer.out.blocks % config.blocks == 0
        assert config.tiles * config.blocks + config.blocks < machine.registers


ZEN = Machine(16, 32, cores=1, l2_bytes=1024**2)


@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "padding", "tile", "milliseconds"),
    [
        (64, 64, 56, SAME, 4, 0.302),
        (128, 128, 28, SAME, 4, 0.273),
        (256, 256, 14, SAME, 4, 0.339),
        (512, 512, 7, SAME, 2, 0.565),
        (160, 320, 14, SAME, 4, 0.276),
        (160, 320, 7, SAME, 2, 0.115),
        (16, 64, 55, SAME, 4, 0.102),
        (64, 256, 13, SAME, 4, 0.096),
        (96, 96, 35, SAME, 4, 0.264),
        (128, 32, 28, SAME, 4, 0.075),
        (128, 32, 7, SAME, 2, 0.011),
    ],
)
def test_cost_is_near_what_was_measured(inputs, outputs, size, padding, tile, milliseconds):
    """On one core of 8e9 multiply-adds of 16 lanes a second, with weights from memory."""
    layer = layer_of((1, inputs, size, size), outputs, padding=padding)
    config, cost = winograd.configs(layer, ZEN)[0]
    assert config.tile == tile
    assert cost / 8e6 == pytest.approx(milliseconds, rel=0.2)
    assert cost < conv.configs(layer, ZEN)[0][1]


def test_memory_of_the_first_arrangement_is_bounded():
    layer = layer_of((1, 64, 224, 224), 64)
    assert all(config.fused for config, _ in winograd.configs(layer, WIDE) if config.tile == 4)


# --- other machines --------------------------------------------------------------------------------------------


def busiest_loop(assembly: str, product: str) -> list[str]:
    """Return the instructions of the straight piece of code with the most products."""
    pieces = re.split(r"^\S*:.*$", assembly, flags=re.MULTILINE)
    lines = [[line.strip() for line in piece.splitlines()] for piece in pieces]
    return max(lines, key=lambda piece: sum(line.startswith(product) for line in piece))


def test_code_for_aarch64():
    layer = layer_of((1, 64, 28, 28), 64, 4)
    machine = Machine(4, 32, cores=4)
    config = winograd.configs(layer, machine)[0][0]
    loop = busiest_loop(kernels.assembly(winograd.kernel(layer, machine, config), AARCH64), "fmla")
    products = [line for line in loop if line.startswith("fmla")]
    assert len(products) == 4 * config.tiles * config.blocks
    assert all(re.search(r"\.s\[[0-3]\]$", line) for line in products)
    assert not [line for line in loop if "[sp" in line]
    assert any(line.startswith("prfm") for line in loop)


def test_code_for_armv7():
    layer = layer_of((1, 64, 28, 28), 64, 4)
    machine = Machine(4, 16, cores=2)
    config = winograd.configs(layer, machine)[0][0]
    loop = busiest_loop(kernels.assembly(winograd.kernel(layer, machine, config), ARMV7), "vmul.f32")
    assert sum(line.startswith("vmul.f32") for line in loop) >= 4 * config.tiles * config.blocks
