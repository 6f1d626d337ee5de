"""Ensembles of decision trees, as scikit-learn, LightGBM and XGBoost are exported: the domain ai.onnx.ml.

All trees and rows are walked at once over tables (`tree_tables`), each step with the same few reads: a number of a
node, a feature, a comparison, the next number. No step depends on other trees, so the work can be spread over vectors,
cores and threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from toolchain.models.converters import Node, converter
from toolchain.models.converters.classical import scores, tree_tables
from toolchain.models.converters.classical.tree_tables import AGGREGATES, TRANSFORMS, Trees

_DOMAIN = "ai.onnx.ml"
_NOT_FUSED = 8  # TVM's kind of an operation that none is fused with: that would repeat the walk for each element
_BINARY = 2
_HALF = 0.5

# How to compare, in the order of `tree_tables.MODES`. In TVM's code, NaN does not differ from a number.
_COMPARISONS: Sequence[Callable[[Any, Any], Any]] = (
    lambda value, limit: value <= limit,
    lambda value, limit: value < limit,
    lambda value, limit: value >= limit,
    lambda value, limit: value > limit,
    lambda value, limit: value == limit,
    lambda value, limit: tirx.any(tirx.NE(value, limit), tirx.isnan(value), tirx.isnan(limit)),
)


@converter(f"{_DOMAIN}.TreeEnsembleRegressor")
def tree_regressor(node: Node) -> Any:
    """Return the sum, mean, minimum or maximum of the leaves' weights."""
    targets = int(node.attributes.get("n_targets", 1))
    trees = tree_tables.of_nodes(node.attributes, "target", targets, node.refusal)
    values = _aggregate(node, trees, str(node.attributes.get("aggregate_function", "SUM")))
    return _transform_scores(node, _add_base_values(node, values, targets), scores.post_transform(node), "float32")


@converter(f"{_DOMAIN}.TreeEnsemble")
def tree_ensemble(node: Node) -> Any:
    """As `tree_regressor`, in the type of the input."""
    targets = int(node.attributes.get("n_targets", 1))
    trees = tree_tables.of_leaves(node.attributes, targets, node.refusal)
    function = int(node.attributes.get("aggregate_function", AGGREGATES.index("SUM")))
    transform = int(node.attributes.get("post_transform", 0))
    if not (0 <= function < len(AGGREGATES) and 0 <= transform < len(TRANSFORMS)):
        raise node.refusal(f"the standard has no aggregate_function {function} or no post_transform {transform}")
    values = _aggregate(node, trees, AGGREGATES[function])
    return _transform_scores(node, values, TRANSFORMS[transform], node.dtype(0))


@converter(f"{_DOMAIN}.TreeEnsembleClassifier")
def tree_classifier(node: Node) -> Any:
    labels = scores.class_labels(node)
    if not labels:
        raise node.refusal("its list of classes is empty")
    trees = tree_tables.of_nodes(node.attributes, "class", len(labels), node.refusal)
    sums = _ClassSums(_aggregate(node, trees, "SUM"), trees)
    has_many = len(labels) > _BINARY
    label, columns = (_classify_many if has_many else _classify_few)(node, sums, labels)
    return [label, node.emit(relax.op.astype(columns, "float32"))]


@dataclass(frozen=True)
class _ClassSums:
    """The sum of each class, [rows, classes], and the trees that it comes from."""

    values: Any
    trees: Trees

    def is_always_there(self, target: int) -> bool:
        """Whether every row has a weight for a target: one of the trees has it in all its leaves."""
        return any(self.trees.has_weight[leaves, target].all() for leaves in self.trees.leaves)

    def is_never_there(self, target: int) -> bool:
        return not self.trees.has_weight[:, target].any()


def _classify_many(node: Node, sums: _ClassSums, labels: Sequence[int]) -> tuple[Any, Any]:
    """Return the label with the greatest score, and the scores of three or more classes."""
    base = tree_tables.number_list(node.attributes, "base_values")
    if not len(base) and not all(map(sums.is_always_there, range(len(labels)))):
        raise node.refusal("for some rows, no leaf has a weight for one of its classes, and it has no base_values")
    values = _add_base_values(node, sums.values, len(labels))
    return scores.best_label(node, values, labels), scores.apply_transform(node, values, scores.post_transform(node))


