"""Linear models of ai.onnx.ml against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.one_node import One, agree, refusal

DRAWS = np.random.default_rng(0)
ROWS = DRAWS.standard_normal((5, 4)).astype(np.float32)
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")


def numbers(count):
    return [float(np.float32(number)) for number in DRAWS.standard_normal(count)]


def regressor(count, **attributes):
    parameters = {"coefficients": numbers(4 * count), "intercepts": numbers(count), "targets": count, **attributes}
    return One("LinearRegressor", [ROWS], parameters, domain="ai.onnx.ml")


def classifier(count, labels, data=ROWS, **attributes):
    parameters = {
        "coefficients": numbers(4 * count),
        "intercepts": numbers(count),
        "classlabels_ints": labels,
        **attributes,
    }
    return One("LinearClassifier", [data], parameters, outputs=(True, True), domain="ai.onnx.ml")


@pytest.mark.parametrize("name", TRANSFORMS)
def test_targets_and_classes(name):
    agree([regressor(count, post_transform=name) for count in (1, 3)])
    classes = [(1, [7, 9]), (2, [7, 9]), (3, [7, 9, 11])]
    agree([classifier(count, labels, post_transform=name) for count, labels in classes])


def test_other_element_types():
    agree([classifier(3, [1, 2, 3], (ROWS * 3).astype(dtype)) for dtype in ("float64", "int64", "int32")])


def test_a_regressor_without_intercepts():
    parameters = {"coefficients": numbers(8), "targets": 2}
    agree([One("LinearRegressor", [ROWS], parameters, domain="ai.onnx.ml")])


@pytest.mark.parametrize(
    "node",
    [
        regressor(1, coefficients=[1.0]),
        classifier(1, [7, 9], post_transform="PROBIT"),
        classifier(1, [7]),
        classifier(3, [7, 9]),
        regressor(1, post_transform="TANH"),
    ],
)
def test_what_cannot_be_is_refused(node):
    assert "cannot be compiled" in refusal(node).message
