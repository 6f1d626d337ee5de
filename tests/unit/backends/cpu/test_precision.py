"""Which kernels are in bfloat16, and how they are computed on any machine."""

from __future__ import annotations

import dataclasses

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
from toolchain.errors import InputError
from toolchain.models import importer, source

LOCAL = board.load("local").resolved()


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


def test_nothing_is_said_without_the_option():
    assert Cpu(LOCAL).remarks(tvm.IRModule()) == ()


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
    monkeypatch.setattr(precision, "_this_machine", lambda: tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"}))
    with pytest.raises(InputError, match="has instructions of znver4, which this machine lacks"):
        backend.on_cpu(module)
