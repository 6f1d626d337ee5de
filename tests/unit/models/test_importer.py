from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.support import nets, paths
from tests.support.nets import node, value
from toolchain.errors import InputError
from toolchain.models import importer
from toolchain.models import source as model
from toolchain.tensors import Bound, TensorSpec

DATA = paths.DATA / "models"
FEATURES = TensorSpec("y", (1, 4, 6, 6), "float32")


def load(name: str, **options) -> model.SourceModel:
    return model.load(str(DATA / f"{name}.onnx"), **options)


def not_imported(name: str) -> InputError:
    source = load(name)
    with pytest.raises(InputError) as caught:
        importer.import_model(source)
    return caught.value


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("weights-among-inputs", (FEATURES,)),
        ("external", (FEATURES,)),
        ("quantized", (FEATURES,)),
        ("float16", (TensorSpec("y", (1, 4, 6, 6), "float16"),)),
    ],
)
def test_import(name, outputs):
    imported = importer.import_model(load(name))
    assert imported.outputs == outputs
    assert imported.source.name == name
    assert len(imported.module["main"].params) == 1


def test_import_leaves_the_source_as_it_was():
    source = load("quantized")
    before = source.proto.SerializeToString(deterministic=True)
    importer.import_model(source)
    assert source.proto.SerializeToString(deterministic=True) == before


def test_import_keeps_the_order_of_inputs_and_outputs(tmp_path):
    nodes = [node("Cast", ["b"], ["z"], to=onnx.TensorProto.INT8), node("Relu", ["a"], ["y"])]
    ends = [value("b", (2,)), value("unused", (7,)), value("a", (3,))], [value("z", (2,), "int8"), value("y", (3,))]
    imported = importer.import_model(model.load(nets.save(nets.model(nodes, *ends), tmp_path)))
    assert imported.outputs == (TensorSpec("z", (2,), "int8"), TensorSpec("y", (3,), "float32"))
    assert [int(parameter.ty.shape[0]) for parameter in imported.module["main"].params] == [2, 7, 3]


def test_text_that_a_node_reads_is_named(tmp_path):
    attributes = {"keys_strings": ["a", "b"], "values_floats": [1.0, 2.0]}
    encode = node("LabelEncoder", ["names"], ["n"], "encode", domain="ai.onnx.ml", **attributes)
    proto = nets.model([encode, node("Add", ["x", "n"], ["y"])], [value("x", (2,))], [value("y", (2,))])
    proto.graph.initializer.append(numpy_helper.from_array(np.array(["a", "b"], dtype=object), "names"))
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    with pytest.raises(InputError, match="computes with text") as caught:
        importer._check_constants(model.load(nets.save(proto, tmp_path)), proto)
    assert caught.value.details == "LabelEncoder node 'encode' reads the constant names"


def test_unsupported_operators_are_named_with_their_nodes():
    fault = not_imported("unsupported-operators")
    assert fault.message == "unsupported-operators has 1 node(s) that TVM cannot import"
    assert fault.details == "TfIdfVectorizer at node 1 'count_words'"


def test_a_failing_converter_is_named_with_its_node():
    fault = not_imported("wrong-product")
    assert fault.message.startswith("TVM cannot import wrong-product: ")
    assert fault.message.endswith("at MatMul node 'wrong_product'")
    assert fault.details


def test_a_node_without_a_name_is_told_by_its_output():
    fault = not_imported("unknown-padding")
    assert fault.message == "Conv node 'y' cannot be compiled"
    assert "auto_pad" in fault.details


def test_a_failing_import_prints_nothing_of_its_own():
    code = "import sys; from toolchain.models import importer, source; importer.import_model(source.load(sys.argv[1]))"
    argv = [sys.executable, "-c", code, DATA / "wrong-product.onnx"]
    process = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert not process.stdout


def test_outputs_that_no_bundle_can_describe():
    assert not_imported("bfloat16-output").message == "tensor y has the element type bfloat16"


def test_a_data_dependent_output_has_a_bound():
    result, count = importer.import_model(load("data-dependent-output")).outputs
    assert result.bound == Bound(1, count.name)


def test_a_refusal_leaves_no_open_block_behind(tmp_path, capfd):
    """TVM would warn on stderr when its builder is destroyed, long after the error."""
    nodes = [node("Relu", ["x"], ["r"]), node("Unique", ["r"], ["z"])]
    proto = nets.model(nodes, [value("x", (1, 4))], [value("z", None)])
    with pytest.raises(InputError, match="Unique"):
        importer.import_model(model.load(nets.save(proto, tmp_path)))
    gc.collect()
    assert "BlockBuilder" not in capfd.readouterr().err
