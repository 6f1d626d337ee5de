"""Convolutions with channels last, and the kernel that pads the first image."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.support.channels_last import check, conv, net, operators, transposed, weights
from tests.support.nets import node
from toolchain.backends.mali.layout.convolutions import first_image_kernel, is_padded, padded_shape, padded_weights

# Between a convolution of x, which makes a, and the output y; and how often images are transposed: once before the
# convolution, and back at the end
KNOWN = {
    "steps": ([node("Conv", ["a", "w"], ["y"], strides=[2, 1], pads=[1, 0, 1, 2], dilations=[1, 2])], 2),
    "grouped": ([node("Conv", ["a", "g"], ["y"], group=4)], 2),
}
GIVEN = {
    "g": weights(8, 2, 1, 1),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_stays_transposed(name, tmp_path):
    nodes, times = KNOWN[name]
    module = check(net([conv("x", "a"), *nodes], initializers=GIVEN), tmp_path)
    assert module["permute_dims"] == times


@pytest.mark.parametrize(
    ("shape", "weight", "attributes", "moves"),
    [
        ((2, 2, 11), (8, 2, 3), {"pads": [1, 1], "strides": [2]}, 1),
        ((1, 8, 1, 12), (8, 8, 1, 3), {}, 2),
        ((1, 4, 4, 5, 6), (4, 4, 2, 3, 3), {"pads": [0, 1, 1, 1, 1, 0]}, 3),
    ],
)
def test_images_of_any_rank(shape, weight, attributes, moves, tmp_path):
    nodes = [node("Conv", ["x", "k"], ["a"], **attributes), node("Relu", ["a"], ["b"])]
    nodes += [node("MaxPool", ["b"], ["y"], kernel_shape=[1] * (len(shape) - 3) + [2])]
    assert check(net(nodes, shape, {"k": weights(*weight)}), tmp_path)["permute_dims"] == moves


def test_the_first_convolution_transposes_its_image_itself(tmp_path):
    proto = net(
        [node("Conv", ["x", "k"], ["a"]), node("GlobalAveragePool", ["a"], ["y"])],
        (1, 2, 8, 8),
        {"k": weights(8, 2, 3, 3)},
    )
    assert check(proto, tmp_path)["permute_dims"] == 0
    module = check(proto, tmp_path, half=True)
    assert (module["permute_dims"], module["call_tir"]) == (1, 0)


def test_an_image_of_three_channels_is_padded_by_a_kernel_of_its_own(tmp_path):
    nodes = [node("Conv", ["x", "k"], ["a"], pads=[1, 1, 1, 1]), node("GlobalAveragePool", ["a"], ["y"])]
    proto = net(nodes, (1, 3, 8, 8), {"k": weights(8, 3, 3, 3)})
    names = operators(transposed(proto, tmp_path))
    assert (names["permute_dims"], names["call_tir"], names["nn.conv2d"]) == (0, 1, 1)
    assert operators(transposed(proto, tmp_path, half=True))["call_tir"] == 0


def test_without_channels_in_fours_nothing_is_transposed(tmp_path):
    proto = net([node("Conv", ["x", "k"], ["a"]), node("Relu", ["a"], ["y"])], (1, 5, 8, 8), {"k": weights(6, 5, 1, 1)})
    assert check(proto, tmp_path)["permute_dims"] == 0


def test_weights_are_transposed_when_the_model_is_built(tmp_path):
    module = transposed(net([conv("x", "y", "w")]), tmp_path)
    (call,) = [
        binding.value
        for block in module["main"].body.blocks
        for binding in block.bindings
        if getattr(getattr(binding.value, "op", None), "name", "") == "relax.nn.conv2d"
    ]
    assert isinstance(call.args[1], tvm.ir.GenericConst)
    assert [int(size) for size in call.args[1].ty.shape.values] == [3, 3, 8, 8]
    assert str(call.attrs.data_layout) == str(call.attrs.out_layout) == "NHWC"


# --- the first image -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "suits"), [(1, False), (2, False), (3, True), (4, True), (5, False)])
def test_images_of_nearly_a_vector_are_padded(channels, suits):
    assert is_padded(channels) == suits


def test_the_image_has_its_padding_and_a_vector_a_pixel():
    assert padded_shape((2, 3, 224, 220), (3, 2, 1, 0)) == (2, 228, 222, 4)


def test_a_pixel_is_stored_as_a_vector():
    text = first_image_kernel((1, 3, 5, 7), (1, 1, 1, 1)).script()
    assert "padded[v, v_1, v_2 * 9 + v_3, 0:4] = " in text
    assert text.count("T.if_then_else") == 3


def test_added_channels_have_no_weight():
    array = np.ones((7, 7, 3, 8), np.float32)
    padded = padded_weights(array)
    assert padded.shape == (7, 7, 4, 8)
    assert padded[:, :, :3].all()
    assert not padded[:, :, 3].any()
