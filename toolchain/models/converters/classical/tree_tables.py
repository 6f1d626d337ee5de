"""Decision trees as tables with a row for each node, from the two forms in which ai.onnx.ml writes them.

A leaf is a row that leads to itself, so that all trees can be walked with the same number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
"""How a node compares a feature with its threshold; the number of a mode is its index."""
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""How the weights of all trees become a score, in the order of TreeEnsemble's enumeration."""
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""What becomes of the scores, in the order of TreeEnsemble's enumeration."""

_LEAF = "LEAF"
_EQUAL, _MEMBER = MODES.index("BRANCH_EQ"), len(MODES)

Refusal = Callable[[str], Exception]
Array = NDArray[Any]


@dataclass(frozen=True)
class Trees:
    """All trees of an ensemble; the arrays of nodes have an element for each node, leaves included.

    Attributes:
        features: Which feature a node compares.
        thresholds: What it is compared with.
        modes: Comparisons, as indices into `MODES`.
        missing: Whether a NaN takes the true branch.
        branches: Rows of the next node: [node, 0] if the comparison is false, [node, 1] if it is true.
        roots: Rows where the trees start.
        depth: The most steps from a root to a leaf.
        weights: [node, target], what a leaf adds to a target.
        has_weight: [node, target], whether it adds anything.
    """

    features: Array
    thresholds: Array
    modes: Array
    missing: Array
    branches: Array
    roots: Array
    depth: int
    weights: Array
    has_weight: Array

    @cached_property
    def leaves(self) -> list[Array]:
        """Rows of the leaves of each tree."""
        leaves = []
        for root in self.roots:
            level, ends = np.array([root]), []
            while level.size:
                is_leaf = self.branches[level, 0] == level
                ends.append(level[is_leaf])
                level = np.unique(self.branches[level[~is_leaf]])
            leaves.append(np.concatenate(ends))
        return leaves

    @cached_property
    def by_target(self) -> Array | None:
        """Trees of each target, [target, number], filled with -1; None if a tree has weights for several targets."""
        targets = [np.flatnonzero(self.has_weight[leaves].any(axis=0)) for leaves in self.leaves]
        if any(len(tree_targets) > 1 for tree_targets in targets):
            return None
        groups = [
            [tree for tree, tree_targets in enumerate(targets) if target in tree_targets]
            for target in range(self.weights.shape[1])
        ]
        table = np.full((len(groups), max(1, *map(len, groups))), -1, "int32")
        for target, group in enumerate(groups):
            table[target, : len(group)] = group
        return table


@dataclass(frozen=True)
class _Rows:
    """Nodes before they are checked; fields as in `Trees`."""

    features: list[int]
    thresholds: list[float]
    modes: list[int]
    missing: list[bool]
    branches: list[tuple[int, int]]

    @classmethod
    def empty(cls) -> _Rows:
        return cls([], [], [], [], [])

    def add(self, feature: int, threshold: float, mode: int, *, missing: bool, branches: tuple[int, int]) -> int:
        self.features.append(feature)
        self.thresholds.append(threshold)
        self.modes.append(mode)
        self.missing.append(missing)
        self.branches.append(branches)
        return len(self.features) - 1

    # Whatever a leaf compares, it leads to itself: trees of different depths take the same number of steps.
    def add_leaf(self) -> int:
        row = len(self.features)
        return self.add(0, 0.0, -1, missing=False, branches=(row, row))


def number_list(attributes: Mapping[str, Any], name: str) -> Array:
    """Return an attribute of numbers: a list, a tensor (also under the name NAME_as_tensor), or nothing."""
    value = attributes.get(name, attributes.get(f"{name}_as_tensor", ()))
    if isinstance(value, Sequence):
        return np.asarray(value, "float32" if any(isinstance(item, float) for item in value) else None)
    return np.asarray(numpy_helper.to_array(value)).reshape(-1)


def of_nodes(attributes: Mapping[str, Any], prefix: str, targets: int, refusal: Refusal) -> Trees:
    """Read the trees of TreeEnsembleClassifier and TreeEnsembleRegressor, whose nodes are numbered within their tree.

    The names of the weights' attributes start with `prefix`: `class` or `target`.
    """
    trees, numbers = number_list(attributes, "nodes_treeids"), number_list(attributes, "nodes_nodeids")
    rows_by_key = {key: row for row, key in enumerate(zip(trees.tolist(), numbers.tolist(), strict=True))}
    if len(rows_by_key) != len(numbers) or not rows_by_key:
        raise refusal("two of its nodes have the same number" if rows_by_key else "it has no trees")
    rows = _read_nodes(attributes, rows_by_key, refusal)
    starts = [row for row, tree in enumerate(trees) if row == 0 or trees[row - 1] != tree]
    is_double = number_list(attributes, f"{prefix}_weights").dtype == np.float64
    weights = np.zeros((len(rows_by_key), targets), "float64" if is_double else "float32")
    has_weight = np.zeros(weights.shape, bool)
    names = (f"{prefix}_treeids", f"{prefix}_nodeids", f"{prefix}_ids", f"{prefix}_weights")
    for tree, number, target, weight in zip(*(number_list(attributes, name).tolist() for name in names), strict=True):
        row = rows_by_key.get((tree, number), -1)
        if row < 0 or not 0 <= target < targets or has_weight[row, target]:
            raise refusal(f"the weight of target {target} at node {number} of tree {tree} has no place, or comes twice")
        weights[row, target], has_weight[row, target] = weight, True
    return _build_trees(rows, starts, weights, has_weight, refusal)


