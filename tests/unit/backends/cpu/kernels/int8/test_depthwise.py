"""Depthwise convolutions of bytes against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support import cpu_bytes as int8
from tests.support.cpu_bytes import MACHINES, WIDE, check, conv
from tests.support.cpu_kernels import unblocked
from toolchain.backends.cpu.kernels.int8 import depthwise as template
from toolchain.backends.cpu.layers import PostOp
from toolchain.backends.cpu.machine import machine

RESIDUAL = (PostOp("quantize"), PostOp("add"), PostOp("relu"))

CASES = {
    "3x3": ((1, 32, 9, 11), (3, 3), {"padding": (1,) * 4}),
    "3x3 with epilogue": ((1, 20, 6, 6), (3, 3), {"padding": (1,) * 4, "epilogue": RESIDUAL}),
    "3x3 down by 2": ((1, 40, 15, 14), (3, 3), {"padding": (1,) * 4, "strides": (2, 2)}),
    "padding at the end": ((1, 20, 8, 8), (3, 3), {"padding": (0, 0, 1, 1), "strides": (2, 2)}),
    "dilation wider than the image": ((1, 16, 4, 3), (3, 3), {"padding": (6,) * 4, "dilation": (6, 6)}),
    "5x5": ((1, 64, 7, 7), (5, 5), {"padding": (2,) * 4}),
    "one pixel": ((2, 48, 1, 1), (3, 3), {"padding": (1,) * 4}),
}


def depthwise(data, kernel, lanes, **options):
    return conv(data, data[1], kernel, lanes, groups=data[1], **options)


@pytest.mark.parametrize("width", MACHINES)
@pytest.mark.parametrize("case", CASES)
def test_best_config(case, width):
    data, kernel, options = CASES[case]
    check(template, depthwise(data, kernel, MACHINES[width].lanes, **options), MACHINES[width])


@pytest.mark.parametrize("kernel", [3, 5])
def test_every_config(kernel):
    layer = depthwise((1, 32, 5, 9), (kernel, kernel), 16, padding=(kernel // 2,) * 4)
    candidates = template.configs(layer, WIDE)
    assert len(candidates) > 3
    for config, _ in (*candidates[:2], candidates[-1]):
        check(template, layer, WIDE, config)


def test_numbers_as_the_result():
    layer = depthwise((1, 16, 5, 7), (3, 3), 16, padding=(1,) * 4)
    check(template, replace(layer, out=replace(layer.out, dtype="float32")), WIDE)


def test_parts_of_buffers():
    layer = depthwise((1, 32, 6, 6), (3, 3), 16, padding=(1,) * 4)
    buffer_slice = replace(layer.out, first=1, held=4)
    check(template, replace(layer, data=replace(layer.data, first=2, held=5), out=buffer_slice), WIDE)


@pytest.mark.parametrize("case", ["3x3 with epilogue", "3x3 down by 2", "5x5"])
@pytest.mark.parametrize("core", int8.CORES)
def test_arm_core(core, case, tmp_path):
    target, (data, kernel, options) = int8.CORES[core], CASES[case]
    processor = machine(target)
    layer = int8.signed(depthwise(data, kernel, 4, **options))
    config = template.configs(layer, processor)[0][0]
    inputs = int8.inputs_of(layer)
    arguments = int8.arguments(template, layer, processor, config, inputs)
    function = template.kernel(layer, processor, config)
    actual = int8.emulated(function, arguments, np.full(layer.out.shape, 77, np.int8), tmp_path, target)
    int8.close(unblocked(actual, layer.out), int8.expected(layer, inputs))


def test_what_is_not_covered():
    layer = depthwise((1, 32, 9, 9), (3, 3), 16)
    assert template.covers(layer)
    assert not template.covers(replace(layer, groups=1))
    assert not template.covers(replace(layer, data=replace(layer.data, dtype="float32")))
    assert not template.covers(replace(layer, data=replace(layer.data, lanes=4)))
    assert not template.covers(replace(layer, kernel=(23, 23)))
