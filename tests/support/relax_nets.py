"""ONNX models as Relax modules for the passes of the CPU backend, and what those passes make of them."""

from __future__ import annotations

import collections
from dataclasses import replace

import numpy as np
import onnx
import tvm
from onnx import helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from tests.support import nets
from toolchain.backends.base import EXACT
from toolchain.backends.cpu import graph
from toolchain.backends.cpu.layers import from_json
from toolchain.backends.cpu.machine import Machine, machine
from toolchain.backends.graph import fold

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})


def processor(lanes: int) -> Machine:
    return replace(machine(TARGET), lanes=lanes, registers=32 if lanes == 16 else 16)


def prepared(proto: onnx.ModelProto) -> tvm.IRModule:
    passes = relax.transform
    module = from_onnx(proto)
    return fold.fold_constants(
        tvm.transform.Sequential([passes.DecomposeOpsForInference(), passes.CanonicalizeBindings()])(module)
    )


def net(nodes, shape, weights=None, outputs=("y",), shapes=None) -> onnx.ModelProto:
    """Return a model that reads `x`; `nodes` are (operator, inputs, outputs, attributes), names parted by spaces."""
    tensors = [
        helper.make_node(kind, read.split(" "), names.split(), names, **(rest[0] if rest else {}))
        for kind, read, names, *rest in nodes
    ]
    proto = nets.model(tensors, [nets.value("x", shape)], [nets.value(name, None) for name in outputs], weights)
    return onnx.shape_inference.infer_shapes(proto)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    fan = int(np.prod(shape[1:])) or 1
    return (np.random.default_rng((seed, *shape)).standard_normal(shape) * fan**-0.5).astype(np.float32)


CONV = ("Conv", "x w", "c")
W = {"w": normal(16, 3, 1, 1)}
"""Weights of `CONV`, whose input has three channels."""


def moved(proto: onnx.ModelProto, lanes: int = 8) -> tvm.IRModule:
    """Return a network on blocked layout, with calls of kernels without code."""
    return graph.insert_stand_ins(prepared(proto), processor(lanes))


def epilogue_kinds(layer) -> list[str]:
    return [op.kind for op in layer.epilogue]


def bindings(module: tvm.IRModule) -> list:
    return [binding for block in module["main"].body.blocks for binding in block.bindings]


def calls(module: tvm.IRModule) -> list[tuple]:
    """Return (layer or name of the operator, binding) for each binding of `main`, in order."""
    called = []
    for binding in bindings(module):
        value = binding.value
        name = value.op.name if isinstance(value, relax.Call) else type(value).__name__
        if name.startswith("relax.call_tir"):
            function = module[value.args[0]]
            exact = (function.attrs or {}).get(EXACT)
            name = from_json(str(exact)) if exact else str(value.args[0].name_hint)
        called.append((name, binding))
    return called


def layers(module: tvm.IRModule) -> list:
    return [operation for operation, _ in calls(module) if not isinstance(operation, str)]


def counts(module: tvm.IRModule) -> dict[str, int]:
    """Count what `main` does: layers by their kind, all else by its operator's name."""
    names = [
        operation.removeprefix("relax.") if isinstance(operation, str) else type(operation).__name__
        for operation, _ in calls(module)
    ]
    return dict(collections.Counter(names))


def computed(module: tvm.IRModule, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Compile a module and run it."""
    with TARGET:
        lowered = relax.get_pipeline("zero")(module)
    machine_ = relax.VirtualMachine(tvm.compile(lowered, target=TARGET), tvm.cpu())
    result = machine_["main"](*(tvm.runtime.tensor(array) for array in feeds.values()))
    return [result.numpy()] if hasattr(result, "numpy") else [tensor.numpy() for tensor in result]


def feeds(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    stream = np.random.default_rng(1)
    initializers = {tensor.name for tensor in proto.graph.initializer}
    return {
        value.name: stream.standard_normal([axis.dim_value for axis in value.type.tensor_type.shape.dim], np.float32)
        for value in proto.graph.input
        if value.name not in initializers
    }
