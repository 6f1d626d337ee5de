"""Tensors in blocks of bfloat16: every template that reads or writes them computes in float32 in between."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support import cpu_kernels
from tests.support.cpu_kernels import NARROW, WIDE, applied, layer_of, one_node, random
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.layers import BFLOAT16, Activation, Conv, Map, Pool, PostOp, from_json, to_json

MACHINES = [replace(kind, bfloat16="portable") for kind in (WIDE, NARROW, replace(WIDE, tiles=True))]
each_machine = pytest.mark.parametrize("kind", MACHINES, ids=["wide", "narrow", "tiles"])
UNTOUCHED = 0x42424242
TOLERANCE = 2**-7
"""Of a number; the largest error of rounding once is a fourth of it."""


def rounded(numbers):
    """Return the nearest numbers of bfloat16 in float32."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def in_memory(array, activation):
    """Return an NCHW array as the buffer of a place: in pairs, or as it is."""
    buffer = cpu_kernels.blocked(array, replace(activation, dtype="float32"), filler=3.0)
    if activation.dtype != BFLOAT16:
        return buffer
    return (rounded(buffer).view(np.uint32) >> 16).astype(np.uint16).view(np.int32)


def result_of(layer, kind, arguments):
    """Run the likely fastest kernel of a layer; returns NCHW, after looking that nothing else was written."""
    activation, is_paired = layer.out, layer.out.dtype == BFLOAT16
    before = np.full(activation.shape, UNTOUCHED if is_paired else 77, np.int32 if is_paired else np.float32)
    function = emit.portable(kernels.kernel(layer, kind, kernels.default(layer, kind)))
    buffer = cpu_kernels.run(function, arguments, before)
    others = [
        block
        for block in range(buffer.shape[1])
        if not activation.first <= block < activation.first + activation.blocks
    ]
    assert (buffer[:, others] == before[:, others]).all()
    if is_paired:
        buffer = (buffer.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return cpu_kernels.unblocked(buffer, activation)


def in_pairs(activation):
    """Return a place in bfloat16, within a larger buffer."""
    return replace(activation, dtype=BFLOAT16, first=1, held=activation.blocks + 2)


def paired(layer):
    """Return a layer all of whose blocked tensors are in bfloat16."""
    epilogue = tuple(replace(op, other=in_pairs(op.other)) if op.other else op for op in layer.epilogue)
    activations = {name: getattr(layer, name) for name in ("data", "out")}
    return replace(layer, epilogue=epilogue, **{k: in_pairs(v) if v.lanes > 1 else v for k, v in activations.items()})


# --- convolutions ----------------------------------------------------------------------------------------------

ADD, RELU, SILU = PostOp("add"), PostOp("relu"), PostOp("silu")
SAME = {"padding": (1, 1, 1, 1)}
CONVOLUTIONS = {
    "depthwise": (layer_of, {"data": (2, 24, 9, 13), "channels": 24, "kernel": (3, 3), "groups": 24, **SAME}, False),
    "winograd": (layer_of, {"data": (1, 32, 14, 17), "channels": 48, "kernel": (3, 3), **SAME}, False),
    "3x3": (layer_of, {"data": (1, 32, 9, 13), "channels": 40, "kernel": (3, 3), "strides": (2, 2), **SAME}, True),
    "pointwise": (layer_of, {"data": (1, 40, 13, 7), "channels": 112, "kernel": (1, 1)}, True),
    "deep": (layer_of, {"data": (1, 264, 7, 7), "channels": 32, "kernel": (3, 3), **SAME}, True),
}


@each_machine
@pytest.mark.parametrize("epilogue", [(ADD, RELU), (SILU,)], ids=["few operations", "many"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, epilogue, kind):
    make, settings, in_bfloat16 = CONVOLUTIONS[name]
    exact = make(lanes=kind.lanes, **settings, epilogue=epilogue)
    layer = replace(paired(exact), bfloat16=in_bfloat16)
    inputs = cpu_kernels.inputs_of(exact)
    choice = kernels.default(layer, kind)
    arguments = [in_memory(inputs.data, layer.data), kernels.pack(layer, kind, choice, inputs.weights)]
    arguments.append(cpu_kernels.by_channel(inputs.bias, layer.out))
    operands = zip(inputs.operands, (op.other for op in layer.epilogue if op.other), strict=True)
    arguments += [in_memory(operand, activation) for operand, activation in operands]
    weights = rounded(inputs.weights) if in_bfloat16 else inputs.weights
    read = replace(
        inputs,
        data=rounded(inputs.data),
        weights=weights,
        operands=tuple(rounded(operand) for operand in inputs.operands),
    )
    actual = result_of(layer, kind, arguments)
    np.testing.assert_allclose(actual, cpu_kernels.expected(exact, read), rtol=TOLERANCE, atol=1e-4)


@each_machine
def test_a_layer_on_floats_adds_a_tensor_in_pairs(kind):
    exact = layer_of((1, 64, 6, 7), 64, (3, 3), kind.lanes, groups=4, epilogue=(ADD,))
    layer = replace(exact, epilogue=(replace(ADD, other=in_pairs(exact.out)),))
    inputs = cpu_kernels.inputs_of(exact)
    choice, read = kernels.default(layer, kind), replace(inputs, operands=(rounded(inputs.operands[0]),))
    arguments = [in_memory(inputs.data, layer.data), kernels.pack(layer, kind, choice, inputs.weights)]
    arguments += [
        cpu_kernels.by_channel(inputs.bias, layer.out),
        in_memory(inputs.operands[0], layer.epilogue[0].other),
    ]
    actual = result_of(layer, kind, arguments)
    np.testing.assert_allclose(actual, cpu_kernels.expected(exact, read), rtol=2e-5, atol=2e-5)


def test_a_layer_in_bfloat16_needs_no_rounding_of_its_own():
    exact = replace(layer_of((1, 64, 14, 14), 128, (1, 1), 16), bfloat16=True)
    reads = replace(exact, data=replace(exact.data, dtype=BFLOAT16))
    first, second = (kernels.candidates(layer, MACHINES[0])[0] for layer in (exact, reads))
    assert second.cost < first.cost
    assert second.choice.template == first.choice.template == "bfloat16"


def test_sums_are_never_put_aside_in_a_result_of_bfloat16():
    layer = replace(layer_of((1, 2048, 7, 7), 512, (3, 3), 16, padding=(1, 1, 1, 1)), bfloat16=True)
    stores = replace(layer, out=replace(layer.out, dtype=BFLOAT16))
    chunks = {each.choice.config.depth for each in kernels.candidates(stores, MACHINES[0])}
    assert chunks == {2048 // 16}
    assert {each.choice.config.depth for each in kernels.variants(stores, MACHINES[0])} <= chunks
    assert max(each.choice.config.depth for each in kernels.candidates(layer, MACHINES[0])) < 2048 // 16


@pytest.mark.parametrize(
    "layer",
    [
        layer_of((1, 64, 14, 14), 64, (1, 1), 16, groups=4),
        layer_of((1, 64, 1, 14), 64, (1, 7), 16),
        layer_of((1, 63, 14, 14), 64, (1, 1), 16),
    ],
    ids=["groups", "row", "odd"],
)
def test_layers_that_cannot_read_pairs_are_not_covered(layer):
    reads = replace(layer, data=replace(layer.data, dtype=BFLOAT16))
    assert kernels.is_covered(layer)
    assert not kernels.is_covered(reads)


def test_measured_data_is_usual_numbers():
    layer = replace(paired(layer_of((1, 64, 14, 14), 128, (1, 1), 16)), bfloat16=True)
    data = kernels.examples(layer, MACHINES[0], kernels.default(layer, MACHINES[0]))[0]
    assert data.shape == layer.data.shape
    assert set((data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).ravel().tolist()) == {0.5}


def test_a_layer_is_described_with_its_pairs():
    layer = paired(layer_of((1, 64, 14, 14), 128, (1, 1), 16, epilogue=(ADD,)))
    assert from_json(to_json(layer)) == layer
    assert isinstance(layer, Conv)
    assert layer.data.shape == (1, 6, 14, 14, 8)


# --- pools and maps --------------------------------------------------------------------------------------------


@each_machine
@pytest.mark.parametrize("reduce", ["max", "mean"])
@pytest.mark.parametrize(("size", "kernel", "strides"), [((9, 13), (3, 3), (2, 2)), ((5, 7), (5, 7), (1, 1))])
def test_pools(reduce, size, kernel, strides, kind):
    height, width = ((extent - taps) // stride + 1 for extent, taps, stride in zip(size, kernel, strides, strict=True))
    activations = (Activation(2, 24, *size, kind.lanes), Activation(2, 24, height, width, kind.lanes))
    layer = paired(Pool(*activations, reduce, kernel, strides))
    data = random((2, 24, *size))
    operator = {"max": "MaxPool", "mean": "AveragePool"}[reduce]
    expected = one_node(operator, {"x": rounded(data)}, kernel_shape=kernel, strides=strides)
    actual = result_of(layer, kind, [in_memory(data, layer.data)])
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE, atol=1e-4)


@each_machine
@pytest.mark.parametrize(("data_lanes", "out_lanes", "shuffle"), [(1, 1, 0), (0, 1, 0), (1, 0, 0), (1, 1, 4)], ids=str)
@pytest.mark.parametrize("size", [(7, 9), (16, 16)], ids=str)
def test_maps(data_lanes, out_lanes, shuffle, size, kind):
    """Lanes of 0 are plain layout."""
    data, out = (Activation(2, 24, *size, kind.lanes if is_blocked else 1) for is_blocked in (data_lanes, out_lanes))
    inner = out if out_lanes else data
    epilogue = (PostOp("add", other=inner), RELU)
    layer = paired(Map(data, out, epilogue, shuffle))
    numbers, other = random((2, 24, *size)), random((2, 24, *size), 1)
    read = rounded(numbers) if data_lanes else numbers
    if shuffle:
        read = read.reshape(2, shuffle, -1, *size).swapaxes(1, 2).reshape(read.shape)
    actual = result_of(layer, kind, [in_memory(numbers, layer.data), in_memory(other, layer.epilogue[0].other)])
    np.testing.assert_allclose(actual, applied(read, epilogue, [rounded(other)]), rtol=TOLERANCE, atol=1e-3)
