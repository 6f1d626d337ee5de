"""Small models of sounds, with weights that give each of their results now and then."""

from __future__ import annotations

import numpy as np
import onnx

from tests.support import nets

BANDS, FRAMES, CLASSES = 20, 26, 4
RATE, SAMPLES = 16000, 4000  # a window of the keyword model
TOKENS = ("<blank>", "|", "a", "b", "c", "d")


def keywords() -> onnx.ModelProto:
    """Return a model of (1, 1, bands, frames) with one row of scores for four words."""
    stream = np.random.default_rng(0)
    nodes = [nets.node("Flatten", ["x"], ["row"]), nets.node("Gemm", ["row", "w", "b"], ["scores"])]
    weights = {
        "w": (stream.standard_normal((BANDS * FRAMES, CLASSES)) / 60).astype(np.float32),
        "b": np.zeros(CLASSES, np.float32),
    }
    return nets.model(nodes, [nets.value("x", (1, 1, BANDS, FRAMES))], [nets.value("scores", (1, CLASSES))], weights)


def letters() -> onnx.ModelProto:
    """Return a model of (1, frames, bands) with a row of scores for six tokens every second frame."""
    stream = np.random.default_rng(1)
    nodes = [
        nets.node("Transpose", ["x"], ["columns"], perm=[0, 2, 1]),
        nets.node("Conv", ["columns", "w"], ["maps"], strides=[2]),
        nets.node("Transpose", ["maps"], ["table"], perm=[0, 2, 1]),
    ]
    weights = {"w": (stream.standard_normal((len(TOKENS), BANDS, 2)) / 10).astype(np.float32)}
    outputs = [nets.value("table", (1, FRAMES // 2, len(TOKENS)))]
    return nets.model(nodes, [nets.value("x", (1, FRAMES, BANDS))], outputs, weights)


def listener() -> onnx.ModelProto:
    """Return a detector of speech with a state: windows (1, 96) of which a third is of before, and a score (1, 1)."""
    stream = np.random.default_rng(2)
    nodes = [
        nets.node("MatMul", ["x", "w"], ["given"]),
        nets.node("MatMul", ["h", "r"], ["kept"]),
        nets.node("Add", ["given", "kept"], ["both"]),
        nets.node("Tanh", ["both"], ["hn"]),
        nets.node("MatMul", ["hn", "v"], ["level"]),
        nets.node("Sigmoid", ["level"], ["y"]),
    ]
    shapes = {"w": (96, 8), "r": (8, 8), "v": (8, 1)}
    weights = {name: stream.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    inputs = [nets.value("h", (1, 8)), nets.value("x", (1, 96))]
    return nets.model(nodes, inputs, [nets.value("hn", (1, 8)), nets.value("y", (1, 1))], weights)
