"""Fully connected layers with zero blocks of weights, against numpy."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.support.cpu_kernels import AARCH64, ARMV7, MIDDLE, NARROW, WIDE, applied, assembly, random, run
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.kernels.sparse import dense as template
from toolchain.backends.cpu.kernels.sparse.dense import Config
from toolchain.backends.cpu.kernels.sparse.weights import count_vectors, example
from toolchain.backends.cpu.layers import Dense, PostOp, from_json, task_of, to_json
from toolchain.backends.cpu.machine import machine as machine_of
from toolchain.errors import BuildError


def sparse(rows, inputs, outputs, machine, share=0.2, **more):
    """Return a layer with this share of its vectors of weights; the others are zero."""
    vectors = int(-(-outputs // machine.lanes) * inputs * share)
    return Dense(rows, inputs, outputs, vectors=max(1, vectors), **more)


def check(layer, machine, config):
    """Compare a layer's kernel with numpy in float64."""
    data, bias = random((layer.rows, layer.inputs)), random((layer.outputs,), 2)
    weights = random(layer.weights_shape, 1) * (example(layer, machine.lanes) != 0)
    others = [random((layer.rows, layer.outputs), 3 + n) for n, s in enumerate(layer.epilogue) if s.takes_argument]
    inputs = [data, template.pack(layer, machine, config, weights), *([bias] if layer.bias else []), *others]
    actual = run(template.kernel(layer, machine, config), inputs, np.full((layer.rows, layer.outputs), 77, np.float32))
    sums = data.astype(np.float64) @ weights.astype(np.float64).T + (bias if layer.bias else 0)
    np.testing.assert_allclose(actual, applied(sums, layer.epilogue, others), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW], ids=["wide", "middle", "narrow"])
@pytest.mark.parametrize(
    "shape", [(1, 64, 10), (1, 300, 1000), (5, 33, 40), (17, 64, 48), (3, 7, 200), (64, 20, 16), (3, 5, 16)]
)
def test_best_config(shape, machine):
    layer = sparse(*shape, machine, bias=True, epilogue=(PostOp("relu"),))
    assert template.covers(layer)
    check(layer, machine, template.configs(layer, machine)[0][0])


@pytest.mark.parametrize("config", [Config(1, 7, 3, 1), Config(4, 2, 1, 4), Config(11, 1, 1, 1)])
def test_result_however_it_is_cut(config):
    epilogue = (PostOp("add"), PostOp("silu"), PostOp("mul"), PostOp("clip", (-1.0, 1.0)))
    check(sparse(11, 50, 70, MIDDLE, bias=True, epilogue=epilogue), MIDDLE, config)


def test_dense_weights_need_another_template():
    assert not template.covers(Dense(3, 64, 64))
    assert count_vectors(random((64, 32)), 8) == 0


@pytest.mark.parametrize(("rows", "share", "name"), [(1, 0.2, "sparse_dense"), (128, 0.2, "sparse_dense")])
def test_it_is_chosen_where_most_vectors_are_zero(rows, share, name):
    assert kernels.default(sparse(rows, 768, 768, MIDDLE, share), MIDDLE).template == name


def test_few_zero_blocks_are_not_left_out():
    weights = np.ones((16, 10), np.float32)
    weights[:8, :4] = 0
    assert count_vectors(weights, 8) == 0
    weights[:8, :7] = 0
    assert count_vectors(weights, 8) == 13


def test_zeros_that_fill_no_block_are_kept():
    weights = np.zeros((16, 10), np.float32)
    weights[::8] = 1
    assert count_vectors(weights, 8) == 0


def test_weights_without_full_precision_are_zero():
    weights = np.full((8, 10), 1e-40, np.float32)
    weights[2, 3] = 1
    assert count_vectors(weights, 8) == 1


def test_a_task_names_the_vectors_and_only_where_there_are_some():
    layer = sparse(3, 64, 64, MIDDLE, epilogue=(PostOp("relu"),))
    assert from_json(to_json(layer)) == layer
    assert task_of(layer).vectors == layer.vectors
    assert "vectors" not in to_json(Dense(3, 64, 64))


def test_other_weights_than_those_that_were_counted_are_refused():
    layer = sparse(3, 64, 64, MIDDLE)
    with pytest.raises(BuildError, match="changed after its zero blocks were counted"):
        template.pack(layer, MIDDLE, Config(1, 1, 1, 1), random((64, 64)))


@pytest.mark.parametrize(
    ("target", "multiply"),
    [(AARCH64, r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[\d\]"), (ARMV7, r"vmla\.f32\s+q\d+, q\d+, d\d+\[\d\]")],
    ids=["aarch64", "armv7"],
)
def test_arm_multiplies_by_elements_of_a_vector(target, multiply):
    machine = machine_of(target)
    layer = sparse(16, 256, 256, machine)
    config = template.configs(layer, machine)[0][0]
    assert len(re.findall(multiply, assembly(template.kernel(layer, machine, config), target))) >= config.pixels
