"""Half precision: what it changes and what not."""

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

KIND = board.load("rk3588").resolved().in_float16()
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
    found = lowered(proto, folder)
    shape = [one.dim_value for one in proto.graph.input[0].type.tensor_type.shape.dim]
    array = weights(*shape)
    (wanted,) = nets.run(proto, {"x": array})
    result = relax.VirtualMachine(tvm.compile(found, target=CPU), tvm.cpu())["main"](tvm.runtime.tensor(array))
    result = (result if hasattr(result, "numpy") else result[0]).numpy()
    assert result.dtype == np.float32
    assert np.abs(result - wanted).max() <= 1e-2 * np.abs(wanted).max()
    assert np.abs(result - wanted).max() > 0  # it is half precision
    return found


def test_what_lies_between_layers_is_half(tmp_path):
    nodes = [node("Conv", ["x", "k", "b"], ["a"]), node("Relu", ["a"], ["c"]), node("Conv", ["c", "k"], ["d"])]
    proto = net([*nodes, node("Add", ["c", "d"], ["y"])], {"k": weights(8, 8, 1, 1), "b": weights(8)})
    found = check(proto, tmp_path)
    kernels = [one for _, one in found.functions_items() if isinstance(one, tirx.PrimFunc)]
    kinds = [{str(one.dtype) for one in kernel.params} for kernel in kernels if "conv2d" in kernel.script()]
    assert kinds
    assert all("float16" in one for one in kinds)


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
    ("nodes", "given"),
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
def test_kernels_in_between(nodes, given, tmp_path):
    all_given = {"k": weights(8, 8, 1, 1), "w": weights(8, 8, 3, 3), **given}
    used = {one: array for one, array in all_given.items() if one == "k" or any(one in each.input for each in nodes)}
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
    given = {"k": weights(6, 6, 1, 1), "h": weights(3, 3, 1, 1), "p": np.array([0, 0, 0, 1, 0, 0, 0, 1])}
    proto = nets.model(RETURNED[name], [value("x", (1, 6, 6, 6))], outputs, given)
    array = weights(1, 6, 6, 6)
    executable = tvm.compile(lowered(proto, tmp_path), target=CPU)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(array))
    for mine, wanted in zip(found, nets.run(proto, {"x": array}), strict=True):
        assert np.abs(mine.numpy() - wanted).max() <= 1e-2 * np.abs(wanted).max()
