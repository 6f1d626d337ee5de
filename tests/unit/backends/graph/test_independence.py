"""The proof that rows of a batch are computed each on its own."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.support import nets
from toolchain.backends.graph.independence import Rows, check_rows
from toolchain.backends.graph.unify import DifferentError
from toolchain.models import importer, source
from toolchain.models.request import Model

BATCH = 3


def rows_of(folder, nodes, shape, weights=None, *, axis: int = 0, outputs=1):
    """Return where results have the rows that the input `x` of some shape has on an axis."""
    results = [nets.value(name, None) for name in ("y", "z")[:outputs]]
    path = nets.save(nets.model(nodes, [nets.value("x", shape)], results, weights), folder)
    module = importer.import_model(source.load_request(Model(path))).module
    return check_rows(relax.transform.LegalizeOps()(module), [Rows(axis)], BATCH)


def test_layers_of_a_network_of_pictures(tmp_path):
    weights = {"w": np.ones((6, 1, 3, 3), np.float32), "m": np.ones((96, 5), np.float32), "shape": np.array([0, -1])}
    nodes = [
        nets.node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], group=6),
        nets.node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
        nets.node("Concat", ["b", "b"], ["c"], axis=3),
        nets.node("Reshape", ["c", "shape"], ["d"]),
        nets.node("MatMul", ["d", "m"], ["e"]),
        nets.node("Softmax", ["e"], ["y"], axis=1),
    ]
    weights["m"] = np.ones((6 * 4 * 8, 5), np.float32)
    assert rows_of(tmp_path, nodes, (BATCH, 6, 8, 8), weights) == [Rows(0)]


def test_rows_move_with_transposes_and_reshapes(tmp_path):
    weights = {"flat": np.array([BATCH * 4, 6])}
    nodes = [
        nets.node("Transpose", ["x"], ["y"], perm=[1, 0, 2]),
        nets.node("Reshape", ["x", "flat"], ["z"]),
    ]
    assert rows_of(tmp_path, nodes, (BATCH, 4, 6), weights, outputs=2) == [Rows(1), Rows(0, 4)]


def test_rows_behind_time_are_the_inner_ones(tmp_path):
    nodes = [nets.node("Reshape", ["x", "flat"], ["y"])]
    assert rows_of(tmp_path, nodes, (4, BATCH, 6), {"flat": np.array([BATCH * 4, 6])}, axis=1) == [Rows(0)]


@pytest.mark.parametrize("first", [0.0, 0.5])
def test_a_recurrence_computes_each_sequence_on_its_own(first, tmp_path):
    """If the state at first is the same for all sequences."""
    state = np.zeros((1, BATCH, 16), np.float32)
    state[0, 1] = first
    weights = {
        "w": np.ones((1, 48, 8), np.float32),
        "r": np.ones((1, 48, 16), np.float32),
        "h": state,
    }
    nodes = [nets.node("GRU", ["x", "w", "r", "", "", "h"], ["y", "z"], hidden_size=16)]
    if first:
        with pytest.raises(DifferentError):
            rows_of(tmp_path, nodes, (5, BATCH, 8), weights, axis=1, outputs=2)
    else:
        assert rows_of(tmp_path, nodes, (5, BATCH, 8), weights, axis=1, outputs=2) == [Rows(2), Rows(1)]


def test_a_recurrence_over_the_rows_is_refused(tmp_path):
    """With as many sequences as rows, and with other numbers of them."""
    weights = {"w": np.ones((1, 48, 8), np.float32), "r": np.ones((1, 48, 16), np.float32)}
    nodes = [nets.node("GRU", ["x", "w", "r"], ["y"], hidden_size=16)]
    for sequences in (1, 2, BATCH):
        with pytest.raises(DifferentError):
            rows_of(tmp_path, nodes, (BATCH, sequences, 8), weights)


def test_a_result_that_all_rows_share(tmp_path):
    nodes = [nets.node("Relu", ["w"], ["y"]), nets.node("Neg", ["x"], ["z"])]
    weights = {"w": np.ones((2, 2), np.float32)}
    assert rows_of(tmp_path, nodes, (BATCH, 2), weights, outputs=2) == [None, Rows(0)]


def test_a_constant_that_is_the_same_for_all_rows(tmp_path):
    nodes = [nets.node("Add", ["x", "w"], ["y"])]
    weights = {"w": np.tile(np.arange(4, dtype=np.float32), (BATCH, 1))}
    assert rows_of(tmp_path, nodes, (BATCH, 4), weights) == [Rows(0)]


MIXING = {
    "a mean over the rows": [nets.node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=1)],
    "a softmax over the rows": [nets.node("Softmax", ["x"], ["y"], axis=0)],
    "rows in another order": [nets.node("Slice", ["x", "last", "none", "zero", "back"], ["y"])],
    "the next row": [nets.node("Gather", ["x", "order"], ["y"], axis=0)],
    "a product of rows": [
        nets.node("Transpose", ["x"], ["t"], perm=[1, 0]),
        nets.node("MatMul", ["x", "t"], ["y"]),
    ],
    "a constant for each row": [nets.node("Mul", ["x", "weights"], ["y"])],
    "the first row": [
        nets.node("Slice", ["x", "zero", "one", "zero"], ["s"]),
        nets.node("Sub", ["x", "s"], ["y"]),
    ],
    "a sum up to the row": [nets.node("CumSum", ["x", "axis"], ["y"])],
    "the number of the largest row": [nets.node("ArgMax", ["x"], ["y"], axis=0)],
    "half rows": [nets.node("Reshape", ["x", "halves"], ["t"]), nets.node("Softmax", ["t"], ["y"], axis=0)],
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_rows_is_refused(name, tmp_path):
    weights = {
        "last": np.array([-1]),
        "none": np.array([-9]),
        "zero": np.array([0]),
        "one": np.array([1]),
        "back": np.array([-1]),
        "axis": np.array(0),
        "order": np.array([1, 2, 0]),
        "halves": np.array([6, 2]),
        "weights": np.arange(BATCH, dtype=np.float32)[:, None],
    }
    with pytest.raises(DifferentError) as caught:
        rows_of(tmp_path, MIXING[name], (BATCH, 4), weights)
    assert caught.value.binding >= 0
