"""Attention as exporters write it is one kernel, whose results are those of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests.support import nets
from tests.support.nets import node, value
from tests.support.one_node import expected
from toolchain import board
from toolchain.backends import backend_of
from toolchain.models import importer, source

_RNG = np.random.default_rng(3)
_BATCH, _LENGTH, _HEADS, _SIZE = 2, 19, 3, 16
_HIDDEN = _HEADS * _SIZE


def _numbers(*shape: int) -> Any:
    return (_RNG.standard_normal(shape) * 0.4).astype(np.float32)


_WEIGHTS = {
    "split": np.array([_BATCH, _LENGTH, _HEADS, _SIZE]),
    "parts": np.array([_BATCH, _LENGTH, 3, _HEADS, _SIZE]),
    "joined": np.array([_BATCH, _LENGTH, _HIDDEN]),
    "rows": np.array([_BATCH * _HEADS, _LENGTH, _SIZE]),
    "whole": np.array([_BATCH, _HEADS, _LENGTH, _SIZE]),
    "three": _numbers(_HIDDEN, 3 * _HIDDEN),
    "root": np.float32(4.0),
    "less": np.float32(0.5),
    "bias": _numbers(1, _HEADS, _LENGTH, _LENGTH),
    **{f"part{index}": np.array(index) for index in range(3)},
    **{f"at{index}": np.array([index]) for index in range(4)},
    **{name: _numbers(_HIDDEN, _HIDDEN) for name in ("wq", "wk", "wv")},
}
_BACK = [
    node("Transpose", ["c"], ["ct"], perm=[0, 2, 1, 3]),
    node("Reshape", ["ct", "joined"], ["y"]),
]


def _apart() -> list[onnx.NodeProto]:
    """Write queries, keys and values as three products."""
    perms = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}
    return [
        item
        for name, perm in perms.items()
        for item in (
            node("MatMul", ["x", f"w{name}"], [f"{name}m"]),
            node("Reshape", [f"{name}m", "split"], [f"{name}s"]),
            node("Transpose", [f"{name}s"], [name], perm=perm),
        )
    ]


def _together() -> list[onnx.NodeProto]:
    """Write them as one product, whose parts are gathered; each of the first two is scaled."""
    return [
        node("MatMul", ["x", "three"], ["m"]),
        node("Reshape", ["m", "parts"], ["s"]),
        node("Transpose", ["s"], ["t"], perm=[2, 0, 3, 1, 4]),
        *(node("Gather", ["t", f"part{index}"], [name], axis=0) for index, name in enumerate(("q0", "k0", "v"))),
        node("Mul", ["q0", "less"], ["q"]),
        node("Transpose", ["k0"], ["k1"], perm=[0, 1, 3, 2]),
        node("Mul", ["k1", "less"], ["k"]),
    ]


def _sliced() -> list[onnx.NodeProto]:
    """Write them as one product that is cut along its first axis, as PyTorch's newer exporter does."""
    nodes = _together()[:3]
    for first, name in enumerate("qkv"):
        last = "at3" if name == "v" else f"at{first + 1}"
        nodes += [
            node("Slice", ["t", f"at{first}", last, "at0"], [f"{name}1"]),
            node("Squeeze", [f"{name}1", "at0"], [name if name != "k" else "k0"]),
        ]
    return [*nodes, node("Transpose", ["k0"], ["k"], perm=[0, 1, 3, 2])]


_ENCODER = [
    *_apart(),
    node("MatMul", ["q", "k"], ["p"]),
    node("Div", ["p", "root"], ["d"]),
    node("Add", ["d", "mask"], ["a"]),
    node("Softmax", ["a"], ["w"], axis=-1),
    node("MatMul", ["w", "v"], ["c"]),
    *_BACK,
]
_BIASED = [
    node("MatMul", ["q", "k"], ["p"]),
    node("Add", ["bias", "p"], ["a"]),
    node("Softmax", ["a"], ["w"], axis=-1),
    node("MatMul", ["w", "v"], ["c"]),
    *_BACK,
]
_VISION = [*_together(), *_BIASED]
_SLICED = [*_sliced(), *_BIASED]
_ROWS = [
    *_apart()[:-1],
    node("Transpose", ["vs"], ["v0"], perm=[0, 2, 1, 3]),
    node("Reshape", ["v0", "rows"], ["v"]),
    *(node("Transpose", [f"{name}s"], [f"{name}h"], perm=[0, 2, 1, 3]) for name in "qk"),
    *(node("Reshape", [f"{name}h", "rows"], [f"{name}r"]) for name in "qk"),
    node("Transpose", ["kr"], ["kt"], perm=[0, 2, 1]),
    node("MatMul", ["qr", "kt"], ["p"]),
    node("Softmax", ["p"], ["w"], axis=-1),
    node("MatMul", ["w", "v"], ["c0"]),
    node("Reshape", ["c0", "whole"], ["c"]),
    *_BACK,
]


def _functions(nodes: list[onnx.NodeProto], tmp_path: Any) -> set[str]:
    """Compile a network, compare its results with ONNX Runtime's, and return the names of its kernels."""
    shape = (_BATCH, _LENGTH, _HIDDEN)
    used = {name for node in nodes for name in node.input}
    weights = {name: array for name, array in _WEIGHTS.items() if name in used}
    arguments = {"x": _numbers(*shape)}
    if "mask" in used:
        arguments["mask"] = np.where(_RNG.random((_BATCH, 1, 1, _LENGTH)) < 0.7, 0, -1e4).astype(np.float32)
    inputs = [value(name, array.shape) for name, array in arguments.items()]
    proto = nets.model(nodes, inputs, [value("y", shape)], weights, 17)
    imported = importer.import_model(source.load(nets.save(proto, tmp_path)))
    backend = backend_of(board.load("local").resolved())
    finished = backend.apply_choices(backend.lower(imported.module), {})
    run = relax.VirtualMachine(tvm.compile(finished, target=backend.target), tvm.cpu())["main"]
    actual = run(*(tvm.runtime.tensor(array) for array in arguments.values())).numpy()
    np.testing.assert_allclose(actual, expected(proto, list(arguments.values()))[0], rtol=1e-4, atol=1e-5)
    return {str(variable.name_hint) for variable in finished.get_global_vars()}


@pytest.mark.parametrize("nodes", [_ENCODER, _VISION, _SLICED], ids=["encoder", "vision", "sliced"])
def test_all_of_it_is_one_kernel(nodes, tmp_path):
    names = _functions(nodes, tmp_path)
    assert "attention" in names
    assert not [name for name in names if "softmax" in name or "transpose" in name or "take" in name or "slice" in name]


def test_heads_in_the_batch(tmp_path):
    assert "attention" in _functions(_ROWS, tmp_path)


def test_weights_that_are_a_result_too_are_computed_apart(tmp_path):
    nodes = [*_ENCODER, node("ReduceSum", ["w"], ["s1"], keepdims=0), node("Add", ["y0", "s1"], ["y"])]
    nodes = [onnx.NodeProto.FromString(item.SerializeToString()) for item in nodes]
    nodes[-3].output[0] = "y0"
    assert "attention" not in _functions(nodes, tmp_path)
