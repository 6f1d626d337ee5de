from __future__ import annotations

import numpy as np
from onnx import helper

from tests.support import nets
from tests.support.relax_nets import net, normal, prepared
from toolchain.backends.graph import values


def read(proto):
    module = prepared(proto)
    [block] = module["main"].body.blocks
    return values.read(block, module)


def names(block):
    return [operation.name for operation in block.operations]


def test_operations_and_their_readers():
    block = read(net([("Relu", "x", "a"), ("Sigmoid", "a", "b"), ("Mul", "a b", "y")], (1, 2, 3, 4)))
    assert names(block) == ["nn.relu", "sigmoid", "multiply"]
    relu, sigmoid, product = block.operations
    assert sigmoid.inputs == (relu.out,)
    assert product.inputs == (relu.out, sigmoid.out)
    assert [operation.out.readers for operation in block.operations] == [2, 1, 1]
    assert [operation.out.escapes for operation in block.operations] == [False, False, True]
    assert product.out.image == (1, 2, 3, 4)
    assert sigmoid.out.maker is sigmoid


def test_what_only_hands_on_is_no_operation():
    weights = {"shape": np.array([1, 2, 3, 4], np.int64)}
    nodes = [("Dropout", "x", "a"), ("Reshape", "a shape", "b"), ("Identity", "b", "c"), ("Relu", "c", "y")]
    block = read(net(nodes, (1, 2, 3, 4), weights))
    assert names(block) == ["nn.relu"]
    assert block.operations[0].inputs[0].variable.name == "x"


def test_a_reshape_to_another_shape_stays():
    block = read(net([("Flatten", "x", "y")], (1, 2, 3, 4)))
    assert names(block) == ["reshape"]


def test_clip_is_found_in_the_kernels_that_the_importer_makes_of_it():
    weights = {"low": np.float32(0), "high": np.float32(6)}
    block = read(net([("Clip", "x low high", "y")], (1, 2, 3, 4), weights))
    assert names(block) == ["maximum", "minimum"]
    assert [float(operation.inputs[1].array.reshape(())) for operation in block.operations] == [0.0, 6.0]


def test_clip_of_an_old_model_has_its_limits_in_the_kernel():
    nodes = [helper.make_node("Clip", ["x"], ["y"], min=-1.0, max=2.0)]
    proto = nets.model(nodes, [nets.value("x", (1, 2, 3, 4))], [nets.value("y", (1, 2, 3, 4))], opset=6)
    block = read(proto)
    assert [float(operation.inputs[1].array.reshape(())) for operation in block.operations] == [-1.0, 2.0]


def test_another_kernel_of_the_importer_is_left_alone():
    weights = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)}
    block = read(net([("Pad", "x pads", "y", {"mode": "reflect"})], (1, 2, 3, 4), weights))
    assert names(block) == ["call_tir"]


def test_padding_with_zeros_is_found_too():
    weights = {"pads": np.array([0, 0, 1, 2, 0, 0, 3, 4], np.int64)}
    [pad] = read(net([("Pad", "x pads", "y")], (1, 2, 3, 4), weights)).operations
    assert (pad.name, pad.values) == ("pad", (0, 0, 1, 2, 0, 0, 3, 4))


def test_the_parts_of_a_split_are_values_of_their_own():
    nodes = [("Split", "x", "a b", {"axis": 1}), ("Relu", "a", "c"), ("Add", "c b", "y")]
    block = read(net(nodes, (1, 4, 3, 3)))
    split, relu, total = block.operations
    first, second, together = split.outputs
    assert relu.inputs == (first,)
    assert total.inputs == (relu.out, second)
    assert first.image == (1, 2, 3, 3)
    assert together.readers == 0


def test_what_nobody_reads_is_left_out():
    block = read(net([("Relu", "x", "a"), ("Sigmoid", "x", "b"), ("Tanh", "b", "y")], (1, 2)))
    assert names(block) == ["sigmoid", "tanh"]


def test_open_shapes_are_no_images():
    proto = nets.model(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        [nets.value("x", ("n", 3, 4, 4))],
        [nets.value("y", ("n", 2, 4, 4))],
        {"w": normal(2, 3, 1, 1)},
    )
    [conv, *_] = read(proto).operations
    assert conv.inputs[0].shape is None
    assert not conv.inputs[0].is_image
    assert conv.inputs[1].is_image


def test_constants_are_known_and_equal_ones_are_one_value():
    block = read(net([("Add", "x w", "a"), ("Mul", "a w", "y")], (1, 2, 3, 4), {"w": normal(2, 3, 4)}))
    first, second = block.operations
    assert first.inputs[1] is second.inputs[1]
    np.testing.assert_array_equal(first.inputs[1].array, normal(2, 3, 4))


def test_a_value_can_be_added():
    block = read(net([("Relu", "x", "y")], (1, 2, 3, 4)))
    added = block.new_value(block.operations[0].out, (1, 2, 12, 1))
    assert block.values[added.variable] is added
    assert (added.image, added.dtype) == ((1, 2, 12, 1), "float32")
