"""What classical machine learning does to its features: the domain ai.onnx.ml, as scikit-learn is exported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from toolchain.models.converters import converter
from toolchain.models.converters.casts import converted
from toolchain.models.converters.node import Node

_DOMAIN = "ai.onnx.ml"


@converter(f"{_DOMAIN}.Binarizer")
def binarizer(node: Node) -> Any:
    """Convert Binarizer: one where an element is above a threshold."""
    data = node.inputs[0]
    limit = relax.const(node.attributes.get("threshold", 0.0), data.ty.dtype.dtype)
    return relax.op.astype(node.emit(relax.op.greater(data, limit)), data.ty.dtype)


@converter(f"{_DOMAIN}.ArrayFeatureExtractor")
def feature_extractor(node: Node) -> Any:
    """Convert ArrayFeatureExtractor: some columns, by their numbers."""
    places = node.constant(1)
    if places is None or not np.all((places >= 0) & (places < node.shape(0)[-1])):
        raise node.refused("it selects columns that do not exist")
    data = node.inputs[0]
    if len(node.shape(0)) == 1:
        data = node.emit(relax.op.expand_dims(data, 0))
    return relax.op.take(data, relax.const(places.reshape(-1).astype("int64")), axis=-1)


@converter(f"{_DOMAIN}.Scaler")
def scaler(node: Node) -> Any:
    """Convert Scaler: each feature less its offset, times its scale, in 32 bits."""
    data = node.emit(converted(node, node.inputs[0], "float32"))
    centred = node.emit(relax.op.subtract(data, _row(node, "offset")))
    return relax.op.multiply(centred, _row(node, "scale"))


@converter(f"{_DOMAIN}.LinearRegressor")
def linear_regressor(node: Node) -> Any:
    """Convert LinearRegressor: a product with the coefficients, and the intercepts."""
    if node.attributes.get("post_transform", "NONE") != "NONE":
        raise node.refused(f"its post_transform is {node.attributes['post_transform']}")
    targets = int(node.attributes.get("targets", 1))
    weights = np.asarray(node.attributes["coefficients"], "float32").reshape(targets, -1).T
    data = node.emit(converted(node, node.inputs[0], "float32"))
    made = node.emit(relax.op.matmul(data, relax.const(np.ascontiguousarray(weights))))
    return relax.op.add(made, _row(node, "intercepts")) if node.attributes.get("intercepts") else made


def _row(node: Node, attribute: str) -> Any:
    """Return an attribute of a number for each feature, or of one for all."""
    values: Sequence[float] = node.attributes[attribute]
    return relax.const(np.asarray(values, "float32"))
