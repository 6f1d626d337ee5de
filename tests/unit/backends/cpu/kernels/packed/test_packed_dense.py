"""Fully connected layers with packed weights, against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm.target import codegen

from tests.support.cpu_kernels import AARCH64, MIDDLE, NARROW, NATIVE, WIDE, applied, assembly, random, run
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.packed import dense as template
from toolchain.backends.cpu.kernels.packed import weights as packing
from toolchain.backends.cpu.kernels.packed.dense import Config
from toolchain.backends.cpu.layers import Dense, PostOp, from_json, precision_of, task_of, to_json
from toolchain.models.converters.quantized.packed import PackedWeights

V4 = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4", "num-cores": 2})
V3 = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3", "num-cores": 2})
RANDOM = np.random.default_rng(3)


def weights_of(layer):
    """Return random packed weights of a layer."""
    limit, grid = 1 << (layer.bits - 1), (layer.outputs, layer.blocks)
    numbers = RANDOM.integers(-limit, limit, layer.weights_shape).astype(np.int8)
    zeros = RANDOM.integers(-limit, limit, grid).astype(np.float32) if layer.zeros else None
    scales = (RANDOM.random(grid) / limit / np.sqrt(layer.inputs)).astype(np.float32)
    return PackedWeights(numbers, scales, zeros, layer.block)


def check(layer, machine, config):
    """Compare a layer's kernel with numpy in float64."""
    data, bias, weights = random((layer.rows, layer.inputs)), random((layer.outputs,), 2), weights_of(layer)
    others = [random((layer.rows, layer.outputs), 3 + n) for n, s in enumerate(layer.epilogue) if s.takes_argument]
    packed = template.pack(layer, machine, config, packing.encode(weights))
    inputs = [data, packed, *([bias] if layer.bias else []), *others]
    actual = run(template.kernel(layer, machine, config), inputs, np.full((layer.rows, layer.outputs), 77, np.float32))
    sums = data.astype(np.float64) @ weights.unpacked().T.astype(np.float64) + (bias if layer.bias else 0)
    np.testing.assert_allclose(actual, applied(sums, layer.epilogue, others), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW], ids=["wide", "middle", "narrow"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("shape", "block", "zeros"),
    [((1, 64, 40), 16, False), ((5, 100, 70), 32, True), ((3, 37, 17), 37, False), ((1, 37, 17), 32, True)],
    ids=str,
)
def test_the_best_config(machine, bits, shape, block, zeros):
    layer = Dense(*shape, bias=True, epilogue=(PostOp("relu"),), bits=bits, block=block, zeros=zeros)
    assert template.covers(layer)
    check(layer, machine, template.configs(layer, machine)[0][0])


@pytest.mark.parametrize(
    ("rows", "config"),
    [(1, Config(1, 2, 4)), (1, Config(1, 4, 1)), (7, Config(3, 2, 1)), (4, Config(1, 1, 1)), (7, Config(3, 2, 1, 1))],
)
@pytest.mark.parametrize("zeros", [False, True])
def test_tiles_and_what_is_left(rows, config, zeros):
    layer = Dense(rows, 50, 70, epilogue=(PostOp("add"), PostOp("silu")), bits=4, block=16, zeros=zeros)
    check(layer, WIDE, config)


@pytest.mark.parametrize("config", [Config(1, 2, 1), Config(1, 1, 2), Config(3, 2, 1)])
@pytest.mark.parametrize("zeros", [False, True])
def test_blocks_without_a_rest_have_sums_of_their_own(config, zeros):
    """TVM lets registers share memory that are used within one loop alone."""
    check(Dense(config.rows, 64, 96, bits=8, block=32, zeros=zeros), WIDE, config)


def test_many_rows_read_weights_that_are_floats_already():
    few, many = (template.configs(Dense(rows, 256, 256, bits=4, block=32), WIDE)[0][0] for rows in (4, 256))
    assert (few.at_once, many.at_once) == (0, 1)


def test_cores_share_the_rows(monkeypatch):
    monkeypatch.setattr(emit, "_LEAST_SHARED", 0)
    check(Dense(40, 64, 40, bits=4, block=32), replace(WIDE, cores=3), Config(4, 3, 1))


