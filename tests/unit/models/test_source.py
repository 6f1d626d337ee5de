from __future__ import annotations

import os
import shutil

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support import nets, paths
from tests.support.nets import node, value
from toolchain import files
from toolchain.errors import InputError
from toolchain.models import importer, inputs, inspection
from toolchain.models import source as model
from toolchain.models.request import Model
from toolchain.tensors import TensorSpec

DATA = paths.DATA / "models"
IMAGE = TensorSpec("x", (1, 3, 8, 8), "float32")
FEATURES = TensorSpec("y", (1, 4, 6, 6), "float32")


def load(name: str, **options) -> model.SourceModel:
    return model.load(str(DATA / f"{name}.onnx"), **options)


def rejected(name: str, **options) -> InputError:
    with pytest.raises(InputError) as caught:
        load(name, **options)
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
    ],
)
def test_no_such_model(tmp_path, monkeypatch, name, hint):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"there is no model '{name}'") as caught:
        model.load(name)
    assert hint in caught.value.hint
    assert "mobilenet_v2" in caught.value.details


@pytest.mark.parametrize("name", ["garbage", "truncated", "unknown-operator", "result-from-nowhere"])
def test_what_is_not_a_model(name):
    fault = rejected(name)
    assert fault.message == f"{name}.onnx is not a valid ONNX model"
    assert fault.details


@pytest.mark.parametrize("name", ["two\nlines", "one\u2028other", "\x1b[31m", "\udcff"])
def test_a_name_that_no_list_can_show(tmp_path, name):
    path = tmp_path / f"{name}.onnx"
    shutil.copy(DATA / "float16.onnx", path)
    with pytest.raises(InputError, match="is not a valid model name") as caught:
        model.load(str(path))
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("ending", ["json", "textproto", "onnxtxt"])
def test_the_ending_does_not_choose_the_format(tmp_path, ending):
    path = tmp_path / f"net.{ending}"
    shutil.copy(DATA / "float16.onnx", path)
    assert model.load(str(path)).sha256 == load("float16").sha256
    path.write_text("ir_version: 8")
    with pytest.raises(InputError, match="not a valid ONNX model"):
        model.load(str(path))


def test_every_cut_of_a_file_is_named(tmp_path):
    content = (DATA / "quantized.onnx").read_bytes()
    for length in range(0, len(content) - 1, 97):
        (tmp_path / "cut.onnx").write_bytes(content[:length])
        with pytest.raises(InputError):
            model.load(str(tmp_path / "cut.onnx"))


def test_unreadable_file(monkeypatch):
    def denied(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "read_limited", denied)
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


@pytest.mark.parametrize("changed", [{"length": str(1 << 40)}, {"offset": "-1"}, {"length": "x"}, {"length": "9" * 30}])
def test_external_weights_that_are_said_to_be_elsewhere(tmp_path, changed):
    shutil.copy(DATA / "external.data", tmp_path)
    proto = onnx.load(DATA / "external.onnx", load_external_data=False)
    entries = {entry.key: entry.value for entry in proto.graph.initializer[0].external_data} | changed
    del proto.graph.initializer[0].external_data[:]
    for key, text in entries.items():
        proto.graph.initializer[0].external_data.add(key=key, value=text)
    (tmp_path / "net.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match=r"not a valid ONNX model|GiB of weights"):
        model.load(str(tmp_path / "net.onnx"))


def test_one_file_of_weights_that_is_taken_many_times_is_refused_before_it_is_read(tmp_path, monkeypatch):
    (tmp_path / "external.data").touch()
    os.truncate(tmp_path / "external.data", 1 << 28)
    proto = onnx.load(DATA / "external.onnx", load_external_data=False)
    weight = proto.graph.initializer[0]
    del weight.external_data[:]
    weight.external_data.add(key="location", value="external.data")
    for _ in range(8):
        proto.graph.initializer.append(weight)
    (tmp_path / "net.onnx").write_bytes(proto.SerializeToString())
    monkeypatch.setattr(onnx, "load_external_data_for_model", lambda *_: pytest.fail("it was read"))
    with pytest.raises(InputError, match=r"has 2\.3 GiB of weights"):
        model.load(str(tmp_path / "net.onnx"))


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


def test_external_weights_with_a_nul_byte_in_their_location(tmp_path):
    proto = onnx.load(DATA / "external.onnx", load_external_data=False)
    shutil.copy(DATA / "external.data", tmp_path / "external.data")
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "external.data\0of another file"
    (tmp_path / "net.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match="not a valid ONNX model") as caught:
        model.load(str(tmp_path / "net.onnx"))
    assert "has a NUL byte" in caught.value.details


def test_a_model_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "_MAX_BYTES", 2**20)
    ends, weights = ([value("x", (1,))], [value("y", None)]), {"w": np.zeros(2**18, "float32")}
    path = nets.save(nets.model([node("Add", ["x", "w"], ["y"])], *ends, weights), tmp_path)
    with pytest.raises(InputError, match=r"net\.onnx has .* GiB of weights, but less than"):
        model.load(path)


# --- signature -------------------------------------------------------------------------------------------------


def test_open_dimensions_show_the_flag_that_sets_them():
    fault = rejected("open")
    assert fault.message == "input x has open dimensions: batch x 3 x height"
    assert fault.details == "dimension height of x"
    assert fault.hint == "set them, for example: --dim height=64"


def test_minus_one_is_an_open_dimension():
    assert load("minus-one").inputs[0].shape == (1, 3)
    assert load("minus-one", shapes={"x": (2, 3)}).inputs[0].shape == (2, 3)


def test_given_shape():
    source = load("open", shapes={"x": (2, 3, 5)})
    assert source.inputs == (TensorSpec("x", (2, 3, 5), "float32"),)
    assert importer.import_model(source).outputs == (TensorSpec("y", (2, 3, 5), "float32"),)


def test_inferred_shapes_of_the_open_model_are_forgotten(tmp_path):
    nodes = [node("Relu", ["x"], ["r"]), node("Neg", ["r"], ["y"])]
    proto = nets.model(nodes, [value("x", ("n", 3))], [value("y", ("n", 3))])
    proto = onnx.shape_inference.infer_shapes(proto)
    source = model.load(nets.save(proto, tmp_path), {"x": (4, 3)})
    assert inspection.inspect(source).outputs == (inspection.Output("y", (4, 3), "float32"),)


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


def test_a_model_without_inputs_is_constant_and_says_so():
    loaded = load("no-inputs")
    assert loaded.inputs == ()
    assert loaded.guessed == ("no-inputs has no inputs: its outputs are constants",)


def test_open_dimensions_are_those_of_the_users_array(tmp_path):
    path = nets.save(nets.relu(("batch", 3, "height")), tmp_path)
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3, 5), np.float32))
    np.savez(tmp_path / "other.npz", x=np.zeros((2, 4, 5), np.float32))
    arrays = inputs.Source(npz=tmp_path / "x.npz")
    loaded = model.load_request(Model(path, {}, arrays))
    assert [spec.shape for spec in loaded.inputs] == [(2, 3, 5)]
    assert loaded.guessed == ("input x has the shape of its array: 2 x 3 x 5",)
    assert [spec.shape for spec in model.load_request(Model(path, {"x": (1, 3, 7)}, arrays)).inputs] == [(1, 3, 7)]
    with pytest.raises(InputError, match="open dimensions"):
        model.load_request(Model(path, {}, inputs.Source(npz=tmp_path / "other.npz")))