# The standard leaves open which weights count, which labels there are, and how a column is filled: it is done as in
# ONNX Runtime.
def _classify_few(node: Node, sums: _ClassSums, labels: Sequence[int]) -> tuple[Any, Any]:
    """Return the label and the scores of one or two classes; of two classes, maybe only one has scores."""
    transform, last = scores.post_transform(node), len(labels) - 1
    base = tree_tables.number_list(node.attributes, "base_values").astype(str(sums.values.ty.dtype))
    is_single = last == 0 or sums.is_never_there(1)
    if not is_single and not sums.is_always_there(1):
        raise node.refusal("for some rows, no leaf has a weight for the second of its two classes")
    columns = [node.emit(relax.op.strided_slice(sums.values, [1], [i], [i + 1])) for i in range(len(labels))]
    if is_single and len(base) < _BINARY:
        score = _add_base(node, columns[0], base[:1])
        label = scores.label_where(node, _is_positive(node, sums, score), _binary_labels(sums, labels))
        if last == 0:
            return label, scores.transform_one_target(node, score, transform)
        return label, scores.two_columns(node, score, transform, opposite=not _are_probabilities(sums))
    if last == 0:
        raise node.refusal("it has more base_values than classes")
    if len(base) >= _BINARY and not is_single:
        second = _add_base(node, columns[0], base[1:2])  # not columns[1]: so does ONNX Runtime
        columns = [node.emit(relax.op.negative(second)), second]
    else:
        columns[0] = _add_base(node, columns[0], base[:1])  # where it has two base values, the second counts nowhere
    decisive = columns[0] if is_single else columns[1]
    label = scores.label_where(node, _is_positive(node, sums, decisive), _binary_labels(sums, labels))
    return label, scores.apply_transform(node, node.emit(relax.op.concat(columns, 1)), transform)


# ONNX Runtime's labels are 0 and 1 if both classes have weights, whatever the classes are.
def _binary_labels(sums: _ClassSums, labels: Sequence[int]) -> Sequence[int]:
    return labels if len(labels) == _BINARY and _has_one_class(sums) else (0, 1)


def _has_one_class(sums: _ClassSums) -> bool:
    return int(sums.trees.has_weight.any(axis=0).sum()) == 1


def _are_probabilities(sums: _ClassSums) -> bool:
    return _has_one_class(sums) and bool((sums.trees.weights >= 0).all())


def _is_positive(node: Node, sums: _ClassSums, score: Any) -> Any:
    limit = _HALF if _are_probabilities(sums) and sums.trees.weights.shape[1] == _BINARY else 0.0
    return node.emit(relax.op.greater(score, relax.const(limit, score.ty.dtype.dtype)))


def _add_base(node: Node, score: Any, base: Any) -> Any:
    return node.emit(relax.op.add(score, scores.constant(base))) if len(base) else score


def _add_base_values(node: Node, values: Any, targets: int) -> Any:
    """Return scores with the base values, of which there is one for each target, or none."""
    base = tree_tables.number_list(node.attributes, "base_values").astype(str(values.ty.dtype))
    if len(base) not in {0, targets}:
        raise node.refusal(f"it has {len(base)} base_values for {targets} targets")
    return _add_base(node, values, base)


def _transform_scores(node: Node, values: Any, transform: str, dtype: str) -> Any:
    has_one_target = node.shape_of(values)[1] == 1
    transformed = (scores.transform_one_target if has_one_target else scores.apply_transform)(node, values, transform)
    return node.emit(relax.op.astype(transformed, dtype))


def _aggregate(node: Node, trees: Trees, function: str) -> Any:
    """Return the aggregated weights of the leaves of all trees: [rows, targets]."""
    if function not in AGGREGATES:
        raise node.refusal(f"its aggregate_function is {function!r}; the standard has {', '.join(AGGREGATES)}")
    dtype = "float64" if node.dtype(0) == "float64" else "float32"
    data = scores.rows(node, dtype)
    if trees.features.min() < 0 or trees.features.max() >= node.shape_of(data)[1]:
        raise node.refusal(f"its trees read a feature that its {node.shape_of(data)[1]} features do not have")
    leaves = _find_leaves(node, data, trees)
    if function in {"MIN", "MAX"}:
        # Leaves without a weight for a target do not count; if all are such, the result is 0.
        outside = np.inf if function == "MIN" else -np.inf
        table = np.where(trees.has_weight, trees.weights, outside).astype(dtype)
        reduction = relax.op.min if function == "MIN" else relax.op.max
        weights = node.emit(relax.op.take(scores.constant(table), leaves, axis=0, mode="clip"))
        extremes = node.emit(reduction(weights, axis=1))
        is_outside = node.emit(relax.op.equal(extremes, relax.const(outside, dtype)))
        return node.emit(relax.op.where(is_outside, relax.const(0.0, dtype), extremes))
    groups = trees.by_target
    if groups is None:
        weights = scores.constant(trees.weights, dtype)
        totals = node.compute(_sum_all_targets, leaves, weights, name="sum_of_leaves")
    else:  # boosting: of the weights of a leaf, at most one is not 0
        weights = scores.constant(trees.weights.sum(axis=1), dtype)
        totals = node.compute(_sum_by_target, leaves, weights, scores.constant(groups), name="sum_of_leaves")
    if function == "AVERAGE":
        totals = node.emit(relax.op.divide(totals, relax.const(float(len(trees.roots)), dtype)))
    return totals


