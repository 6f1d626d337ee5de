"""Gathering, scattering and selecting, against ONNX Runtime: indices from the end, reductions, element types."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.one_node import One, agree, fed

DATA = np.random.default_rng(0).normal(size=(4, 5, 3))
REDUCTIONS = ("none", "add", "mul", "min", "max")


def test_elements_are_scattered():
    indices = np.array([[[0, -1, 2], [-4, 1, 1]]])
    updates = np.random.default_rng(1).normal(size=(1, 2, 3))
    agree(
        [
            fed("ScatterElements", DATA.astype(kind), indices, updates.astype(kind), axis=0, reduction=name)
            for kind in ("float32", "float64", "int32")
            for name in REDUCTIONS[1:]
        ]
        + [fed("ScatterElements", DATA.astype("float32"), indices[:, :1], updates[:, :1].astype("float32"), axis=0)]
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_slices_are_scattered(reduction):
    indices = np.array([[[0, -1]], [[-3, 2]]])
    if reduction != "none":
        indices[1] = indices[0]
    updates = np.random.default_rng(1).normal(size=(2, 1, 3)).astype("float32")
    agree([fed("ScatterND", DATA.astype("float32"), indices, updates, reduction=reduction)])


def test_gathering():
    data = DATA.astype("float32")
    index_tensors = [np.array([[0, -1], [3, -4]], kind) for kind in ("int32", "int64")]
    agree(
        [fed("Gather", data, indices, axis=0) for indices in index_tensors]
        + [fed("GatherElements", data, indices[:, :, None], axis=0) for indices in index_tensors]
        + [fed("GatherND", data, indices.astype("int64")) for indices in index_tensors]
        + [fed("GatherND", data, np.array([[1], [-1], [0], [2]]), batch_dims=1)]
        + [fed("Gather", DATA > 0, index_tensors[0], axis=0), fed("Gather", data, np.array(-2), axis=1)]
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis):
    indices = np.array([[0, 2], [-1, 7]])
    values = [np.array([2, 5], kind) for kind in ("float32", "int64", "int32")]
    agree([One("OneHot", [indices, np.array(4), pair], {"axis": axis}, given=1) for pair in values])


@pytest.mark.parametrize("greatest", [0, 1])
def test_the_greatest(greatest):
    data = np.random.default_rng(0).permutation(60).reshape(4, 15)
    kinds = ("float32", "float64", "int32", "int64", "uint8", "int8", "float16", "uint64")
    agree([One("TopK", [data.astype(k), np.array([3])], {"largest": greatest}, outputs=(True, True)) for k in kinds])
    huge = np.array([[1, 2**63 + 1, 2**64 - 1, 5]], "uint64")
    agree([One("TopK", [huge, np.array([4])], {"largest": greatest}, outputs=(True, True))])


def test_the_greatest_need_not_be_sorted():
    agree([One("TopK", [DATA.astype("float32"), np.array([1])], {"sorted": 0, "axis": 1}, outputs=(True, True))])


def test_sequences_are_reversed():
    data, lengths = np.arange(24.0, dtype="float32").reshape(4, 3, 2), np.array([1, 4, 2])
    agree(
        [
            fed("ReverseSequence", data, lengths),
            fed("ReverseSequence", data, np.array([1, 3, 2, 3]), time_axis=1, batch_axis=0),
        ]
    )


@pytest.mark.parametrize("upper", [0, 1])
def test_triangles(upper):
    kinds = ("float32", "int64", "bool")
    agree(
        [One("Trilu", [DATA.astype(k), np.array(offset)], {"upper": upper}) for k in kinds for offset in (-1, 0, 1, 9)]
    )


def test_identities_and_sizes():
    data = DATA[0].astype("float32")
    agree([fed("EyeLike", data, k=1, dtype=7), fed("EyeLike", data, dtype=1), fed("Size", data)])
    agree([fed("Shape", data, start=-1), fed("Shape", data, end=1), fed("Shape", data)])


def test_updates_of_a_cache():
    cache, update = DATA.astype("float32"), DATA[:, :2].astype("float32") + 10
    starts = np.array([0, 1, 3, 2])
    agree([fed("TensorScatter", cache, update, starts), fed("TensorScatter", cache, update)], 24)
