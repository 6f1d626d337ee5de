"""Ensembles of trees against ONNX Runtime: comparisons, missing values, aggregates, transforms, classes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.forests import MODES, forest, normal, positive, rows
from tests.support.one_node import One, agree, refusal

TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")


def regressor(data=None, **attributes):
    return One("TreeEnsembleRegressor", [rows() if data is None else data], attributes, domain="ai.onnx.ml", version=3)


def classifier(labels, data=None, **attributes):
    parameters = {"classlabels_int64s": labels, **attributes}
    values = [rows() if data is None else data]
    return One("TreeEnsembleClassifier", values, parameters, outputs=(True, True), domain="ai.onnx.ml", version=3)


@pytest.mark.parametrize("missing", [False, True])
def test_each_comparison_alone_and_all_together(missing):
    chosen = [*((mode,) for mode in MODES), MODES]
    agree([regressor(n_targets=1, **forest("target", [0], modes, missing=missing)) for modes in chosen])


@pytest.mark.parametrize("count", [1, 3])
def test_aggregates_and_transforms_of_targets(count):
    trees, base = forest("target", range(count), MODES, missing=True), [0.25, 0.5, 0.75][:count]
    agree(
        [
            regressor(n_targets=count, aggregate_function=function, post_transform=name, base_values=base, **trees)
            for function in ("SUM", "AVERAGE", "MIN", "MAX")
            for name in TRANSFORMS
        ]
    )


@pytest.mark.parametrize("count", [1, 3])
def test_the_inverse_of_the_normal_distribution(count):
    trees = forest("target", range(count), weight=positive)
    agree([regressor(n_targets=count, aggregate_function="MAX", post_transform="PROBIT", **trees)], atol=2e-4)


def test_targets_that_not_all_leaves_have():
    trees = forest("target", [0, 2])
    for name in ("treeids", "nodeids", "ids", "weights"):
        trees[f"target_{name}"] = trees[f"target_{name}"][5:]
    agree([regressor(n_targets=3, aggregate_function=name, **trees) for name in ("SUM", "MIN", "MAX")])


def test_trees_of_one_class_each():
    trees = forest("class", [0])
    trees["class_ids"] = [tree % 3 for tree in trees["class_treeids"]]
    names = ("NONE", "SOFTMAX")
    agree([classifier([7, 9, 11], post_transform=name, base_values=[0.1, 0.2, 0.3], **trees) for name in names])


@pytest.mark.parametrize("weight", [positive, normal])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_two_classes(name, weight):
    single, pair = (forest("class", targets, weight=weight) for targets in ([0], [0, 1]))
    agree(
        [
            classifier([7, 9], post_transform=name, **single),
            classifier([7, 9], post_transform=name, base_values=[0.1], **single),
            classifier([7, 9], post_transform=name, base_values=[0.1, 0.2], **single),
            classifier([7, 9], post_transform=name, **forest("class", [1], weight=weight)),
            classifier([7, 9], post_transform=name, **pair),
            classifier([7, 9], post_transform=name, base_values=[0.1, 0.2], **pair),
        ]
    )


@pytest.mark.parametrize("name", TRANSFORMS)
def test_one_class_and_three(name):
    three = forest("class", [0, 1, 2], MODES)
    agree(
        [
            classifier([7], post_transform=name, **forest("class", [0])),
            classifier([7, 9, 11], post_transform=name, **three),
            classifier([7, 9, 11], post_transform=name, base_values=[1.0, 2.0, 3.0], **three),
        ]
    )


def test_other_element_types():
    data = np.nan_to_num(rows())
    agree([regressor(data.astype("float64"), n_targets=2, **forest("target", [0, 1], MODES))])
    trees = forest("class", [0, 1, 2], MODES)
    agree([classifier([7, 9, 11], data.astype(dtype), **trees) for dtype in ("float64", "int64", "int32")])


def test_trees_that_are_deep_or_have_no_nodes():
    stump = {
        "nodes_treeids": [0],
        "nodes_nodeids": [0],
        "nodes_featureids": [0],
        "nodes_values": [0.0],
        "nodes_modes": ["LEAF"],
        "nodes_truenodeids": [0],
        "nodes_falsenodeids": [0],
        "target_treeids": [0],
        "target_nodeids": [0],
        "target_ids": [0],
        "target_weights": [0.5],
    }
    agree([regressor(n_targets=1, **stump), regressor(n_targets=1, **forest("target", [0], MODES, depth=8))])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nodes_modes": ["BRANCH_NEAR"] * 75}, "the mode 'BRANCH_NEAR'"),
        ({"nodes_truenodeids": [99] * 75}, "leads to one that does not exist"),
        ({"nodes_truenodeids": [0] * 75}, "circle"),
        ({"nodes_featureids": [4] * 75}, "4 features do not have"),
        ({"nodes_nodeids": [0] * 75}, "same number"),
        ({"aggregate_function": "MEDIAN"}, "MEDIAN"),
        ({"post_transform": "TANH"}, "TANH"),
        ({"base_values": [1.0, 2.0, 3.0]}, "3 base_values for 1"),
        ({"target_ids": [1] * 40}, "has no place"),
    ],
)
def test_broken_trees_are_refused(changes, reason):
    fault = refusal(regressor(**{"n_targets": 1, **forest("target", [0]), **changes}))
    assert reason in fault.details
