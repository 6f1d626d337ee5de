from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests import nets
from tests.nets import node, value
from toolchain import model
from toolchain.errors import InputError
from toolchain.tensors import TensorSpec

DATA = Path(__file__).parents[1] / "data" / "models"
IMAGE = TensorSpec("x", (1, 3, 8, 8), "float32")
FEATURES = TensorSpec("y", (1, 4, 6, 6), "float32")


def load(name: str, **options) -> model.SourceModel:
    return model.load(str(DATA / f"{name}.onnx"), **options)


def rejected(name: str, **options) -> InputError:
    with pytest.raises(InputError) as caught:
        load(name, **options)
    return caught.value


def not_imported(name: str) -> InputError:
    source = load(name)
    with pytest.raises(InputError) as caught:
        model.import_model(source)
    return caught.value


# --- reading ---------------------------------------------------------------------------------------------------


def test_zoo_by_name():
    source = model.load("mlp")
    assert (source.name, source.origin) == ("mlp", "mlp")
    assert source.inputs == (TensorSpec("data", (1, 1, 28, 28), "float32"),)
    assert source.output_names == ("prob",)


def test_a_seed_chooses_the_weights():
    assert model.load("mlp").sha256 == model.load("mlp", seed=0).sha256 != model.load("mlp", seed=1).sha256


def test_file():
    source = load("float16")
    assert (source.name, source.origin) == ("float16", "float16.onnx")
    assert source.inputs == (TensorSpec("x", (1, 3, 8, 8), "float16"),)
    assert source.output_names == ("y",)


def test_a_file_goes_before_the_zoo(tmp_path, monkeypatch):
    nets.save(nets.relu(), tmp_path, "mlp")
    monkeypatch.chdir(tmp_path)
    assert model.load("mlp").inputs == (TensorSpec("x", (2, 3), "float32"),)


def test_the_digest_is_of_the_content(tmp_path):
    copy = tmp_path / "another-name.onnx"
    shutil.copy(DATA / "float16.onnx", copy)
    assert model.load(str(copy)).sha256 == load("float16").sha256 != load("quantized").sha256


def test_the_digest_covers_the_shapes():
    first, second = ({"x": (size, 3, 8)} for size in (1, 2))
    assert load("open", shapes=first).sha256 != load("open", shapes=second).sha256


def test_weights_among_the_inputs_are_not_asked_for():
    source = load("weights-among-inputs")
    assert source.inputs == (IMAGE,)
    assert [spec.name for spec in source.proto.graph.input] == ["x"]
    assert [tensor.name for tensor in source.proto.graph.initializer] == ["w"]


def test_scalar_input(tmp_path):
    assert model.load(nets.save(nets.relu(()), tmp_path)).inputs == (TensorSpec("x", (), "float32"),)


def test_several_inputs_and_outputs_keep_their_order(tmp_path):
    nodes = [node("Add", ["b", "a"], ["z"]), node("Sub", ["a", "b"], ["y"])]
    ends = [value("b", (2,)), value("a", (2,))], [value("z", (2,)), value("y", (2,))]
    source = model.load(nets.save(nets.model(nodes, *ends), tmp_path))
    assert [spec.name for spec in source.inputs] == ["b", "a"]
    assert source.output_names == ("z", "y")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("mobilent", "did you mean mobilenet?"),
        ("missing.onnx", "toolchain model list"),
        ("folder", "toolchain model list"),
    ],
)
def test_no_such_model(tmp_path, monkeypatch, name, hint):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"there is no model '{name}'") as caught:
        model.load(name)
    assert hint in caught.value.hint
    assert "mobilenet_v2" in caught.value.details


@pytest.mark.parametrize("name", ["empty", "garbage", "text", "truncated", "unknown-operator", "result-from-nowhere"])
def test_what_is_not_a_model(name):
    fault = rejected(name)
    assert fault.message == f"{name}.onnx is not a valid ONNX model"
    assert fault.details


@pytest.mark.parametrize("ending", ["json", "textproto", "onnxtxt"])
def test_the_ending_does_not_choose_the_format(tmp_path, ending):
    path = tmp_path / f"net.{ending}"
    shutil.copy(DATA / "float16.onnx", path)
    assert model.load(str(path)).sha256 == load("float16").sha256
    path.write_text("{}")
    with pytest.raises(InputError, match="not a valid ONNX model"):
        model.load(str(path))


def test_every_cut_of_a_file_is_named(tmp_path):
    whole = (DATA / "quantized.onnx").read_bytes()
    for length in range(0, len(whole) - 1, 97):
        (tmp_path / "cut.onnx").write_bytes(whole[:length])
        with pytest.raises(InputError):
            model.load(str(tmp_path / "cut.onnx"))


