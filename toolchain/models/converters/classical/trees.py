"""Ensembles of decision trees, as scikit-learn, LightGBM and XGBoost are exported: the domain ai.onnx.ml.

The trees are tables (`tree_tables`). All trees and rows are walked at once, each step with the same few reads: a
number of a node, a feature, a comparison, the next number. Nothing of that depends on what the other trees do, so
that it can be spread over vectors, cores and threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from toolchain.models.converters import converter
from toolchain.models.converters.classical import scores, tree_tables
from toolchain.models.converters.classical.tree_tables import AGGREGATES, TRANSFORMS, Trees
from toolchain.models.converters.node import Node

_DOMAIN = "ai.onnx.ml"
_ALONE = 8  # TVM's kind of operation that no other is fused with, which would repeat the walk for each of its elements
_BINARY = 2
_HALF = 0.5
_COMPARISONS: Sequence[Callable[[Any, Any], Any]] = (
    lambda value, limit: value <= limit,
    lambda value, limit: value < limit,
    lambda value, limit: value >= limit,
    lambda value, limit: value > limit,
    lambda value, limit: value == limit,
    lambda value, limit: tirx.any(tirx.NE(value, limit), tirx.isnan(value), tirx.isnan(limit)),
)
"""How to compare, in the order of `tree_tables.MODES`. TVM's code says that NaN does not differ from a number."""


@converter(f"{_DOMAIN}.TreeEnsembleRegressor")
def tree_regressor(node: Node) -> Any:
    """Convert TreeEnsembleRegressor: the sum, mean, least or greatest of what the leaves say."""
    targets = int(node.attributes.get("n_targets", 1))
    trees = tree_tables.of_nodes(node.attributes, "target", targets, node.refusal)
    found = _aggregated(node, trees, str(node.attributes.get("aggregate_function", "SUM")))
    return _finished(node, _with_base(node, found, targets), scores.post_transform(node), "float32")


@converter(f"{_DOMAIN}.TreeEnsemble")
def tree_ensemble(node: Node) -> Any:
    """Convert TreeEnsemble: as `tree_regressor`, in the type of its input."""
    targets = int(node.attributes.get("n_targets", 1))
    trees = tree_tables.of_leaves(node.attributes, targets, node.refusal)
    function = int(node.attributes.get("aggregate_function", AGGREGATES.index("SUM")))
    transform = int(node.attributes.get("post_transform", 0))
    if not (0 <= function < len(AGGREGATES) and 0 <= transform < len(TRANSFORMS)):
        raise node.refusal(f"the standard has no aggregate_function {function} or no post_transform {transform}")
    found = _aggregated(node, trees, AGGREGATES[function])
    return _finished(node, found, TRANSFORMS[transform], node.dtype(0))


@converter(f"{_DOMAIN}.TreeEnsembleClassifier")
def tree_classifier(node: Node) -> Any:
    """Convert TreeEnsembleClassifier: labels, and scores of each class."""
    labels = scores.labels_of(node)
    if not labels:
        raise node.refusal("its list of classes is empty")
    trees = tree_tables.of_nodes(node.attributes, "class", len(labels), node.refusal)
    sums = _Sums(_aggregated(node, trees, "SUM"), trees)
    many = len(labels) > _BINARY
    label, columns = (_many_classes if many else _few_classes)(node, sums, labels)
    return [label, node.emit(relax.op.astype(columns, "float32"))]


@dataclass(frozen=True)
class _Sums:
    """The sum of each class, [rows, classes], and the trees that it comes from."""

    values: Any
    trees: Trees

    def is_always_there(self, target: int) -> bool:
        """Whether every row has a weight for a target: one of the trees has it in all its leaves."""
        return any(self.trees.has_weight[leaves, target].all() for leaves in self.trees.leaves)

    def is_never_there(self, target: int) -> bool:
        """Whether no leaf has a weight for a target."""
        return not self.trees.has_weight[:, target].any()


def _many_classes(node: Node, sums: _Sums, labels: Sequence[int]) -> tuple[Any, Any]:
    """Return the label with the greatest score, and the scores of three or more classes."""
    base = tree_tables.listed(node.attributes, "base_values")
    if not len(base) and not all(map(sums.is_always_there, range(len(labels)))):
        raise node.refusal("for some rows, no leaf has a weight for one of its classes, and it has no base_values")
    found = _with_base(node, sums.values, len(labels))
    return scores.best_label(node, found, labels), scores.transformed(node, found, scores.post_transform(node))


