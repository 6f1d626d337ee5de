"""Operators of ai.onnx.ml against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.one_node import One, agree
from toolchain.errors import InputError

_ROWS = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def _of_ml(operator: str, inputs: list[Any], **attributes: Any) -> One:
    return One(operator, inputs, attributes, domain="ai.onnx.ml")


def test_features() -> None:
    agree(
        [
            _of_ml("Binarizer", [_ROWS], threshold=0.25),
            _of_ml("Scaler", [_ROWS], offset=[1.0, 2.0, 3.0, 4.0], scale=[0.5, 1.0, 2.0, 4.0]),
            _of_ml("Scaler", [_ROWS], offset=[1.0], scale=[0.5]),
            _of_ml("ArrayFeatureExtractor", [_ROWS, np.array([2, 0])]),
            _of_ml(
                "LinearRegressor", [_ROWS], coefficients=[float(x) for x in range(8)], intercepts=[0.5, -1.0], targets=2
            ),
            _of_ml("LinearRegressor", [_ROWS], coefficients=[1.0, 2.0, 3.0, 4.0]),
        ]
    )


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be compiled"):
        agree([_of_ml("LinearRegressor", [_ROWS], coefficients=[1.0, 2.0, 3.0, 4.0], post_transform="LOGISTIC")])
