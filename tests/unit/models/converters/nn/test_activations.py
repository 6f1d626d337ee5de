"""Activation functions, against ONNX Runtime or the standard's reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.one_node import One, agree, fed

VALUES = np.array([[-np.inf, -200, -3, -0.5, -1e-4], [0, 1e-4, 0.5, 3, np.inf], [100, -1, 1, np.nan, 2]])


@pytest.mark.parametrize("kind", ["float32", "float64", "float16"])
def test_functions_of_all_floats(kind):
    data = VALUES.astype(kind)
    agree(
        [
            fed("Elu", data, alpha=1.5),
            fed("Selu", data),
            fed("Selu", data, alpha=2.0, gamma=0.5),
            fed("ThresholdedRelu", data, alpha=0.4),
            fed("Shrink", data, lambd=0.7, bias=0.25),
        ]
    )


def test_celu():
    agree([fed("Celu", VALUES.astype("float32"), alpha=0.7), fed("Celu", VALUES.astype("float32"))])


def test_mish():
    finite = np.linspace(-30, 30, 61)
    agree([fed("Mish", finite.astype(kind)) for kind in ("float32", "float64", "float16")])


def test_shrink_of_integers():
    agree([fed("Shrink", np.array([-3, -1, 0, 1, 3], kind), lambd=1.0) for kind in ("int32", "int8", "int64")])


@pytest.mark.parametrize("slope", [(), (1,), (5,), (3, 1), (3, 5), (2, 3, 5), (2, 1, 5)])
def test_slopes(slope):
    data = np.stack([VALUES[:, :], -VALUES]).astype("float32")
    data[~np.isfinite(data)] = -7
    agree([One("PRelu", [data, np.random.default_rng(0).random(slope).astype("float32")])])


def test_slopes_of_volumes():
    data = np.random.default_rng(0).normal(size=(1, 3, 2, 2, 4)).astype("float32")
    agree([One("PRelu", [data, np.array([0.1, 0.2, 0.3], "float32").reshape(3, 1, 1, 1)])])


def test_slopes_of_integers():
    agree([fed("PRelu", np.array([[-3, 4]], kind), np.array([2, 5], kind)) for kind in ("int32", "int64")])
