"""Depthwise convolutions against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support import cpu_kernels as kernels
from tests.support.cpu_kernels import AARCH64, ARMV7, NARROW, WIDE, assembly, check, computed, layer_of
from toolchain.backends.cpu.kernels import depthwise as template
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.window import Config
from toolchain.backends.cpu.layers import Activation, PostOp

RELU6 = PostOp("clip", (0.0, 6.0))


def depthwise(data, kernel, lanes, **options):
    return layer_of(data, data[1], kernel, lanes, groups=data[1], **options)


CASES = {
    "3x3": ((1, 32, 9, 11), (3, 3), {"padding": (1,) * 4, "epilogue": (RELU6,)}),
    "3x3 down by 2": ((1, 40, 15, 14), (3, 3), {"padding": (1,) * 4, "strides": (2, 2)}),
    "padding at the end": ((1, 20, 8, 8), (3, 3), {"padding": (0, 0, 1, 1), "strides": (2, 2), "bias": False}),
    "dilation": ((1, 16, 10, 9), (3, 3), {"padding": (2,) * 4, "dilation": (2, 2)}),
    "dilation wider than the image": ((1, 16, 4, 3), (3, 3), {"padding": (6,) * 4, "dilation": (6, 6)}),
    "one row": ((1, 33, 1, 17), (1, 3), {"padding": (0, 1, 0, 1)}),
    "one column": ((1, 33, 17, 1), (3, 3), {"padding": (1,) * 4}),
    "one pixel": ((2, 48, 1, 1), (3, 3), {"padding": (1,) * 4}),
    "batch": ((3, 16, 5, 6), (3, 3), {"padding": (1,) * 4, "epilogue": (PostOp("silu"),)}),
    "5x5": ((1, 32, 7, 7), (5, 5), {"padding": (2,) * 4}),
    "5x5 down by 2": ((1, 48, 14, 13), (5, 5), {"padding": (2,) * 4, "strides": (2, 2), "bias": False}),
    "7x7 wider than the image": ((1, 16, 4, 5), (7, 7), {"padding": (3,) * 4}),
    "5x5 dilated": ((1, 16, 9, 8), (5, 5), {"padding": (4,) * 4, "dilation": (2, 2)}),
    "1x1": ((1, 16, 5, 5), (1, 1), {}),
    "wide and flat": ((1, 16, 3, 40), (1, 9), {"padding": (0, 4, 0, 4)}),
    "tall and thin": ((1, 16, 30, 3), (11, 1), {"padding": (5, 0, 5, 0)}),
}


@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("case", CASES)
def test_best_config(case, machine):
    data, kernel, options = CASES[case]
    layer = depthwise(data, kernel, machine.lanes, **options)
    assert template.covers(layer)
    check(template, layer, machine, template.configs(layer, machine)[0][0])


@pytest.mark.parametrize(("kernel", "pad"), [(3, 1), (5, 2)])
def test_every_config(kernel, pad):
    layer = depthwise((1, 64, 5, 9), (kernel, kernel), 16, padding=(pad,) * 4, epilogue=(PostOp("relu"),))
    candidates = template.configs(layer, WIDE)
    assert len(candidates) > 3
    for config, _ in (*candidates[:3], candidates[-1]):
        check(template, layer, WIDE, config)


def test_variants():
    layer = depthwise((1, 64, 5, 12), (3, 3), 16, padding=(1,) * 4, strides=(2, 2), epilogue=(PostOp("relu"),))
    listed = [config for config, _ in template.configs(layer, WIDE)]
    others = [config for config, _ in template.variants(layer, WIDE) if config not in listed]
    assert {config.blocks for config in others} == {2, 4}
    for config in (others[0], others[-1]):
        check(template, layer, WIDE, config)


def test_parts_and_steps():
    layer = depthwise((1, 32, 6, 6), (3, 3), 16, padding=(1,) * 4)
    buffer_slice = replace(layer.out, first=1, held=4)
    pixel = Activation(1, 32, 1, 1, 16)
    epilogue = (
        PostOp("add", other=buffer_slice),
        PostOp("mul", other=pixel),
        PostOp("scale"),
        PostOp("shift"),
        PostOp("relu"),
    )
    layer = replace(layer, data=replace(layer.data, first=2, held=5), out=buffer_slice, epilogue=epilogue)
    inputs = kernels.inputs_of(layer)
    add, mul, *rest = inputs.operands
    inputs = replace(inputs, operands=(add, mul[:, :, :1, :1], *rest))
    config = template.configs(layer, WIDE)[0][0]
    arguments = kernels.arguments(template, layer, WIDE, config, inputs)
    buffer = kernels.run(template.kernel(layer, WIDE, config), arguments, np.full(buffer_slice.shape, 77, np.float32))
    expected = kernels.expected(layer, inputs)
    np.testing.assert_allclose(kernels.unblocked(buffer, buffer_slice), expected, rtol=2e-5, atol=2e-5)
    assert (buffer[:, [0, 3]] == 77).all()


def test_fillers_are_zero():
    layer = depthwise((1, 20, 4, 4), (3, 3), 16, padding=(1,) * 4, epilogue=(PostOp("relu"),))
    buffer = computed(template, layer, WIDE, Config(4, 1))
    assert (buffer[:, 1, ..., 4:] == 0).all()
    assert (buffer[:, 1, ..., :4] != 0).any()


@pytest.mark.parametrize(("kernel", "pad"), [(3, 1), (5, 2)])
@pytest.mark.parametrize("height", [2, 9])
def test_rows_are_cut_where_there_are_few_blocks(height, kernel, pad, monkeypatch):
    monkeypatch.setattr(emit, "_LEAST_SHARED", 0)
    layer = depthwise((1, 16, height, 4), (kernel, kernel), 16, padding=(pad,) * 4)
    check(template, layer, replace(WIDE, cores=4), Config(4, 1))


@pytest.mark.parametrize(
    "layer",
    [
        layer_of((1, 32, 8, 8), 64, (3, 3), 16, groups=32),
        layer_of((1, 32, 8, 8), 32, (3, 3), 16, groups=2),
        layer_of((1, 32, 8, 8), 32, (3, 3), 16),
        layer_of((1, 32, 8, 8), 32, (3, 3), 16, groups=32, plain=True),
    ],
    ids=["multiplier", "groups", "dense", "plain"],
)
def test_not_covered(layer):
    assert not template.covers(layer)


@pytest.mark.parametrize(
    ("target", "product"), [(AARCH64, "\tfmla\tv"), (ARMV7, "\tvmul.f32\tq")], ids=["aarch64", "armv7"]
)
def test_vector_code_for_other_machines(target, product):
    machine = replace(NARROW, registers=16 if target is ARMV7 else 32)
    layer = depthwise((1, 32, 14, 14), (3, 3), 4, padding=(1,) * 4, epilogue=(RELU6,))
    code = assembly(template.kernel(layer, machine, template.configs(layer, machine)[0][0]), target)
    assert code.count(product) >= 9 * 2
    assert "fmaf" not in code
