"""Layers in half precision, and what follows the last of them in single."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.support import nets
from tests.support.nets import node, value
from toolchain import board
from toolchain.backends.mali.backend import Mali
from toolchain.models import importer, source

KIND = board.load("rk3588").resolved().with_precision(float16=True)
CPU = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
RANDOM = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def lowered(proto, folder) -> tvm.IRModule:
    return Mali(KIND).lower(importer.import_model(source.load(nets.save(proto, folder))).module)


def net(nodes, initializers, shape=(1, 8, 6, 6), out=(1, 8, 6, 6)):
    return nets.model(nodes, [value("x", shape)], [value("y", out)], initializers)


def check(proto, folder) -> tvm.IRModule:
    """Compare a network in half precision with ONNX Runtime in single; return its kernels."""
    module = lowered(proto, folder)
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    array = weights(*shape)
    (expected,) = nets.run(proto, {"x": array})
    result = relax.VirtualMachine(tvm.compile(module, target=CPU), tvm.cpu())["main"](tvm.runtime.tensor(array))
    result = (result if hasattr(result, "numpy") else result[0]).numpy()
    assert result.dtype == np.float32
    assert np.abs(result - expected).max() <= 1e-2 * np.abs(expected).max()
    assert np.abs(result - expected).max() > 0  # it is half precision
    return module


def test_what_lies_between_layers_is_half(tmp_path):
    nodes = [node("Conv", ["x", "k", "b"], ["a"]), node("Relu", ["a"], ["c"]), node("Conv", ["c", "k"], ["d"])]
    proto = net([*nodes, node("Add", ["c", "d"], ["y"])], {"k": weights(8, 8, 1, 1), "b": weights(8)})
    module = check(proto, tmp_path)
    kernels = [kernel for _, kernel in module.functions_items() if isinstance(kernel, tirx.PrimFunc)]
    kinds = [{str(parameter.dtype) for parameter in kernel.params} for kernel in kernels if "conv2d" in kernel.script()]
    assert kinds
    assert all("float16" in kind for kind in kinds)


def test_dense_layers(tmp_path):
    nodes = [
        node("Gemm", ["x", "w", "b"], ["a"], transB=1),
        node("Relu", ["a"], ["c"]),
        node("MatMul", ["c", "v"], ["d"]),
    ]
    proto = net(
        [*nodes, node("Softmax", ["d"], ["y"])],
        {"w": weights(32, 64), "b": weights(32), "v": weights(32, 10)},
        (1, 64),
        (1, 10),
    )
    check(proto, tmp_path)


def test_squares_of_more_than_255_do_not_overflow(tmp_path):
    nodes = [node("Conv", ["x", "k"], ["a"]), node("Relu", ["a"], ["r"]), node("LRN", ["r"], ["b"], size=3, alpha=0.1)]
    check(net([*nodes, node("Conv", ["b", "k"], ["y"])], {"k": 300 * weights(8, 8, 1, 1)}), tmp_path)


# operators that the importer writes kernels for
@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("Pad", ["a", "p"], ["b"]), node("Conv", ["b", "w"], ["y"])], {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}),
        ([node("Clip", ["a", "n"], ["b"]), node("Conv", ["b", "k"], ["y"])], {"n": np.float32(-0.5)}),
        ([node("Gather", ["a", "i"], ["b"], axis=1), node("Conv", ["b", "k"], ["y"])], {"i": np.array([1, 0] * 4)}),
        (
            [node("CumSum", ["a", "o"], ["b"]), node("Conv", ["b", "k"], ["c"]), node("Add", ["b", "c"], ["y"])],
            {"o": np.array(1)},
        ),
        ([node("Trilu", ["a"], ["b"]), node("Conv", ["b", "k"], ["c"]), node("Add", ["b", "c"], ["y"])], {}),
        ([node("ThresholdedRelu", ["a"], ["b"], alpha=0.1), node("Conv", ["b", "k"], ["y"])], {}),
    ],
    ids=["pad", "clip", "gather", "cumsum", "trilu", "thresholded"],
)
def test_kernels_in_between(nodes, constants, tmp_path):
    all_constants = {"k": weights(8, 8, 1, 1), "w": weights(8, 8, 3, 3), **constants}
    used = {
        name: array for name, array in all_constants.items() if name == "k" or any(name in each.input for each in nodes)
    }
    check(net([node("Conv", ["x", "k"], ["a"]), *nodes], used), tmp_path)


# what TVM's own pass fails for, or goes on with in half where single was read
RETURNED = {
    "a part": [
        node("Conv", ["x", "k"], ["a"]),
        node("Split", ["a"], ["y", "b"], axis=1),
        node("Trilu", ["b"], ["c"]),
        node("Conv", ["c", "h"], ["z"]),
    ],
    "a layer's input": [
        node("Pad", ["x", "p"], ["r"]),
        node("Conv", ["r", "k"], ["a"]),
        node("Max", ["a", "r"], ["y"]),
        node("Conv", ["y", "k"], ["z"]),
    ],
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_several_blocks_use(name, tmp_path):
    outputs = [value("y", None), value("z", None)]
    constants = {"k": weights(6, 6, 1, 1), "h": weights(3, 3, 1, 1), "p": np.array([0, 0, 0, 1, 0, 0, 0, 1])}
    proto = nets.model(RETURNED[name], [value("x", (1, 6, 6, 6))], outputs, constants)
    array = weights(1, 6, 6, 6)
    executable = tvm.compile(lowered(proto, tmp_path), target=CPU)
    results = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(array))
    for mine, expected in zip(results, nets.run(proto, {"x": array}), strict=True):
        assert np.abs(mine.numpy() - expected).max() <= 1e-2 * np.abs(expected).max()


# --- what follows the last layers ------------------------------------------------------------------------------------

BOARD = board.load("rk3588").resolved()
LAYER = node("Conv", ["x", "k", "b"], ["c"])

NETWORKS = {
    "a layer": [node("Conv", ["x", "k", "b"], ["y"])],
    "what follows": [
        LAYER,
        node("Relu", ["c"], ["d"]),
        node("Concat", ["d", "c"], ["e"], axis=1),
        node("Abs", ["e"], ["y"]),
    ],
    "beside another layer": [
        LAYER,
        node("Mul", ["x", "s"], ["p"]),
        node("Conv", ["p", "k", "b"], ["d"]),
        node("Add", ["c", "d"], ["y"]),
    ],
}


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_may_be_greater_than_half_precision_holds(name, sums, tmp_path):
    constants = {
        "k": 2e4 * RANDOM.standard_normal((8, 8, 1, 1)),
        "b": 1e5 * RANDOM.standard_normal(8),
        "s": np.float32([0.5]),
    }
    used = {
        key: array.astype(np.float32)
        for key, array in constants.items()
        if any(key in each.input for each in NETWORKS[name])
    }
    array = RANDOM.standard_normal((1, 8, 6, 6)).astype(np.float32)
    draft = nets.model(NETWORKS[name], [value("x", array.shape)], [value("y", None)], used)
    (expected,) = nets.run(draft, {"x": array})
    proto = nets.model(NETWORKS[name], [value("x", array.shape)], [value("y", expected.shape)], used)
    imported = importer.import_model(source.load(nets.save(proto, tmp_path)))
    lowered = Mali(BOARD.with_precision(float16=True, half_sums=sums)).lower(imported.module)
    result = relax.VirtualMachine(tvm.compile(lowered, target=CPU), tvm.cpu())["main"](tvm.runtime.tensor(array))
    array_ = (result if hasattr(result, "numpy") else result[0]).numpy()
    assert np.abs(expected).max() > 1e5
    assert np.abs(array_ - expected).max() <= 5e-3 * np.abs(expected).max()
    assert np.abs(array_ - expected).max() > 0
