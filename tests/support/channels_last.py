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
    given = {"w": weights(8, 8, 3, 3), "k": weights(8, 8, 1, 1), **(initializers or {})}
    used = {one: array for one, array in given.items() if any(one in each.input for each in nodes)}
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
    found = [binding for block in module["main"].body.blocks for binding in block.bindings]
    names = [getattr(getattr(one.value, "op", None), "name", "") for one in found]
    return collections.Counter(name.removeprefix("relax.") for name in names)


def check(proto, folder, **options) -> collections.Counter[str]:
    """Compare a transposed network with ONNX Runtime; return how often it calls which operator."""
    module = transposed(proto, folder, **options)
    executable = tvm.compile(module, target=CPU)
    (given,) = proto.graph.input
    array = weights(*(one.dim_value for one in given.type.tensor_type.shape.dim))
    (wanted,) = nets.run(proto, {given.name: array})
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(array))
    found = found if hasattr(found, "numpy") else found[0]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)
    return operators(module)