def _few_classes(node: Node, sums: _Sums, labels: Sequence[int]) -> tuple[Any, Any]:
    """Return the label and the scores of one or two classes; the scores may be of one of two classes alone.

    What the standard leaves open is as in ONNX Runtime: which weights count, which labels, and what fills a column.
    """
    transform, last = scores.post_transform(node), len(labels) - 1
    base = tree_tables.listed(node.attributes, "base_values").astype(str(sums.values.ty.dtype))
    is_alone = last == 0 or sums.is_never_there(1)
    if not is_alone and not sums.is_always_there(1):
        raise node.refusal("for some rows, no leaf has a weight for the second of its two classes")
    columns = [node.emit(relax.op.strided_slice(sums.values, [1], [at], [at + 1])) for at in range(len(labels))]
    if is_alone and len(base) < _BINARY:
        return _of_one_column(node, sums, _plus(node, columns[0], base[:1]), labels)
    if last == 0:
        raise node.refusal("it has more base_values than classes")
    if len(base) >= _BINARY and not is_alone:
        second = _plus(node, columns[0], base[1:2])  # not columns[1]: so does ONNX Runtime
        columns = [node.emit(relax.op.negative(second)), second]
    else:
        columns[0] = _plus(node, columns[0], base[:1])  # where it has two base values, the second counts nowhere
    decisive = columns[0] if is_alone else columns[1]
    label = scores.label_where(node, _is_positive(node, sums, decisive), _binary_labels(sums, labels))
    return label, scores.transformed(node, node.emit(relax.op.concat(columns, 1)), transform)


def _of_one_column(node: Node, sums: _Sums, score: Any, labels: Sequence[int]) -> tuple[Any, Any]:
    """Return the label and the columns where a single score decides."""
    transform = scores.post_transform(node)
    label = scores.label_where(node, _is_positive(node, sums, score), _binary_labels(sums, labels))
    if len(labels) == 1:
        return label, scores.of_one_target(node, score, transform)
    return label, scores.two_columns(node, score, transform, opposite=not _are_probabilities(sums))


def _binary_labels(sums: _Sums, labels: Sequence[int]) -> Sequence[int]:
    """Return the two labels: ONNX Runtime says 0 and 1 where both classes have weights, whatever the classes are."""
    return labels if len(labels) == _BINARY and _has_one_class(sums) else (0, 1)


def _has_one_class(sums: _Sums) -> bool:
    return int(sums.trees.has_weight.any(axis=0).sum()) == 1


def _are_probabilities(sums: _Sums) -> bool:
    return _has_one_class(sums) and bool((sums.trees.weights >= 0).all())


def _is_positive(node: Node, sums: _Sums, score: Any) -> Any:
    limit = _HALF if _are_probabilities(sums) and sums.trees.weights.shape[1] == _BINARY else 0.0
    return node.emit(relax.op.greater(score, relax.const(limit, score.ty.dtype.dtype)))


def _plus(node: Node, score: Any, base: Any) -> Any:
    return node.emit(relax.op.add(score, scores.constant(base))) if len(base) else score


def _with_base(node: Node, found: Any, targets: int) -> Any:
    """Return scores with the base values, of which there is one for each target, or none."""
    base = tree_tables.listed(node.attributes, "base_values").astype(str(found.ty.dtype))
    if len(base) not in {0, targets}:
        raise node.refusal(f"it has {len(base)} base_values for {targets} targets")
    return _plus(node, found, base)


def _finished(node: Node, found: Any, transform: str, dtype: str) -> Any:
    of_one = node.shape_of(found)[1] == 1
    done = (scores.of_one_target if of_one else scores.transformed)(node, found, transform)
    return node.emit(relax.op.astype(done, dtype))


def _aggregated(node: Node, trees: Trees, function: str) -> Any:
    """Return what the leaves of all trees say together: [rows, targets]."""
    if function not in AGGREGATES:
        raise node.refusal(f"its aggregate_function is {function!r}; the standard has {', '.join(AGGREGATES)}")
    dtype = "float64" if node.dtype(0) == "float64" else "float32"
    data = scores.rows(node, dtype)
    if trees.features.min() < 0 or trees.features.max() >= node.shape_of(data)[1]:
        raise node.refusal(f"its trees read a feature that its {node.shape_of(data)[1]} features do not have")
    leaves = _walked(node, data, trees)
    if function in {"MIN", "MAX"}:
        return _extreme(node, leaves, trees, function, dtype)
    found = _sum(node, leaves, trees, dtype)
    if function == "AVERAGE":
        found = node.emit(relax.op.divide(found, relax.const(float(len(trees.roots)), dtype)))
    return found


