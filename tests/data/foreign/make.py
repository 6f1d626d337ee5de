"""Make the files of this folder again, which are models of other kinds: python -m tests.data.foreign.make.

Each is as short as it can be and still be told: what `torch.save`, Keras and the like write before the weights.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from tests.support import nets

FOLDER = Path(__file__).parent
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 102170\n"
HTML = "\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n"


def zipped(names: list[str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), b"x")
    return made.getvalue()


FILES = {
    "checkpoint.pth": zipped(["archive/data.pkl", "archive/version", "archive/data/0"]),
    "script.pt": zipped(["net/code/__torch__.py", "net/data.pkl", "net/constants.pkl"]),
    "old.pt": pickle.dumps({"fc.weight": [0.5]}, protocol=2),
    "model.keras": zipped(["metadata.json", "config.json", "model.weights.h5"]),
    "model.zip": zipped(["resnet/readme.txt", "resnet/resnet.onnx"]),
    "cut.zip": zipped(["model.onnx"])[:40],
    "arrays.onnx": zipped(["x.npy"]),
    "model.tflite": b"\x1c\0\0\0TFL3" + bytes(24),
    "model.ort": b"\x20\0\0\0ORTM" + bytes(24),
    "model.h5": b"\x89HDF\r\n\x1a\n" + bytes(24),
    "model.safetensors": save({"w": np.zeros(1, np.float32)}),
    "frozen.pb": b"\x0a\x15\x0a\x05input\x12\x0bPlaceholder",
    "saved_model.pb": b"\x08\x01\x12\x20\x0a\x1e\x22\x05serve",
    "model.onnx.gz": gzip.compress(nets.relu().SerializeToString(), mtime=0),
    "pointer.onnx": LFS.format("0" * 64).encode(),
    "page.onnx": HTML.encode(),
    "document.onnx": json.dumps({"message": "Not Found"}).encode(),
}


def main() -> None:
    for name, content in FILES.items():
        (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    main()
