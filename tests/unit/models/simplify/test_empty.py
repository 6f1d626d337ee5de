"""Tensors without elements are folded away, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets
from tests.support.nets import node, value
from tests.support.one_node import agree_model
from toolchain.errors import InputError
from toolchain.models import importer, source

NONE = np.zeros((1, 0), np.float32)
ROW = np.random.default_rng(0).standard_normal((1, 3)).astype(np.float32)


def net(nodes, weights, x=(1, 3), y=(1, 3)):
    return nets.model(nodes, [value("x", x)], [value("y", y)], weights)


def slice_of(start, end, step):
    return {"s": np.array([start]), "e": np.array([end]), "a": np.array([1]), "t": np.array([step])}


MODELS = {
    "a constant": net([node("Concat", ["x", "none"], ["y"], axis=1)], {"none": NONE}),
    "a constant among others": net([node("Concat", ["x", "none", "x"], ["y"], axis=1)], {"none": NONE}, y=(1, 6)),
    "a slice backwards": net(
        [node("Slice", ["x", "s", "e", "a", "t"], ["n"]), node("Concat", ["n", "x"], ["y"], axis=1)], slice_of(0, 2, -1)
    ),
    "a slice behind the end": net(
        [node("Slice", ["x", "s", "e", "a", "t"], ["n"]), node("Concat", ["x", "n"], ["y"], axis=1)], slice_of(7, 9, 1)
    ),
    "one part of a split": net(
        [node("Split", ["x", "s"], ["a", "b"], axis=1), node("Relu", ["b"], ["y"])], {"s": np.array([0, 3])}
    ),
    "one of three parts": net(
        [node("Split", ["x", "s"], ["a", "n", "b"], axis=1), node("Concat", ["b", "n", "a"], ["y"], axis=1)],
        {"s": np.array([1, 0, 2])},
    ),
    "a layer over nothing": net(
        [
            node("Slice", ["x", "s", "e", "a", "t"], ["n"]),
            node("Relu", ["n"], ["r"]),
            node("MatMul", ["r", "w"], ["m"]),
            node("Add", ["m", "x"], ["y"]),
        ],
        {**slice_of(3, 3, 1), "w": np.zeros((0, 3), np.float32)},
    ),
    "a dense layer of nothing": net(
        [node("Slice", ["x", "s", "e", "a", "t"], ["n"]), node("Gemm", ["n", "w", "x"], ["y"], alpha=2.0)],
        {**slice_of(3, 3, 1), "w": np.zeros((0, 3), np.float32)},
    ),
    "nothing to scatter": net(
        [node("ScatterND", ["x", "at", "none"], ["r"]), node("Relu", ["r"], ["y"])],
        {"at": np.zeros((0, 1), np.int64), "none": np.zeros((0, 3), np.float32)},
    ),
    "the shape of a scalar": nets.model(
        [node("ReduceSum", ["x"], ["s"]), node("Reshape", ["s", "to"], ["y"])],
        [value("x", (1, 3))],
        [value("y", ())],
        {"to": np.array([], np.int64)},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_folded_away(name):
    agree_model(MODELS[name], [ROW])


def test_a_cache_that_is_empty_at_the_first_step(tmp_path):
    nodes = [node("Concat", ["past", "x"], ["present"], axis=2), node("Relu", ["present"], ["y"])]
    inputs = [value("past", (1, 2, "past_len", 4)), value("x", (1, 2, 3, 4))]
    path = nets.save(nets.model(nodes, inputs, [value("y", (1, 2, "all", 4))]), tmp_path)
    loaded = source.load(path, {"past": (1, 2, 0, 4)})
    assert [spec.name for spec in loaded.inputs] == ["x"]
    assert [spec.shape for spec in importer.import_model(loaded).outputs] == [(1, 2, 3, 4)]
    assert importer.import_model(source.load(path, {"past": (1, 2, 2, 4)})).outputs[0].shape == (1, 2, 5, 4)


def test_a_model_whose_inputs_are_all_empty_is_constant(tmp_path):
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["y"])]
    weights = {"w": np.zeros((0, 4), np.float32), "b": np.arange(4, dtype=np.float32)}
    path = nets.save(nets.model(nodes, [value("x", (2, "n"))], [value("y", (2, 4))], weights), tmp_path)
    loaded = source.load(path, {"x": (2, 0)})
    assert loaded.inputs == ()
    assert [spec.shape for spec in importer.import_model(loaded).outputs] == [(2, 4)]


def test_a_result_without_elements_is_refused_although_the_file_claims_some(tmp_path):
    nodes = [node("Slice", ["x", "s", "e", "a", "t"], ["y"])]
    proto = nets.model(nodes, [value("x", (1, 3))], [value("y", (1, 3))], slice_of(0, 3, -1))
    with pytest.raises(InputError, match=r"Slice at node 0 'y' has a tensor without elements"):
        importer.import_model(source.load(nets.save(proto, tmp_path)))


def test_what_remains_is_refused_by_node(tmp_path):
    nodes = [
        node("Slice", ["x", "s", "e", "a", "t"], ["n"]),
        node("Einsum", ["x", "n"], ["y"], name="sum", equation="ij,kl->ij"),
    ]
    path = nets.save(net(nodes, slice_of(3, 3, 1)), tmp_path)
    with pytest.raises(InputError, match=r"Einsum at node . 'sum' has a tensor without elements"):
        importer.import_model(source.load(path))
