"""Fully connected layers against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cpu_kernels import AARCH64, ARMV7, MIDDLE, NARROW, WIDE, applied, assembly, random, run
from toolchain.backends.cpu.kernels import dense as template
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.dense import Config
from toolchain.backends.cpu.layers import Activation, Dense, PostOp


def check(layer, machine, config):
    """Compare a layer's kernel with numpy in float64."""
    data, bias = random((layer.rows, layer.inputs)), random((layer.outputs,), 2)
    weights = random(layer.weights_shape, 1) / np.float32(np.sqrt(layer.inputs))
    others = [random((layer.rows, layer.outputs), 3 + n) for n, s in enumerate(layer.epilogue) if s.takes_argument]
    inputs = [data, template.pack(layer, machine, config, weights), *([bias] if layer.bias else []), *others]
    actual = run(template.kernel(layer, machine, config), inputs, np.full((layer.rows, layer.outputs), 77, np.float32))
    sums = data.astype(np.float64) @ weights.astype(np.float64).T + (bias if layer.bias else 0)
    np.testing.assert_allclose(actual, applied(sums, layer.epilogue, others), rtol=2e-5, atol=2e-5)


SHAPES = [(1, 64, 10), (1, 37, 128), (1, 1, 1), (1, 300, 1000), (5, 33, 40), (17, 64, 48), (3, 7, 200), (64, 20, 16)]


@pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW], ids=["wide", "middle", "narrow"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_best_config(shape, machine):
    layer = Dense(*shape, bias=True, epilogue=(PostOp("relu"),))
    assert template.covers(layer)
    check(layer, machine, template.configs(layer, machine)[0][0])


@pytest.mark.parametrize(
    ("layer", "config"),
    [
        (Dense(1, 50, 70), Config(1, 1, 8)),
        (Dense(1, 50, 70), Config(1, 4, 4)),
        (Dense(1, 50, 70), Config(1, 8, 1)),
        (Dense(1, 3, 70), Config(1, 2, 2)),
        (Dense(11, 50, 70), Config(4, 3, 1)),
        (Dense(11, 50, 70), Config(11, 2, 1)),
        (Dense(12, 50, 64), Config(1, 4, 1)),
    ],
)
def test_tiles_and_what_is_left(layer, config):
    check(layer, WIDE, config)


@pytest.mark.parametrize("outputs", [32, 45])
def test_steps(outputs):
    epilogue = (PostOp("add"), PostOp("silu"), PostOp("mul"), PostOp("clip", (-1.0, 1.0)))
    check(Dense(3, 20, outputs, bias=True, epilogue=epilogue), WIDE, Config(2, 2, 1))


def test_rows_are_cut_where_there_are_few_groups(monkeypatch):
    monkeypatch.setattr(emit, "_LEAST_SHARED", 0)
    layer = Dense(70, 128, 40)
    config = Config(4, 3, 1)
    for cores in (1, 3, 4):
        check(layer, replace(WIDE, cores=cores), config)


def test_packed_weights_are_read_in_order():
    layer = Dense(1, 2, 40)
    weights = np.arange(80, dtype=np.float32).reshape(40, 2)
    packed = template.pack(layer, WIDE, Config(1, 2, 1), weights)
    assert packed.shape == (2, 2, 2, 16)
    np.testing.assert_array_equal(packed[0, 1, 1], weights[16:32, 1])
    np.testing.assert_array_equal(packed[1, 0, 0], [*weights[32:, 0], *[0] * 8])
    assert not packed[1, :, 1].any()


@pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW])
@pytest.mark.parametrize("shape", [(1, 784, 128), (128, 768, 3072), (4, 9, 10)], ids=str)
def test_configs_fit(machine, shape):
    layer = Dense(*shape)
    candidates = template.configs(layer, machine)
    assert [cost for _, cost in candidates] == sorted(cost for _, cost in candidates)
    assert all(config.rows * config.blocks * config.inputs < machine.registers for config, _ in candidates)
    assert all(config.rows <= layer.rows for config, _ in candidates)


def test_cost_is_near_the_count_of_products():
    layer = Dense(128, 768, 3072)
    cost = template.configs(layer, WIDE)[0][1]
    products = layer.flops / 2 / WIDE.lanes / WIDE.cores
    assert products <= cost < 1.25 * products


def test_small_layers_stay_on_one_thread():
    parallel = "__TVMBackendParallelLaunch"
    small, large = Dense(1, 128, 64), Dense(1, 1024, 1000)
    codes = [
        assembly(template.kernel(layer, WIDE, template.configs(layer, WIDE)[0][0]), AARCH64) for layer in (small, large)
    ]
    assert [parallel in code for code in codes] == [False, True]


@pytest.mark.parametrize(
    ("shape", "fetches"),
    [
        *(((20, 1024, 4096), True), ((4, 1024, 4096), True), ((1, 1024, 4096), False)),
        *(((512, 1024, 4096), False), ((20, 128, 256), False)),
    ],
    ids=["several tiles", "one tile", "one row", "many rows", "weights that a cache holds"],
)
def test_weights_that_come_next_are_fetched(shape, fetches):
    layer = Dense(*shape)
    code = assembly(template.kernel(layer, WIDE, template.configs(layer, WIDE)[0][0]), AARCH64)
    assert ("prfm\tpldl2keep" in code) == fetches


@pytest.mark.parametrize("config", [Config(14, 2, 1), Config(5, 4, 1), Config(7, 1, 1)], ids=str)
def test_result_while_weights_are_fetched(config):
    layer = Dense(14, 200, 1500, bias=True)
    check(layer, replace(WIDE, l2_bytes=256 * 1024), config)


def test_not_covered():
    assert not template.covers(Dense(1, 8, 8, epilogue=(PostOp("scale"),)))
    activation = Activation(1, 8, 1, 1, 4)
    assert not template.covers(Dense(1, 8, 8, epilogue=(PostOp("add", other=activation),)))


@pytest.mark.parametrize(("target", "product"), [(AARCH64, "\tfmla\tv"), (ARMV7, "\tvmul.f32\tq")])
@pytest.mark.parametrize("rows", [1, 20])
def test_vector_code_for_other_machines(rows, target, product):
    machine = replace(NARROW, registers=16 if target is ARMV7 else 32)
    layer = Dense(rows, 100, 64, bias=True)
    config = template.configs(layer, machine)[0][0]
    code = assembly(template.kernel(layer, machine, config), target)
    assert code.count(product) >= config.rows * config.blocks * config.inputs
