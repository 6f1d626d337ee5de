"""Features of ai.onnx.ml against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support.one_node import One, agree, refusal

_ROWS = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
_GAPS = np.where(_ROWS > 0.5, np.nan, _ROWS).astype(np.float32)
_COUNTS = np.array([[0, 1, -1], [2, 0, 7]])


def _of_ml(operator: str, inputs: list[Any], given: int = 1, **attributes: Any) -> One:
    return One(operator, inputs, attributes, given, domain="ai.onnx.ml", version=4)


def test_features() -> None:
    agree(
        [
            _of_ml("Binarizer", [_ROWS], threshold=0.25),
            _of_ml("Scaler", [_ROWS], offset=[1.0, 2.0, 3.0, 4.0], scale=[0.5, 1.0, 2.0, 4.0]),
            _of_ml("Scaler", [_ROWS], offset=[1.0], scale=[0.5]),
            _of_ml("ArrayFeatureExtractor", [_ROWS, np.array([2, 0])]),
            _of_ml("ArrayFeatureExtractor", [_ROWS, np.array([[3, 1]])], 2),
            _of_ml("ArrayFeatureExtractor", [_ROWS[0], np.array([3, 1])], 2),
            _of_ml("FeatureVectorizer", [_ROWS, _ROWS[:, :2], _ROWS], 3, inputdimensions=[4, 3, 2]),
        ]
    )


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_norms(norm: str) -> None:
    with_zeros = _ROWS.copy()
    with_zeros[1] = 0
    agree([_of_ml("Normalizer", [data], norm=norm) for data in (with_zeros, _COUNTS, _ROWS.astype(np.float64))])


def test_missing_values() -> None:
    nan = float("nan")
    agree(
        [
            _of_ml("Imputer", [_GAPS], imputed_value_floats=[1.0, 2.0, 3.0, 4.0], replaced_value_float=nan),
            _of_ml("Imputer", [_GAPS], imputed_value_floats=[9.0], replaced_value_float=float(_ROWS[0, 0])),
            _of_ml("Imputer", [_COUNTS], imputed_value_int64s=[9], replaced_value_int64=0),
        ]
    )


def _tensor(kind: int, values: list[float]) -> TensorProto:
    return helper.make_tensor("t", kind, [len(values)], values)


def test_numbers_for_numbers() -> None:
    floats, wide = np.array([0.0, 1.0, np.nan, 5.5], np.float32), TensorProto.INT64
    agree(
        [
            _of_ml("LabelEncoder", [_COUNTS], keys_int64s=[0, 1, -1], values_int64s=[5, 6, 7], default_int64=-9),
            _of_ml("LabelEncoder", [_COUNTS], keys_int64s=[0, 1, -1], values_floats=[5.0, 6.0, 7.0]),
            _of_ml("LabelEncoder", [_COUNTS], keys_int64s=[0, 0, 7], values_int64s=[5, 6, 2**40]),
            _of_ml("LabelEncoder", [floats], keys_floats=[0.0, float("nan")], values_int64s=[5, 6]),
            _of_ml(
                "LabelEncoder",
                [_COUNTS],
                keys_tensor=_tensor(wide, [1, 7]),
                values_tensor=_tensor(wide, [10, 70]),
                default_tensor=_tensor(wide, [3]),
            ),
        ]
    )


@pytest.mark.parametrize(
    "node",
    [
        _of_ml("Normalizer", [_ROWS], norm="L3"),
        _of_ml("ArrayFeatureExtractor", [_ROWS, np.array([4])]),
        _of_ml("Imputer", [_ROWS], imputed_value_int64s=[1]),
        _of_ml("LabelEncoder", [_COUNTS], keys_int64s=[1], values_int64s=[1, 2]),
    ],
)
def test_what_cannot_be_is_refused(node: One) -> None:
    assert "cannot be compiled" in refusal(node).message
