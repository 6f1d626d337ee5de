"""Fully connected layers with packed weights and data in bytes, against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.target import codegen

from tests.support.cpu_kernels import AARCH64, ARMV7, MIDDLE, NARROW, NATIVE, WIDE, applied, assembly, random, run
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.packed import in_bytes as template
from toolchain.backends.cpu.kernels.packed import products
from toolchain.backends.cpu.kernels.packed import weights as packing
from toolchain.backends.cpu.kernels.packed.in_bytes import Config
from toolchain.backends.cpu.layers import Dense, PostOp, from_json, precision_of, to_json
from toolchain.backends.cpu.machine import machine
from toolchain.models.converters.quantized.packed import PackedWeights


def x86(cpu, *features):
    mattr = {"mattr": [f"+{name}" for name in features]} if features else {}
    return tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": cpu, "num-cores": 2, **mattr})


def arm(*features):
    mattr = ["+neon", *(f"+{name}" for name in features)]
    return tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76", "mattr": mattr})


V2, V3, V4 = x86("x86-64-v2"), x86("x86-64-v3"), x86("x86-64-v4")
VNNI = x86("x86-64-v4", "avx512vnni")
AVX_VNNI = x86("gracemont")
NATIVE_FEATURES = {str(name) for name in codegen.llvm_get_cpu_features(NATIVE)}
RANDOM = np.random.default_rng(3)

# By what this machine has to have to run them.
TARGETS = [("ssse3", V2), ("avx2", V3), ("avx512bw", V4), ("avx512vnni", VNNI), ("avxvnni", AVX_VNNI)]
HERE = [pytest.param(target, id=feature) for feature, target in TARGETS if feature in NATIVE_FEATURES]


def weights_of(layer):
    """Return random packed weights of a layer."""
    limit, grid = 1 << (layer.bits - 1), (layer.outputs, layer.blocks)
    numbers = RANDOM.integers(-limit, limit, layer.weights_shape).astype(np.int8)
    zeros = RANDOM.integers(-limit, limit, grid).astype(np.float32) if layer.zeros else None
    scales = (RANDOM.random(grid) / limit / np.sqrt(layer.inputs)).astype(np.float32)
    return PackedWeights(numbers, scales, zeros, layer.block)


def rounded(layer, data):
    """Return data as ONNX Runtime rounds it with accuracy level 4: 127 steps for the greatest of a block."""
    padded = np.zeros((layer.rows, layer.blocks * layer.block), np.float32)
    padded[:, : layer.inputs] = data
    blocks = padded.reshape(layer.rows, layer.blocks, layer.block)
    greatest = np.abs(blocks).max(axis=2, keepdims=True)
    inverse = np.float32(127) / np.where(greatest == 0, np.float32(1), greatest)
    back = np.rint(blocks * inverse) * (greatest / np.float32(127))
    return back.reshape(layer.rows, -1)[:, : layer.inputs]


def computed(layer, target, config, data, weights, others=()):
    described = machine(target)
    packed = template.pack(layer, described, config, packing.encode(weights))
    inputs = [data, packed, *others]
    # Built for this machine, which has the instructions that are written by name.
    return run(template.kernel(layer, described, config), inputs, np.full((layer.rows, layer.outputs), 77, np.float32))


def check(layer, target, config):
    """Compare a layer's kernel with numpy in float64."""
    data, bias, weights = random((layer.rows, layer.inputs)), random((layer.outputs,), 2), weights_of(layer)
    others = [random((layer.rows, layer.outputs), 3 + n) for n, s in enumerate(layer.epilogue) if s.takes_argument]
    actual = computed(layer, target, config, data, weights, [*([bias] if layer.bias else []), *others])
    exact = rounded(layer, data) if layer.rounds else data
    sums = exact.astype(np.float64) @ weights.unpacked().T.astype(np.float64) + (bias if layer.bias else 0)
    # A number between two steps may be rounded to either: 1/127 of the greatest.
    limit = 3e-4 if layer.rounds else 2e-5
    np.testing.assert_allclose(actual, applied(sums, layer.epilogue, others), rtol=limit, atol=limit)


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize("rounds", [False, True], ids=["exact", "rounded"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("shape", "block", "zeros"),
    [((1, 64, 40), 16, False), ((5, 100, 70), 32, True), ((3, 37, 17), 37, False), ((1, 300, 17), 128, True)],
    ids=str,
)
def test_the_best_config(target, rounds, bits, shape, block, zeros):
    layer = Dense(*shape, bias=True, epilogue=(PostOp("relu"),), bits=bits, block=block, zeros=zeros, rounds=rounds)
    assert template.covers(layer)
    configs = template.configs(layer, machine(target))
    if not machine(target).dot and bits == 8 and not rounds:
        assert not configs  # there, the digits of exact data have no opposites
        return
    check(layer, target, configs[0][0])


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize(("rows", "config"), [(7, Config(3, 2, 1)), (4, Config(1, 1, 1)), (2, Config(2, 4, 1))])
@pytest.mark.parametrize("zeros", [False, True])
def test_tiles_and_what_is_left(target, rows, config, zeros):
    layer = Dense(rows, 80, 70, epilogue=(PostOp("add"), PostOp("silu")), bits=4, block=16, zeros=zeros, rounds=True)
    check(layer, target, config)


def test_cores_share_the_rows(monkeypatch):
    monkeypatch.setattr(emit, "_LEAST_SHARED", 0)
    (target,) = HERE[-1].values
    check(Dense(40, 64, 40, bits=4, block=32), target, Config(4, 2, 1))


@pytest.mark.parametrize("rounds", [False, True], ids=["exact", "rounded"])
def test_extreme_weights_and_data_do_not_overflow(rounds):
    """The least weights and the greatest data, whose products have the greatest sums."""
    for param in HERE:
        (target,) = param.values
        for bits in (4, 8):
            layer = Dense(1, 256, 16, bits=bits, block=128, rounds=rounds)
            if not template.configs(layer, machine(target)):
                continue
            for number in (-(1 << bits - 1), (1 << bits - 1) - 1):
                scales = np.ones((16, 2), np.float32)
                weights = PackedWeights(np.full((16, 256), number, np.int8), scales, None, 128)
                data = np.where(np.arange(256) % 5 == 4, -1, 1).astype(np.float32)[None]
                actual = computed(layer, target, template.configs(layer, machine(target))[0][0], data, weights)
                np.testing.assert_allclose(actual, np.full((1, 16), data.sum() * number), rtol=1e-5)


@pytest.mark.parametrize("rounds", [False, True], ids=["exact", "rounded"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_data_that_is_not_finite_gives_nan_in_its_row_alone(rounds, bad):
    layer = Dense(2, 64, 16, bits=4, block=32, rounds=rounds)
    (target,) = HERE[-1].values
    data, weights = random((2, 64)), weights_of(layer)
    data[0, 40] = bad
    actual = computed(layer, target, Config(2, 1, 1), data, weights)
    assert np.isnan(actual[0]).all()
    assert np.isfinite(actual[1]).all()


@pytest.mark.parametrize("rounds", [False, True], ids=["exact", "rounded"])
@pytest.mark.parametrize("factor", [0.0, 1e-40, 1e-25, 1e30])
def test_small_and_large_data(rounds, factor):
    layer = Dense(1, 64, 16, bits=8, block=32, rounds=rounds)
    (target,) = HERE[-1].values
    if not template.configs(layer, machine(target)):
        return
    data, weights = random((1, 64)) * np.float32(factor), weights_of(layer)
    actual = computed(layer, target, Config(1, 1, 1), data, weights)
    expected = data.astype(np.float64) @ weights.unpacked().T.astype(np.float64)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=max(3e-2 * np.abs(expected).max(), 1e-30))


def test_outliers_of_a_block_cost_no_more_than_sums_in_float32():
    """With three bytes, a number is as near as its block's greatest one allows."""
    layer = Dense(1, 128, 32, bits=4, block=32)
    (target,) = HERE[-1].values
    data, weights = random((1, 128)), weights_of(layer)
    data[0, 7] = 1000
    actual = computed(layer, target, Config(1, 1, 1), data, weights)
    exact = data.astype(np.float64) @ weights.unpacked().T.astype(np.float64)
    in_floats = data @ weights.unpacked().T
    assert np.abs(actual - exact).max() <= 4 * max(np.abs(in_floats - exact).max(), 1e-7 * np.abs(exact).max())


@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        (VNNI, "vpdpbusd"),
        (AVX_VNNI, "vpdpbusd"),
        (V4, "vpmaddubsw"),
        (V3, "vpmaddubsw"),
        (V2, "pmaddubsw"),
        (arm("dotprod"), "sdot"),
        (AARCH64, "smull"),
        (ARMV7, "vmull.s8"),
    ],
    ids=["avx512vnni", "avxvnni", "avx512bw", "avx2", "ssse3", "dotprod", "neon", "armv7"],
)
@pytest.mark.parametrize("bits", [4, 8])
def test_processors_multiply_bytes(target, instruction, bits):
    layer = Dense(2, 64, 32, bits=bits, block=32, zeros=True, rounds=True)
    described = machine(target)
    code = assembly(template.kernel(layer, described, template.configs(layer, described)[0][0]), target)
    assert code.count(instruction) >= 4


