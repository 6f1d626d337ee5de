"""What joins and pads images with their channels last."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.channels_last import check, conv, net
from tests.support.nets import node

# Between a convolution of x, which makes a, and the output y; and how often images are transposed: once before the
# convolution, and back at the end
KNOWN = {
    "concat": (
        [node("Tanh", ["a"], ["b"]), node("Concat", ["a", "b"], ["c0"], axis=1), node("Relu", ["c0"], ["y"])],
        2,
    ),
    "concat of rows": ([node("Concat", ["a", "a"], ["y"], axis=-2)], 2),
    "padding": ([node("Pad", ["a", "p"], ["y"])], 2),
    "dropout": ([node("Dropout", ["a"], ["b"]), node("Relu", ["b"], ["y"])], 2),
}
GIVEN = {
    "p": np.array([0, 0, 1, 2, 0, 0, 3, 4], np.int64),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_stays_transposed(name, tmp_path):
    nodes, times = KNOWN[name]
    module = check(net([conv("x", "a"), *nodes], initializers=GIVEN), tmp_path)
    assert module["permute_dims"] == times
