"""A file that is no ONNX model is named for what it is, whatever its ending says, with the way to an ONNX model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.foreign import make
from tests.support import nets, paths
from toolchain.errors import InputError
from toolchain.models import source
from toolchain.models.formats import recognise

DATA = paths.DATA / "foreign"

KINDS = {
    "checkpoint.pth": ("a PyTorch checkpoint", "torch.onnx.export("),
    "script.pt": ("a TorchScript model", "torch.onnx.export("),
    "old.pt": ("a Python pickle", "torch.onnx.export("),
    "model.keras": ("a Keras model", 'export("model.onnx", format="onnx")'),
    "model.zip": ("a zip archive", "then pass resnet/resnet.onnx"),
    "cut.zip": ("a truncated or damaged zip archive", "again"),
    "arrays.onnx": ("an .npz file of arrays", "--input"),
    "model.tflite": ("a TensorFlow Lite model", "tf2onnx.convert --tflite"),
    "model.ort": ("a model in ONNX Runtime's own format", ".onnx"),
    "model.h5": ("an HDF5 file, as written by Keras", 'export("model.onnx", format="onnx")'),
    "model.safetensors": ("a safetensors file, which contains weights but no network", "torch.onnx.export("),
    "frozen.pb": ("a frozen TensorFlow graph", "tf2onnx.convert --graphdef"),
    "saved_model.pb": ("a TensorFlow SavedModel", f"--saved-model {DATA} "),
    "model.onnx.gz": ("a compressed file", "gunzip"),
    "pointer.onnx": ("a Git LFS pointer instead of the file", "git lfs pull --include pointer.onnx"),
    "page.onnx": ("a web page", "?raw=true"),
    "document.onnx": ("a JSON document", "download the model file"),
}


def test_every_file_has_its_row():
    assert sorted(make.FILES) == sorted(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_a_file_is_named_and_its_way_told(name):
    kind, remedy = KINDS[name]
    with pytest.raises(InputError) as caught:
        source.load(str(DATA / name))
    assert caught.value.message.startswith(f"{name} is {kind}")
    assert caught.value.message.endswith("not an ONNX model")
    assert remedy in caught.value.hint


def test_an_empty_file_is_named(tmp_path):
    path = tmp_path / "net.onnx"
    path.touch()
    with pytest.raises(InputError, match=r"net\.onnx is an empty file, not an ONNX model"):
        source.load(str(path))


@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"frozen.pb", "saved_model.pb"}))
def test_the_content_tells_and_not_the_ending(tmp_path, name):
    path = tmp_path / "net.onnx"
    path.write_bytes((DATA / name).read_bytes())
    recognised = recognise(path)
    assert recognised is not None
    assert recognised.name.startswith(KINDS[name][0])


@pytest.mark.parametrize(
    ("names", "kind", "remedy"),
    [
        (["saved_model.pb", "variables"], "a TensorFlow SavedModel", "tf2onnx.convert --saved-model"),
        (["config.json", "model.safetensors"], "a Hugging Face model", "optimum-cli export onnx"),
        (["manifest.json", "model.so"], "a folder with a manifest", "toolchain deploy"),
        (["notes.txt", "net.onnx"], "a folder", "pass the model in it: "),
        ([], "a folder", "toolchain model list"),
    ],
)
def test_a_folder(tmp_path, names, kind, remedy):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=f"is {kind}") as caught:
        source.load(str(tmp_path))
    assert remedy in caught.value.hint


@pytest.mark.parametrize("name", ["net.onnx", "net.pb", "net.bin"])
def test_a_model_is_none_of_these(tmp_path, name):
    assert recognise(Path(nets.save(nets.relu(), tmp_path, name))) is None


def test_a_network_of_the_zoo_wins_over_a_folder_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlp").mkdir()
    assert source.load("mlp").origin == "mlp"
