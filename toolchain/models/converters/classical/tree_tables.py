"""Decision trees as tables: a row for each node, from both ways in which ai.onnx.ml writes them.

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
"""How a node compares a feature with its threshold; the number of a mode is its place."""
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
        thresholds: What it compares it with.
        modes: How; an index into `MODES`.
        missing: Whether a NaN takes the true branch.
        branches: Rows of the next node: [node, 0] if the comparison is false, [node, 1] if it is true.
        roots: Rows where the trees start.
        depth: Steps from any root to any of its leaves, at most.
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
        found = []
        for root in self.roots:
            level, ends = np.array([root]), []
            while level.size:
                is_leaf = self.branches[level, 0] == level
                ends.append(level[is_leaf])
                level = np.unique(self.branches[level[~is_leaf]])
            found.append(np.concatenate(ends))
        return found

    @cached_property
    def by_target(self) -> Array | None:
        """Trees of each target, [target, number], filled with -1; None if a tree has weights for several targets."""
        targets = [np.flatnonzero(self.has_weight[leaves].any(axis=0)) for leaves in self.leaves]
        if any(len(each) > 1 for each in targets):
            return None
        groups = [
            [tree for tree, each in enumerate(targets) if target in each] for target in range(self.weights.shape[1])
        ]
        found = np.full((len(groups), max(1, *map(len, groups))), -1, "int32")
        for target, group in enumerate(groups):
            found[target, : len(group)] = group
        return found


@dataclass(frozen=True)
class _Rows:
    """Nodes before they are checked: as in `Trees`, with `kept` for those that are no leaves."""

    features: list[int]
    thresholds: list[float]
    modes: list[int]
    missing: list[bool]
    branches: list[tuple[int, int]]

    @classmethod
    def empty(cls) -> _Rows:
        return cls([], [], [], [], [])

    def add(self, feature: int, threshold: float, mode: int, *, missing: bool, branches: tuple[int, int]) -> int:
        """Append a node, and return its row."""
        self.features.append(feature)
        self.thresholds.append(threshold)
        self.modes.append(mode)
        self.missing.append(missing)
        self.branches.append(branches)
        return len(self.features) - 1

    def add_leaf(self) -> int:
        """Append a leaf: whatever it compares, it leads to itself."""
        row = len(self.features)
        return self.add(0, 0.0, -1, missing=False, branches=(row, row))


def listed(attributes: Mapping[str, Any], name: str) -> Array:
    """Return an attribute of numbers: a list, a tensor (also under the name NAME_as_tensor), or nothing."""
    value = attributes.get(name, attributes.get(f"{name}_as_tensor", ()))
    if isinstance(value, Sequence):
        return np.asarray(value, "float32" if any(isinstance(item, float) for item in value) else None)
    return np.asarray(numpy_helper.to_array(value)).reshape(-1)


def of_nodes(attributes: Mapping[str, Any], prefix: str, targets: int, refused: Refusal) -> Trees:
    """Read the trees of TreeEnsembleClassifier and TreeEnsembleRegressor, whose nodes have numbers within their tree.

    Args:
        attributes: Of the node.
        prefix: `class` or `target`: what the names of the attributes of weights start with.
        targets: How many scores there are.
        refused: Makes an error of a reason.
    """
    trees, numbers = listed(attributes, "nodes_treeids"), listed(attributes, "nodes_nodeids")
    places = {key: row for row, key in enumerate(zip(trees.tolist(), numbers.tolist(), strict=True))}
    if len(places) != len(numbers) or not places:
        raise refused("two of its nodes have the same number" if places else "it has no trees")
    rows = _read_nodes(attributes, places, refused)
    starts = [row for row, tree in enumerate(trees) if row == 0 or trees[row - 1] != tree]
    weights = np.zeros((len(places), targets), _number_type(attributes, f"{prefix}_weights"))
    has_weight = np.zeros(weights.shape, bool)
    names = (f"{prefix}_treeids", f"{prefix}_nodeids", f"{prefix}_ids", f"{prefix}_weights")
    for tree, number, target, weight in zip(*(listed(attributes, name).tolist() for name in names), strict=True):
        row = places.get((tree, number), -1)
        if row < 0 or not 0 <= target < targets or has_weight[row, target]:
            raise refused(f"the weight of target {target} at node {number} of tree {tree} has no place, or comes twice")
        weights[row, target], has_weight[row, target] = weight, True
    return _checked(rows, starts, weights, has_weight, refused)


def _number_type(attributes: Mapping[str, Any], name: str) -> str:
    return "float64" if listed(attributes, name).dtype == np.float64 else "float32"


def _read_nodes(attributes: Mapping[str, Any], places: Mapping[tuple[int, int], int], refused: Refusal) -> _Rows:
    rows, modes = _Rows.empty(), attributes.get("nodes_modes", ())
    names = ("nodes_featureids", "nodes_values", "nodes_truenodeids", "nodes_falsenodeids")
    features, thresholds, trues, falses = (listed(attributes, name).tolist() for name in names)
    missing = listed(attributes, "nodes_missing_value_tracks_true").tolist() or [0] * len(places)
    if any(len(each) != len(places) for each in (modes, features, thresholds, trues, falses, missing)):
        raise refused("its lists of nodes differ in length")
    for (tree, _), row in places.items():
        if modes[row] == _LEAF:
            rows.add_leaf()
            continue
        if modes[row] not in MODES:
            raise refused(f"the mode {modes[row]!r} of a node; the standard has {', '.join(MODES)}, {_LEAF}")
        ends = (places.get((tree, falses[row]), -1), places.get((tree, trues[row]), -1))
        mode, is_missing = MODES.index(modes[row]), bool(missing[row])
        rows.add(features[row], thresholds[row], mode, missing=is_missing, branches=ends)
    return rows


def of_leaves(attributes: Mapping[str, Any], targets: int, refused: Refusal) -> Trees:
    """Read the trees of TreeEnsemble, whose nodes and leaves are numbered apart, over all trees.

    Args:
        attributes: Of the node.
        targets: How many scores there are.
        refused: Makes an error of a reason.
    """
    names = ("nodes_featureids", "nodes_splits", "nodes_modes")
    features, thresholds, modes = (listed(attributes, name).tolist() for name in names)
    missing = listed(attributes, "nodes_missing_value_tracks_true").tolist() or [0] * len(features)
    values, ids = listed(attributes, "leaf_weights"), listed(attributes, "leaf_targetids")
    rows, members = _Rows.empty(), _sets(listed(attributes, "membership_values"))
    ends = _ends(attributes, len(features), len(values))
    for row, mode in enumerate(modes):
        rows.add(features[row], thresholds[row], mode, missing=bool(missing[row]), branches=ends[row])
    for _ in values:
        rows.add_leaf()
    for row, mode in enumerate(modes):
        if mode == _MEMBER:
            _split_members(rows, row, members.pop(0) if members else [])
        elif not 0 <= mode < _MEMBER:
            raise refused(f"the mode {mode} of a node; the standard has 0 to {_MEMBER}")
    weights = np.zeros((len(rows.features), targets), values.dtype)
    has_weight = np.zeros(weights.shape, bool)
    leaves = np.arange(len(values)) + len(features)
    if ids.size != values.size or not np.all((ids >= 0) & (ids < targets)):
        raise refused("the target of a leaf does not exist")
    weights[leaves, ids], has_weight[leaves, ids] = values, True
    return _checked(rows, listed(attributes, "tree_roots").tolist(), weights, has_weight, refused)


def _ends(attributes: Mapping[str, Any], nodes: int, leaves: int) -> list[tuple[int, int]]:
    """Return the rows that nodes lead to, the leaves behind the nodes; -1 for what does not exist."""

    def rows(side: str) -> list[int]:
        numbers, are_leaves = (listed(attributes, f"nodes_{side}{kind}") for kind in ("nodeids", "leafs"))
        limits = np.where(are_leaves, leaves, nodes)
        found: list[int] = np.where(
            (numbers >= 0) & (numbers < limits), numbers + np.where(are_leaves, nodes, 0), -1
        ).tolist()
        return found

    return list(zip(rows("false"), rows("true"), strict=True))


def _sets(values: Array) -> list[list[float]]:
    """Return the sets that nodes compare with, which NaN separates."""
    sets: list[list[float]] = [[]]
    for value in values.tolist():
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    return sets


def _split_members(rows: _Rows, row: int, members: Sequence[float]) -> None:
    """Compare with each member of a set: a node for each, which is true or leads to the next one."""
    otherwise, found = rows.branches[row]
    feature, missing = rows.features[row], rows.missing[row]
    for value in list(members[:0:-1]):
        otherwise = rows.add(feature, value, _EQUAL, missing=missing, branches=(otherwise, found))
    rows.modes[row], rows.thresholds[row] = _EQUAL, members[0] if members else np.nan
    rows.branches[row] = (otherwise, found)


def _checked(rows: _Rows, roots: Sequence[int], weights: Array, has_weight: Array, refused: Refusal) -> Trees:
    branches = np.asarray(rows.branches, "int32").reshape(-1, 2)
    starts = np.asarray(roots, "int32")
    if branches.min(initial=0) < 0 or not starts.size or starts.min() < 0 or starts.max() >= len(branches):
        raise refused("a node of its trees leads to one that does not exist")
    return Trees(
        np.asarray(rows.features, "int32"),
        np.asarray(rows.thresholds, weights.dtype),
        _of_leaves_too(rows.modes),
        np.asarray(rows.missing, bool),
        branches,
        starts,
        _depth(branches, starts, refused),
        weights,
        has_weight,
    )


def _of_leaves_too(modes: Sequence[int]) -> Array:
    """Return the modes as numbers; that of a leaf means nothing, and is one that the other nodes have."""
    found = np.asarray(modes, "int32")
    return np.where(found < 0, max(int(found.max(initial=0)), 0), found).astype("int32")


def _depth(branches: Array, roots: Array, refused: Refusal) -> int:
    """Return how many steps lead from the roots to the last leaf."""
    level, depth = np.unique(roots), 0
    is_leaf = branches[:, 0] == np.arange(len(branches))
    while not is_leaf[level].all():
        level, depth = np.unique(branches[level[~is_leaf[level]]]), depth + 1
        if depth > len(branches):
            raise refused("its trees have a circle")
    return depth