def test_packed_weights_take_the_bits_of_their_numbers_and_scales():
    layer = Dense(1, 64, 32, bits=4, block=32, zeros=True)
    packed = template.pack(layer, WIDE, Config(1, 2, 1), packing.encode(weights_of(layer)))
    assert packed.shape == (1, 2, 32 * 4 // 32 + 2, 2, 16)
    assert packed.dtype == np.int32


def test_weights_are_rounded_to_the_nearest_of_their_bits():
    weights = np.array([[1.0, -0.49, 0.2, -1.0], [0, 0, 3.0, 1.4]], np.float32)
    packed = packing.rounded(weights, 8, 4)
    np.testing.assert_allclose(packed.scales, [[1 / 127], [3 / 127]], rtol=1e-6)
    np.testing.assert_array_equal(packed.numbers, [[127, -62, 25, -127], [0, 0, 127, 59]])
    two = packing.rounded(weights, 4, 2)
    assert (two.bits, two.scales.shape) == (4, (2, 2))
    np.testing.assert_allclose(two.unpacked(), weights, atol=3 / 7 / 2)


def test_weights_that_are_not_finite_stay_so():
    packed = packing.rounded(np.array([[np.inf, 1.0], [np.nan, 1.0], [1e-44, 0.0]], np.float32), 8, 2)
    with np.errstate(invalid="ignore"):
        unpacked = packed.unpacked()
    assert not np.isfinite(unpacked[:2]).any()
    np.testing.assert_array_equal(unpacked[2], 0)


def test_an_array_of_weights_has_all_of_them():
    for zeros in (False, True):
        layer = Dense(1, 10, 3, bits=8, block=4, zeros=zeros)
        weights = weights_of(layer)
        again = packing.decode(layer, packing.encode(weights))
        np.testing.assert_array_equal(again.unpacked(), weights.unpacked())
        assert (again.zeros is not None) == zeros


def test_the_layer_has_a_precision_a_task_and_a_template_of_its_own():
    layer = Dense(2, 64, 32, bits=4, block=32)
    assert precision_of(layer) == "packed4"
    assert from_json(to_json(layer)) == task_of(layer) == layer
    assert {candidate.choice.template for candidate in kernels.candidates(layer, WIDE)} == {template.NAME}
    assert not kernels.is_covered(layer, frozenset({template.NAME}))
    assert kernels.in_bfloat16(layer, replace(WIDE, bfloat16="portable")) is layer
    assert "bits" not in to_json(Dense(2, 64, 32))


def test_what_a_tuner_measures_has_finite_weights():
    layer = Dense(1, 64, 32, bits=4, block=32, zeros=True)
    choice = kernels.default(layer, WIDE)
    packed = kernels.examples(layer, WIDE, choice)[1]
    assert np.isfinite(packed[:, :, -2:].view(np.float32)).all()


def test_an_instruction_looks_up_numbers_of_4_bits():
    layer, machine = Dense(1, 64, 32, bits=4, block=32), replace(WIDE, permutes=True)
    code = assembly(template.kernel(layer, machine, Config(1, 2, 1)), V4)
    assert code.count("vpermps") + code.count("vpermd") >= 16  # which do the same
    assert "vcvtdq2ps" not in code
    has_avx512 = "avx512f" in {str(name) for name in codegen.llvm_get_cpu_features(NATIVE)}
    if has_avx512:
        check(Dense(3, 50, 70, bits=4, block=16, zeros=True), machine, Config(2, 2, 1))


@pytest.mark.parametrize(("target", "conversion"), [(V3, "vcvtdq2ps"), (AARCH64, "scvtf")], ids=["avx2", "neon"])
def test_numbers_are_converted_as_vectors(target, conversion):
    layer = Dense(1, 64, 32, bits=4, block=32)
    machine = MIDDLE if target is V3 else NARROW
    code = assembly(template.kernel(layer, machine, Config(1, 2, 1)), target)
    assert code.count(conversion) >= 16
    assert ("vfmadd" if target is V3 else "fmla") in code