def test_processors_without_products_of_bytes_have_no_config():
    layer = Dense(1, 64, 32, bits=4, block=32, rounds=True)
    assert not template.configs(layer, machine(x86("x86-64")))
    assert not any(template.configs(layer, lanes) for lanes in (WIDE, MIDDLE, NARROW))
    assert template.configs(replace(layer, block=12), machine(VNNI)) == []
    assert template.configs(Dense(1, 40000, 32, bits=8, block=40000), machine(VNNI)) == []


def test_the_layer_has_a_precision_and_a_template_of_its_own():
    layer = Dense(2, 64, 32, bits=4, block=32, rounds=True)
    assert precision_of(layer) == "packed4_int8"
    assert from_json(to_json(layer)) == layer
    described = machine(VNNI)
    assert {candidate.choice.template for candidate in kernels.candidates(layer, described)} == {template.NAME}
    assert not kernels.candidates(layer, WIDE)
    one_row = replace(layer, rows=1, rounds=False)
    assert kernels.default(one_row, described).template == template.NAME
    assert np.isfinite(
        kernels.examples(layer, described, kernels.default(layer, described))[1][:, :, -1:].view(np.float32)
    ).all()


def portable_dot(machine, sums, data, weights):
    """Add products of four signed bytes as SDOT and its substitutes do, with instructions that every processor has."""
    kind, weights = f"int32x{machine.lanes}", tirx.reinterpret(f"int32x{machine.lanes}", weights)
    for number in range(4):
        factors = [
            (value << tirx.Broadcast(tirx.const(24 - 8 * number, "int32"), machine.lanes))
            >> tirx.Broadcast(tirx.const(24, "int32"), machine.lanes)
            for value in (tirx.reinterpret(kind, data), weights)
        ]
        sums = sums + factors[0] * factors[1]
    return sums


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_signed_products_of_arm(monkeypatch, bits, zeros):
    """Weights of 4 bits are multiplied in the upper bits of their bytes there; exact data stays in float32."""
    monkeypatch.setattr(products, "dot", portable_dot)
    target = arm("dotprod")
    described = machine(target)
    assert (described.dot, described.lanes) == ("sdot", 4)
    for shape, block in (((1, 64, 40), 32), ((3, 37, 17), 37)):
        layer = Dense(*shape, bits=bits, block=block, zeros=zeros, rounds=True)
        check(layer, target, template.configs(layer, described)[0][0])
        assert not template.configs(replace(layer, rounds=False), described)
