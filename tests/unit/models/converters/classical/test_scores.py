"""Scores of classes: their labels, and constants that keep their type. What becomes of scores: the tests of trees."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from toolchain.errors import InputError
from toolchain.models.converters import Node
from toolchain.models.converters.classical import scores


def node(**attributes):
    return Node("ai.onnx.ml.TreeEnsembleClassifier", "trees", 18, relax.BlockBuilder(), (), attributes, 2)


def test_labels_are_numbers_and_text_is_counted():
    assert scores.class_labels(node(classlabels_int64s=[7, 9])) == [7, 9]
    assert scores.class_labels(node(classlabels_ints=[3])) == [3]
    assert scores.class_labels(node(classlabels_strings=["a", "b", "c"])) == [0, 1, 2]
    assert scores.class_labels(node()) == []


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_constants_keep_their_type(dtype):
    constant = scores.constant(np.array([1, 2], dtype))
    assert constant.value.numpy().dtype == dtype


def test_a_transform_that_the_standard_lacks_is_refused():
    assert scores.post_transform(node()) == "NONE"
    with pytest.raises(InputError) as caught:
        scores.post_transform(node(post_transform="TANH"))
    assert "'TANH'; the standard has NONE, SOFTMAX, LOGISTIC" in caught.value.details
