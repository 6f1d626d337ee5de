"""Which kernels are in bfloat16 or float16, and how they are computed on any machine."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support import nets, qdq_nets
from tests.support.nets import node
from toolchain import board
from toolchain.backends.cpu import precision
from toolchain.backends.cpu.backend import Cpu
from toolchain.backends.cpu.lowering import PIPELINE
from toolchain.backends.cpu.machine import this_machine
from toolchain.errors import InputError
from toolchain.models import importer, source

LOCAL = board.load("local").resolved()
RPI5 = board.load("rpi5").resolved().with_precision(float16=True)


def cpu(mcpu):
    target = dataclasses.replace(LOCAL.target, mcpu=mcpu, bfloat16=True)
    return Cpu(dataclasses.replace(LOCAL, target=target, cores=2))


def scheduled(backend, proto, folder):
    lowered = backend.lower(importer.import_model(source.load(nets.save(proto, folder))).module)
    return backend.apply_choices(lowered, {})


def normal(*shape):
    return (np.random.default_rng(0).standard_normal(shape) * np.prod(shape[1:]) ** -0.5).astype(np.float32)


def network():
    """Two pointwise convolutions of the same shape, a depthwise one, and a fully connected layer."""
    weights = {"a": normal(64, 64, 1, 1), "b": normal(64, 64, 1, 1), "c": normal(64, 1, 3, 3), "d": normal(64, 100)}
    nodes = [
        node("Conv", ["x", "a"], ["e"]),
        node("Conv", ["e", "b"], ["f"]),
        node("Conv", ["f", "c"], ["g"], group=64),
        node("GlobalAveragePool", ["g"], ["h"]),
        node("Flatten", ["h"], ["i"]),
        node("MatMul", ["i", "d"], ["y"]),
    ]
    return nets.model(nodes, [nets.value("x", (1, 64, 9, 9))], [nets.value("y", (1, 100))], weights)


def test_kernels_that_stay_in_float32_are_named(tmp_path):
    backend = cpu("x86-64-v3")
    module = scheduled(backend, network(), tmp_path)
    expected = "3 of 4 kernels with products are in bfloat16; in float32: depthwise_3x3_kernel"
    assert backend.remarks(module) == [expected]
    assert {str(name.name_hint) for name in module.get_global_vars()} >= {"bfloat16_conv_1x1_kernel", "bfloat16_dense"}


def types_between(module):
    """Return the types of the tensors that the kernels of a module make, in order."""
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    calls = [
        binding.value
        for binding in bindings
        if getattr(getattr(binding.value, "op", None), "name", "") == "relax.call_tir"
    ]
    return [str(call.ty_args[0].dtype) for call in calls if len(call.ty_args[0].shape) == 5]


def test_tensors_between_layers_are_in_bfloat16(tmp_path):
    types = types_between(scheduled(cpu("x86-64-v3"), network(), tmp_path))
    # Blocks of the input, three convolutions, and the mean of each channel, which is read as rows.
    assert types == ["float32", "int32", "int32", "int32", "float32"]


@pytest.mark.parametrize("kind", ["result", "groups", "odd channels"])
def test_tensors_that_a_layer_cannot_read_in_bfloat16_stay_in_float32(kind, tmp_path):
    channels = 33 if kind == "odd channels" else 64
    weights = {"a": normal(channels, 64, 1, 1), "b": normal(64, channels // (4 if kind == "groups" else 1), 1, 1)}
    nodes = [
        node("Conv", ["x", "a"], ["e"]),
        node("Relu", ["e"], ["f"]),
        node("Conv", ["f", "b"], ["y"], group=4 if kind == "groups" else 1),
    ]
    results = [nets.value(name, None) for name in (("f", "y") if kind == "result" else ("y",))]
    proto = nets.model(nodes, [nets.value("x", (1, 64, 9, 9))], results, weights)
    module = scheduled(cpu("x86-64-v3"), proto, tmp_path)
    assert types_between(module)[-2:] == ["float32", "float32"]


def test_a_template_for_a_part_that_the_processor_lacks_reads_no_tensor(tmp_path):
    """AMX's could read the first convolution's result in bfloat16, and there is no AMX."""
    target = dataclasses.replace(LOCAL.target, mcpu="x86-64-v4", bfloat16=True)
    backend = Cpu(dataclasses.replace(LOCAL, target=target, cores=2), frozenset({"bfloat16"}))
    assert types_between(scheduled(backend, network(), tmp_path))[1] == "float32"


def test_nothing_is_said_without_the_option(tmp_path):
    backend = Cpu(LOCAL)
    assert backend.remarks(scheduled(backend, network(), tmp_path)) == []


def test_rounded_weights_of_an_arm_board_are_computed_on_this_machine(tmp_path):
    weights = {"w": normal(256, 64)}
    proto = nets.model(
        [node("MatMul", ["x", "w"], ["y"])], [nets.value("x", (3, 256))], [nets.value("y", (3, 64))], weights
    )
    backend = Cpu(board.load("rpi4").resolved().with_precision(weights="int8"))
    module = scheduled(backend, proto, tmp_path)
    assert backend.remarks(module) == ["1 of 1 kernels with products have weights of 4 or 8 bits"]
    target = this_machine()
    machine = relax.VirtualMachine(tvm.compile(backend.on_cpu(module), target=target, tir_pipeline=PIPELINE), tvm.cpu())
    data = normal(3, 256)
    (expected,) = nets.run(proto, {"x": data})
    difference = np.abs(machine["main"](tvm.runtime.tensor(data)).numpy() - expected).max() / np.abs(expected).max()
    assert 1e-4 < difference < 2e-2


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "znver4"])
def test_any_machine_computes_what_the_board_does(mcpu, tmp_path):
    backend, proto = cpu(mcpu), network()
    module = backend.on_cpu(scheduled(backend, proto, tmp_path))
    machine = relax.VirtualMachine(
        tvm.compile(module, target=tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"}), tir_pipeline=PIPELINE),
        tvm.cpu(),
    )
    data = normal(1, 64, 9, 9)
    actual = machine["main"](tvm.runtime.tensor(data)).numpy()
    (expected,) = nets.run(proto, {"x": data})
    assert 1e-5 < np.abs(actual - expected).max() / np.abs(expected).max() < 2e-2


def test_other_instructions_are_an_obstacle_where_the_machine_lacks_them(tmp_path, monkeypatch):
    backend = cpu("znver4")
    module = scheduled(backend, qdq_nets.quantized(qdq_nets.residual(), tmp_path), tmp_path)
    monkeypatch.setattr(precision, "this_machine", lambda: tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"}))
    with pytest.raises(InputError, match="has instructions of znver4, which this machine lacks"):
        backend.on_cpu(module)


# --- float16 ---------------------------------------------------------------------------------------------------------


def branches():
    """Everything that tensors in blocks meet between layers: joins, slices, steps of Relax, plain tensors, rows."""
    weights = {
        "a": normal(24, 3, 3, 3),
        "b": normal(16, 24, 1, 1),
        "c": normal(20, 24, 1, 1),
        "d": normal(24, 24, 3, 3),
    }
    nodes = [
        node("Conv", ["x", "a"], ["e"], pads=[1, 1, 1, 1]),
        node("Sigmoid", ["e"], ["f"]),
        node("Conv", ["f", "b"], ["g"]),
        node("Conv", ["f", "c"], ["h"]),
        node("Concat", ["f", "g"], ["i"], axis=1),  # ends with blocks, the other one does not
        node("Concat", ["h", "g"], ["j"], axis=1),
        node("MaxPool", ["i"], ["k"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Split", ["k", "parts"], ["l", "m"], axis=1),
        node("Conv", ["l", "d"], ["n"], pads=[1, 1, 1, 1]),
        node("Add", ["n", "l"], ["o"]),
        node("Exp", ["m"], ["p"]),
        node("ReduceMean", ["j"], ["q"], axes=[2, 3], keepdims=0),
        node("GlobalAveragePool", ["o"], ["r"]),
        node("Flatten", ["r"], ["s"]),
    ]
    weights["parts"] = np.array([24, 16])
    outputs = [nets.value(name, None) for name in ("p", "q", "s", "o")]
    return nets.model(nodes, [nets.value("x", (1, 3, 8, 6))], outputs, weights, opset=13)


@pytest.mark.parametrize("make", [network, branches])
def test_float16_between_layers(make, tmp_path):
    backend, proto = Cpu(RPI5), make()
    module = scheduled(backend, proto, tmp_path)
    assert re.fullmatch(r"(\d) of \1 kernels with products are in float16", *backend.remarks(module))
    target = this_machine()
    built = tvm.compile(backend.on_cpu(module), target=target, tir_pipeline=PIPELINE)
    data = normal(*(dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim)) * 8
    result = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(data))
    actual = [tensor.numpy() for tensor in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]
    for mine, right in zip(actual, nets.run(proto, {"x": data}), strict=True):
        assert mine.dtype == np.float32
        assert 1e-6 < np.abs(mine - right).max() / np.abs(right).max() < 5e-3


def test_a_board_without_half_precision_is_refused_by_name():
    with pytest.raises(InputError, match="the CPU of board rpi4, cortex-a72, has no arithmetic in half precision"):
        _ = Cpu(board.load("rpi4").resolved().with_precision(float16=True)).target
    for name in ("x86_64", "pynq"):
        with pytest.raises(InputError, match=f"board {name} does not compute in half precision"):
            _ = Cpu(board.load(name).resolved().with_precision(float16=True)).target


def test_half_sums_are_no_choice_of_a_cpu():
    with pytest.raises(InputError, match="board rpi5 is a CPU, which always sums up in half precision with --float16"):
        _ = Cpu(board.load("rpi5").resolved().with_precision(float16=True, half_sums=True)).target


def test_a_quantized_network_stays_in_int8(tmp_path):
    with pytest.raises(InputError, match="a quantized model does not compute in half precision"):
        scheduled(Cpu(RPI5), qdq_nets.quantized(qdq_nets.residual(), tmp_path), tmp_path)


def test_the_device_must_have_the_instructions():
    assert {"fphp", "asimdhp"} <= {*Cpu(RPI5).cpu_features}
    assert "fphp" not in Cpu(board.load("rpi5").resolved()).cpu_features
