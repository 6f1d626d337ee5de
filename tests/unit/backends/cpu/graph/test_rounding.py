"""Quantised networks: what is computed on bytes, and that the results are ONNX Runtime's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax, tirx

from tests.support import int8_nets, nets
from tests.support.cpu_bytes import NARROW, WIDE, require_dot
from tests.support.cpu_kernels import NATIVE
from tests.support.nets import node, value
from tests.support.qdq_nets import QuantType, floating, imported, quantization, quantized, random, residual, weights
from toolchain import quantize
from toolchain.backends.base import EXACT
from toolchain.backends.cpu import graph, kernels
from toolchain.backends.cpu.graph.rewriting import fold_except_weights
from toolchain.backends.cpu.layers import Conv, ImageLayer, Map, Pool, from_json
from toolchain.backends.cpu.machine import Machine
from toolchain.models import importer, reference
from toolchain.models import source as model

MACHINES = {"wide": WIDE, "narrow": NARROW}
CALLS = {"relax.call_tir", "relax.call_tir_inplace"}
SDOT = Machine(4, 32, "sdot", 2)


def layers(module):
    """Return the layers of a module's kernels without code, in the order in which they are called."""
    actual = []

    def visit(expression):
        if isinstance(expression, relax.Call) and getattr(expression.op, "name", "") in CALLS:
            function = module[expression.args[0]]
            if isinstance(function, tirx.PrimFunc) and EXACT in (function.attrs or {}):
                actual.append(from_json(str(function.attrs[EXACT])))

    relax.analysis.post_order_visit(module["main"], visit)
    return actual


def lowered(module, machine, without=frozenset()):
    """Return a network's layers as calls of kernels without code."""
    return graph.insert_stand_ins(fold_except_weights(module), machine, without)


def kinds(module):
    return [type(layer).__name__.removeprefix("Quantized").lower() for layer in layers(module)]


def compiled(module, machine):
    """Build a module with the kernels that are likely the fastest, for a processor that multiplies bytes."""
    require_dot()
    with NATIVE:
        lowered = relax.get_pipeline("zero")(module)
        finished = graph.emit_kernels(lowered, machine, lambda layer: kernels.default(layer, machine))
    main = relax.VirtualMachine(tvm.compile(finished, target=NATIVE), tvm.cpu())["main"]
    return lambda array: main(tvm.runtime.tensor(array)).numpy()


def step(proto):
    """Return the scale of the last `DequantizeLinear`, in steps of which results differ."""
    last = next(node for node in reversed(proto.graph.node) if node.op_type == "DequantizeLinear")
    return next(
        float(onnx.numpy_helper.to_array(node)) for node in proto.graph.initializer if node.name == last.input[1]
    )


def check(proto, machine, expected, shape, epilogue=1):
    """Compare a network with ONNX Runtime; `expected` are the kinds of its layers."""
    require_dot()
    module = lowered(imported(proto), machine)
    assert kinds(module) == expected
    unit, compute = step(proto), compiled(module, machine)
    apart = []
    for seed in range(10, 13):
        data = random(shape, seed)
        reference = nets.run(proto, {"x": data})[0]
        actual = compute(data)
        assert actual.shape == reference.shape
        assert len(np.unique(reference)) > 3
        apart.append(np.rint(np.abs(actual - reference) / unit).ravel())
    assert np.max(apart) <= epilogue
    assert np.mean(np.concatenate(apart) > 0) <= 0.1


@pytest.mark.parametrize("width", MACHINES)
@pytest.mark.parametrize("activation", ["uint8", "int8"])
def test_residual_network(activation, width, tmp_path):
    proto = quantized(residual(), tmp_path, activation)
    expected = ["map", "conv", "pool", "conv", "conv", "pool", "conv", "map"]
    check(proto, MACHINES[width], expected, (1, 3, 12, 12))


