"""Normalizations, against ONNX Runtime or the standard's reference: all outputs, element types, opsets."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.one_node import One, agree, expected, fed, model
from tests.support.operator_cases import Case, computed

DATA = np.random.default_rng(0).normal(2, 3, (2, 6, 4, 5))


def weights(shape, kind="float32"):
    return [np.random.default_rng(seed).uniform(0.5, 2, shape).astype(kind) for seed in (1, 2)]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_layers(axis):
    data = DATA[:, :, 0].astype("float32")
    scale, bias = weights(data.shape[axis:])
    attributes = {"axis": axis, "epsilon": 1e-3}
    agree(
        [
            One("LayerNormalization", [data, scale, bias], attributes, outputs=(True, True, True)),
            One("LayerNormalization", [data, scale, bias], attributes),
            One("LayerNormalization", [data, scale], attributes),
            One("LayerNormalization", [data.astype("float64"), scale.astype("float64")], attributes),
            fed("LayerNormalization", data, scale, bias, **attributes),
        ]
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_root_mean_squares(axis):
    data = DATA[:, :, 0].astype("float32")
    scale, _ = weights(data.shape[axis:])
    agree([One("RMSNormalization", [data, scale], {"axis": axis})], 23)


@pytest.mark.parametrize("kind", ["float32", "float64", "float16"])
def test_instances(kind):
    scale, bias = weights((6,), kind)
    data = DATA.astype(kind)
    agree([One("InstanceNormalization", [tensor, scale, bias]) for tensor in (data, data[..., 0])])


def test_groups():
    scale, bias = weights((6,))
    data = DATA.astype("float32")
    groups = {"num_groups": 3, "epsilon": 1e-2}
    agree([One("GroupNormalization", [tensor, scale, bias], groups) for tensor in (data, data[..., 0])], 21)


def test_vectors():
    data = np.concatenate([DATA.astype("float32"), np.zeros((1, 6, 4, 5), "float32")])
    agree([fed("LpNormalization", data, p=power, axis=axis) for power in (1, 2) for axis in (1, -1)])
    agree(
        [fed("MeanVarianceNormalization", data + 1000), fed("MeanVarianceNormalization", data[:2], axes=[1, -1])],
        rtol=1e-3,
    )


@pytest.mark.parametrize("opset", [9, 15])
def test_batches(opset):
    scale, bias = weights((6,))
    mean, variance = weights((6,))
    values = [DATA.astype("float32"), scale, bias, mean, variance]
    agree([One("BatchNormalization", values), fed("BatchNormalization", *values, epsilon=1e-2)], opset)


def test_batches_in_training_mode():
    values = [DATA.astype("float32"), *weights((6,)), *weights((6,))]
    agree([fed("BatchNormalization", *values, outputs=3, training_mode=1, momentum=0.7)], 15)


def test_data_in_half_precision_with_statistics_in_single():
    """From opset 15 on; the constants must not be folded into the data's type."""
    statistics = [np.linspace(0.5, 2, 6).astype("float32") for _ in range(4)]
    agree([One("BatchNormalization", [DATA.astype("float16"), *statistics])], opset=15)


@pytest.mark.parametrize("kind", ["float16", "float32"])
@pytest.mark.parametrize("size", [3, 5])
def test_local_responses(kind, size):
    data = DATA.astype("float32")
    theirs = expected(*model([fed("LRN", data, size=size, alpha=0.1, bias=2.0)], 17))[0]
    proto, inputs = model([fed("LRN", data.astype(kind), size=size, alpha=0.1, bias=2.0)], 17)
    (ours,) = computed(Case("lrn", proto, inputs, (), 0, 0))
    assert ours.dtype == kind
    np.testing.assert_allclose(ours, theirs, rtol=5e-3 if kind == "float16" else 1e-5)
