"""Small models of pictures, and what numpy makes of their pictures and outputs: written apart from the C++ code."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.support import nets

SIDE = 32
CLASSES = 3


def classifier() -> onnx.ModelProto:
    """Return a model of (1, 3, 32, 32) with one row of scores for five classes."""
    stream = np.random.default_rng(0)
    nodes = [
        nets.node("Conv", ["x", "w"], ["maps"], strides=[4, 4]),
        nets.node("GlobalAveragePool", ["maps"], ["means"]),
        nets.node("Flatten", ["means"], ["scores"]),
    ]
    weights = {"w": stream.standard_normal((5, 3, 4, 4)).astype(np.float32)}
    return nets.model(nodes, [nets.value("x", (1, 3, SIDE, SIDE))], [nets.value("scores", (1, 5))], weights)


def reader() -> onnx.ModelProto:
    """Return a model of (1, 3, 32, 32) with eight rows of scores for four labels, as of a line of text."""
    stream = np.random.default_rng(3)
    nodes = [
        nets.node("Conv", ["x", "w"], ["maps"], strides=[SIDE, 4]),
        nets.node("Reshape", ["maps", "table"], ["rows"]),
        nets.node("Transpose", ["rows"], ["scores"], perm=[0, 2, 1]),
    ]
    weights = {"w": stream.standard_normal((4, 3, SIDE, 4)).astype(np.float32), "table": np.array([1, 4, 8])}
    return nets.model(nodes, [nets.value("x", (1, 3, SIDE, SIDE))], [nets.value("scores", (1, 8, 4))], weights)


def detector(extra: int = 0) -> onnx.ModelProto:
    """Return a model like YOLOv8's: (1, 3, 32, 32) to 64 columns of x, y, width, height and the scores of classes.

    After the scores come `extra` numbers for each column.
    """
    stream, rows = np.random.default_rng(1), 4 + CLASSES + extra
    grid = np.stack(np.meshgrid(np.arange(8), np.arange(8))).reshape(1, 2, 64) * 4 + 2
    names = ["moved", "sizes", "raw", *(["extras"] if extra else [])]
    nodes = [
        nets.node("Conv", ["x", "w"], ["maps"], strides=[4, 4]),
        nets.node("Reshape", ["maps", "table"], ["rows"]),
        nets.node("Split", ["rows", "parts"], names, axis=1),
        nets.node("Sigmoid", ["moved"], ["near"]),
        nets.node("Add", ["near", "grid"], ["centres"]),
        nets.node("Sigmoid", ["sizes"], ["shares"]),
        nets.node("Mul", ["shares", "largest"], ["extents"]),
        nets.node("Sigmoid", ["raw"], ["scores"]),
        nets.node("Concat", ["centres", "extents", "scores", *names[3:]], ["boxes"], axis=1),
    ]
    weights = {
        "w": stream.standard_normal((rows, 3, 4, 4)).astype(np.float32),
        "table": np.array([1, rows, 64]),
        "parts": np.array([2, 2, CLASSES, *([extra] if extra else [])]),
        "grid": grid.astype(np.float32),
        "largest": np.array(20, np.float32),
    }
    outputs = [nets.value("boxes", (1, rows, 64))]
    return nets.model(nodes, [nets.value("x", (1, 3, SIDE, SIDE))], outputs, weights)


def segmenter() -> onnx.ModelProto:
    """Return a detector with four coefficients for each column, and the prototypes (1, 4, 16, 16) of its masks."""
    model = detector(4)
    weights = np.random.default_rng(2).standard_normal((4, 3, 2, 2)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "p"))
    model.graph.node.append(nets.node("Conv", ["x", "p"], ["protos"], strides=[2, 2]))
    model.graph.output.append(nets.value("protos", (1, 4, 16, 16)))
    return model


def detr() -> onnx.ModelProto:
    """Return a detector with two outputs: boxes (1, 64, 4), and before their sigmoid, the scores (1, 64, 3)."""
    model = detector()
    del model.graph.node[-2:], model.graph.output[:]
    model.graph.node.extend(
        [
            nets.node("Concat", ["centres", "extents"], ["columns"], axis=1),
            nets.node("Transpose", ["columns"], ["boxes"], perm=[0, 2, 1]),
            nets.node("Transpose", ["raw"], ["logits"], perm=[0, 2, 1]),
        ]
    )
    model.graph.output.extend([nets.value("logits", (1, 64, CLASSES)), nets.value("boxes", (1, 64, 4))])
    return model


def raw_detector() -> onnx.ModelProto:
    """Return a model like YOLOv5's before it decodes: levels of 4x4 and 8x8 cells, two anchors, and eight numbers."""
    stream = np.random.default_rng(4)
    nodes = [nets.node("Conv", ["x", f"w{step}"], [f"level{step}"], strides=[step, step]) for step in (8, 4)]
    weights = {f"w{step}": stream.normal(0, 1.2 / step, (16, 3, step, step)).astype(np.float32) for step in (8, 4)}
    outputs = [nets.value(f"level{step}", (1, 16, SIDE // step, SIDE // step)) for step in (8, 4)]
    return nets.model(nodes, [nets.value("x", (1, 3, SIDE, SIDE))], outputs, weights)


def ssd() -> onnx.ModelProto:
    """Return a model like an SSD before it decodes: differences (1, 64, 4) from anchors, and the scores (1, 64, 4)."""
    stream = np.random.default_rng(5)
    nodes = []
    for name in ("loc", "conf"):
        nodes += [
            nets.node("Conv", ["x", f"w-{name}"], [f"{name}-maps"], strides=[4, 4]),
            nets.node("Reshape", [f"{name}-maps", "table"], [f"{name}-rows"]),
            nets.node("Transpose", [f"{name}-rows"], [name], perm=[0, 2, 1]),
        ]
    weights = {f"w-{name}": stream.normal(0, 1, (4, 3, 4, 4)).astype(np.float32) for name in ("loc", "conf")}
    weights["table"] = np.array([1, 4, 64])
    outputs = [nets.value(name, (1, 64, 4)) for name in ("loc", "conf")]
    return nets.model(nodes, [nets.value("x", (1, 3, SIDE, SIDE))], outputs, weights)


def mask_of(
    coefficients: NDArray[Any], prototypes: NDArray[Any], size: tuple[int, int], box: NDArray[Any], side: int = SIDE
) -> tuple[int, int, NDArray[np.float64]]:
    """Return the first column and row of a mask, and its levels, which are positive where the object is.

    The sum of the prototypes is interpolated at the middle of each pixel of a letterboxed picture, and cut to a box.
    """
    width, height = size
    ratio = min(side / width, side / height)
    left, top = (side - round(width * ratio)) // 2, (side - round(height * ratio)) // 2
    levels = np.tensordot(coefficients.astype(np.float64), prototypes.astype(np.float64), 1)
    steps = [np.arange(count) for count in levels.shape]
    columns = ((np.arange(width) + 0.5) * ratio + left) * levels.shape[1] / side - 0.5
    rows = ((np.arange(height) + 0.5) * ratio + top) * levels.shape[0] / side - 0.5
    wide = np.stack([np.interp(columns, steps[1], row) for row in levels])
    whole = np.stack([np.interp(rows, steps[0], column) for column in wide.T], axis=1)
    x, y = np.arange(width), np.arange(height)
    inside = [(x >= box[0]) & (x < box[2]), (y >= box[1]) & (y < box[3])]
    cut = whole[inside[1]][:, inside[0]]
    return int(np.ceil(box[0])), int(np.ceil(box[1])), cut


def opencv_linear(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Resize as OpenCV's INTER_LINEAR does with 8 bits: weights of 11 binary digits, rounded once at the end."""

    def axis(old: int, new: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        place = ((np.arange(new) + 0.5) * (old / new) - 0.5).astype(np.float32)
        first = np.floor(place).astype(int)
        share = np.where((first < 0) | (first >= old - 1), np.float32(0), place - first.astype(np.float32))
        first = np.clip(first, 0, old - 1)
        return first, np.minimum(first + 1, old - 1), np.rint(share * 2048).astype(np.int64)

    left, right, across = axis(pixels.shape[1], width)
    upper, lower, down = axis(pixels.shape[0], height)
    values = pixels.astype(np.int64)
    across, down = across[:, None], down[:, None, None]
    rows = values[:, left] * (2048 - across) + values[:, right] * across
    exact = rows[upper] * (2048 - down) + rows[lower] * down
    return ((exact + (1 << 21)) >> 22).astype(np.uint8)


def torch_linear(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.float64]:
    """Interpolate as PyTorch does without align_corners, and TensorFlow: in floats, without rounding."""

    def axis(old: int, new: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        place = np.maximum((np.arange(new) + 0.5) * (old / new) - 0.5, 0)
        first = np.minimum(place.astype(int), old - 1)
        return first, np.minimum(first + 1, old - 1), place - first

    left, right, across = axis(pixels.shape[1], width)
    upper, lower, down = axis(pixels.shape[0], height)
    values, across, down = pixels.astype(np.float64), across[:, None], down[:, None, None]
    rows = values[:, left] * (1 - across) + values[:, right] * across
    return rows[upper] * (1 - down) + rows[lower] * down


def rgb_of_yuv(y: NDArray[Any], u: NDArray[Any], v: NDArray[Any]) -> NDArray[np.uint8]:
    """Convert BT.601 with levels from 16 to 235, in floats."""
    luma = 1.164383 * np.maximum(y.astype(np.float64) - 16, 0)
    u, v = u.astype(np.float64) - 128, v.astype(np.float64) - 128
    rgb = np.stack([luma + 1.596027 * v, luma - 0.391762 * u - 0.812968 * v, luma + 2.017232 * u], axis=-1)
    return np.clip(np.rint(rgb), 0, 255).astype(np.uint8)


def suppressed(boxes: NDArray[np.float32], limit: float, least: float, most: int) -> list[tuple[int, int]]:
    """Return (box, class) of the kept boxes: rows of left, top, right, bottom and the scores of classes.

    Every pair of boxes is compared, class by class, and the kept ones are joined and sorted afterwards.
    """
    labels, scores = boxes[:, 4:].argmax(1), boxes[:, 4:].max(1)
    kept: list[tuple[int, int]] = []
    for label in range(boxes.shape[1] - 4):
        left = [int(i) for i in np.argsort(-scores, kind="stable") if labels[i] == label and scores[i] > least]
        while left:
            best, *others = left
            kept.append((best, label))
            left = [other for other in others if _overlap(boxes[best], boxes[other]) <= limit]
    return sorted(kept, key=lambda item: (-scores[item[0]], item[0]))[:most]


def _overlap(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    size = np.minimum(one[2:4], other[2:4]) - np.maximum(one[:2], other[:2])
    if (size <= 0).any():
        return 0.0
    shared = size[0] * size[1]
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return float(shared / (areas[0] + areas[1] - shared))