def test_what_is_done_to_a_result_joins_its_layer(tmp_path):
    module = lowered(imported(quantized(residual(), tmp_path, "int8")), WIDE)
    convs = [[op.kind for op in layer.epilogue] for layer in layers(module) if isinstance(layer, Conv)]
    assert convs == [["quantize", "relu"], ["quantize", "relu"], ["quantize", "add", "quantize", "relu"], []]
    first, last = layers(module)[0], layers(module)[-1]
    assert (first.data.lanes, first.out.lanes, first.out.dtype) == (1, 4, "uint8")
    assert (last.data.dtype, last.out.dtype, last.out.lanes) == ("uint8", "float32", 1)


def test_an_arm_core_gets_signed_bytes(tmp_path):
    actual = layers(lowered(imported(quantized(residual(), tmp_path, "uint8")), SDOT))
    assert kinds_of(actual) >= {Conv, Map, Pool}
    assert {activation.dtype for layer in actual for activation in (layer.data, layer.out)} == {"int8", "float32"}


def kinds_of(actual):
    return {type(layer) for layer in actual}


def test_no_layer_without_dot_products(tmp_path):
    module = imported(quantized(residual(), tmp_path))
    actual = layers(lowered(module, Machine(16, 32)))
    assert not any(isinstance(layer, ImageLayer) and layer.is_quantized for layer in actual)


def test_no_layer_that_is_left_out(tmp_path):
    module = imported(quantized(residual(), tmp_path))
    actual = layers(lowered(module, WIDE, frozenset({"int8"})))
    assert not any(isinstance(layer, Conv) and layer.is_quantized for layer in actual)


