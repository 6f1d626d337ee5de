"""Pooling against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support import nets
from tests.support.cpu_kernels import AARCH64, NARROW, WIDE, assembly, blocked, random, run, unblocked
from tests.support.nets import node, value
from toolchain.backends.cpu.kernels import pool as template
from toolchain.backends.cpu.layers import Activation, Pool, PostOp


def pooled(reduce, data, kernel, strides=(1, 1), padding=(0, 0, 0, 0), **more):
    """Return what ONNX Runtime makes of it."""
    name = {"max": "MaxPool", "mean": "AveragePool"}[reduce]
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": padding, **more}
    proto = nets.model([node(name, ["x"], ["y"], **attributes)], [value("x", data.shape)], [value("y", None)], opset=22)
    return nets.run(proto, {"x": data})[0]


def layer_of(reduce, data, out, lanes, kernel, strides=(1, 1), padding=(0, 0, 0, 0), **more):
    source, result = (Activation(*array.shape, lanes) for array in (data, out))
    return Pool(
        source,
        result,
        reduce,
        kernel,
        strides,
        padding,
        tuple(more.get("dilations", (1, 1))),
        bool(more.get("count_include_pad", 0)),
    )


def check(layer, data, expected, machine, config):
    buffer = run(
        template.kernel(layer, machine, config), [blocked(data, layer.data, 3.0)], np.zeros(layer.out.shape, "f")
    )
    np.testing.assert_allclose(unblocked(buffer, layer.out), expected, rtol=2e-6, atol=2e-6)
    assert np.isfinite(buffer).all()


CASES = {
    "max 3x3 down by 2": ("max", (1, 32, 15, 14), (3, 3), (2, 2), (1, 1, 1, 1), {}),
    "max 2x2": ("max", (2, 20, 8, 9), (2, 2), (2, 2), (0, 0, 0, 0), {}),
    "max beyond the end": ("max", (1, 16, 6, 7), (3, 3), (2, 2), (0, 0, 0, 0), {"ceil_mode": 1}),
    "max dilated": ("max", (1, 16, 9, 9), (3, 3), (1, 1), (2, 2, 2, 2), {"dilations": [2, 2]}),
    "max of many": ("max", (1, 32, 10, 6), (5, 5), (1, 1), (2, 2, 2, 2), {}),
    "max wider than the image": ("max", (1, 16, 3, 4), (9, 9), (1, 1), (4, 4, 4, 4), {}),
    "mean 3x3": ("mean", (1, 33, 7, 8), (3, 3), (1, 1), (1, 1, 1, 1), {}),
    "mean with padding": ("mean", (1, 16, 7, 8), (3, 3), (1, 1), (1, 1, 1, 1), {"count_include_pad": 1}),
    "mean beyond the end": ("mean", (1, 16, 6, 7), (3, 3), (2, 2), (0, 0, 1, 1), {"ceil_mode": 1}),
    "mean beyond the padding": (
        "mean",
        (1, 16, 6, 6),
        (3, 3),
        (2, 2),
        (0, 0, 0, 0),
        {"ceil_mode": 1, "count_include_pad": 1},
    ),
    "mean of many": ("mean", (1, 16, 9, 8), (5, 5), (2, 2), (2, 2, 2, 2), {}),
    "mean of many with padding": ("mean", (1, 16, 9, 8), (5, 5), (2, 2), (2, 2, 2, 2), {"count_include_pad": 1}),
    "mean of many beyond the padding": (
        "mean",
        (1, 16, 10, 8),
        (5, 5),
        (2, 2),
        (1, 1, 1, 1),
        {"ceil_mode": 1, "count_include_pad": 1},
    ),
    "one row": ("mean", (1, 16, 1, 13), (1, 3), (1, 2), (0, 1, 0, 1), {}),
    "one column": ("max", (1, 16, 13, 1), (3, 1), (2, 1), (1, 0, 1, 0), {}),
}


@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("case", CASES)
def test_windows(case, machine):
    reduce, shape, kernel, strides, padding, more = CASES[case]
    data = random(shape) - 2  # mostly negative: a zero of the padding would show up as the largest
    expected = pooled(reduce, data, kernel, strides, padding, **more)
    layer = layer_of(reduce, data, expected, machine.lanes, kernel, strides, padding, **more)
    assert template.covers(layer)
    check(layer, data, expected, machine, template.configs(layer, machine)[0][0])


@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("size", [(7, 7), (1, 1), (1, 5), (13, 9)])
@pytest.mark.parametrize("reduce", ["max", "mean"])
def test_whole_images(reduce, size, machine):
    data = random((2, 40, *size)) + 5
    expected = data.max((2, 3), keepdims=True) if reduce == "max" else data.mean((2, 3), np.float64, keepdims=True)
    layer = layer_of(reduce, data, expected, machine.lanes, size)
    check(layer, data, expected, machine, template.configs(layer, machine)[0][0])


def test_average_of_a_whole_image_and_its_padding():
    data = random((1, 16, 3, 3))
    expected = pooled("mean", data, (3, 3), padding=(0, 0, 2, 2), strides=(9, 9), count_include_pad=1)
    layer = layer_of("mean", data, expected, 16, (3, 3), (9, 9), (0, 0, 2, 2), count_include_pad=1)
    check(layer, data, expected, WIDE, template.configs(layer, WIDE)[0][0])


def test_every_config():
    data = random((1, 64, 6, 7))
    expected = pooled("max", data, (3, 3), padding=(1, 1, 1, 1))
    layer = layer_of("max", data, expected, 16, (3, 3), padding=(1, 1, 1, 1))
    candidates = template.configs(layer, WIDE)
    assert len(candidates) > 3
    for config, _ in candidates:
        check(layer, data, expected, WIDE, config)


@pytest.mark.parametrize(("kernel", "out"), [((3, 3), (4, 4)), ((6, 6), (1, 1))])
def test_parts_and_steps(kernel, out):
    data, other = random((1, 32, 6, 6)), random((1, 32, *out), 1)
    activation = Activation(1, 32, *out, 16, first=1, held=4)
    epilogue = (PostOp("add", other=activation), PostOp("relu"))
    layer = Pool(Activation(1, 32, 6, 6, 16, first=2, held=5), activation, "max", kernel, epilogue=epilogue)
    inputs = [blocked(data, layer.data), blocked(other, activation)]
    buffer = run(
        template.kernel(layer, WIDE, template.configs(layer, WIDE)[0][0]), inputs, np.full(activation.shape, 77, "f")
    )
    expected = np.maximum(pooled("max", data, kernel) + other, 0)
    np.testing.assert_allclose(unblocked(buffer, activation), expected, rtol=1e-6)
    assert (buffer[:, [0, 3]] == 77).all()


def test_fillers_stay_zero():
    data = random((1, 20, 5, 5))
    layer = layer_of("mean", data, data, 16, (3, 3), padding=(1, 1, 1, 1))
    config = template.configs(layer, WIDE)[0][0]
    buffer = run(template.kernel(layer, WIDE, config), [blocked(data, layer.data)], np.ones(layer.out.shape, "f"))
    assert (buffer[:, 1, ..., 4:] == 0).all()


def test_not_covered():
    plain = Activation(1, 16, 4, 4, 1)
    assert not template.covers(Pool(plain, plain, "max", (2, 2)))
    full = Activation(1, 16, 4, 4, 16, dtype="int8")
    assert not template.covers(Pool(full, full, "max", (2, 2)))


def test_vector_code_for_other_machines():
    image = Activation(1, 32, 14, 14, 4)
    layer = Pool(image, replace(image, height=1, width=1), "mean", (14, 14))
    code = assembly(template.kernel(layer, NARROW, template.configs(layer, NARROW)[0][0]), AARCH64)
    assert code.count("\tfadd\tv") >= 8
