"""Elementwise operators, reductions and pooling with channels last."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.channels_last import check, conv, net, weights
from tests.support.nets import node

# Between a convolution of x, which makes a, and the output y; and how often images are transposed: once before the
# convolution, and back at the end
KNOWN = {
    "nothing": ([node("Relu", ["a"], ["y"])], 2),
    "per channel": ([node("Add", ["a", "c"], ["b"]), node("Mul", ["c", "b"], ["y"])], 2),
    "per image": ([node("Sub", ["a", "i"], ["y"])], 2),
    "number": ([node("Mul", ["a", "n"], ["b"]), node("Clip", ["b", "n", "m"], ["y"])], 2),
    "residual": ([node("Conv", ["a", "k"], ["b"]), node("Add", ["a", "b"], ["y"])], 2),
    "sum of three": ([node("Sigmoid", ["a"], ["b"]), node("Sum", ["a", "b", "a"], ["y"])], 2),
    "softmax": ([node("Softmax", ["a"], ["y"], axis=1)], 2),
    "mean, kept": ([node("GlobalAveragePool", ["a"], ["b"]), node("Mul", ["a", "b"], ["y"])], 2),
    "mean of rows": ([node("ReduceMean", ["a"], ["y"], axes=[2], keepdims=1)], 2),
    "mean of all places": ([node("ReduceMean", ["a"], ["y"], axes=[2, 3], keepdims=0)], 1),
    "greatest channel": ([node("ReduceMax", ["a"], ["y"], axes=[1], keepdims=0)], 1),
}
GIVEN = {
    "c": weights(8, 1, 1),
    "i": weights(9, 7),
    "n": np.float32(0.5),
    "m": np.float32(2.0),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_stays_transposed(name, tmp_path):
    nodes, times = KNOWN[name]
    module = check(net([conv("x", "a"), *nodes], initializers=GIVEN), tmp_path)
    assert module["permute_dims"] == times


# --- pooling ---------------------------------------------------------------------------------------------------------

# Between a convolution of x, which makes a, and the output y; and how often images are transposed: once before the
# convolution, and back at the end
POOLED = {
    "largest": ([node("MaxPool", ["a"], ["y"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])], 2),
    "average": ([node("AveragePool", ["a"], ["y"], kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)], 2),
    "normalised": ([node("LRN", ["a"], ["b"], size=5, alpha=0.1), node("Conv", ["b", "k"], ["y"])], 2),
    "mean": ([node("GlobalAveragePool", ["a"], ["b"]), node("Flatten", ["b"], ["y"])], 1),
}


@pytest.mark.parametrize("name", POOLED)
def test_pooled_images_stay_transposed(name, tmp_path):
    nodes, times = POOLED[name]
    module = check(net([conv("x", "a"), *nodes]), tmp_path)
    assert module["permute_dims"] == times
