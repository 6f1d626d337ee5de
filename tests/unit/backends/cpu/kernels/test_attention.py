"""Attention in one pass against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cpu_kernels import AARCH64, MIDDLE, NARROW, WIDE, assembly, random, run
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.kernels import attention as template
from toolchain.backends.cpu.kernels.attention import Config
from toolchain.backends.cpu.kernels.bfloat16 import attention as bfloat16
from toolchain.backends.cpu.layers import Attention, View, from_json, task_of, to_json


def rows(batch, count, heads, size, parts=1, number=0):
    """Return the view of [batch, rows, parts, heads, size]."""
    line = parts * heads * size
    return View((batch, count, parts, heads, size), (count * line, size, line), number * heads * size)


def layer(queries, keys, size=32, value_size=32, mask=(), *, batch=2, heads=3, scale=0.3):
    views = [rows(batch, count, heads, wide) for count, wide in ((queries, size), (keys, size), (keys, value_size))]
    mask_view = None
    if mask:
        remaining = [extent > 1 for extent in mask]
        steps = np.cumprod([1, *mask[::-1]])[::-1][1:]
        mask_view = View(
            mask, tuple(int(step) if keep else 0 for step, keep in zip(steps[:3], remaining[:3], strict=True))
        )
    out = rows(batch, queries, heads, value_size)
    return Attention(batch, heads, queries, keys, size, value_size, *views, out, mask_view, scale)


def seen(array, view, count, size):
    batch, heads = array.shape[0], 3
    full = array.reshape(-1)[view.offset :]
    strides = [4 * step for step in (*view.strides, 1)]
    return np.lib.stride_tricks.as_strided(full, (batch, heads, count, size), strides).astype(np.float64)


def check(layer, machine, config, within=1e-5, used=template):
    assert from_json(to_json(layer)) == task_of(layer) == layer
    inputs = [random(view.shape, seed) for seed, view in enumerate((layer.q, layer.k, layer.v))]
    masks = [random(layer.mask.shape, 5)] if layer.mask else []
    actual = run(used.kernel(layer, machine, config), [*inputs, *masks], np.full(layer.out.shape, 77, np.float32))
    q, k, v = (
        seen(array, view, count, size)
        for array, view, count, size in zip(
            inputs,
            (layer.q, layer.k, layer.v),
            (layer.queries, layer.keys, layer.keys),
            (layer.size, layer.size, layer.value_size),
            strict=True,
        )
    )
    scores = q @ k.transpose(0, 1, 3, 2) * layer.scale + (masks[0] if masks else 0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = (weights / weights.sum(-1, keepdims=True)) @ v
    np.testing.assert_allclose(seen(actual, layer.out, layer.queries, layer.value_size), out, rtol=within, atol=within)


each_machine = pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW], ids=["wide", "middle", "narrow"])
each_layer = pytest.mark.parametrize(
    "one",
    [
        layer(17, 49, mask=(1, 3, 17, 49)),
        layer(5, 32, value_size=64, mask=(2, 1, 1, 32), scale=1.0),
        layer(1, 7, 16, mask=(1, 1, 1, 7)),
        layer(40, 100),
        layer(19, 19, 16, 16),
    ],
    ids=["mask of each head", "mask of each batch", "few keys", "no mask", "as many keys as queries"],
)


@each_machine
@each_layer
def test_best_config(one, machine):
    assert template.covers(one)
    check(one, machine, template.configs(one, machine)[0][0])


@each_machine
@each_layer
def test_in_bfloat16(one, machine):
    one, machine = replace(one, bfloat16=True), replace(machine, bfloat16="portable")
    assert bfloat16.covers(one)
    check(one, machine, bfloat16.configs(one, machine)[0][0], within=3e-2, used=bfloat16)


def test_bfloat16_is_chosen_where_many_queries_share_the_keys():
    zen = replace(WIDE, bfloat16="vdpbf16ps")
    assert kernels.in_bfloat16(layer(257, 257, 64, 64), zen).bfloat16
    assert not kernels.in_bfloat16(layer(1, 257, 64, 64), zen).bfloat16


@pytest.mark.parametrize("config", [Config(1, 1), Config(6, 4), Config(4, 3)])
def test_tiles_and_what_is_left(config):
    check(layer(23, 75, mask=(1, 1, 23, 75)), WIDE, config)


@pytest.mark.parametrize("keys", [64, 80, 96, 3])
def test_vectors_of_keys_that_fill_no_group(keys):
    """They have neither keys nor a mask, and weigh nothing."""
    check(layer(9, keys, mask=(1, 1, 9, keys)), WIDE, Config(3, 4))


def test_tiles_that_do_more_for_each_load_come_first():
    config = template.configs(layer(1500, 1500, 64, 64), WIDE)[0][0]
    assert config.rows * config.blocks >= 20


@pytest.mark.parametrize(("queries", "copied"), [(6, False), (60, True)], ids=["few tiles", "many tiles"])
def test_values_that_lie_apart_are_brought_together_for_many_tiles(queries, copied):
    item = layer(queries, 512, 16, 64)
    text = template.kernel(item, WIDE, Config(4, 2)).script()
    scores, keys, values = 4 * 512, 16 * 512, 64 * 512
    assert (f"({keys + scores + values},)" in text) == copied


def test_parts_of_one_tensor():
    q, k, v = (rows(2, 20, 3, 32, parts=3, number=number) for number in range(3))
    layer = Attention(2, 3, 20, 20, 32, 32, q, k, v, rows(2, 20, 3, 32))
    data = random(q.shape)
    actual = run(template.kernel(layer, WIDE, Config(4, 2)), [data] * 3, np.zeros(layer.out.shape, np.float32))
    q, k, v = (seen(data, view, 20, 32) for view in (layer.q, layer.k, layer.v))
    weights = np.exp(q @ k.transpose(0, 1, 3, 2))
    expected = (weights / weights.sum(-1, keepdims=True)) @ v
    np.testing.assert_allclose(seen(actual, layer.out, 20, 32), expected, rtol=1e-4, atol=1e-4)


def test_a_query_whose_keys_are_all_forbidden_is_none():
    item = layer(4, 20, mask=(1, 1, 4, 20))
    mask = np.zeros(item.mask.shape, np.float32)
    mask[..., 2, :] = -np.inf
    mask[..., 1, 3:] = -np.inf
    inputs = [random(view.shape, seed) for seed, view in enumerate((item.q, item.k, item.v))]
    actual = run(template.kernel(item, WIDE, Config(4, 2)), [*inputs, mask], np.zeros(item.out.shape, np.float32))
    assert np.isnan(seen(actual, item.out, 4, 32)[:, :, 2]).all()
    assert np.isfinite(seen(actual, item.out, 4, 32)[:, :, [0, 1, 3]]).all()


def test_sizes_that_fill_no_vector_are_left_to_the_rules():
    assert not template.covers(layer(4, 20, size=36))
    assert not template.covers(layer(4, 20, value_size=24))
    assert layer(4, 20).flops == 2 * 2 * 3 * 4 * 20 * 64


def test_code_for_arm():
    kernel = template.kernel(layer(17, 49), NARROW, Config(6, 4))
    assert "fmla" in assembly(kernel, AARCH64)