def test_unreadable_file(monkeypatch):
    def denied(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(onnx, "load", denied)
    assert "Permission denied" in rejected("float16").details


def test_external_weights():
    [weight] = load("external").proto.graph.initializer
    assert weight.name == "w"
    np.testing.assert_allclose(numpy_helper.to_array(weight).reshape(-1), np.arange(108) / 100, rtol=1e-6)


@pytest.mark.parametrize("content", [None, b"", b"too short"])
def test_external_weights_that_are_missing_or_cut(tmp_path, content):
    shutil.copy(DATA / "external.onnx", tmp_path)
    if content is not None:
        (tmp_path / "external.data").write_bytes(content)
    with pytest.raises(InputError, match=r"external\.onnx is not a valid ONNX model") as caught:
        model.load(str(tmp_path / "external.onnx"))
    assert "w" in caught.value.details


def test_external_weights_outside_the_folder(tmp_path):
    proto = onnx.load(DATA / "external.onnx", load_external_data=False)
    (tmp_path / "inside").mkdir()
    shutil.copy(DATA / "external.data", tmp_path / "outside.data")
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../outside.data"
    (tmp_path / "inside" / "net.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match="not a valid ONNX model"):
        model.load(str(tmp_path / "inside" / "net.onnx"))


# --- signature -------------------------------------------------------------------------------------------------


def test_open_dimensions_show_the_flag_that_sets_them():
    fault = rejected("open")
    assert fault.message == "input x has open dimensions: batch x 3 x height"
    assert "--shape x:1,3,1" in fault.hint


def test_minus_one_is_an_open_dimension():
    fault = rejected("minus-one")
    assert "--shape x:1,3" in fault.hint
    assert load("minus-one", shapes={"x": (2, 3)}).inputs[0].shape == (2, 3)


def test_given_shape():
    source = load("open", shapes={"x": (2, 3, 5)})
    assert source.inputs == (TensorSpec("x", (2, 3, 5), "float32"),)
    assert model.import_model(source).outputs == (TensorSpec("y", (2, 3, 5), "float32"),)


def test_inferred_shapes_of_the_open_model_are_forgotten(tmp_path):
    nodes = [node("Relu", ["x"], ["r"]), node("Neg", ["r"], ["y"])]
    proto = nets.model(nodes, [value("x", ("n", 3))], [value("y", ("n", 3))])
    proto = onnx.shape_inference.infer_shapes(proto)
    source = model.load(nets.save(proto, tmp_path), {"x": (4, 3)})
    assert model.inspect(source).outputs == (TensorSpec("y", (4, 3), "float32"),)


@pytest.mark.parametrize("name", ["weights-among-inputs", "float16"])
def test_a_shape_that_says_what_the_file_says(name):
    assert load(name, shapes={"x": (1, 3, 8, 8)}).inputs[0].shape == (1, 3, 8, 8)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("open", (1, 3)), ("open", (1, 3, 8, 8)), ("open", (1, 4, 8)), ("float16", (2, 3, 8, 8)), ("float16", ())],
    ids=["too few", "too many", "contradicts", "contradicts a fixed one", "no dimensions"],
)
def test_a_shape_that_does_not_fit(name, shape):
    fault = rejected(name, shapes={"x": shape})
    assert fault.message.startswith(f"shape {shape} does not fit input x, which is ")


def test_a_scalar_takes_no_shape(tmp_path):
    with pytest.raises(InputError, match="does not fit input x, which is scalar"):
        model.load(nets.save(nets.relu(()), tmp_path), {"x": (2,)})


@pytest.mark.parametrize("name", ["z", "w"])
def test_a_shape_for_no_input(name):
    fault = rejected("weights-among-inputs", shapes={name: (1,)})
    assert fault.message == f"the model has no input '{name}'"
    assert fault.details == "its inputs: x"


@pytest.mark.parametrize("shapes", [{"nope": (1,)}, {"data": (1, 3, 28, 28)}])
def test_a_shape_that_does_not_fit_a_zoo_network(shapes):
    with pytest.raises(InputError, match=r"no input 'nope'|does not fit input data"):
        model.load("mlp", shapes)


@pytest.mark.parametrize(("name", "dtype"), [("string-input", "string"), ("bfloat16-input", "bfloat16")])
def test_element_type_of_an_input(name, dtype):
    fault = rejected(name)
    assert fault.message == f"tensor x has the element type {dtype}"
    assert "float32, float16" in fault.hint


def test_an_input_that_is_no_tensor():
    assert rejected("sequence-input").message == "input s is not a tensor"


def test_a_model_without_inputs():
    assert rejected("no-inputs").message == "model no-inputs has no inputs or no outputs"


