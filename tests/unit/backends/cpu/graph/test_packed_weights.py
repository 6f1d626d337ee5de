"""Which layers compute with packed weights: those of the file, and those that the user wants rounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support import nets
from tests.support.nets import node, value
from tests.support.relax_nets import bindings, calls, counts, layers, processor
from toolchain.backends.cpu import graph
from toolchain.backends.cpu.graph import stand_ins
from toolchain.backends.cpu.graph.rewriting import fold_except_weights
from toolchain.backends.cpu.kernels.packed.weights import decode
from toolchain.backends.cpu.layers import Dense
from toolchain.backends.graph import fold
from toolchain.models import importer
from toolchain.models import source as model

EIGHT_LANES = processor(8)
RANDOM = np.random.default_rng(2)


def imported(nodes, folder, constants, shape=(1, 64), opset=21, outputs=("y",)):
    proto = nets.model(nodes, [value("x", shape)], [value(name, None) for name in outputs], constants, opset)
    proto.ir_version = 10
    proto.opset_import.add(domain="com.microsoft", version=1)
    return importer.import_model(model.load(nets.save(proto, folder))).module


def few_bits(result="h", **more):
    return node("MatMulNBits", ["x", "w", "s"], [result], domain="com.microsoft", K=64, N=48, block_size=32, **more)


def of_file():
    return {
        "w": RANDOM.integers(0, 256, (48, 2, 16)).astype(np.uint8),
        "s": RANDOM.random((48, 2)).astype(np.float32),
        "bias": RANDOM.random(48).astype(np.float32),
        "factors": RANDOM.random(48).astype(np.float32) + np.float32(0.5),
    }


def moved(module, machine=EIGHT_LANES, without=frozenset()):
    return graph.insert_stand_ins(fold_except_weights(module), machine, without)


def test_what_follows_is_in_the_layer_and_a_factor_in_the_scales(tmp_path):
    constants = of_file()
    nodes = [
        few_bits(),
        node("Mul", ["h", "factors"], ["m"]),
        node("Add", ["m", "bias"], ["a"]),
        node("Relu", ["a"], ["y"]),
    ]
    module = moved(imported(nodes, tmp_path, constants))
    (layer,) = layers(module)
    assert (layer.bits, layer.block, layer.zeros, layer.bias) == (4, 32, False, True)
    assert [op.kind for op in layer.epilogue] == ["relu"]
    weights = decode(layer, bindings(module)[0].value.args[1].fields[1].value.numpy())
    np.testing.assert_allclose(weights.scales, constants["s"] * constants["factors"][:, None], rtol=1e-6)


def test_other_readers_and_other_backends_get_floats(tmp_path):
    module = imported([few_bits("y")], tmp_path, of_file())
    types = {
        str(argument.ty.dtype)
        for binding in bindings(fold.fold_constants(module))
        for argument in getattr(binding.value, "args", ())
        if hasattr(argument, "value")
    }
    assert types == {"float32"}
    constants = {"w": np.ones((64, 4), np.int8), "s": np.ones((2, 4), np.float32)}
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["v"], axis=0, block_size=32),
        node("MatMul", ["x", "v"], ["h"]),
        node("ReduceSum", ["v"], ["r"]),
        node("Add", ["h", "r"], ["y"]),
    ]
    assert all(not layer.bits for layer in layers(moved(imported(nodes, tmp_path, constants))))


def test_without_the_template_the_network_is_computed_in_floats(tmp_path):
    module = moved(imported([few_bits("y")], tmp_path, of_file()), without=frozenset({"packed_dense"}))
    (layer,) = layers(module)
    assert (layer.bits, layer.inputs, layer.outputs) == (0, 64, 48)


@pytest.mark.parametrize(("bits", "block"), [(8, 256), (4, 32)])
def test_large_weights_are_rounded_where_the_user_wants_it(tmp_path, bits, block):
    constants = {
        name: RANDOM.standard_normal(shape).astype(np.float32) for name, shape in (("w", (256, 64)), ("v", (64, 8)))
    }
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "v"], ["y"])]
    module = imported(nodes, tmp_path, constants, (2, 256))
    large, small = layers(moved(module, replace(processor(8), weight_bits=bits)))
    assert (large, small.bits) == (Dense(2, 256, 64, bits=bits, block=block), 0)
    assert not any(layer.bits for layer in layers(moved(module)))
    without = moved(module, replace(processor(8), weight_bits=bits), frozenset({"packed_dense"}))
    assert not any(layer.bits for layer in layers(without))


def test_bytes_with_a_scale_for_each_output_are_packed_where_the_data_is_floats(tmp_path):
    constants = {
        "w": RANDOM.integers(-128, 128, (64, 48)).astype(np.int8),
        "s": RANDOM.random(48).astype(np.float32),
        "z": np.zeros(48, np.int8),
    }
    nodes = [node("DequantizeLinear", ["w", "s", "z"], ["v"], axis=1), node("MatMul", ["x", "v"], ["y"])]
    module = imported(nodes, tmp_path, constants)
    packed = moved(module, replace(EIGHT_LANES, dot="vpdpbusd"))
    assert layers(packed) == [Dense(1, 64, 48, bits=8, block=64)]
    weights = decode(layers(packed)[0], bindings(packed)[0].value.args[1].fields[1].value.numpy())
    np.testing.assert_allclose(weights.unpacked(), (constants["w"] * constants["s"]).T, rtol=1e-6)


def test_data_is_rounded_where_the_file_and_the_processor_allow_it(tmp_path):
    module = imported([few_bits("y", accuracy_level=4)], tmp_path, of_file())
    with_products = replace(EIGHT_LANES, dot="vpdpbusd")
    (layer,) = layers(moved(module, with_products))
    assert (layer.rounds, layer.block) == (True, 32)
    assert stand_ins.name(layer) == "packed4_int8_dense"
    without = replace(EIGHT_LANES, dot="", adds_bytes=False)
    for other in (moved(module, without), moved(module, with_products, frozenset({"packed_dense_in_bytes"}))):
        (layer,) = layers(other)
        assert (layer.bits, layer.rounds) == (4, False)
    (layer,) = layers(moved(imported([few_bits("y", accuracy_level=1)], tmp_path, of_file()), with_products))
    assert not layer.rounds


@pytest.mark.parametrize(("size", "block"), [(1, 32), (1, 0), (2, 32)])
def test_filters_of_1x1_stay_packed_on_one_pixel(tmp_path, size, block):
    constants = {
        "w": RANDOM.integers(-128, 128, (48, 64, 1, 1)).astype(np.int8),
        "s": RANDOM.random((48, 2, 1, 1) if block else 48).astype(np.float32),
        "bias": RANDOM.random(48).astype(np.float32),
    }
    grid = {"axis": 1, "block_size": block} if block else {"axis": 0}
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["v"], **grid),
        node("Conv", ["x", "v", "bias"], ["h"]),
        node("Relu", ["h"], ["y"]),
    ]
    module = moved(imported(nodes, tmp_path, constants, (1, 64, size, size)), replace(EIGHT_LANES, dot="vpdpbusd"))
    if size > 1:
        assert not any(isinstance(layer, Dense) for layer in layers(module))
        return
    (layer,) = (layer for layer in layers(module) if isinstance(layer, Dense))
    assert (layer.bits, layer.block, layer.bias) == (8, block or 64, True)
    assert [op.kind for op in layer.epilogue] == ["relu"]


def test_one_kernel_has_all_layers_of_a_shape(tmp_path):
    constants = of_file() | {"u": RANDOM.integers(0, 256, (64, 2, 16)).astype(np.uint8)[:48]}
    other = node("MatMulNBits", ["x", "u", "s"], ["g"], domain="com.microsoft", K=64, N=48, block_size=32)
    module = moved(imported([few_bits(), other, node("Add", ["h", "g"], ["y"])], tmp_path, constants))
    assert counts(module) == {"Dense": 2}
    assert len(calls(module)) == 2
