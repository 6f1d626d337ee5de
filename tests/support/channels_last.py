"""Networks whose images are transposed: computed on the CPU and held to ONNX Runtime; their operators are counted."""

from __future__ import annotations

import collections

import numpy as np
import tvm
from tvm import relax

from tests.support import nets
from tests.support.nets import node, value
from toolchain.backends.graph import fold
from toolchain.backends.mali.layout import channels_last
from toolchain.models import importer
from toolchain.models import source as model

RANDOM = np.random.default_rng(0)
SHAPE = (1, 8, 9, 7)
CPU = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})


def weights(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def net(nodes, shape=SHAPE, initializers=None, name="x"):
    """Return a network of one input and the output y, whose shape is what ONNX Runtime says."""
    constants = {"w": weights(8, 8, 3, 3), "k": weights(8, 8, 1, 1), **(initializers or {})}
    used = {name: array for name, array in constants.items() if any(name in each.input for each in nodes)}
    draft = nets.model(nodes, [value(name, shape)], [value("y", None)], used)
    (result,) = nets.run(draft, {name: np.zeros(shape, np.float32)})
    return nets.model(nodes, [value(name, shape)], [value("y", result.shape)], used)


def conv(source: str, target: str, kernel: str = "k"):
    return node("Conv", [source, kernel], [target])


def transposed(proto, folder, **options) -> tvm.IRModule:
    imported = importer.import_model(model.load(nets.save(proto, folder)))
    transform = relax.transform
    first = [transform.DecomposeOpsForInference(), transform.CanonicalizeBindings()]
    return channels_last(fold.fold_constants(tvm.transform.Sequential(first)(imported.module)), **options)


def operators(module: tvm.IRModule) -> collections.Counter[str]:
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    names = [getattr(getattr(binding.value, "op", None), "name", "") for binding in bindings]
    return collections.Counter(name.removeprefix("relax.") for name in names)


def check(proto, folder, **options) -> collections.Counter[str]:
    """Compare a transposed network with ONNX Runtime; return how often it calls which operator."""
    module = transposed(proto, folder, **options)
    executable = tvm.compile(module, target=CPU)
    (graph_input,) = proto.graph.input
    array = weights(*(dimension.dim_value for dimension in graph_input.type.tensor_type.shape.dim))
    (expected,) = nets.run(proto, {graph_input.name: array})
    output = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(array))
    output = output if hasattr(output, "numpy") else output[0]
    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-4, atol=1e-5)
    return operators(module)
