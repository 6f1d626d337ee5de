"""Drawn shapes in a folder for each class, a linear classifier of them, and the same with faults planted."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from PIL import Image

from toolchain.models import inputs
from toolchain.tensors import TensorSpec

CLASSES = ("bars", "columns", "disc", "frame")
SIZE = 24  # pixels of the model's input, in both directions
_SCALE = 1.0 / 127
Fault = Literal["", "layout", "mean", "saturation"]


def draw(name: str, stream: np.random.Generator) -> Image.Image:
    """Draw a noisy picture of a class."""
    size = SIZE + 4
    rows, columns = np.mgrid[:size, :size]
    shift = int(stream.integers(0, 3))
    distance = np.hypot(rows - size / 2, columns - size / 2)
    shapes = {
        "bars": (rows + shift) % 8 < 4,
        "columns": (columns + shift) % 8 < 4,
        "disc": distance < size / 3 + shift - 1,
        "frame": np.maximum(abs(rows - size / 2), abs(columns - size / 2)) > size / 3 - shift,
    }
    pixels = np.where(shapes[name][..., None], (150, 120, 110), (100, 110, 120)) + stream.normal(0, 60, (size, size, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def write(folder: Path, each: int, seed: int) -> Path:
    """Write `each` pictures of every class."""
    stream = np.random.default_rng(seed)
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
        for number in range(each):
            draw(name, stream).save(folder / name / f"{number:03}.png")
    return folder


def weights(folder: Path) -> NDArray[np.float32]:
    """Fit a linear classifier to the pictures of a folder by least squares; the last row is the bias."""
    spec = TensorSpec("x", (1, 3, SIZE, SIZE), "float32")
    rows, targets = [], []
    for index, name in enumerate(CLASSES):
        for path in sorted((folder / name).iterdir()):
            rows.append(np.append(inputs.from_image(path, [spec])["x"].reshape(-1), 1))
            targets.append(np.eye(len(CLASSES))[index])
    matrix = np.array(rows)
    penalty = 100.0 * np.eye(matrix.shape[1])
    return np.linalg.solve(matrix.T @ matrix + penalty, matrix.T @ np.array(targets)).astype(np.float32)


def classifier(fitted: NDArray[np.float32], fault: Fault = "") -> onnx.ModelProto:
    """Return the classifier; a fault is what goes wrong on the way to a board."""
    constants = {"w": fitted[:-1], "b": fitted[-1], "flat": np.array([1, -1])}
    nodes, x, scores = [], "x", "y"
    if fault == "layout":  # the bytes of one layout are read as those of the other
        constants["wrong"] = np.array([1, SIZE, SIZE, 3])
        nodes += [
            helper.make_node("Reshape", [x, "wrong"], ["slipped"]),
            helper.make_node("Transpose", ["slipped"], ["turned"], perm=[0, 3, 1, 2]),
        ]
        x = "turned"
    if fault == "mean":  # pixels from 0 to 255 instead of normalized ones
        constants["scale"], constants["shift"] = np.array(0.229, np.float32), np.array(0.485, np.float32)
        nodes += [
            helper.make_node("Mul", [x, "scale"], ["scaled"]),
            helper.make_node("Add", ["scaled", "shift"], ["shifted"]),
        ]
        x = "shifted"
    if fault == "saturation":  # a range of int8 that is too small for the scores
        constants["most"] = np.array(0.15, np.float32)
        scores = "wide"
    nodes += [helper.make_node("Reshape", [x, "flat"], ["row"]), helper.make_node("Gemm", ["row", "w", "b"], [scores])]
    if fault == "saturation":
        nodes.append(helper.make_node("Clip", ["wide", "", "most"], ["y"]))
    tensor = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "shapes",
        [helper.make_tensor_value_info("x", tensor, [1, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("y", tensor, [1, len(CLASSES)])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
