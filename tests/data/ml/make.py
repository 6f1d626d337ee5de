"""Make the model files of this folder again: python tests/data/ml/make.py, in an environment of its own.

It needs what nothing else here needs: pip install scikit-learn==1.9.1 skl2onnx==1.20.0 lightgbm==4.7.0 xgboost==3.2.0
onnxmltools==1.16.0 onnx==1.23.2. The data are like those of sensors: vibration, temperature and current of a machine,
some of them missing. Each model is small, and is written by the converter of its library.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxmltools
import skl2onnx
from lightgbm import LGBMClassifier, LGBMRegressor
from onnx import TensorProto, helper
from onnxmltools.convert.common.data_types import FloatTensorType as OtherFloats
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, Int64TensorType
from sklearn import ensemble, linear_model, naive_bayes, neural_network, preprocessing, svm, tree
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from xgboost import XGBClassifier, XGBRegressor

FOLDER = Path(__file__).parent
FEATURES = 6
NAMES = np.array(["bearing", "healthy", "imbalance"])
DRAWS = np.random.default_rng(0)
ROWS = (DRAWS.standard_normal((240, FEATURES)) * [1, 2, 0.5, 10, 3, 1] + [0, 1, 0, 40, -2, 0]).astype(np.float32)
GAPS = np.where(DRAWS.random(ROWS.shape) < 0.1, np.nan, ROWS).astype(np.float32)
LIFE = (ROWS[:, 0] * 2 + np.abs(ROWS[:, 1]) - 0.1 * ROWS[:, 3] + 0.1 * DRAWS.standard_normal(240)).astype(np.float32)
TWO = (np.median(LIFE) < LIFE).astype(np.int64)
THREE = np.digitize(LIFE, np.quantile(LIFE, [0.33, 0.66])).astype(np.int64)
COUNTS = np.clip(np.round(ROWS), -3, 3).astype(np.int64)
RNG = {"random_state": 0}


def sklearn(model: Any, target: Any, rows: Any = ROWS, kind: Any = FloatTensorType, **options: Any) -> onnx.ModelProto:
    """Train a model of scikit-learn and have skl2onnx write it; `zipmap` and other options are for classifiers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained = model.fit(rows, target)
    given = {id(trained): options} if options else None
    opset = {"": 21, "ai.onnx.ml": 3}
    return skl2onnx.convert_sklearn(
        trained, initial_types=[("x", kind([None, rows.shape[1]]))], options=given, target_opset=opset
    )


def lightgbm(model: Any, target: Any, rows: Any = GAPS, fitting: Any = None, **options: Any) -> onnx.ModelProto:
    trained = model.fit(rows, target, **(fitting or {}))
    kinds = [("x", OtherFloats([None, FEATURES]))]
    return onnxmltools.convert_lightgbm(trained, initial_types=kinds, target_opset=15, **options)


def xgboost(model: Any, target: Any) -> onnx.ModelProto:
    trained = model.fit(GAPS, target)
    return onnxmltools.convert_xgboost(trained, initial_types=[("x", OtherFloats([None, FEATURES]))], target_opset=15)


def scaled(model: Any) -> Any:
    return make_pipeline(preprocessing.StandardScaler(), model)


def one_ensemble(members: bool) -> onnx.ModelProto:  # noqa: FBT001 - a switch of a table
    """Write a TreeEnsemble of opset 5, which no converter writes yet, in the form of the standard's example."""

    def tensor(values: Any, kind: int = TensorProto.FLOAT) -> onnx.TensorProto:
        return helper.make_tensor("t", kind, [len(values)], values)

    attributes: dict[str, Any] = {
        "n_targets": 2,
        "aggregate_function": 1,
        "post_transform": 0,
        "tree_roots": [0, 3],
        "nodes_modes": tensor([6 if members else 0, 1, 2, 0], TensorProto.UINT8),
        "nodes_featureids": [0, 1, 2, 3],
        "nodes_splits": tensor([0.5, 1.0, 0.0, 40.0]),
        "nodes_truenodeids": [1, 0, 2, 4],
        "nodes_trueleafs": [0, 1, 1, 1],
        "nodes_falsenodeids": [2, 1, 3, 5],
        "nodes_falseleafs": [0, 1, 1, 1],
        "nodes_missing_value_tracks_true": [1, 0, 1, 0],
        "leaf_targetids": [0, 1, 0, 1, 0, 1],
        "leaf_weights": tensor([5.23, 12.12, -12.23, 7.21, 0.5, -0.25]),
    }
    if members:
        attributes["membership_values"] = tensor([1.0, 2.0, 3.0, np.nan])
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], "trees", domain="ai.onnx.ml", **attributes)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 6), ("y", 2))]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(
        helper.make_graph([node], "trees", ends[:1], ends[1:]), opset_imports=opsets, ir_version=10
    )