def test_depthwise_with_limits(tmp_path):
    constants = {
        "w1": weights(32, 16, 1, 1),
        "w2": random((32, 1, 3, 3), 1),
        "six": np.float32(6),
        "zero": np.float32(0),
    }
    nodes = [
        node("Conv", ["x", "w1"], ["c1"]),
        node("Clip", ["c1", "zero", "six"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], group=32, pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Clip", ["c2", "zero", "six"], ["y"]),
    ]
    for activation in ("uint8", "int8"):
        proto = quantized(floating(nodes, (2, 16, 9, 7), constants), tmp_path, activation)
        check(proto, WIDE, ["map", "conv", "conv", "map"], (2, 16, 9, 7))


def test_sum_of_bytes_that_others_need_too(tmp_path):
    constants = {"w1": weights(16, 16, 1, 1, seed=1), "w2": weights(16, 16, 1, 1, seed=2)}
    nodes = [
        node("Conv", ["x", "w1"], ["c1"]),
        node("Conv", ["x", "w2"], ["c2"]),
        node("Add", ["c1", "c2"], ["a"]),
        node("Mul", ["c1", "c2"], ["m"]),
        node("Add", ["a", "m"], ["y"]),
    ]
    proto = quantized(floating(nodes, (1, 16, 5, 6), constants), tmp_path)
    module = lowered(imported(proto), WIDE)
    assert kinds(module).count("conv") == 2
    check(proto, WIDE, kinds(module), (1, 16, 5, 6))


def fire(channels):
    """Return a network whose two branches are put together, and that with its input."""
    constants = {
        "w1": weights(channels, 16, 1, 1, seed=1),
        "w2": weights(channels, 16, 3, 3, seed=2),
        "w3": weights(24, 16 + 2 * channels, 1, 1, seed=3),
    }
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Conv", ["r", "w1"], ["c1"]),
        node("Conv", ["r", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        node("Relu", ["c2"], ["r2"]),
        node("Concat", ["c1", "r2"], ["j1"], axis=1),
        node("Concat", ["j1", "r"], ["j2"], axis=1),
        node("Conv", ["j2", "w3"], ["y"]),
    ]
    return floating(nodes, (1, 16, 6, 7), constants)


@pytest.mark.parametrize("activation", ["uint8", "int8"])
def test_concatenation_of_whole_blocks(activation, tmp_path):
    proto = quantized(fire(32), tmp_path, activation)
    check(proto, WIDE, ["map", "conv", "conv", "map", "map", "conv", "map"], (1, 16, 6, 7))


def test_layers_write_where_they_are_put_together(tmp_path):
    module = lowered(imported(quantized(fire(32), tmp_path)), WIDE)
    first, second = (layer for layer in layers(module)[1:3])
    assert (first.out.first, first.out.held, second.out.first, second.out.held) == (0, 4, 2, 4)


def test_concatenation_within_blocks_is_done_on_numbers(tmp_path):
    proto = quantized(fire(20), tmp_path)
    actual = kinds(lowered(imported(proto), WIDE))
    assert actual.count("conv") == 3
    check(proto, WIDE, actual, (1, 16, 6, 7))


def test_activation_functions(tmp_path):
    constants = {"w": weights(16, 16, 3, 3)}
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Sigmoid", ["c"], ["s"]),
        node("LeakyRelu", ["s"], ["l"], alpha=0.1),
        node("AveragePool", ["l"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("AveragePool", ["p"], ["q"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("AveragePool", ["q"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    ]
    proto = quantized(floating(nodes, (1, 16, 8, 8), constants), tmp_path)
    check(proto, WIDE, ["map", "conv", "pool", "pool", "pool", "map"], (1, 16, 8, 8))


def test_convolution_of_many_groups_is_computed_on_numbers(tmp_path):
    constants = {"w1": weights(32, 16, 1, 1), "w2": weights(32, 2, 3, 3)}
    nodes = [
        node("Conv", ["x", "w1"], ["c1"]),
        node("Conv", ["c1", "w2"], ["c2"], group=16, pads=[1, 1, 1, 1]),
        node("Conv", ["c2", "w1t"], ["y"]),
    ]
    proto = quantized(floating(nodes, (1, 16, 6, 6), {**constants, "w1t": weights(16, 32, 1, 1)}), tmp_path)
    expected = ["map", "conv", "map", "map", "conv", "map", "conv", "map"]  # the one on floats between two of layout
    check(proto, WIDE, expected, (1, 16, 6, 6))


def test_vectors(tmp_path):
    constants = {"w1": weights(40, 24), "w2": weights(12, 40)}
    nodes = [
        node("Gemm", ["x", "w1"], ["g"], transB=1),
        node("Relu", ["g"], ["r"]),
        node("Gemm", ["r", "w2"], ["y"], transB=1),
    ]
    proto = quantized(floating(nodes, (3, 24), constants), tmp_path)
    check(proto, WIDE, ["map", "conv", "conv", "map"], (3, 24))


def test_unsigned_weights_about_the_middle(tmp_path):
    constants = {"w": weights(16, 16, 1, 1)}
    proto = quantized(
        floating([node("Conv", ["x", "w"], ["y"])], (1, 16, 5, 5), constants),
        tmp_path,
        weight_type=QuantType.QUInt8,
    )
    for tensor in proto.graph.initializer:
        if tensor.name == "w_zero_point":
            middle = np.full(onnx.numpy_helper.to_array(tensor).shape, 128, np.uint8)
            tensor.CopyFrom(onnx.numpy_helper.from_array(middle, tensor.name))
    check(proto, WIDE, ["map", "conv", "map"], (1, 16, 5, 5))


def test_asymmetric_weights(tmp_path):
    constants = {"w": weights(20, 16, 3, 3) + np.float32(0.05), "v": random((20, 1, 3, 3)) + np.float32(0.3)}
    options = {
        "weight_type": QuantType.QUInt8,
        "per_channel": False,
        "extra_options": {"WeightSymmetric": False},
    }
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Conv", ["c", "v"], ["y"], group=20, strides=[2, 2]),
    ]
    proto = quantized(floating(nodes, (1, 16, 9, 5), constants), tmp_path, **options)
    module = lowered(imported(proto), WIDE)
    assert [layer.offset for layer in layers(module) if isinstance(layer, Conv)] == [True, False]
    check(proto, WIDE, ["map", "conv", "conv", "map"], (1, 16, 9, 5))


@pytest.mark.parametrize("shape", [(7, 32), (1, 7, 32), (2, 3, 32)], ids=str)
def test_products_of_vectors_with_matrices(shape, tmp_path):
    constants = {"w": weights(32, 48), "b": random((48,), 1), "v": weights(48, 20, seed=2), "a": random((1, 20), 3)}
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["s"]),
        node("Relu", ["s"], ["r"]),
        node("MatMul", ["r", "v"], ["n"]),
        node("Add", ["a", "n"], ["y"]),
    ]
    proto = quantized(floating(nodes, shape, constants), tmp_path, per_channel=False)
    check(proto, WIDE, ["map", "conv", "conv", "map"], shape, epilogue=2)


def test_whole_blocks_of_vectors_are_not_copied(tmp_path):
    """A product in integers of vectors that fill their blocks is one kernel: the rest changes no layout."""
    constants = {"w": np.arange(-256, 256).astype(np.int8).reshape(32, 16)}
    proto = nets.model(
        [node("MatMulInteger", ["x", "w"], ["y"])],
        [value("x", (1, 7, 32), "uint8")],
        [value("y", (1, 7, 16), "int32")],
        constants,
    )
    source = tmp_path / "model.onnx"
    onnx.save(proto, source)
    module = lowered(imported_by_us(source), WIDE)
    assert kinds(module) == ["conv"]
    data = np.random.default_rng(0).integers(0, 256, (1, 7, 32)).astype(np.uint8)
    assert (compiled(module, WIDE)(data) == data.astype(np.int32) @ constants["w"].astype(np.int32)).all()


def imported_by_us(path):
    """Return a file as the backend lowers it, with the toolchain's converters."""
    passes = [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings()]
    return tvm.transform.Sequential(passes)(importer.import_model(model.load(str(path))).module)


def test_operators_on_bytes(tmp_path):
    """ONNX Runtime's own form: a pool and a change of shape are of bytes there, with no grid beside them."""
    form = {"quant_format": quantization.QuantFormat.QOperator, "per_channel": False}
    proto = quantized(residual(), tmp_path, **form)
    module = lowered(imported_by_us(tmp_path / "qdq.onnx"), WIDE)
    expected = ["map", "conv", "pool", "conv", "conv", "pool", "conv", "map"]
    assert kinds(module) == expected
    compute, unit = compiled(module, WIDE), step(proto)
    for seed in (10, 11):
        data = random((1, 3, 12, 12), seed)
        assert np.abs(compute(data) - nets.run(proto, {"x": data})[0]).max() <= 1.1 * unit


def test_groups_are_one_with_zeros(tmp_path):
    constants = {"w": weights(24, 16, 1, 1), "v": weights(36, 6, 3, 3, seed=1)}
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Conv", ["c", "v"], ["y"], group=4, pads=[1, 1, 1, 1]),
    ]
    proto = quantized(floating(nodes, (1, 16, 6, 5), constants), tmp_path)
    check(proto, WIDE, ["map", "conv", "conv", "map"], (1, 16, 6, 5))


def test_products_of_bytes(tmp_path):
    """What a squeeze-and-excitation and a SiLU multiply: one pixel with all, and a tensor with its own sigmoid."""
    constants = {"w": weights(20, 16, 1, 1), "v": weights(20, 20, 1, 1)}
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Sigmoid", ["c"], ["s"]),
        node("Mul", ["c", "s"], ["m"]),
        node("GlobalAveragePool", ["m"], ["g"]),
        node("Conv", ["g", "v"], ["e"]),
        node("Sigmoid", ["e"], ["f"]),
        node("Mul", ["f", "m"], ["h"]),
        node("Conv", ["h", "v"], ["y"]),
    ]
    proto = quantized(floating(nodes, (2, 16, 6, 5), constants), tmp_path)
    products = [
        (op.other.height, op.other.width)
        for layer in layers(lowered(imported(proto), WIDE))
        for op in layer.epilogue
        if op.kind == "mul"
    ]
    assert products == [(6, 5), (1, 1)]
    check(proto, WIDE, ["map", "conv", "map", "pool", "conv", "map", "conv", "map"], (2, 16, 6, 5), epilogue=2)


def test_what_is_only_rounded_stays_on_its_layout(tmp_path):
    nodes = [node("Sigmoid", ["x"], ["s"]), node("Transpose", ["s"], ["y"], perm=[0, 3, 1, 2])]
    proto = quantized(floating(nodes, (1, 4, 6, 8), {}), tmp_path, op_types_to_quantize=["Sigmoid", "Transpose"])
    assert any(item.op_type == "QuantizeLinear" for item in proto.graph.node)
    assert kinds(lowered(imported(proto), WIDE)) == []


@pytest.mark.parametrize("width", MACHINES)
def test_a_factor_and_a_sum_for_each_channel_join_a_layer(width, tmp_path):
    """What a batch normalization becomes, before a convolution and after one that others need too."""
    each = (1, 20, 1, 1)
    constants = {
        "w": weights(20, 20, 1, 1),
        "m": 1 + abs(random(each)),
        "a": random(each, 1),
        "n": -abs(random(each, 2)),
    }
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Mul", ["m", "c"], ["c1"]),
        node("Add", ["c1", "a"], ["c2"]),
        node("Relu", ["c2"], ["c3"]),
        node("Conv", ["c3", "w"], ["d"]),
        node("Sigmoid", ["c"], ["s"]),
        node("Mul", ["s", "n"], ["s1"]),
        node("Add", ["a", "s1"], ["s2"]),
        node("Conv", ["s2", "w"], ["e"]),
        node("Add", ["d", "e"], ["y"]),
    ]
    proto = quantized(
        floating(nodes, (1, 20, 6, 5), constants), tmp_path, op_types_to_quantize=["Conv", "Sigmoid", "Relu"]
    )
    actual = layers(lowered(imported(proto), MACHINES[width]))
    post_ops = [op.kind for layer in actual for op in layer.epilogue]
    assert (post_ops.count("scale"), post_ops.count("shift")) == (2, 2)
    module = lowered(imported(proto), MACHINES[width])
    assert [layer for layer in layers(module)[:-1] if not layer.is_quantized] == []  # the last one leaves the blocks
    compute, data = compiled(module, MACHINES[width]), random((1, 20, 6, 5), 3)
    expected = nets.run(proto, {"x": data})[0]
    assert np.abs(compute(data) - expected).max() <= 0.05 * np.abs(expected).max()


def rounding(name, source, target, scale, dtype, constants, zero=0):
    """Return a node of `QuantizeLinear` or `DequantizeLinear` whose grid goes to `constants`."""
    constants[f"{target}_scale"], constants[f"{target}_zero"] = np.float32(scale), np.array(zero, dtype)
    return node(name, [source, f"{target}_scale", f"{target}_zero"], [target])


def test_result_that_is_bytes():
    constants = {"w": np.random.default_rng(0).integers(-99, 99, (16, 16, 1, 1)).astype(np.int8)}
    nodes = [
        rounding("DequantizeLinear", "x", "d", 0.1, np.uint8, constants, 9),
        rounding("QuantizeLinear", "d", "q", 0.2, np.uint8, constants, 5),
        rounding("DequantizeLinear", "q", "e", 0.2, np.uint8, constants, 5),
        rounding("DequantizeLinear", "w", "v", 0.01, np.int8, constants),
        node("Conv", ["e", "v"], ["c"]),
        rounding("QuantizeLinear", "c", "y", 0.31, np.uint8, constants, 99),
    ]
    proto = nets.model(nodes, [value("x", (1, 16, 4, 4), "uint8")], [value("y", None, "uint8")], constants)
    data = np.random.default_rng(1).integers(0, 256, (1, 16, 4, 4)).astype(np.uint8)
    actual = compiled(lowered(imported(proto), WIDE), WIDE)(data)
    reference = nets.run(proto, {"x": data})[0]
    assert actual.dtype == reference.dtype == np.uint8
    assert np.abs(actual.astype(int) - reference).max() <= 1


def test_bytes_of_the_outside_go_into_blocks(tmp_path):
    """The network's input is bytes already; on an Arm core they get another type."""
    proto = quantized(residual(), tmp_path)
    first = next(node for node in proto.graph.node if node.input[0] == "x")
    assert first.op_type == "QuantizeLinear"
    for reader in proto.graph.node:
        reader.input[:] = ["x" if name == first.output[0] else name for name in reader.input]
    proto.graph.node.remove(first)
    proto.graph.input[0].CopyFrom(value("x", (1, 3, 12, 12), "uint8"))
    module = imported(proto)
    assert kinds(lowered(module, WIDE)) == ["map", "conv", "pool", "conv", "conv", "pool", "conv", "map"]
    outside = layers(lowered(module, SDOT))[0]
    assert (outside.data.dtype, outside.data.lanes, outside.out.dtype, outside.out.lanes) == ("uint8", 1, "int8", 4)
    compute = compiled(lowered(module, WIDE), WIDE)
    data = np.random.default_rng(1).integers(0, 256, (1, 3, 12, 12)).astype(np.uint8)
    reference = nets.run(proto, {"x": data})[0]
    assert np.abs(compute(data) - reference).max() <= 1.01 * step(proto)


def test_numbers_that_a_layer_on_bytes_makes(tmp_path):
    """Nothing rounds the last results: they leave the layers as numbers."""
    proto = quantized(residual(), tmp_path)
    last = next(node for node in reversed(proto.graph.node) if node.op_type == "Gemm")
    remaining = list(proto.graph.node)[:-2]
    assert [node.op_type for node in proto.graph.node][-2:] == ["QuantizeLinear", "DequantizeLinear"]
    last.output[0] = "y"
    del proto.graph.node[:]
    proto.graph.node.extend(remaining)
    module = lowered(imported(proto), WIDE)
    assert kinds(module) == ["map", "conv", "pool", "conv", "conv", "pool", "conv", "map"]
    *_, conv, back = layers(module)
    assert (conv.data.dtype, conv.out.dtype) == ("uint8", "float32")
    assert (back.data, back.out.lanes) == (conv.out, 1)
    data = random((1, 3, 12, 12), 10)
    np.testing.assert_allclose(compiled(module, WIDE)(data), nets.run(proto, {"x": data})[0], rtol=0.1, atol=0.1)


def test_bias_as_numbers(tmp_path):
    settings = {"ActivationSymmetric": False, "WeightSymmetric": True, "QuantizeBias": False}
    proto = quantized(residual(), tmp_path, extra_options=settings)
    check(proto, WIDE, ["map", "conv", "pool", "conv", "conv", "pool", "conv", "map"], (1, 3, 12, 12))


@pytest.mark.parametrize("source", ["x", "c"])
def test_tensors_that_follow_from_bytes_of_the_file(source):
    """What a network adds to each element, such as positions: as one tensor, and as the sum of two."""
    constants = {"w": weights(16, 16, 1, 1)}
    stream = np.random.default_rng(0)
    constants |= {name: stream.integers(-99, 99, (1, 16, 4, 4)).astype(np.int8) for name in ("p1", "p2", "p3")}
    nodes = [node("Conv", ["x", "w"], ["c"])]
    nodes += [rounding("DequantizeLinear", name, f"{name}d", 0.01, np.int8, constants) for name in ("p1", "p2", "p3")]
    nodes += [
        node("Add", ["p1d", "p2d"], ["s"]),
        rounding("QuantizeLinear", "s", "sq", 0.02, np.int8, constants),
        rounding("DequantizeLinear", "sq", "sd", 0.02, np.int8, constants),
        node("Add", [source, "p3d"], ["a"]),
        node("Add", ["a", "sd"], ["b"]),
        rounding("QuantizeLinear", "b", "q", 0.03, np.int8, constants),
        rounding("DequantizeLinear", "q", "e", 0.03, np.int8, constants),
        node("Add", ["e", "sd"], ["f"]),
        rounding("QuantizeLinear", "f", "g", 0.03, np.int8, constants),
        rounding("DequantizeLinear", "g", "y", 0.03, np.int8, constants),
    ]
    proto = floating(nodes if source == "c" else nodes[1:], (1, 16, 4, 4), constants)
    data = random((1, 16, 4, 4))
    expected = nets.run(proto, {"x": data})[0]
    assert np.abs(compiled(lowered(imported(proto), WIDE), WIDE)(data) - expected).max() <= 0.07  # two steps


def test_weights_that_are_rounded_in_the_network():
    """Training with rounding in mind leaves weights as numbers, with both conversions behind them."""
    constants = {"w": weights(16, 16, 3, 3)}
    nodes = [
        rounding("QuantizeLinear", "x", "q", 0.03, np.int8, constants),
        rounding("DequantizeLinear", "q", "e", 0.03, np.int8, constants),
        rounding("QuantizeLinear", "w", "k", 0.004, np.int8, constants),
        rounding("DequantizeLinear", "k", "v", 0.004, np.int8, constants),
        node("Conv", ["e", "v"], ["c"], pads=[1, 1, 1, 1]),
        rounding("QuantizeLinear", "c", "r", 0.03, np.int8, constants),
        rounding("DequantizeLinear", "r", "y", 0.03, np.int8, constants),
    ]
    proto = floating(nodes, (1, 16, 6, 6), constants)
    check(proto, WIDE, ["map", "conv", "map"], (1, 16, 6, 6))


def test_grids_for_each_channel_are_left_alone():
    constants = {"s": np.linspace(0.1, 0.2, 16, dtype=np.float32), "z": np.zeros(16, np.uint8)}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    proto = floating(nodes, (1, 16, 4, 4), constants)
    module = lowered(imported(proto), WIDE)
    assert layers(module) == []
    data = random((1, 16, 4, 4))
    np.testing.assert_allclose(compiled(module, WIDE)(data), nets.run(proto, {"x": data})[0], rtol=1e-6)


def test_a_layer_on_floats_and_one_on_bytes_meet_in_blocks(tmp_path):
    """What a layer on floats makes is rounded where it lies, and numbers of bytes leave the blocks once."""
    constants = {"v": weights(16, 3, 3, 3), "w": weights(16, 16, 1, 1, seed=1), "u": weights(16, 16, 1, 1, seed=2)}
    nodes = [
        node("Conv", ["x", "v"], ["c1"], "first"),
        node("Conv", ["c1", "w"], ["c2"], "second"),
        node("Conv", ["c2", "u"], ["y"], "third"),
    ]
    proto = floating(nodes, (1, 3, 6, 6), constants)
    proto = quantized(proto, tmp_path, nodes_to_quantize=["second"])
    actual = layers(lowered(imported(proto), WIDE))
    assert [type(layer).__name__.lower() for layer in actual][:3] == ["conv", "map", "conv"]
    rounding = actual[1]
    assert (rounding.data.dtype, rounding.data.lanes, rounding.out.dtype) == ("float32", 16, "uint8")


def test_a_gate_of_bytes_whose_product_stays_in_floats(tmp_path):
    """The product belongs to the gate's layer, and is dropped where a layer on floats reads it; the gate is not."""
    require_dot()
    constants = {"w": weights(16, 16, 1, 1), "d": random((16, 1, 3, 3), 1)}
    constants |= {"scale": np.float32(0.05), "fine": np.float32(1 / 255), "zero": np.uint8(128), "low": np.uint8(0)}
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("HardSigmoid", ["c"], ["h"]),
        node("QuantizeLinear", ["c", "scale", "zero"], ["c8"]),
        node("DequantizeLinear", ["c8", "scale", "zero"], ["cn"]),
        node("QuantizeLinear", ["h", "fine", "low"], ["h8"]),
        node("DequantizeLinear", ["h8", "fine", "low"], ["hn"]),
        node("Mul", ["cn", "hn"], ["m"]),
        node("Conv", ["m", "d"], ["y"], group=16, pads=[1, 1, 1, 1]),
    ]
    proto = floating(nodes, (1, 16, 6, 6), constants)
    module, data = lowered(imported(proto), WIDE), random((1, 16, 6, 6), 10)
    reference = nets.run(proto, {"x": data})[0]
    np.testing.assert_allclose(compiled(module, WIDE)(data), reference, atol=0.02 * np.abs(reference).max())