# --- importing -------------------------------------------------------------------------------------------------


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
    imported = model.import_model(load(name))
    assert imported.outputs == outputs
    assert imported.source.name == name
    assert len(imported.module["main"].params) == 1


def test_import_leaves_the_source_as_it_was():
    source = load("quantized")
    before = source.proto.SerializeToString(deterministic=True)
    model.import_model(source)
    assert source.proto.SerializeToString(deterministic=True) == before


def test_import_keeps_the_order_of_inputs_and_outputs(tmp_path):
    nodes = [node("Cast", ["b"], ["z"], to=onnx.TensorProto.INT8), node("Relu", ["a"], ["y"])]
    ends = [value("b", (2,)), value("unused", (7,)), value("a", (3,))], [value("z", (2,), "int8"), value("y", (3,))]
    imported = model.import_model(model.load(nets.save(nets.model(nodes, *ends), tmp_path)))
    assert imported.outputs == (TensorSpec("z", (2,), "int8"), TensorSpec("y", (3,), "float32"))
    assert [int(parameter.ty.shape[0]) for parameter in imported.module["main"].params] == [2, 7, 3]


def test_unsupported_operators_are_named_with_their_nodes():
    fault = not_imported("unsupported-operators")
    assert fault.message == "unsupported-operators has 2 node(s) that TVM cannot import"
    assert fault.details == "TfIdfVectorizer at node 1 'count_words'\nDet at node 2 'y'"


@pytest.mark.parametrize(
    ("name", "failing"),
    [("wrong-product", "at MatMul node 'wrong_product'"), ("unknown-padding", "at Conv node 'y'")],
    ids=["by its name", "by its output"],
)
def test_a_failing_converter_is_named_with_its_node(name, failing):
    fault = not_imported(name)
    assert fault.message.startswith(f"TVM cannot import {name}: ")
    assert fault.message.endswith(failing)
    assert fault.details


def test_a_failing_import_prints_nothing_of_its_own():
    code = "import sys; from toolchain import model; model.import_model(model.load(sys.argv[1]))"
    argv = [sys.executable, "-c", code, DATA / "wrong-product.onnx"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert not done.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("data-dependent-output", "the output shapes of data-dependent-output depend on its data"),
        ("shape-as-output", "an output of shape-as-output is not a tensor"),
        ("bfloat16-output", "tensor y has the element type bfloat16"),
    ],
)
def test_outputs_that_no_bundle_can_describe(name, message):
    assert not_imported(name).message == message


# --- inspecting ------------------------------------------------------------------------------------------------


def test_inspection_of_a_net_made_by_hand(tmp_path):
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("Reshape", ["r", "shape"], ["f"]),
        node("Gemm", ["f", "m"], ["y"]),
    ]
    stream = np.random.default_rng(0)
    weights = {
        "w": stream.standard_normal((500, 3, 3, 3), np.float32),
        "b": np.zeros(500, "float32"),
        "shape": np.array([1, 18000]),
        "m": np.zeros((18000, 10), "float32"),
    }
    proto = nets.model(nodes, [value("x", (1, 3, 8, 8))], [value("y", (1, 10))], weights, opset=19)
    found = model.inspect(model.load(nets.save(proto, tmp_path, "hand.onnx")))
    assert found == model.Inspection(
        name="hand",
        opset=19,
        inputs=(IMAGE,),
        outputs=(TensorSpec("y", (1, 10), "float32"),),
        parameters=500 * 27 + 500 + 180_000,
        gflops=round(2 * (500 * 36 * 27 + 18000 * 10) / 1e9, 4),
        operators={"Conv": 1, "Gemm": 1, "Relu": 1, "Reshape": 1},
        unsupported=(),
    )


def test_inspection_of_a_model_that_cannot_be_imported():
    found = model.inspect(load("unsupported-operators"))
    assert found.unsupported == (
        model.UnsupportedNode("TfIdfVectorizer", "count_words", 1),
        model.UnsupportedNode("Det", "y", 2),
    )
    assert found.operators == {"Abs": 1, "Det": 1, "TfIdfVectorizer": 1}


def test_inspection_of_the_zoo():
    # ResNet-18 has 1.8 billion multiply-adds and 11.7 million parameters; its running statistics count as well.
    found = model.inspect(model.load("resnet-18"))
    assert found.gflops == pytest.approx(3.63, abs=0.05)
    assert found.parameters == pytest.approx(11_689_512, rel=2e-3)


def test_work_of_an_unknown_shape_is_unknown():
    found = model.inspect(load("data-dependent-output"))
    assert found.outputs == (TensorSpec("y", (2, 0), "int64"),)
    assert found.gflops == 0
