"""Feature operators of classical machine learning: the domain ai.onnx.ml, as scikit-learn is exported."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te, tirx

from toolchain.models.converters import Node, converter
from toolchain.models.converters.classical import scores
from toolchain.models.converters.classical.tree_tables import number_list
from toolchain.models.converters.tensor.casts import cast_to

_DOMAIN = "ai.onnx.ml"
_NORMS = ("MAX", "L1", "L2")


@converter(f"{_DOMAIN}.Binarizer")
def binarizer(node: Node) -> Any:
    data = node.inputs[0]
    limit = relax.const(node.attributes.get("threshold", 0.0), data.ty.dtype.dtype)
    return relax.op.astype(node.emit(relax.op.greater(data, limit)), data.ty.dtype)


@converter(f"{_DOMAIN}.ArrayFeatureExtractor")
def feature_extractor(node: Node) -> Any:
    """Select columns by their numbers, which the network may compute."""
    data, last = node.inputs[0], node.shape(0)[-1]
    if len(node.shape(0)) == 1:
        data = node.emit(relax.op.expand_dims(data, 0))
    if not node.is_constant(1):
        count = int(np.prod(node.shape(1)))
        index = node.emit(relax.op.reshape(node.inputs[1], (count,)))
        return relax.op.take(data, index, axis=-1, mode="clip")
    columns = node.constant(1)
    if columns is None or not np.all((columns >= 0) & (columns < last)):
        raise node.refusal("it selects columns that do not exist")
    return relax.op.take(data, scores.constant(columns.reshape(-1), "int64"), axis=-1, mode="clip")


@converter(f"{_DOMAIN}.Scaler")
def scaler(node: Node) -> Any:
    """Compute (feature - offset) * scale, in 32 bits."""
    data = node.emit(cast_to(node, node.inputs[0], "float32"))
    centred = node.emit(relax.op.subtract(data, _row(node, "offset")))
    return relax.op.multiply(centred, _row(node, "scale"))


def _row(node: Node, attribute: str) -> Any:
    """Return an attribute of a number for each feature, or of one for all."""
    return scores.constant(node.attributes[attribute], "float32")


# A row whose norm is 0 stays as it is.
@converter(f"{_DOMAIN}.Normalizer")
def normalizer(node: Node) -> Any:
    """Divide each row by its maximum, its sum of absolute values, or its length."""
    norm = str(node.attributes.get("norm", "MAX"))
    if norm not in _NORMS or len(node.shape(0)) not in {1, 2}:
        raise node.refusal(f"its norm is {norm!r}, and its input has {len(node.shape(0))} axes")
    data, zero = node.emit(cast_to(node, node.inputs[0], "float32")), relax.const(0.0, "float32")
    terms = data if norm == "MAX" else node.emit(relax.op.abs(data) if norm == "L1" else relax.op.multiply(data, data))
    total = node.emit((relax.op.max if norm == "MAX" else relax.op.sum)(terms, -1, keepdims=True))
    is_zero = node.emit(relax.op.equal(total, zero))
    divisor = node.emit(relax.op.where(is_zero, relax.const(1.0, "float32"), total))
    if norm != "L2":
        return relax.op.divide(data, divisor)
    size = node.emit(relax.op.sqrt(node.emit(relax.op.divide(terms, divisor))))
    signed = node.emit(relax.op.where(node.emit(relax.op.less(data, zero)), node.emit(relax.op.negative(size)), size))
    return relax.op.where(is_zero, data, signed)


@converter(f"{_DOMAIN}.Imputer")
def imputer(node: Node) -> Any:
    """Replace the value that stands for a missing one, by one value for each feature or for all."""
    data, dtype = node.inputs[0], node.dtype(0)
    names = ("imputed_value_floats", "replaced_value_float")
    if not dtype.startswith("float"):
        names = ("imputed_value_int64s", "replaced_value_int64")
    values = number_list(node.attributes, names[0]).astype(dtype)
    features = node.shape(0)[-1]
    if values.size == 0:
        raise node.refusal(f"it has no {names[0]} for its input of {dtype}")
    if values.size != features:
        values = values[:1]  # of several that are not one for each feature, ONNX Runtime takes the first
    replaced = np.asarray(node.attributes.get(names[1], 0), dtype)
    if dtype.startswith("float") and np.isnan(replaced):
        is_missing = node.emit(relax.op.isnan(data))
    else:
        is_missing = node.emit(relax.op.equal(data, scores.constant(replaced)))
    return relax.op.where(is_missing, scores.constant(values), data)


@converter(f"{_DOMAIN}.FeatureVectorizer")
def feature_vectorizer(node: Node) -> Any:
    """Put all inputs side by side, each cut or zero-filled to its number of features."""
    columns = []
    for index, width in enumerate(node.attributes["inputdimensions"]):
        data = node.emit(cast_to(node, node.inputs[index], "float32"))
        sizes = node.shape(index)
        count, features = (1, sizes[0]) if len(sizes) == 1 else (sizes[0], int(np.prod(sizes[1:])))
        data = node.emit(relax.op.reshape(data, (count, features)))
        if features > width:
            data = node.emit(relax.op.strided_slice(data, [1], [0], [int(width)]))
        columns.append(data)
        if features < width:
            columns.append(node.emit(relax.op.zeros((count, int(width) - features), "float32")))
    return relax.op.concat(columns, 1)


@converter(f"{_DOMAIN}.LabelEncoder")
def label_encoder(node: Node) -> Any:
    keys, values = (_read_table(node, kind) for kind in ("keys", "values"))
    if "default_tensor" in node.attributes:
        default = number_list(node.attributes, "default_tensor")
    else:
        name, usual = ("default_float", -0.0) if values.dtype.kind == "f" else ("default_int64", -1)
        default = np.asarray([node.attributes.get(name, usual)])
    if len(keys) != len(values) or not len(keys):
        raise node.refusal(f"it has {len(keys)} keys and {len(values)} values")
    data = node.emit(cast_to(node, node.inputs[0], str(keys.dtype)))
    # An unknown key has the number of keys as its index, where the default is.
    index = node.compute(_find_key(keys), data, scores.constant(keys), name="place_of_key")
    return relax.op.take(scores.constant(np.append(values, default.astype(values.dtype))), index, axis=0, mode="clip")


def _find_key(keys: NDArray[Any]) -> Any:
    """Return a function that finds the first key that equals an element, or the number of keys. NaN equals NaN."""
    has_nan = keys.dtype.kind == "f" and bool(np.isnan(keys).any())

    def compute(data: te.Tensor, table: te.Tensor) -> te.Tensor:
        key = te.reduce_axis((0, len(keys)), "key")

        def element(*index: Any) -> Any:
            value = data(*index)
            matches = value == table(key)
            if has_nan:
                matches = tirx.any(matches, tirx.all(tirx.isnan(value), tirx.isnan(table(key))))
            return te.min(tirx.Select(matches, key.astype("int32"), tirx.const(len(keys), "int32")), axis=key)

        return te.compute(data.shape, element, "place")

    return compute


def _read_table(node: Node, kind: str) -> NDArray[Any]:
    """Return the keys or values of a LabelEncoder; an InputError if they are text."""
    for name, dtype in (("floats", "float32"), ("int64s", "int64")):
        if f"{kind}_{name}" in node.attributes:
            return number_list(node.attributes, f"{kind}_{name}").astype(dtype)
    tensor = f"{kind}_tensor"
    values = number_list(node.attributes, tensor) if tensor in node.attributes else np.array([], object)
    if values.dtype.kind in "OUS":
        raise node.refusal(
            f"its {kind} are text, which no board computes with",
            "encode the labels as numbers before the model is exported, and keep their names in the application",
        )
    return values
