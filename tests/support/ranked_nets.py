"""Networks whose outputs are in an order of scores, as those of detectors and of segmentation are."""

from __future__ import annotations

import numpy as np
import onnx

from tests.support import nets
from tests.support.nets import value

ANCHORS, CLASSES, ROWS = 64, 5, 8


def detector() -> onnx.ModelProto:
    """Return a head without NMS: the best anchors, of these the best pairs of anchor and class, and their boxes.

    Inputs are `logits` [1, 64, 5] and `boxes` [1, 64, 4]; the output `found` [1, 8, 6] has box, score and class.
    """
    constants = {
        "rows": np.array([ROWS]),
        "classes": np.array([CLASSES]),
        "last": np.array([2]),
        "to_classes": np.array([1, 1, CLASSES]),
        "to_box": np.array([1, 1, 4]),
    }
    make = onnx.helper.make_node
    nodes = [
        make("Sigmoid", ["logits"], ["scores"]),
        make("ReduceMax", ["scores"], ["best"], axes=[2], keepdims=0),
        make("TopK", ["best", "rows"], ["unread", "anchors"], axis=1),
        make("Unsqueeze", ["anchors", "last"], ["anchor"]),
        make("Tile", ["anchor", "to_classes"], ["at_scores"]),
        make("GatherElements", ["scores", "at_scores"], ["their_scores"], axis=1),
        make("Tile", ["anchor", "to_box"], ["at_boxes"]),
        make("GatherElements", ["boxes", "at_boxes"], ["their_boxes"], axis=1),
        make("Flatten", ["their_scores"], ["pairs"], axis=1),
        make("TopK", ["pairs", "rows"], ["score", "pair"], axis=-1),
        make("Div", ["pair", "classes"], ["row"]),
        make("Unsqueeze", ["row", "last"], ["rows_of"]),
        make("Tile", ["rows_of", "to_box"], ["at"]),
        make("GatherElements", ["their_boxes", "at"], ["box"], axis=1),
        make("Mod", ["pair", "classes"], ["label"]),
        make("Cast", ["label"], ["class"], to=onnx.TensorProto.FLOAT),
        make("Unsqueeze", ["score", "last"], ["score_column"]),
        make("Unsqueeze", ["class", "last"], ["class_column"]),
        make("Concat", ["box", "score_column", "class_column"], ["found"], axis=-1),
    ]
    ends = [value("logits", (1, ANCHORS, CLASSES)), value("boxes", (1, ANCHORS, 4))]
    return nets.model(nodes, ends, [value("found", (1, ROWS, 6))], constants)


def segmentation() -> onnx.ModelProto:
    """Return what names the class of each pixel: `x` [1, 4, 6, 6] to `y` [1, 6, 6] and the scores `s`."""
    nodes = [
        onnx.helper.make_node("Tanh", ["x"], ["s"]),
        onnx.helper.make_node("ArgMax", ["s"], ["y"], axis=1, keepdims=0),
    ]
    ends = [value("x", (1, 4, 6, 6))], [value("y", (1, 6, 6), "int64"), value("s", (1, 4, 6, 6))]
    return nets.model(nodes, *ends, {})
