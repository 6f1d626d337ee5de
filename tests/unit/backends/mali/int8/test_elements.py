"""Sums, concatenations and maxima of bytes that become bytes are read as expressions of those bytes."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.support import nets
from tests.support.nets import node, value
from toolchain.backends.graph.values import read
from toolchain.backends.mali.int8.elements import Clipped, Concatenated, MaxPool, Sum, elements_of
from toolchain.backends.mali.int8.epilogues import Limits, OtherImage
from toolchain.models import importer, source


def found(folder, between, outputs=("y",)):
    """Return the elements of the bytes y, which some nodes make of the numbers a and b, which bytes are."""
    nodes = [
        node("DequantizeLinear", ["x", "step", "zero"], ["a"]),
        node("DequantizeLinear", ["v", "step", "zero"], ["b"]),
        *between,
        node("QuantizeLinear", [between[-1].output[0], "step", "zero"], ["y"]),
    ]
    constants = {"step": np.float32(0.1), "zero": np.array(0, np.uint8)}
    inputs = [value(name, (1, 4, 8, 8), "uint8") for name in ("x", "v")]
    results = [value(name, None, "uint8" if name == "y" else "float32") for name in outputs]
    proto = nets.model(nodes, inputs, results, constants)
    module = importer.import_model(source.load(nets.save(proto, folder))).module
    (block,) = [block for block in module["main"].body.blocks if isinstance(block, relax.DataflowBlock)]
    elements = [elements_of(operation) for operation in read(block, module).operations]
    return next((element for element in elements if element is not None), None)


def pool(**attributes):
    return node(
        "MaxPool", ["a"], ["c"], **{"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], **attributes}
    )


def test_a_residual_and_its_limit(tmp_path):
    elements = found(tmp_path, [node("Add", ["a", "b"], ["c"]), node("Relu", ["c"], ["d"])])
    assert isinstance(elements.tree, Clipped)
    assert elements.tree.step == Limits(0.0, np.inf)
    assert isinstance(elements.tree.inner, Sum)
    assert all(isinstance(leaf, OtherImage) for leaf in (elements.tree.inner.first, elements.tree.inner.second))
    assert len(elements.leaves) == 2
    assert elements.grid.zero == -128


def test_channels_one_after_the_other(tmp_path):
    elements = found(tmp_path, [node("Concat", ["a", "b", "a"], ["c"], axis=1)])
    assert isinstance(elements.tree, Concatenated)
    assert elements.tree.channels == (4, 4, 4)
    assert len(elements.leaves) == 2


def test_the_greatest_of_windows(tmp_path):
    tree = found(tmp_path, [pool()]).tree
    assert isinstance(tree, MaxPool)
    assert (tree.size, tree.window, tree.strides, tree.before) == ((8, 8), (3, 3), (2, 2), (1, 1))


def test_the_greatest_of_what_is_side_by_side_is_taken_of_each(tmp_path):
    between = [node("Concat", ["a", "b"], ["c"], axis=1), node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2])]
    tree = found(tmp_path, between).tree
    assert isinstance(tree, Concatenated)
    assert all(isinstance(branch, MaxPool) for branch in tree.branches)


@pytest.mark.parametrize(
    ("between", "outputs"),
    [
        ([node("Add", ["a", "b"], ["c"])], ("y", "c")),
        ([node("Concat", ["a", "b"], ["c"], axis=2)], ("y",)),
        ([node("Add", ["a", "a"], ["c"])], ("y",)),
        ([node("Mul", ["a", "b"], ["c"])], ("y",)),
        ([pool(dilations=[2, 2])], ("y",)),
        ([pool(kernel_shape=[6, 6], pads=[3, 3, 2, 2])], ("y",)),
    ],
    ids=["number-is-wanted", "rows", "itself", "product", "dilated", "too-many"],
)
def test_what_is_something_else_is_left(between, outputs, tmp_path):
    assert found(tmp_path, between, outputs) is None
