"""Models that the converters of scikit-learn, LightGBM and XGBoost wrote (`tests/data/ml`), against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support import nightly, operator_cases, paths
from toolchain import tensors
from toolchain.models import importer, reference, source

DATA = paths.DATA / "ml"
NAMES = sorted(path.stem for path in DATA.glob("*.onnx"))
DTYPES = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.DOUBLE: "float64", onnx.TensorProto.INT64: "int64"}
SCALES, OFFSETS = [1, 2, 0.5, 10, 3, 1], [0, 1, 0, 40, -2, 0]


def rows(proto, count):
    """Return measurements like those that the models were trained with; some are missing where the model has trees."""
    draws = np.random.default_rng(count)
    values = draws.standard_normal((count, len(SCALES))) * SCALES + OFFSETS
    dtype = DTYPES[proto.graph.input[0].type.tensor_type.elem_type]
    takes_nan = any("Tree" in node.op_type or node.op_type == "Imputer" for node in proto.graph.node)
    if dtype == "int64":
        return np.clip(np.round(values), -3, 3).astype(dtype)
    if takes_nan and count > 1:
        values[draws.random(values.shape) < 0.2] = np.nan
    return values.astype(dtype)


def test_there_are_thirty_models_of_three_libraries():
    assert len(NAMES) >= 30
    assert {name.partition("-")[0] for name in NAMES} >= {"sk", "lightgbm", "xgboost"}


ONE, SEVERAL = 1, 17  # rows
CASES = [
    *nightly.all_but_every(2, [(name, SEVERAL) for name in NAMES]),
    *nightly.all_but_every(4, [(name, ONE) for name in NAMES]),
]


@pytest.mark.parametrize(("name", "count"), CASES)
def test_a_model_gives_what_onnxruntime_gives(name, count):
    path = DATA / f"{name}.onnx"
    values = rows(onnx.load(path), count)
    loaded = source.load(str(path), {onnx.load(path).graph.input[0].name: values.shape})
    expected = reference.run(loaded, {loaded.inputs[0].name: values})
    computed = operator_cases.compile_imported(importer.import_model(loaded))([values])
    for output, array in expected.items():
        assert (computed[output].shape, computed[output].dtype) == (array.shape, array.dtype), output
    difference = tensors.compare(computed, expected)
    assert difference.ok, (difference, computed, expected)
