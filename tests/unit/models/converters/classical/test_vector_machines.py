"""Support vector machines of ai.onnx.ml against ONNX Runtime: kernels, pairs of classes, probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.one_node import One, agree, refusal

DRAWS = np.random.default_rng(0)
ROWS = DRAWS.standard_normal((6, 4)).astype(np.float32)
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
PARAMETERS = [0.3, 0.5, 3.0]
EACH = 3  # support vectors of a class


def numbers(count):
    return [float(np.float32(number)) for number in DRAWS.standard_normal(count)]


def regressor(kernel, **attributes):
    parameters = {"coefficients": numbers(5), "support_vectors": numbers(20), "n_supports": 5, "rho": [0.2]}
    parameters |= {"kernel_type": kernel, "kernel_params": PARAMETERS, **attributes}
    return One("SVMRegressor", [ROWS], parameters, domain="ai.onnx.ml")


def classifier(kernel, classes, **attributes):
    count, pairs = EACH * classes, classes * (classes - 1) // 2
    parameters = {"coefficients": numbers((classes - 1) * count), "support_vectors": numbers(4 * count)}
    parameters |= {"vectors_per_class": [EACH] * classes, "rho": numbers(pairs), "kernel_type": kernel}
    parameters |= {"kernel_params": PARAMETERS, "classlabels_ints": list(range(3, 3 + classes)), **attributes}
    return One("SVMClassifier", [ROWS], parameters, outputs=(True, True), domain="ai.onnx.ml")


def test_regressors():
    agree([regressor(kernel, one_class=flag) for kernel in KERNELS for flag in (0, 1)])
    agree([regressor("POLY", kernel_params=[0.3, 0.5, 2.0]), regressor("POLY", kernel_params=[0.0, 1.5, 2.5])])
    plain = {"coefficients": numbers(4), "rho": [0.2], "kernel_params": PARAMETERS}
    agree([One("SVMRegressor", [ROWS], plain, domain="ai.onnx.ml")])


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_classifiers(classes):
    agree([classifier(kernel, classes) for kernel in KERNELS])
    agree([classifier("RBF", classes, post_transform=name) for name in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")])


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_probabilities_of_classes(classes):
    pairs = classes * (classes - 1) // 2
    agree([classifier(kernel, classes, prob_a=[-1.5] * pairs, prob_b=numbers(pairs)) for kernel in KERNELS])


def test_classifiers_without_support_vectors():
    nodes = []
    for classes in (2, 3):
        for coefficients in (numbers(4 * classes), np.abs(numbers(4 * classes)).tolist()):
            parameters = {"coefficients": coefficients, "rho": [0.2], "classlabels_ints": list(range(3, 3 + classes))}
            parameters["kernel_params"] = PARAMETERS
            nodes.append(One("SVMClassifier", [ROWS], parameters, outputs=(True, True), domain="ai.onnx.ml"))
    agree(nodes)


@pytest.mark.parametrize(
    "node",
    [
        regressor("RBF", coefficients=[1.0]),
        regressor("WAVELET"),
        regressor("RBF", support_vectors=[1.0]),
        classifier("RBF", 2, post_transform="PROBIT"),
        classifier("RBF", 3, rho=[0.1]),
        classifier("RBF", 3, prob_a=[0.1], prob_b=[0.1]),
        classifier("RBF", 2, classlabels_ints=[1]),
    ],
)
def test_what_cannot_be_is_refused(node):
    assert "cannot be compiled" in refusal(node).message
