"""Outputs of classifiers: maps become tensors, labels as text are left out, and both are reported."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support import paths
from toolchain.errors import InputError
from toolchain.models import canonical, source

DATA = paths.DATA / "ml"
NAMES = ["bearing", "healthy", "imbalance"]


def test_maps_become_columns():
    loaded = source.load(str(DATA / "sk-tree.onnx"))
    assert loaded.output_names == ("output_label", "output_probability")
    assert loaded.guessed[0] == (
        "output output_probability is a list of maps in the file (ZipMap): it becomes a tensor with the columns 0, 1, 2"
    )


@pytest.mark.parametrize("name", ["sk-logistic-text", "sk-forest-text", "sk-perceptron-text"])
def test_labels_as_text_are_left_out_and_reported(name):
    loaded = source.load(str(DATA / f"{name}.onnx"))
    assert len(loaded.output_names) == 1
    (left_out,) = [line for line in loaded.guessed if "left out" in line]
    assert ", ".join(NAMES) in left_out
    assert not any(tensor.data_type == TensorProto.STRING for tensor in loaded.proto.graph.initializer)


def test_labels_as_text_alone_are_refused(tmp_path):
    proto = onnx.load(DATA / "sk-forest-text.onnx")
    label = next(value for value in proto.graph.output if value.type.tensor_type.elem_type == TensorProto.STRING)
    text_output = onnx.ValueInfoProto()
    text_output.CopyFrom(label)
    del proto.graph.output[:]
    proto.graph.output.append(text_output)
    onnx.save(proto, tmp_path / "net.onnx")
    with pytest.raises(InputError, match="the only output of the model, output_label, is text") as caught:
        source.load(str(tmp_path / "net.onnx"))
    assert "probabilities" in caught.value.hint


def test_a_model_without_such_operators_stays_as_it_is():
    node = helper.make_node("Identity", ["x"], ["y"])
    ends = [[helper.make_tensor_value_info(name, TensorProto.STRING, [1])] for name in "xy"]
    proto = helper.make_model(helper.make_graph([node], "text", *ends, [numpy_helper.from_array(np.ones(1), "w")]))
    before = proto.SerializeToString(deterministic=True)
    assert canonical.make_tensor_outputs(proto) == ()
    assert proto.SerializeToString(deterministic=True) == before
