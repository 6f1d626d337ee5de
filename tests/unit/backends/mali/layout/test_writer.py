"""What writes a block with channels last, and the order of axes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support import nets
from tests.support.channels_last import CPU, SHAPE, check, conv, net, transposed, weights
from tests.support.nets import node, value
from toolchain.backends.mali.layout.writer import is_flat, order, transposed_shape

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
def test_an_input_that_is_used_again_is_transposed_once(name, half, tmp_path):
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
    results = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(array))
    for mine, expected in zip(results, nets.run(proto, {"x": array}), strict=True):
        np.testing.assert_allclose(mine.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_an_intermediate_that_is_an_output_too_is_as_the_model_has_it(tmp_path):
    nodes = [conv("x", "a"), node("Relu", ["a"], ["y"])]
    proto = nets.model(nodes, [value("x", SHAPE)], [value("y", SHAPE), value("a", SHAPE)], {"k": weights(8, 8, 1, 1)})
    executable = tvm.compile(transposed(proto, tmp_path), target=CPU)
    array = weights(*SHAPE)
    results = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(array))
    for mine, expected in zip(results, nets.run(proto, {"x": array}), strict=True):
        np.testing.assert_allclose(mine.numpy(), expected, rtol=1e-4, atol=1e-5)


# --- axes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 6)])
def test_the_second_dimension_is_last(shape):
    array = np.zeros(shape)
    assert array.transpose(order(len(shape))).shape == transposed_shape(shape)
    assert transposed_shape(shape)[-1] == shape[1]


@pytest.mark.parametrize(("shape", "flat"), [((1, 8, 1, 1), True), ((2, 1, 3, 4), True), ((1, 8, 1, 2), False)])
def test_an_image_is_flat_if_its_elements_are_in_the_same_order(shape, flat):
    array = np.arange(np.prod(shape)).reshape(shape)
    same = array.transpose(order(len(shape))).ravel() == array.ravel()
    assert is_flat(shape) is flat is bool(same.all())