def _read_nodes(attributes: Mapping[str, Any], rows_by_key: Mapping[tuple[int, int], int], refusal: Refusal) -> _Rows:
    rows, modes = _Rows.empty(), attributes.get("nodes_modes", ())
    names = ("nodes_featureids", "nodes_values", "nodes_truenodeids", "nodes_falsenodeids")
    features, thresholds, trues, falses = (number_list(attributes, name).tolist() for name in names)
    missing = number_list(attributes, "nodes_missing_value_tracks_true").tolist() or [0] * len(rows_by_key)
    if any(len(each) != len(rows_by_key) for each in (modes, features, thresholds, trues, falses, missing)):
        raise refusal("its lists of nodes differ in length")
    for (tree, _), row in rows_by_key.items():
        if modes[row] == _LEAF:
            rows.add_leaf()
            continue
        if modes[row] not in MODES:
            raise refusal(f"the mode {modes[row]!r} of a node; the standard has {', '.join(MODES)}, {_LEAF}")
        ends = (rows_by_key.get((tree, falses[row]), -1), rows_by_key.get((tree, trues[row]), -1))
        mode, is_missing = MODES.index(modes[row]), bool(missing[row])
        rows.add(features[row], thresholds[row], mode, missing=is_missing, branches=ends)
    return rows


def of_leaves(attributes: Mapping[str, Any], targets: int, refusal: Refusal) -> Trees:
    """Read the trees of TreeEnsemble, whose nodes and leaves are numbered separately, over all trees."""
    names = ("nodes_featureids", "nodes_splits", "nodes_modes")
    features, thresholds, modes = (number_list(attributes, name).tolist() for name in names)
    missing = number_list(attributes, "nodes_missing_value_tracks_true").tolist() or [0] * len(features)
    values, ids = number_list(attributes, "leaf_weights"), number_list(attributes, "leaf_targetids")
    rows, members = _Rows.empty(), _split_sets(number_list(attributes, "membership_values"))
    branches = _branch_rows(attributes, len(features), len(values))
    for row, mode in enumerate(modes):
        rows.add(features[row], thresholds[row], mode, missing=bool(missing[row]), branches=branches[row])
    for _ in values:
        rows.add_leaf()
    for row, mode in enumerate(modes):
        if mode == _MEMBER:  # a node for each member of the set, which is true or leads to the next one
            values_of_set = members.pop(0) if members else []
            otherwise, if_true = branches[row]
            for value in values_of_set[:0:-1]:
                ends = (otherwise, if_true)
                otherwise = rows.add(features[row], value, _EQUAL, missing=bool(missing[row]), branches=ends)
            rows.modes[row], rows.thresholds[row] = _EQUAL, values_of_set[0] if values_of_set else np.nan
            rows.branches[row] = (otherwise, if_true)
        elif not 0 <= mode < _MEMBER:
            raise refusal(f"the mode {mode} of a node; the standard has 0 to {_MEMBER}")
    weights = np.zeros((len(rows.features), targets), values.dtype)
    has_weight = np.zeros(weights.shape, bool)
    leaves = np.arange(len(values)) + len(features)
    if ids.size != values.size or not np.all((ids >= 0) & (ids < targets)):
        raise refusal("the target of a leaf does not exist")
    weights[leaves, ids], has_weight[leaves, ids] = values, True
    return _build_trees(rows, number_list(attributes, "tree_roots").tolist(), weights, has_weight, refusal)


def _branch_rows(attributes: Mapping[str, Any], nodes: int, leaves: int) -> list[tuple[int, int]]:
    """Return the rows that nodes lead to, with leaves behind the nodes; -1 for those that do not exist."""

    def rows(side: str) -> list[int]:
        numbers, are_leaves = (number_list(attributes, f"nodes_{side}{kind}") for kind in ("nodeids", "leafs"))
        limits = np.where(are_leaves, leaves, nodes)
        targets: list[int] = np.where(
            (numbers >= 0) & (numbers < limits), numbers + np.where(are_leaves, nodes, 0), -1
        ).tolist()
        return targets

    return list(zip(rows("false"), rows("true"), strict=True))


def _split_sets(values: Array) -> list[list[float]]:
    """Return the sets that nodes compare with, which are separated by NaN."""
    sets: list[list[float]] = [[]]
    for value in values.tolist():
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    return sets


def _build_trees(rows: _Rows, roots: Sequence[int], weights: Array, has_weight: Array, refusal: Refusal) -> Trees:
    branches = np.asarray(rows.branches, "int32").reshape(-1, 2)
    starts = np.asarray(roots, "int32")
    if branches.min(initial=0) < 0 or not starts.size or starts.min() < 0 or starts.max() >= len(branches):
        raise refusal("a node of its trees leads to one that does not exist")
    # The mode of a leaf has no meaning: with one that other nodes have, no code is written for another one.
    modes = np.asarray(rows.modes, "int32")
    # The depth: the most steps from a root to a leaf.
    level, depth = np.unique(starts), 0
    is_leaf = branches[:, 0] == np.arange(len(branches))
    while not is_leaf[level].all():
        level, depth = np.unique(branches[level[~is_leaf[level]]]), depth + 1
        if depth > len(branches):
            raise refusal("its trees have a circle")
    return Trees(
        np.asarray(rows.features, "int32"),
        np.asarray(rows.thresholds, weights.dtype),
        np.where(modes < 0, max(int(modes.max(initial=0)), 0), modes).astype("int32"),
        np.asarray(rows.missing, bool),
        branches,
        starts,
        depth,
        weights,
        has_weight,
    )