KINDS = np.concatenate([GAPS[:, :-1], np.abs(COUNTS[:, -1:])], 1).astype(np.float32)
SMALL = {"n_estimators": 8, "max_depth": 4, **RNG}
BOOSTED = {"n_estimators": 10, "max_depth": 3, "n_jobs": 1, **RNG}
LEAFY = {"n_estimators": 10, "num_leaves": 8, "verbose": -1, "n_jobs": 1, **RNG}
MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "sk-linear-regression": lambda: sklearn(scaled(linear_model.LinearRegression()), LIFE),
    "sk-ridge-two-targets": lambda: sklearn(linear_model.Ridge(), np.stack([LIFE, ROWS[:, 2]], 1)),
    "sk-logistic-two-classes": lambda: sklearn(scaled(linear_model.LogisticRegression()), TWO),
    "sk-logistic-text": lambda: sklearn(scaled(linear_model.LogisticRegression()), NAMES[THREE]),
    "sk-linear-svc": lambda: sklearn(svm.LinearSVC(**RNG), THREE),
    "sk-svc-radial": lambda: sklearn(scaled(svm.SVC()), THREE[:240]),
    "sk-svc-probability": lambda: sklearn(scaled(svm.SVC(kernel="poly", probability=True, **RNG)), THREE),
    "sk-svc-two-classes": lambda: sklearn(scaled(svm.SVC(kernel="sigmoid")), TWO),
    "sk-svr": lambda: sklearn(scaled(svm.SVR()), LIFE),
    "sk-one-class-svm": lambda: sklearn(scaled(svm.OneClassSVM(nu=0.1)), None),
    "sk-tree": lambda: sklearn(tree.DecisionTreeClassifier(max_depth=6, **RNG), THREE),
    "sk-forest-two-classes": lambda: sklearn(ensemble.RandomForestClassifier(**SMALL), TWO),
    "sk-forest-text": lambda: sklearn(ensemble.RandomForestClassifier(**SMALL), NAMES[THREE]),
    "sk-forest-regressor": lambda: sklearn(ensemble.RandomForestRegressor(**SMALL), LIFE),
    "sk-forest-doubles": lambda: sklearn(
        ensemble.RandomForestClassifier(**SMALL), THREE, ROWS.astype(np.float64), DoubleTensorType
    ),
    "sk-forest-integers": lambda: sklearn(ensemble.ExtraTreesClassifier(**SMALL), THREE, COUNTS, Int64TensorType),
    "sk-boosting": lambda: sklearn(ensemble.GradientBoostingClassifier(n_estimators=6, **RNG), THREE),
    "sk-boosting-two-classes": lambda: sklearn(ensemble.GradientBoostingClassifier(n_estimators=6, **RNG), TWO),
    "sk-isolation-forest": lambda: sklearn(ensemble.IsolationForest(n_estimators=8, max_samples=32, **RNG), None),
    "sk-imputer-normalizer": lambda: sklearn(
        make_pipeline(SimpleImputer(), preprocessing.Normalizer(), PCA(3), linear_model.Ridge()), LIFE, GAPS
    ),
    "sk-binarizer-bayes": lambda: sklearn(
        make_pipeline(preprocessing.Binarizer(threshold=0.5), naive_bayes.BernoulliNB()), TWO
    ),
    "sk-perceptron-text": lambda: sklearn(scaled(neural_network.MLPClassifier(8, max_iter=20, **RNG)), NAMES[THREE]),
    "sk-k-means": lambda: sklearn(scaled(KMeans(3, n_init=1, **RNG)), None),
    "lightgbm-regressor": lambda: lightgbm(LGBMRegressor(**LEAFY), LIFE),
    "lightgbm-two-classes": lambda: lightgbm(LGBMClassifier(**LEAFY), TWO),
    "lightgbm-three-classes": lambda: lightgbm(LGBMClassifier(**LEAFY), THREE, zipmap=False),
    "lightgbm-categories": lambda: lightgbm(
        LGBMRegressor(**LEAFY), LIFE, KINDS, {"categorical_feature": [FEATURES - 1]}
    ),
    "xgboost-regressor": lambda: xgboost(XGBRegressor(**BOOSTED), LIFE),
    "xgboost-two-classes": lambda: xgboost(XGBClassifier(**BOOSTED), TWO),
    "xgboost-three-classes": lambda: xgboost(XGBClassifier(**BOOSTED), THREE),
    "tree-ensemble": lambda: one_ensemble(members=False),
    "tree-ensemble-members": lambda: one_ensemble(members=True),
}


def main() -> None:
    for name in sys.argv[1:] or MODELS:
        proto = MODELS[name]()
        proto.doc_string = ""
        proto.graph.name = name
        data = proto.SerializeToString(deterministic=True)
        (FOLDER / f"{name}.onnx").write_bytes(data)
        kinds = sorted({f"{node.domain}.{node.op_type}".strip(".") for node in proto.graph.node})
        sys.stdout.write(f"{name}: {len(data)} bytes, {', '.join(kinds)}\n")


if __name__ == "__main__":
    main()
