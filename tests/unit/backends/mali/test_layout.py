"""Channels last: what a network computes stays the same, and images are transposed as seldom as can be."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support import nets
from tests.support.nets import node, value
from toolchain.backends.graph import fold
from toolchain.backends.mali import layout
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
    return layout.channels_last(fold.folded(tvm.transform.Sequential(first)(imported.module)), **options)


def operators(module: tvm.IRModule) -> collections.Counter[str]:
    found = [one for block in module["main"].body.blocks for one in block.bindings]
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


# Between a convolution of x, which makes a, and the output y; and how often images are transposed: once before the
# convolution, and back at the end
KNOWN = {
    "nothing": ([node("Relu", ["a"], ["y"])], 2),
    "steps": ([node("Conv", ["a", "w"], ["y"], strides=[2, 1], pads=[1, 0, 1, 2], dilations=[1, 2])], 2),
    "per channel": ([node("Add", ["a", "c"], ["b"]), node("Mul", ["c", "b"], ["y"])], 2),
    "per image": ([node("Sub", ["a", "i"], ["y"])], 2),
    "number": ([node("Mul", ["a", "n"], ["b"]), node("Clip", ["b", "n", "m"], ["y"])], 2),
    "residual": ([node("Conv", ["a", "k"], ["b"]), node("Add", ["a", "b"], ["y"])], 2),
    "sum of three": ([node("Sigmoid", ["a"], ["b"]), node("Sum", ["a", "b", "a"], ["y"])], 2),
    "concat": (
        [node("Tanh", ["a"], ["b"]), node("Concat", ["a", "b"], ["c0"], axis=1), node("Relu", ["c0"], ["y"])],
        2,
    ),
    "concat of rows": ([node("Concat", ["a", "a"], ["y"], axis=-2)], 2),
    "largest": ([node("MaxPool", ["a"], ["y"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])], 2),
    "average": ([node("AveragePool", ["a"], ["y"], kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)], 2),
    "padding": ([node("Pad", ["a", "p"], ["y"])], 2),
    "softmax": ([node("Softmax", ["a"], ["y"], axis=1)], 2),
    "dropout": ([node("Dropout", ["a"], ["b"]), node("Relu", ["b"], ["y"])], 2),
    "normalised": ([node("LRN", ["a"], ["b"], size=5, alpha=0.1), node("Conv", ["b", "k"], ["y"])], 2),
    "mean": ([node("GlobalAveragePool", ["a"], ["b"]), node("Flatten", ["b"], ["y"])], 1),
    "mean, kept": ([node("GlobalAveragePool", ["a"], ["b"]), node("Mul", ["a", "b"], ["y"])], 2),
    "mean of rows": ([node("ReduceMean", ["a"], ["y"], axes=[2], keepdims=1)], 2),
    "mean of all places": ([node("ReduceMean", ["a"], ["y"], axes=[2, 3], keepdims=0)], 1),
    "greatest channel": ([node("ReduceMax", ["a"], ["y"], axes=[1], keepdims=0)], 1),
    "grouped": ([node("Conv", ["a", "g"], ["y"], group=4)], 2),
}
GIVEN = {
    "c": weights(8, 1, 1),
    "i": weights(9, 7),
    "n": np.float32(0.5),
    "m": np.float32(2.0),
    "p": np.array([0, 0, 1, 2, 0, 0, 3, 4], np.int64),
    "g": weights(8, 2, 1, 1),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_stays_turned(name, tmp_path):
    nodes, times = KNOWN[name]
    found = check(net([conv("x", "a"), *nodes], initializers=GIVEN), tmp_path)
    assert found["permute_dims"] == times


UNKNOWN = {
    "flatten": [node("Flatten", ["a"], ["y"])],
    "shuffle": [
        node("Reshape", ["a", "s"], ["b"]),
        node("Transpose", ["b"], ["t"], perm=[0, 2, 1, 3, 4]),
        node("Reshape", ["t", "u"], ["v"]),
        node("Conv", ["v", "k"], ["y"]),
    ],
    "slice": [node("Slice", ["a", "from", "to", "axis"], ["b"]), node("Relu", ["b"], ["y"])],
    "split": [node("Split", ["a"], ["b", "d"], axis=1), node("Add", ["b", "d"], ["y"])],
    "plain operand": [node("Transpose", ["a"], ["t"], perm=[0, 1, 3, 2]), node("MatMul", ["a", "t"], ["y"])],
    "lower rank": [node("Transpose", ["q"], ["t"], perm=[1, 0]), node("Mul", ["a", "t"], ["y"])],
    "mean of channels": [node("ReduceMean", ["a"], ["y"], axes=[3], keepdims=0)],
}
UNKNOWN_GIVEN = {
    "s": np.array([1, 2, 4, 9, 7], np.int64),
    "u": np.array([1, 8, 9, 7], np.int64),
    "from": np.array([2], np.int64),
    "to": np.array([6], np.int64),
    "axis": np.array([1], np.int64),
    "q": weights(7, 9),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_gets_its_image_as_it_was(name, tmp_path):
    check(net([conv("x", "a"), *UNKNOWN[name]], initializers=UNKNOWN_GIVEN), tmp_path)


# The image itself, of which a convolution makes a, is read again beside it.
READ_AGAIN = {
    "added": ([node("Add", ["x", "a"], ["y"])], 2),
    "summed": ([node("Sum", ["x", "a"], ["y"])], 2),
    "summed, three times": ([node("Sum", ["x", "a", "x"], ["b"]), node("Max", ["b", "x"], ["y"])], 2),
    "largest": ([node("Max", ["a", "x"], ["y"])], 2),
    "convolved again": ([conv("x", "b"), node("Mul", ["a", "b"], ["y"])], 2),
    "concatenated": ([node("Concat", ["x", "a", "x"], ["y"], axis=1)], 2),
    "as it is": ([node("Flatten", ["x"], ["p"]), node("Flatten", ["a"], ["q"]), node("Sum", ["p", "q"], ["y"])], 2),
}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", READ_AGAIN)
def test_an_input_that_is_used_again_is_turned_once(name, half, tmp_path):
    nodes, times = READ_AGAIN[name]
    assert check(net([conv("x", "a"), *nodes]), tmp_path, half=half)["permute_dims"] == times


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shape", [SHAPE, (1, 8, 1, 1)])
def test_an_input_may_be_handed_on_as_an_output(shape, half, tmp_path):
    nodes = [conv("x", "a"), node("Sum", ["x", "a"], ["y"]), node("Identity", ["x"], ["same"])]
    outputs = [value("y", shape), value("same", shape)]
    proto = nets.model(nodes, [value("x", shape)], outputs, {"k": weights(8, 8, 1, 1)})
    executable = tvm.compile(transposed(proto, tmp_path, half=half), target=CPU)
    array = weights(*shape)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(array))
    for mine, wanted in zip(found, nets.run(proto, {"x": array}), strict=True):
        np.testing.assert_allclose(mine.numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "weight", "attributes", "moves"),
    [
        ((2, 4, 11), (8, 4, 3), {"pads": [1, 1], "strides": [2]}, 1),
        ((1, 8, 1, 12), (8, 8, 1, 3), {}, 2),
        ((1, 4, 4, 5, 6), (4, 4, 2, 3, 3), {"pads": [0, 1, 1, 1, 1, 0]}, 3),
    ],
)
def test_images_of_any_rank(shape, weight, attributes, moves, tmp_path):
    nodes = [node("Conv", ["x", "k"], ["a"], **attributes), node("Relu", ["a"], ["b"])]
    nodes += [node("MaxPool", ["b"], ["y"], kernel_shape=[1] * (len(shape) - 3) + [2])]
    assert check(net(nodes, shape, {"k": weights(*weight)}), tmp_path)["permute_dims"] == moves


def test_the_first_convolution_turns_its_image_itself(tmp_path):
    proto = net(
        [node("Conv", ["x", "k"], ["a"]), node("GlobalAveragePool", ["a"], ["y"])],
        (1, 3, 8, 8),
        {"k": weights(8, 3, 3, 3)},
    )
    assert check(proto, tmp_path)["permute_dims"] == 0
    found = check(proto, tmp_path, half=True)
    assert (found["permute_dims"], found["call_tir"]) == (1, 0)


def test_without_channels_in_fours_nothing_is_turned(tmp_path):
    proto = net([node("Conv", ["x", "k"], ["a"]), node("Relu", ["a"], ["y"])], (1, 5, 8, 8), {"k": weights(6, 5, 1, 1)})
    assert check(proto, tmp_path)["permute_dims"] == 0


def test_weights_are_turned_when_the_model_is_built(tmp_path):
    module = transposed(net([conv("x", "y", "w")]), tmp_path)
    (call,) = [
        one.value
        for block in module["main"].body.blocks
        for one in block.bindings
        if getattr(getattr(one.value, "op", None), "name", "") == "relax.nn.conv2d"
    ]
    assert isinstance(call.args[1], tvm.ir.GenericConst)
    assert [int(size) for size in call.args[1].ty.shape.values] == [3, 3, 8, 8]
    assert str(call.attrs.data_layout) == str(call.attrs.out_layout) == "NHWC"


def test_an_intermediate_that_is_an_output_too_is_as_the_model_has_it(tmp_path):
    nodes = [conv("x", "a"), node("Relu", ["a"], ["y"])]
    proto = nets.model(nodes, [value("x", SHAPE)], [value("y", SHAPE), value("a", SHAPE)], {"k": weights(8, 8, 1, 1)})
    executable = tvm.compile(transposed(proto, tmp_path), target=CPU)
    array = weights(*SHAPE)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(array))
    for mine, wanted in zip(found, nets.run(proto, {"x": array}), strict=True):
        np.testing.assert_allclose(mine.numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "kept"), [("x", True), ("gpu_0/data_0", False), ("é", False)])
def test_names_of_inputs_are_fit_for_kernels(name, kept, tmp_path):
    nodes = [conv(name, "a"), node("Relu", ["a"], ["y"])]
    imported = importer.import_model(model.load(nets.save(net(nodes, name=name), tmp_path)))
    found = layout.with_plain_names(imported.module)
    (parameter,) = found["main"].params
    assert (str(parameter.name) == str(imported.module["main"].params[0].name)) is kept
    assert str(parameter.name).isascii()
    assert str(parameter.name).isidentifier()
    relax.analysis.well_formed(found)