# Only the trees of each target, in their order: floats are added as ONNX Runtime does.
def _sum_by_target(leaves: te.Tensor, weights: te.Tensor, groups: te.Tensor) -> te.Tensor:
    number = te.reduce_axis((0, groups.shape[1]), "number")

    def element(row: Any, target: Any) -> Any:
        tree = groups(target, number)
        weight = weights(leaves(row, tirx.max(tree, tirx.const(0, "int32"))))
        return te.sum(tirx.Select(tree >= 0, weight, tirx.const(0, str(weights.dtype))), axis=number)

    return te.compute((leaves.shape[0], groups.shape[0]), element, "sum_of_leaves")


# All trees, in their order.
def _sum_all_targets(leaves: te.Tensor, weights: te.Tensor) -> te.Tensor:
    tree = te.reduce_axis((0, leaves.shape[1]), "tree")
    return te.compute(
        (leaves.shape[0], weights.shape[1]),
        lambda row, target: te.sum(weights(leaves(row, tree), target), axis=tree),
        "sum_of_leaves",
    )


def _find_leaves(node: Node, data: Any, trees: Trees) -> Any:
    """Return the row of the leaf that each row of the data reaches in each tree: [rows, trees]."""
    has_one_mode = len(np.unique(trees.modes)) == 1
    tables = {
        "features": trees.features,
        "thresholds": trees.thresholds.astype(str(data.ty.dtype)),
        "branches": trees.branches,
        **({} if has_one_mode else {"modes": trees.modes}),
        **({"missing": trees.missing.astype("int32")} if trees.missing.any() else {}),
    }
    constants = [scores.constant(table) for table in tables.values()]
    modes = sorted(set(trees.modes.tolist()))
    count = node.shape_of(data)[0]
    nodes = scores.constant(np.broadcast_to(trees.roots, (count, len(trees.roots))))

    def walk(rows: te.Tensor, begin: te.Tensor, *values: te.Tensor) -> te.Tensor:
        walker = _Walker(rows, dict(zip(tables, values, strict=True)), modes)
        return te.compute(begin.shape, lambda row, tree: walker.next(row, begin(row, tree)), "nodes")

    for _ in range(trees.depth):  # the same kernel each time: a leaf leads to itself
        nodes = node.builder.emit_te(
            walk, data, nodes, *constants, primfunc_name_hint="step_in_trees", primfunc_attrs={"op_pattern": _NOT_FUSED}
        )
    return nodes


@dataclass(frozen=True)
class _Walker:
    """Writes the steps through one tree; the tables have `modes` and `missing` only where nodes differ."""

    rows: te.Tensor
    tables: dict[str, te.Tensor]
    modes: Sequence[int]

    def next(self, row: Any, at_node: Any) -> Any:
        feature = self.rows(row, self.tables["features"](at_node))
        limit = self.tables["thresholds"](at_node)
        is_true = _COMPARISONS[self.modes[0]](feature, limit)
        for mode in self.modes[1:]:
            has_mode = self.tables["modes"](at_node) == mode
            is_true = tirx.Select(has_mode, _COMPARISONS[mode](feature, limit), is_true)
        if "missing" in self.tables:
            is_missing = tirx.all(tirx.isnan(feature), self.tables["missing"](at_node) != 0)
            is_true = tirx.any(is_true, is_missing)
        side = tirx.Select(is_true, tirx.const(1, "int32"), tirx.const(0, "int32"))
        return self.tables["branches"](at_node, side)
