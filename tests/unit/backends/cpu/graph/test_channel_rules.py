"""Parts of tensors in blocks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.relax_nets import CONV, W, counts, layers, moved, net, normal

pytestmark = pytest.mark.usefixtures("naive")


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (("Slice", "c a b one", "y"), (1, 8)),
        (("Slice", "c minus b one", "y"), (1, 8)),
        (("Slice", "c three b one", "y"), None),  # within a block
        (("Slice", "c a b two", "y"), None),  # along the rows
        (("Slice", "c a b one two", "y"), None),  # every second
    ],
)
def test_slices(node, expected):
    numbers = {"a": 8, "b": 16, "minus": -8, "three": 3, "one": 1, "two": 2}
    module = moved(net([CONV, node], (1, 3, 18, 5), W | {name: np.array([n]) for name, n in numbers.items()}))
    activation = layers(module)[-1].data
    assert (
        ("strided_slice" in counts(module)) if expected is None else (activation.first, activation.channels) == expected
    )


@pytest.mark.parametrize(("channels", "views"), [(32, True), (24, False)])
def test_splits(channels, views):
    nodes = [CONV, ("Split", "c", "a b", {"axis": 1}), ("Relu", "b", "r"), ("Add", "r a", "y")]
    module = moved(net(nodes, (1, 3, 4, 5), {"w": normal(channels, 3, 1, 1)}))
    assert ("split" in counts(module)) is not views


def test_concatenations_along_other_axes_and_with_constants_stay():
    along = moved(net([CONV, ("Concat", "c c", "y", {"axis": 2})], (1, 3, 4, 5), W))
    constant = moved(
        net(
            [CONV, ("Concat", "c k", "y", {"axis": 1})],
            (1, 3, 4, 5),
            W | {"k": normal(1, 8, 4, 5)},
        )
    )
    assert counts(along)["concat"] == counts(constant)["concat"] == 1
