"""Pooling, and normalisation across channels, where images have their channels last."""

from __future__ import annotations

import pytest

from tests.support.channels_last import check, conv, net
from tests.support.nets import node

# Between a convolution of x, which makes a, and the output y; and how often images are transposed: once before the
# convolution, and back at the end
KNOWN = {
    "largest": ([node("MaxPool", ["a"], ["y"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])], 2),
    "average": ([node("AveragePool", ["a"], ["y"], kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)], 2),
    "normalised": ([node("LRN", ["a"], ["b"], size=5, alpha=0.1), node("Conv", ["b", "k"], ["y"])], 2),
    "mean": ([node("GlobalAveragePool", ["a"], ["b"]), node("Flatten", ["b"], ["y"])], 1),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_stays_transposed(name, tmp_path):
    nodes, times = KNOWN[name]
    module = check(net([conv("x", "a"), *nodes]), tmp_path)
    assert module["permute_dims"] == times