def test_sizes_of_layers_are_those_of_the_network(tmp_path):
    first, second = (layer for layer in layers(lowered(imported(quantized(residual(36), tmp_path)), WIDE))[1:3])
    assert (first.out.channels, first.out.blocks, first.out.height) == (36, 3, 6)
    assert second.out == replace(first.out, height=6, width=6)


@pytest.mark.parametrize(
    "pool",
    [
        node("GlobalAveragePool", ["r"], ["y"]),
        node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
        node("AveragePool", ["r"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ],
    ids=lambda pool: pool.op_type,
)
def test_a_pool_of_bytes_whose_result_is_not_rounded(pool, tmp_path):
    require_dot()
    constants = {"w1": weights(16, 16, 3, 3, seed=1), "w2": weights(16, 16, 3, 3, seed=2)}
    nodes = [node("Conv", ["x", "w1"], ["c"]), node("Conv", ["c", "w2"], ["d"]), node("Relu", ["d"], ["r"]), pool]
    onnx.save(onnx.shape_inference.infer_shapes(floating(nodes, (1, 16, 12, 12), constants)), tmp_path / "net.onnx")
    source = model.load(str(tmp_path / "net.onnx"))
    built = quantize.quantized(source, [{"x": random((1, 16, 12, 12), seed)} for seed in range(3)]).source
    module = lowered(imported(built.proto), WIDE)
    data = random((1, 16, 12, 12), 10)
    reference = nets.run(built.proto, {"x": data})[0]
    np.testing.assert_allclose(compiled(module, WIDE)(data), reference, atol=0.02 * np.abs(reference).max())


def test_a_network_of_the_quantizer_is_computed_to_the_letter(tmp_path):
    """No step of 8 bits differs: a deep network would make much of it."""
    require_dot()
    source = model.load(nets.save(int8_nets.residual(size=32), tmp_path))
    built = quantize.quantized(source, [{"x": random((1, 3, 32, 32), seed)} for seed in range(3)]).source
    compute = compiled(lowered(imported(built.proto), WIDE), WIDE)
    for seed in range(10, 14):
        data = random((1, 3, 32, 32), seed)
        expected = reference.run(built, {"x": data}, unoptimized=True)["y"]
        np.testing.assert_allclose(compute(data), expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (1, 16, 5, 5)])
@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["wide", "narrow"])
def test_bytes_that_the_network_is_given(dtype, shape, machine):
    """They may be of another type than those of the machine's products."""
    require_dot()
    scales = {"s": np.float32(1 / 32), "t": np.float32(1 / 64), "z": np.array(3, dtype)}
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["d"]),
        node("Tanh", ["d"], ["h"]),
        node("QuantizeLinear", ["h", "t", "z"], ["q"]),
        node("DequantizeLinear", ["q", "t", "z"], ["r"]),
        node("Sigmoid", ["r"], ["y"]),
    ]
    proto = nets.model(nodes, [value("x", shape, dtype)], [value("y", shape)], scales)
    kind = np.iinfo(dtype)
    data = np.random.default_rng(0).integers(kind.min, kind.max + 1, shape).astype(dtype)
    actual = compiled(lowered(imported(proto), machine), machine)(data)
    np.testing.assert_allclose(actual, nets.run(proto, {"x": data})[0], atol=1 / 64)
