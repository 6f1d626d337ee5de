"""Convolutions with zero blocks of weights, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support import cpu_kernels
from tests.support.cpu_kernels import CONVOLUTIONS, MIDDLE, NARROW, WIDE, layer_of
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.sparse import conv as template
from toolchain.backends.cpu.kernels.sparse.conv import Config
from toolchain.backends.cpu.layers import PostOp

LAYERS = {name: shape for name, shape in CONVOLUTIONS.items() if "groups" not in shape and "plain" not in name}


def sparse(layer, share=0.2):
    """Return a layer with this share of its vectors of weights; the others are zero."""
    _, inputs, height, width = layer.weights_shape
    return replace(layer, vectors=max(1, int(layer.out.blocks * inputs * height * width * share)))


@pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW], ids=["16 lanes", "8 lanes", "4 lanes"])
@pytest.mark.parametrize("name", LAYERS)
def test_result(name, machine):
    layer = sparse(layer_of(lanes=machine.lanes, **LAYERS[name], epilogue=(PostOp("add"), PostOp("relu"))))
    assert template.covers(layer)
    cpu_kernels.check(template, layer, machine, template.configs(layer, machine)[0][0])


@pytest.mark.parametrize(
    "config", [Config(1, 8, 1, 1), Config(5, 1, 3, 2), Config(13, 2, 2, 5), Config(3, 4, 16, 1)], ids=str
)
def test_result_however_it_is_cut(config, monkeypatch):
    monkeypatch.setattr(emit, "_LEAST_SHARED", 0)
    layer = sparse(layer_of((2, 40, 9, 13), 40, (3, 3), 8, padding=(1, 1, 1, 1), epilogue=(PostOp("sigmoid"),)))
    cpu_kernels.check(template, layer, MIDDLE, config)


@pytest.mark.parametrize("share", [0.0, 0.03, 0.7])
def test_lists_may_be_empty_or_long(share):
    layer = sparse(layer_of((1, 16, 6, 7), 40, (3, 3), 8, padding=(1, 1, 1, 1)), share)
    cpu_kernels.check(template, layer, MIDDLE, template.configs(layer, MIDDLE)[0][0])


def test_parts_of_larger_buffers():
    layer = sparse(layer_of((1, 32, 6, 7), 24, (3, 3), 8, padding=(1, 1, 1, 1)))
    layer = replace(layer, data=replace(layer.data, first=1, held=7), out=replace(layer.out, first=2, held=6))
    cpu_kernels.check(template, layer, MIDDLE, template.configs(layer, MIDDLE)[0][0])


def test_other_layers_are_not_covered():
    layer = layer_of((1, 32, 6, 7), 32, (3, 3), 8)
    assert not template.covers(layer)
    assert not template.covers(replace(layer, vectors=9, groups=2))
    assert not template.covers(sparse(layer_of((1, 32, 6, 7), 32, (3, 3), 8, plain=True)))


@pytest.mark.parametrize(
    ("kernel", "share", "name"), [(1, 0.2, "sparse"), (1, 0.6, "sparse"), (3, 0.1, "sparse"), (3, 0.5, "winograd")]
)
def test_it_is_chosen_where_it_is_likely_the_fastest(kernel, share, name):
    layer = sparse(layer_of((1, 256, 14, 14), 256, (kernel, kernel), 8, padding=(kernel // 2,) * 4), share)
    assert kernels.default(layer, MIDDLE).template == name


def test_positions_are_those_of_the_gathered_data():
    layer = replace(layer_of((1, 16, 2, 3), 8, (1, 1), 8), vectors=2)
    weights = np.zeros((8, 16, 1, 1), np.float32)
    weights[3, 2], weights[:, 11] = 5, 7
    packed = template.pack(layer, MIDDLE, Config(6, 1, 1, 1), weights)
    assert packed[:4].tolist() == [0, 2, 2 * 8, 11 * 8]
    np.testing.assert_array_equal(packed[16:].view(np.float32), [0, 0, 0, 5, 0, 0, 0, 0, *[7] * 8])
