"""Linear models of ai.onnx.ml: a product with coefficients, and the labels from the scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from toolchain.models.converters import Node, converter
from toolchain.models.converters.classical import scores
from toolchain.models.converters.classical.tree_tables import number_list

_DOMAIN = "ai.onnx.ml"
_BINARY = 2


# Intercepts count only if there is one for each target.
@converter(f"{_DOMAIN}.LinearRegressor")
def linear_regressor(node: Node) -> Any:
    targets = int(node.attributes.get("targets", 1))
    intercepts = number_list(node.attributes, "intercepts")
    values = product(node, targets, intercepts if len(intercepts) == targets else [])
    transform = scores.post_transform(node)
    return (scores.transform_one_target if targets == 1 else scores.apply_transform)(node, values, transform)


# There are as many scores as intercepts.
@converter(f"{_DOMAIN}.LinearClassifier")
def linear_classifier(node: Node) -> Any:
    intercepts, labels = number_list(node.attributes, "intercepts"), scores.class_labels(node)
    count, transform = len(intercepts), scores.post_transform(node)
    if count == 0 or (count > 1 and count > len(labels)) or (count == 1 and len(labels) != _BINARY):
        raise node.refusal(f"it has {count} intercepts for {len(labels)} classes")
    values = product(node, count, intercepts)
    if count > 1:
        return [scores.best_label(node, values, labels), scores.apply_transform(node, values, transform)]
    # One score for two classes: if it is positive, the second.
    label = scores.label_where(node, node.emit(relax.op.greater(values, relax.const(0.0, "float32"))), labels)
    return [label, scores.two_columns(node, values, transform, opposite=False)]


def product(node: Node, targets: int, intercepts: Any) -> Any:
    """Return the features times the coefficients, a row for each target, plus intercepts if there are any."""
    data = scores.rows(node)
    coefficients = np.asarray(node.attributes.get("coefficients", ()), "float32")
    features = node.shape_of(data)[1]
    if coefficients.size != targets * features:
        raise node.refusal(f"it has {coefficients.size} coefficients for {features} features and {targets} targets")
    products = node.emit(relax.op.matmul(data, scores.constant(coefficients.reshape(targets, features).T)))
    return node.emit(relax.op.add(products, scores.constant(intercepts, "float32"))) if len(intercepts) else products