def _extreme(node: Node, leaves: Any, trees: Trees, function: str, dtype: str) -> Any:
    """Return the least or greatest weight of each target, of the leaves that have one; 0 where none has."""
    out = np.inf if function == "MIN" else -np.inf
    table = np.where(trees.has_weight, trees.weights, out).astype(dtype)
    least = relax.op.min if function == "MIN" else relax.op.max
    found = node.emit(least(node.emit(relax.op.take(scores.constant(table), leaves, axis=0, mode="clip")), axis=1))
    is_out = node.emit(relax.op.equal(found, relax.const(out, dtype)))
    return node.emit(relax.op.where(is_out, relax.const(0.0, dtype), found))


def _sum(node: Node, leaves: Any, trees: Trees, dtype: str) -> Any:
    """Return the sum of the weights of the leaves: [rows, targets]."""
    groups = trees.by_target
    if groups is None:
        return node.compute(_summed, leaves, scores.constant(trees.weights, dtype), name="sum_of_leaves")
    weights = scores.constant(trees.weights.sum(axis=1), dtype)  # boosting: of each row, at most one is not 0
    return node.compute(_summed_by_target, leaves, weights, scores.constant(groups), name="sum_of_leaves")


def _summed_by_target(leaves: te.Tensor, weights: te.Tensor, groups: te.Tensor) -> te.Tensor:
    """Add up the weights of the trees of each target alone, in their order."""
    number = te.reduce_axis((0, groups.shape[1]), "number")

    def element(row: Any, target: Any) -> Any:
        tree = groups(target, number)
        weight = weights(leaves(row, tirx.max(tree, tirx.const(0, "int32"))))
        return te.sum(tirx.Select(tree >= 0, weight, tirx.const(0, str(weights.dtype))), axis=number)

    return te.compute((leaves.shape[0], groups.shape[0]), element, "sum_of_leaves")


def _summed(leaves: te.Tensor, weights: te.Tensor) -> te.Tensor:
    """Add up the weights of the leaves of all trees, in the order of the trees."""
    tree = te.reduce_axis((0, leaves.shape[1]), "tree")
    return te.compute(
        (leaves.shape[0], weights.shape[1]),
        lambda row, target: te.sum(weights(leaves(row, tree), target), axis=tree),
        "sum_of_leaves",
    )


def _walked(node: Node, data: Any, trees: Trees) -> Any:
    """Return the row of the leaf that each row of the data comes to in each tree: [rows, trees]."""
    same = len(np.unique(trees.modes)) == 1
    tables = {
        "features": trees.features,
        "thresholds": trees.thresholds.astype(str(data.ty.dtype)),
        "branches": trees.branches,
        **({} if same else {"modes": trees.modes}),
        **({"missing": trees.missing.astype("int32")} if trees.missing.any() else {}),
    }
    constants = [scores.constant(table) for table in tables.values()]
    modes = sorted(set(trees.modes.tolist()))
    count = node.shape_of(data)[0]
    at = scores.constant(np.broadcast_to(trees.roots, (count, len(trees.roots))))

    def walk(rows: te.Tensor, begin: te.Tensor, *given: te.Tensor) -> te.Tensor:
        walker = _Walker(rows, dict(zip(tables, given, strict=True)), modes)
        return te.compute(begin.shape, lambda row, tree: walker.next(row, begin(row, tree)), "nodes")

    for _ in range(trees.depth):  # the same kernel each time: a leaf leads to itself
        at = node.builder.emit_te(
            walk, data, at, *constants, primfunc_name_hint="step_in_trees", primfunc_attrs={"op_pattern": _ALONE}
        )
    return at


@dataclass(frozen=True)
class _Walker:
    """Writes the steps through one tree.

    Attributes:
        rows: Rows of features.
        tables: Tables of the trees by name: `modes` and `missing` only where nodes differ.
        modes: All modes that occur.
    """

    rows: te.Tensor
    tables: dict[str, te.Tensor]
    modes: Sequence[int]

    def next(self, row: Any, at: Any) -> Any:
        """Return the node that follows a node."""
        feature = self.rows(row, self.tables["features"](at))
        goes = self._compared(feature, at)
        if "missing" in self.tables:
            is_missing = tirx.all(tirx.isnan(feature), self.tables["missing"](at) != 0)
            goes = tirx.any(goes, is_missing)
        side = tirx.Select(goes, tirx.const(1, "int32"), tirx.const(0, "int32"))
        return self.tables["branches"](at, side)

    def _compared(self, feature: Any, at: Any) -> Any:
        limit = self.tables["thresholds"](at)
        goes = _COMPARISONS[self.modes[0]](feature, limit)
        for mode in self.modes[1:]:
            is_it = self.tables["modes"](at) == mode
            goes = tirx.Select(is_it, _COMPARISONS[mode](feature, limit), goes)
        return goes
