"""Outputs whose size depends on the data: as large as they can be, and a count; refused in the middle of a network."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.support.operator_cases import Case, computed
from toolchain.errors import InputError
from toolchain.models import importer, source, tails
from toolchain.tensors import Bound


def model(nodes, inputs, outputs=("y",), constants=None):
    graph = helper.make_graph(
        nodes,
        "selection",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for name, v in inputs],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return onnx.shape_inference.infer_shapes(proto)


def results(proto, *arrays):
    return computed(Case("selection", proto, arrays, (), 0, 0))


@pytest.mark.parametrize("kind", ["float32", "int64", "bool"])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_places_of_what_is_not_zero(kind, share):
    data = (np.random.default_rng(0).random((3, 1, 5)) < share).astype(kind)
    (output,) = results(model([helper.make_node("NonZero", ["x"], ["y"])], [("x", data)]), data)
    np.testing.assert_array_equal(output, np.stack(np.nonzero(data)))
    assert output.dtype == np.int64


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_slices_that_are_chosen(axis):
    data = np.random.default_rng(0).normal(size=(4, 5)).astype("float32")
    chosen = np.array([True, False, True, True])
    node = helper.make_node("Compress", ["x", "c"], ["y"], **({} if axis is None else {"axis": axis}))
    (output,) = results(model([node], [("x", data), ("c", chosen)]), data, chosen)
    np.testing.assert_array_equal(output, np.compress(chosen, data, axis))


def test_with_a_constant_condition_the_size_is_known():
    data, chosen = np.arange(12.0, dtype="float32").reshape(3, 4), np.array([True, False, True])
    node = helper.make_node("Compress", ["x", "c"], ["t"], axis=0)
    proto = model([node, helper.make_node("Neg", ["t"], ["y"])], [("x", data)], constants={"c": chosen})
    (output,) = results(proto, data)
    np.testing.assert_array_equal(output, -data[chosen])


def test_the_signature_names_the_bound_and_the_count(tmp_path):
    data = np.zeros((2, 3), "float32")
    path = tmp_path / "ends.onnx"
    onnx.save(model([helper.make_node("NonZero", ["x"], ["y"])], [("x", data)]), path)
    result, count = importer.import_model(source.load(str(path))).outputs
    assert (result.shape, result.bound) == ((2, 6), Bound(1, "y.count"))
    assert (count.name, count.shape, count.dtype, count.bound) == ("y.count", (1,), "int64", None)


def test_an_axis_is_counted_from_the_first_one(tmp_path):
    """A manifest has no other."""
    node = helper.make_node("Compress", ["x", "c"], ["y"], axis=-1)
    path = tmp_path / "ends.onnx"
    onnx.save(model([node], [("x", np.zeros((4, 5), "float32")), ("c", np.zeros(5, "bool"))]), path)
    assert importer.import_model(source.load(str(path))).outputs[0].bound == Bound(1, "y.count")


def test_in_the_middle_of_a_network_it_is_refused(tmp_path):
    data = np.zeros((2, 3), "float32")
    nodes = [
        helper.make_node("NonZero", ["x"], ["t"], name="where"),
        helper.make_node("CumSum", ["t", "one"], ["y"]),
    ]
    path = tmp_path / "middle.onnx"
    onnx.save(model(nodes, [("x", data)], constants={"one": np.array(1)}), path)
    with pytest.raises(InputError, match="NonZero node 'where' cannot be compiled") as caught:
        importer.import_model(source.load(str(path)))
    assert "depends on the data" in str(caught.value.details)


def test_a_model_without_such_ends_stays_the_same():
    proto = model([helper.make_node("Neg", ["x"], ["y"])], [("x", np.zeros(3, "float32"))])
    assert tails.with_counts(proto, {"toolchain.NonZero"}) == (proto, {})
