"""Which format a file has that is not an ONNX model, by its content, and the command that converts it."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

_HEAD = 1 << 12
_LONGEST_HEADER = 1 << 27  # of a safetensors file, which begins with its header's length

_TORCH = 'torch.onnx.export(model, (example,), "model.onnx", dynamo=True), where the model is a torch.nn.Module'
_TF = "pip install tf2onnx; python -m tf2onnx.convert --{kind} {path} --output model.onnx"
_KERAS = 'in Python: keras.saving.load_model("{path}").export("model.onnx", format="onnx")'
_DOWNLOAD = "download the model file itself"
_PICKLE, _PACKED = "a Python pickle, as written by torch.save", "a compressed file"

# Offset of a magic number, its bytes, the format, and the command that converts it.
_MAGIC = (
    (4, b"TFL3", "a TensorFlow Lite model", _TF.replace("{kind}", "tflite")),
    (4, b"ORTM", "a model in ONNX Runtime's own format", "use the .onnx file that it was converted from"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, as written by Keras", _KERAS),
    *((0, bytes([0x80, protocol]), _PICKLE, _TORCH) for protocol in range(2, 6)),
    (0, b"\x1f\x8b", _PACKED, "gunzip {path}"),
    (0, b"BZh", _PACKED, "bunzip2 {path}"),
    (0, b"\xfd7zXZ\0", _PACKED, "unxz {path}"),
    (0, b"\x28\xb5\x2f\xfd", _PACKED, "unzstd {path}"),
)


@dataclass(frozen=True)
class Format:
    """A format with its article, and how to get an ONNX model from it."""

    name: str
    remedy: str


def recognise(path: Path) -> Format | None:
    """Return the format of a file or folder that was given as an ONNX model; None if it may be one."""
    if path.is_dir():
        return _folder(path)
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    if not head:
        return Format("an empty file", "export the model again, or copy it again")
    return _by_magic(head, path) or _by_start(head, path)


def _folder(path: Path) -> Format:
    names = {item.name for item in path.iterdir()}
    models = sorted(name for name in names if name.endswith(".onnx"))
    if "saved_model.pb" in names:
        return Format("a TensorFlow SavedModel", _TF.format(kind="saved-model", path=path))
    if "config.json" in names and any(name.endswith((".safetensors", ".bin")) for name in names):
        return Format(
            "a Hugging Face model", f"pip install optimum[onnx]; optimum-cli export onnx --model {path} onnx/"
        )
    if "manifest.json" in names:
        return Format(
            "a folder with a manifest, such as a bundle", f"deploy a bundle directly: toolchain deploy {path}"
        )
    if models:
        return Format("a folder", f"pass the model in it: {path / models[0]}")
    return Format("a folder", "pass the .onnx file; `toolchain model list` lists the zoo")


def _by_magic(head: bytes, path: Path) -> Format | None:
    if head.startswith(b"PK\x03\x04"):
        return _archive(path)
    # A safetensors file begins with the length of its JSON header.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < _LONGEST_HEADER:
        remedy = f"load the weights into the network, then {_TORCH}"
        return Format("a safetensors file, which contains weights but no network", remedy)
    for start, magic, name, remedy in _MAGIC:
        if head.startswith(magic, start):
            return Format(name, remedy.format(path=path))
    return None


def _archive(path: Path) -> Format:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        return Format("a truncated or damaged zip archive", "fetch or export it again")
    if any(name.endswith("/data.pkl") or name == "data.pkl" for name in names):
        scripted = any("/code/" in name for name in names)
        return Format("a TorchScript model" if scripted else "a PyTorch checkpoint", _TORCH)
    if "model.weights.h5" in names:
        return Format("a Keras model", _KERAS.format(path=path))
    if names and all(name.endswith(".npy") for name in names):
        return Format("an .npz file of arrays", "pass arrays with --input, and the .onnx file as the model")
    inside = next((name for name in names if name.endswith(".onnx")), "")
    return Format("a zip archive", f"unzip {path}" + (f", then pass {inside}" if inside else ""))


def _by_start(head: bytes, path: Path) -> Format | None:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:100].lower()
    if start.startswith(b"version https://git-lfs"):
        return Format("a Git LFS pointer instead of the file", f"git lfs pull --include {path.name}")
    if start.startswith((b"<!doctype html", b"<html", b"<?xml", b"<head")):
        return Format("a web page", f"{_DOWNLOAD}; add ?raw=true to a GitHub link")
    if start.startswith((b"{", b"[")):
        return Format("a JSON document", _DOWNLOAD)
    # A GraphDef begins with its first node, an ONNX model with its version; a SavedModel has version 1.
    if path.suffix == ".pb" and head.startswith(b"\x0a"):
        remedy = _TF.format(kind="graphdef", path=path) + " --inputs NAME:0 --outputs NAME:0"
        return Format("a frozen TensorFlow graph", remedy)
    if path.suffix == ".pb" and head.startswith(b"\x08\x01\x12"):
        return Format("a TensorFlow SavedModel", _TF.format(kind="saved-model", path=path.parent))
    return None
