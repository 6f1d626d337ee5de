"""Kernels for every size of a dimension, at sizes below, at and between multiples of vectors and tiles."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.cpu_kernels import MIDDLE, NARROW, WIDE, random, run
from tests.unit.backends.cpu.kernels.test_attention import layer as attention
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.kernels import Choice
from toolchain.backends.cpu.kernels import open as open_kernels
from toolchain.backends.cpu.kernels.attention import Config as AttentionConfig
from toolchain.backends.cpu.kernels.dense import Config
from toolchain.backends.cpu.layers import Dense, PostOp
from toolchain.backends.graph.unify import DifferentError

SIZES = (70, 69, 67, 66)
CHECKED = (1, 2, 3, 7, 16, 17, 64, 69)

each_machine = pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW], ids=["wide", "middle", "narrow"])


@each_machine
@pytest.mark.parametrize("rows", [1, 3, 6, 8])
def test_dense_on_any_number_of_rows(rows, machine):
    inputs, outputs = 24, 2 * machine.lanes + 3
    layers = [Dense(2 * size + 1, inputs, outputs, bias=True, epilogue=(PostOp("relu"),)) for size in SIZES]
    chosen = Choice("dense", Config(rows, 1, 1))
    function = open_kernels.kernel(layers, SIZES, machine, chosen)
    weights, bias = random((outputs, inputs), 2), random((outputs,), 3)
    packed = kernels.pack(layers[0], machine, chosen, weights)
    for size in CHECKED:
        data = random((2 * size + 1, inputs), size)
        out = run(function, [data, packed, bias], np.full((2 * size + 1, outputs), 77, np.float32), size)
        np.testing.assert_allclose(out, np.maximum(data @ weights.T + bias, 0), rtol=1e-5, atol=1e-5)


def masks(kind, size):
    return {"none": (), "shared": (2, 1, 1, size), "of each query": (1, 3, size, size)}[kind]


@each_machine
@pytest.mark.parametrize("kind", ["none", "shared", "of each query"])
@pytest.mark.parametrize("config", [AttentionConfig(1, 1), AttentionConfig(4, 2)])
def test_attention_with_as_many_keys_as_queries(config, kind, machine):
    chosen = Choice("attention", config)

    def layer(size):
        return attention(size, size, mask=masks(kind, size))

    function = open_kernels.kernel([layer(size) for size in SIZES], SIZES, machine, chosen)
    for size in CHECKED:
        own = layer(size)
        views = [own.q, own.k, own.v, *([own.mask] if own.mask else [])]
        inputs = [random(view.shape, seed) for seed, view in enumerate(views)]
        before = np.full(own.out.shape, 77, np.float32)
        fixed = kernels.kernel(own, machine, Choice("attention", AttentionConfig(1, 1)))
        expected = run(fixed, inputs, before)
        np.testing.assert_allclose(run(function, inputs, before, size), expected, rtol=1e-5, atol=1e-5)


def test_attention_of_one_query_to_any_number_of_keys():
    chosen = Choice("attention", AttentionConfig(1, 2))
    function = open_kernels.kernel([attention(1, size) for size in SIZES], SIZES, WIDE, chosen)
    for size in CHECKED:
        own = attention(1, size)
        inputs = [random(view.shape, seed) for seed, view in enumerate((own.q, own.k, own.v))]
        before = np.full(own.out.shape, 77, np.float32)
        expected = run(kernels.kernel(own, WIDE, chosen), inputs, before)
        np.testing.assert_allclose(run(function, inputs, before, size), expected, rtol=1e-5, atol=1e-5)


def test_a_layer_whose_weights_follow_from_the_size_is_refused():
    layers = [Dense(4, size, 8) for size in SIZES]
    with pytest.raises(DifferentError, match="the number of weights"):
        open_kernels.kernel(layers, SIZES, WIDE, Choice("dense", Config(1, 1, 1)))
    with pytest.raises(DifferentError, match="do not follow from the size"):
        open_kernels.check([Dense(rows, 8, 8) for rows in (70, 69, 67, 67)], SIZES)
