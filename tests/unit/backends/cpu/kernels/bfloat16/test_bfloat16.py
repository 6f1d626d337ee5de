"""Layers in bfloat16: their results, the instruction where a processor has it, and which layers are chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from tests.support import cpu_kernels
from tests.support.cpu_kernels import CONVOLUTIONS, MIDDLE, NARROW, WIDE, applied, assembly, layer_of, random, run
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.bfloat16 import conv, dense
from toolchain.backends.cpu.kernels.bfloat16 import emit as bfloat16
from toolchain.backends.cpu.layers import Dense, PostOp, task_of
from toolchain.backends.cpu.machine import machine, with_bfloat16

MACHINES = [replace(kind, bfloat16="portable") for kind in (WIDE, MIDDLE, NARROW)]
each_machine = pytest.mark.parametrize("kind", MACHINES, ids=["wide", "middle", "narrow"])
ZEN_4, ZEN_3 = (
    tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": name, "num-cores": 2})
    for name in ("znver4", "znver3")
)
SPECIAL = np.array(
    [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-9, 3.4e38, np.inf, -np.inf, np.nan, 0, -0.0, 2.0**-126], np.float32
)


def rounded(numbers):
    """Return the nearest numbers of bfloat16 in float32; the even one of two that are equally near."""
    bits = numbers.astype(np.float64).astype(np.float32).view(np.uint32).astype(np.uint64)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return np.where(np.isnan(numbers), np.float32(np.nan), nearest.astype(np.uint32).view(np.float32))


def unpaired(pairs):
    """Return the numbers of pairs, one after the other."""
    return (np.ascontiguousarray(pairs).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


# --- rounding --------------------------------------------------------------------------------------------------


def test_weights_are_rounded_to_the_nearest():
    numbers = np.concatenate([SPECIAL, random((90,))])[None]
    np.testing.assert_array_equal(unpaired(bfloat16.pair_up(numbers, 52))[0, :100], rounded(numbers[0]))
    assert not bfloat16.pair_up(numbers, 52)[0, 50:].any()


def test_subnormal_weights_are_zero():
    assert not bfloat16.pair_up(np.array([[1e-39, -1e-40]], np.float32), 1).any()


@each_machine
def test_data_is_rounded_as_weights_are(kind):
    count = 4 * kind.lanes
    numbers = np.concatenate([SPECIAL, random((count,))])[:count]

    def body(data, out):
        for first in range(0, count, kind.lanes):
            pairs = bfloat16.round_pairs(kind, data[emit.ramp(first, kind.lanes)])
            T.buffer_store(out, pairs, [emit.ramp(first // 2, kind.lanes // 2)])

    arguments = [emit.Argument("data", (count,)), emit.Argument("out", (count // 2,), "int32")]
    function = bfloat16.with_definitions(emit.kernel(arguments, body, {}), kind)
    pairs = run(function, [numbers], np.zeros(count // 2, np.int32))
    np.testing.assert_array_equal(unpaired(pairs), rounded(numbers))


# --- results ---------------------------------------------------------------------------------------------------


@each_machine
@pytest.mark.parametrize(
    "shape", [(1, 64, 10), (1, 37, 128), (5, 33, 40), (17, 64, 48), (3, 7, 200), (2, 1, 3)], ids=str
)
def test_fully_connected(shape, kind):
    layer = Dense(*shape, bias=True, epilogue=(PostOp("add"), PostOp("relu")), bfloat16=True)
    data, bias, other = random((layer.rows, layer.inputs)), random((layer.outputs,), 2), random(shape[::2], 3)
    weights = random(layer.weights_shape, 1) / np.float32(np.sqrt(layer.inputs))
    config = dense.configs(layer, kind)[0][0]
    inputs = [data, dense.pack(layer, kind, config, weights), bias, other]
    actual = run(dense.kernel(layer, kind, config), inputs, np.full(shape[::2], 77, np.float32))
    sums = rounded(data).astype(np.float64) @ rounded(weights).astype(np.float64).T + bias
    np.testing.assert_allclose(actual, applied(sums, layer.epilogue, [other]), rtol=2e-5, atol=2e-5)


@each_machine
@pytest.mark.parametrize(
    "name", ["odd channels and sizes", "pointwise", "pointwise, strided", "images of one pixel", "one column", "uneven"]
)
def test_convolution(name, kind):
    layer = replace(layer_of(lanes=kind.lanes, **CONVOLUTIONS[name], epilogue=(PostOp("relu"),)), bfloat16=True)
    # A part of a larger buffer, whose other blocks are NaN.
    layer = replace(layer, data=replace(layer.data, first=1, held=layer.data.blocks + 2))
    inputs = cpu_kernels.inputs_of(layer)
    actual = cpu_kernels.computed(conv, layer, kind, conv.configs(layer, kind)[0][0])
    exact = replace(inputs, data=rounded(inputs.data), weights=rounded(inputs.weights))
    expected = cpu_kernels.expected(layer, exact)
    np.testing.assert_allclose(cpu_kernels.unblocked(actual, layer.out), expected, rtol=2e-5, atol=2e-5)


# --- instructions ----------------------------------------------------------------------------------------------

LAYERS = [
    Dense(4, 250, 128, bfloat16=True),
    replace(layer_of((1, 64, 14, 14), 128, (1, 1), 16), bfloat16=True),
    replace(layer_of((1, 64, 14, 14), 64, (3, 3), 16, padding=(1, 1, 1, 1)), bfloat16=True),
]


@pytest.mark.parametrize("layer", LAYERS, ids=["dense", "pointwise", "3x3"])
def test_a_processor_with_the_instructions_uses_them_without_a_call(layer):
    kind = with_bfloat16(machine(ZEN_4), ZEN_4)
    assert kind.bfloat16 == "vdpbf16ps"
    code = assembly(kernels.kernel(layer, kind, kernels.default(layer, kind)), ZEN_4)
    loops = [line for line in code.splitlines() if "vdpbf16ps" in line]
    assert len(loops) > 20
    assert not [line for line in loops if "(%rsp)" in line], "sums stay in registers"
    assert "vcvtneps2bf16" in code
    assert not [line for line in code.splitlines() if "call" in line and ("bfloat16" in line or "bf2" in line)]


def test_others_compute_the_same_by_what_they_have():
    kind = with_bfloat16(machine(ZEN_3), ZEN_3)
    assert kind.bfloat16 == "portable"
    code = assembly(kernels.kernel(LAYERS[0], kind, kernels.default(LAYERS[0], kind)), ZEN_3)
    assert "vfmadd" in code
    assert "bf16" not in code
    assert not [line for line in code.splitlines() if "call" in line and "bfloat16" in line]


def test_a_kernel_with_instructions_runs_anywhere_once_they_are_replaced():
    kind = with_bfloat16(machine(ZEN_4), ZEN_4)
    config = dense.configs(LAYERS[0], kind)[0][0]
    data, weights = random((4, 250)), random((128, 250), 1)
    function = emit.portable(dense.kernel(LAYERS[0], kind, config))
    actual = run(function, [data, dense.pack(LAYERS[0], kind, config, weights)], np.zeros((4, 128), np.float32))
    np.testing.assert_allclose(actual, rounded(data) @ rounded(weights).T, rtol=1e-5, atol=1e-4)


# --- the choice ------------------------------------------------------------------------------------------------

KIND = replace(WIDE, bfloat16="vdpbf16ps")


def pointwise(**more):
    return layer_of((1, 64, 14, 14), 128, (1, 1), 16, **more)


@pytest.mark.parametrize("layer", [Dense(1, 784, 128), Dense(128, 768, 3072), pointwise()], ids=str)
def test_products_are_in_bfloat16_and_cost_less(layer):
    changed = kernels.in_bfloat16(layer, KIND)
    assert changed.bfloat16
    cheapest, exact = (kernels.candidates(each, KIND)[0] for each in (changed, layer))
    assert cheapest.choice.template.startswith("bfloat16")
    assert 0.4 * exact.cost < cheapest.cost < 0.8 * exact.cost
    assert kernels.fits(changed, cheapest.choice)
    assert not kernels.fits(layer, cheapest.choice)
    assert not kernels.fits(changed, exact.choice)
    assert task_of(changed).bfloat16


@pytest.mark.parametrize(
    "layer",
    [
        pointwise(groups=4),
        layer_of((1, 64, 14, 14), 64, (3, 3), 16, groups=64),
        layer_of((1, 3, 14, 14), 64, (3, 3), 16, plain=True),
        layer_of((1, 63, 14, 14), 64, (1, 1), 16),
        replace(pointwise(), vectors=20),
        Dense(1, 2, 128),
    ],
    ids=["groups", "depthwise", "plain", "odd", "zero blocks", "few inputs"],
)
def test_what_stays_in_float32(layer):
    assert kernels.in_bfloat16(layer, KIND) == layer


def test_a_template_that_is_left_out_leaves_float32():
    assert kernels.in_bfloat16(pointwise(), KIND, frozenset({"bfloat16"})) == pointwise()
    assert kernels.in_bfloat16(Dense(1, 784, 128), KIND, frozenset({"bfloat16"})).bfloat16


def test_measured_weights_are_usual_numbers():
    layer = replace(pointwise(bias=False), bfloat16=True)
    [(number, weights)] = kernels.examples(layer, KIND, kernels.default(layer, KIND)).items()
    assert number == 1
    assert set(unpaired(weights).ravel().tolist()) == {0.5}
    assert kernels.variants(layer, KIND)
