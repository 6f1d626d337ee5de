"""Kernels of the importer between images with their channels last: nothing is transposed around them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.channels_last import check, conv, net, weights
from tests.support.nets import node

RESIZED = {
    "nearest": ("nearest", [1, 2, 2], {}),
    "linear": ("linear", [1, 2, 2], {}),
    "corners": ("linear", [1, 2, 2], {"coordinate_transformation_mode": "align_corners"}),
    "by a fraction": ("nearest", [1, 1.5, 2.5], {}),
    "smaller": ("linear", [1, 0.5, 0.7], {}),
    "cubic": ("cubic", [1, 2, 1], {}),
    "channels, too": ("nearest", [2, 1, 2], {}),
}


@pytest.mark.parametrize("name", RESIZED)
def test_images_are_resized_as_they_are(name, tmp_path):
    mode, scales, attributes = RESIZED[name]
    nodes = [conv("x", "a"), node("Resize", ["a", "", "s"], ["b"], mode=mode, **attributes), conv("b", "y", "l")]
    constants = {"s": np.array([1, *scales], np.float32), "l": weights(4, 8 * scales[0], 1, 1)}
    assert check(net(nodes, initializers=constants), tmp_path)["permute_dims"] == 2


DECODERS = {
    "all phases at once": ((8, 12, 4, 4), {"strides": [2, 2], "pads": [1] * 4}),
    "one after the other": ((8, 12, 3, 3), {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
    "one phase": ((8, 12, 3, 3), {}),
    "groups": ((8, 3, 2, 2), {"strides": [2, 2], "group": 4}),
    "groups, one after the other": ((8, 3, 3, 3), {"strides": [2, 2], "group": 4}),
    "dilated": ((8, 12, 2, 3), {"strides": [1, 3], "dilations": [2, 1]}),
}


@pytest.mark.parametrize("name", DECODERS)
def test_transposed_convolutions_are_as_the_rest(name, tmp_path):
    kernel, attributes = DECODERS[name]
    outputs = kernel[1] * attributes.get("group", 1)
    between = node("ConvTranspose", ["a", "t", "i"], ["b"], **attributes)
    nodes = [conv("x", "a"), between, node("Relu", ["b"], ["r"]), conv("r", "y", "l")]
    constants = {"t": weights(*kernel), "i": weights(outputs), "l": weights(4, outputs, 1, 1)}
    assert check(net(nodes, (2, 8, 5, 6), constants), tmp_path)["permute_dims"] == 2


# How places and parts of channels go on, and how often something is transposed or permuted, both ends included
PARTED = {
    "shuffled": ([1, 2, 4, 9, 7], [0, 2, 1, 3, 4], [1, 8, 9, 7], 3),
    "parted again": ([1, 2, 2, 2, 9, 7], [0, 3, 1, 2, 4, 5], [1, 8, 9, 7], 3),
    "a view and back": ([1, 2, 4, 9, 7], [0, 1, 2, 3, 4], [1, 8, 9, 7], 2),
    "places are swapped": ([1, 2, 4, 9, 7], [0, 2, 1, 4, 3], [1, 8, 7, 9], None),
    "places are parts": ([1, 2, 4, 9, 7], [0, 2, 1, 3, 4], [1, 8, 63, 1], None),
    "channels are places": ([1, 2, 4, 9, 7], [0, 3, 2, 1, 4], [1, 8, 9, 7], None),
}


@pytest.mark.parametrize("name", PARTED)
def test_channels_are_shuffled_as_they_are(name, tmp_path):
    split_shape, order, joined_shape, times = PARTED[name]
    nodes = [
        conv("x", "a"),
        node("Reshape", ["a", "s"], ["b"]),
        node("Transpose", ["b"], ["t"], perm=order),
        node("Reshape", ["t", "u"], ["v"]),
        conv("v", "y"),
    ]
    module = check(net(nodes, initializers={"s": np.array(split_shape), "u": np.array(joined_shape)}), tmp_path)
    assert times is None or module["permute_dims"] == times
