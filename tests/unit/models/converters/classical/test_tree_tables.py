"""Tables of decision trees: leaves that lead to themselves, sets of members, depth."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support.forests import forest
from toolchain.models.converters.classical import tree_tables

EQUAL = tree_tables.MODES.index("BRANCH_EQ")


def tensor(values, kind=TensorProto.FLOAT):
    return helper.make_tensor("t", kind, [len(values)], values)


def one_set(members):
    """A node that asks whether feature 1 is a member of a set: leaf 0 if it is, and leaf 1 if it is not."""
    return {
        "nodes_featureids": [1],
        "nodes_splits": tensor([0.0]),
        "nodes_modes": tensor([6], TensorProto.UINT8),
        "nodes_truenodeids": [0],
        "nodes_trueleafs": [1],
        "nodes_falsenodeids": [1],
        "nodes_falseleafs": [1],
        "tree_roots": [0],
        "leaf_targetids": [0, 0],
        "leaf_weights": tensor([5.0, 6.0]),
        "membership_values": tensor([*members, float("nan")]),
    }


def test_leaves_lead_to_themselves():
    trees = tree_tables.of_nodes(forest("target", [0], depth=2), "target", 1, ValueError)
    leaves = np.flatnonzero(trees.has_weight[:, 0])
    assert (trees.branches[leaves] == leaves[:, None]).all()
    assert (trees.depth, trees.roots.tolist()) == (2, [0, 7, 14, 21, 28])
    assert [len(each) for each in trees.leaves] == [4] * 5


def test_a_set_is_a_node_for_each_member():
    trees = tree_tables.of_leaves(one_set([2.0, 5.0, 7.0]), 1, ValueError)
    row, thresholds = 0, []
    while trees.branches[row, 0] != row:
        assert (trees.modes[row], trees.features[row], trees.branches[row, 1]) == (EQUAL, 1, 1)
        thresholds.append(float(trees.thresholds[row]))
        row = int(trees.branches[row, 0])
    assert (thresholds, row, trees.depth) == ([2.0, 5.0, 7.0], 2, 3)
    assert trees.weights[:, 0].tolist()[1:3] == [5.0, 6.0]


def test_trees_that_each_have_one_target():
    trees = tree_tables.of_nodes(forest("target", [0], depth=2), "target", 2, ValueError)
    assert trees.by_target.tolist() == [[0, 1, 2, 3, 4], [-1] * 5]
    assert tree_tables.of_nodes(forest("target", [0, 1], depth=2), "target", 2, ValueError).by_target is None


def test_numbers_keep_their_precision():
    attributes = {"a": [1, 2], "b": [0.5], "c_as_tensor": tensor([0.1], TensorProto.DOUBLE)}
    kinds = [tree_tables.number_list(attributes, name).dtype.name for name in "abc"]
    assert kinds == ["int64", "float32", "float64"]
    assert tree_tables.number_list(attributes, "d").size == 0


@pytest.mark.parametrize(
    ("field", "value"), [("tree_roots", [9]), ("leaf_targetids", [0, 3]), ("nodes_falseleafs", [0])]
)
def test_what_does_not_exist_is_refused(field, value):
    with pytest.raises(ValueError, match=r"does not exist|do not exist|that does not"):
        tree_tables.of_leaves({**one_set([1.0]), field: value}, 1, ValueError)
