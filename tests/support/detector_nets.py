"""Detectors with their suppression inside, node by node as the two exporters of PyTorch write them.

`traced` and `captured` are a head as ultralytics exports it with `nms=True`, by the exporter of TorchScript and by that
of torch.export: boxes above a score, suppression, the best of them, and padding to a fixed number. `regions` is what
torchvision's detectors end with: pairs of a box and a class above a score, suppression by class, with a branch for no
pair. All of them have boxes as corners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.support import nets
from tests.support.nets import value

ANCHORS, CLASSES, MOST, SIDE = 60, 3, 8, 640.0
SCORE, OVERLAP = 0.25, 0.2
make = helper.make_node
FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
CONSTANTS: Mapping[str, Any] = {
    "parts": np.array([4, CLASSES]), "least": np.array(SCORE, np.float32), "side": np.array(SIDE, np.float32),
    "zero": np.array([0]), "one": np.array([1]), "last": np.array([-1]), "two": np.array([2]), "three": np.array([3]),
    "column": np.array([-1, 1]), "image": np.array(0), "first": np.array(0), "four": np.array([4]),
    "both": np.array([0, 1]),
    "most": np.array([np.iinfo(np.int64).max]), "overlap": np.array([OVERLAP], np.float32), "of_index": np.array([2]),
    "kept_at_most": np.array([MOST]), "most_rows": np.array(MOST),
}  # fmt: skip


def scene(share: float, seed: int = 0, images: int = 1) -> np.ndarray:
    """Return what a head reads, [images, 4 + classes, anchors]: scores up to `share`, or all above the limit for 1."""
    stream = np.random.default_rng(seed)
    corner = 500 * stream.random((images, 2, ANCHORS), np.float32)
    far = corner + 20 + 150 * stream.random((images, 2, ANCHORS), np.float32)
    scores = stream.random((images, CLASSES, ANCHORS), np.float32)
    scores = SCORE + 0.01 + 0.7 * scores if share == 1 else share * scores
    return np.concatenate([corner, far, scores], axis=1).astype(np.float32)


def traced(images: int = 1, *, rows: int = MOST) -> onnx.ModelProto:
    """Return the head as TorchScript's exporter writes it: x [images, 7, 60] to found [images, rows, 6]."""
    nodes, constants = _head(), dict(CONSTANTS) | {"kept_at_most": np.array([rows]), "most_rows": np.array(rows)}
    slots = "empty"
    constants["empty"] = np.zeros((images, rows, 6), np.float32)
    for image in range(images):
        slots = _traced_image(nodes, constants, image, slots, rows)
    nodes.append(make("Identity", [slots], ["found"]))
    ends = [value("x", (images, 4 + CLASSES, ANCHORS))], [value("found", (images, rows, 6))]
    return nets.model(nodes, *ends, constants)


def _head() -> list[onnx.NodeProto]:
    return [
        make("Transpose", ["x"], ["rows"], perm=[0, 2, 1]),
        make("Split", ["rows", "parts"], ["boxes", "scores"], axis=2),
        make("ReduceMax", ["scores"], ["best"], axes=[-1], keepdims=0),
        make("ArgMax", ["scores"], ["classes"], axis=-1, keepdims=0),
    ]


def _traced_image(nodes: list[onnx.NodeProto], constants: dict[str, Any], image: int, slots: str, rows: int) -> str:
    def add(operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}_{len(nodes)}"
        nodes.append(make(operator, inputs, [name], name=name, **attributes))
        return name

    constants[f"image_{image}"] = np.array(image)
    constants[f"rows_{image}"] = np.stack([np.full(rows, image), np.arange(rows)], axis=1)[None]
    box, score, kind = (add("Gather", name, f"image_{image}", axis=0) for name in ("boxes", "best", "classes"))
    mask = add("Greater", score, "least")
    # Each of them is selected by a NonZero of its own.
    box, score, kind = (
        add("GatherND", data, add("Transpose", add("NonZero", mask), perm=[1, 0])) for data in (box, score, kind)
    )
    scaled = add("Div", box, "side")
    count = add("Unsqueeze", add("Gather", add("Shape", scaled), "first", axis=0), "zero")
    shape = add("Concat", count, "four", axis=0)
    filled = add("ConstantOfShape", add("Shape", shape), value=helper.make_tensor("v", INT64, [1], [1]))
    shape = add("Where", add("Equal", shape, add("Mul", filled, "last")), filled, shape)
    offset = add("Cast", add("Expand", add("Reshape", kind, "column"), shape), to=FLOAT)
    apart = add("Unsqueeze", add("Add", add("Slice", scaled, "zero", "four", "one", "one"), offset), "zero")
    listed = add("Unsqueeze", add("Unsqueeze", score, "zero"), "zero")
    chosen = add("NonMaxSuppression", apart, listed, "most", "overlap")
    index = add("Squeeze", add("Gather", chosen, "of_index", axis=1), "one")
    index = add("Slice", index, "zero", "kept_at_most", "zero", "one")
    columns = [add("Gather", data, index, axis=0) for data in (box, score, kind)]
    columns[1:] = [add("Reshape", column, "column") for column in columns[1:]]
    columns[2] = add("Cast", columns[2], to=FLOAT)
    rows_found = add("Concat", *columns, axis=-1)
    missing = add("Sub", "most_rows", add("Gather", add("Shape", rows_found), "first", axis=0))
    pads = add(
        "Slice", add("Concat", "zero", "zero", add("Unsqueeze", missing, "zero"), "zero", axis=0), "zero", "four"
    )
    padded = add("Unsqueeze", add("Pad", rows_found, pads), "zero")
    return add("ScatterND", slots, f"rows_{image}", padded)


def captured() -> onnx.ModelProto:
    """Return the head as torch.export's exporter writes it, of one image: x [1, 7, 60] to found [1, 8, 6]."""
    nodes = [
        *_head(),
        *(make("Gather", [name, "image"], [f"{name}_0"], axis=0) for name in ("boxes", "best", "classes")),
        make("Greater", ["best_0", "least"], ["mask"]),
        make("NonZero", ["mask"], ["places"], name="above"),
        make("Transpose", ["places"], ["listed"], perm=[1, 0]),
        make("Squeeze", ["listed", "one"], ["flat"]),
        make("Max", ["flat"], ["same"]),
        make("Shape", ["same"], ["their_shape"]),
        make("Expand", ["flat", "their_shape"], ["spread"]),
        make("Unsqueeze", ["spread", "last"], ["index"]),
        *(make("GatherND", [f"{name}_0", "index"], [f"{name}_kept"]) for name in ("boxes", "best", "classes")),
        make("Shape", ["boxes_kept"], ["count"], start=0, end=1),
        make("Div", ["boxes_kept", "side"], ["scaled"]),
        make("Reshape", ["classes_kept", "column"], ["as_column"], allowzero=1),
        make("Concat", ["count", "four"], ["wide"], axis=0),
        make("Expand", ["as_column", "wide"], ["offset"]),
        make("Cast", ["offset"], ["offset_float"], to=FLOAT),
        make("Add", ["scaled", "offset_float"], ["apart"]),
        make("Unsqueeze", ["apart", "zero"], ["nms_boxes"]),
        make("Unsqueeze", ["best_kept", "both"], ["nms_scores"]),
        make("NonMaxSuppression", ["nms_boxes", "nms_scores", "most", "overlap"], ["chosen"], name="suppress"),
        make("Slice", ["chosen", "two", "three", "one"], ["box_column"]),
        make("Reshape", ["box_column", "last"], ["kept"]),
        make("Shape", ["kept"], ["kept_shape"], start=0, end=1),
        make("Squeeze", ["kept_shape"], ["kept_count"]),
        make("Slice", ["kept", "zero", "kept_at_most", "zero", "one"], ["best_ones"]),
        make("Unsqueeze", ["best_ones", "last"], ["by_row"]),
        *(make("GatherND", [f"{name}_kept", "by_row"], [f"{name}_last"]) for name in ("boxes", "best", "classes")),
        make("Reshape", ["best_last", "column"], ["score_column"], allowzero=1),
        make("Reshape", ["classes_last", "column"], ["class_column"], allowzero=1),
        make("Cast", ["class_column"], ["class_float"], to=FLOAT),
        make("Concat", ["boxes_last", "score_column", "class_float"], ["joined"], axis=-1),
        make("Min", ["kept_count", "most_rows"], ["there"]),
        make("Sub", ["most_rows", "there"], ["missing"]),
        make("Reshape", ["missing", "last"], ["missing_list"]),
        make("Concat", ["zero", "zero", "missing_list", "zero"], ["pads"], axis=0),
        make("Pad", ["joined", "pads"], ["padded"]),
        make("Unsqueeze", ["padded", "zero"], ["found"]),
    ]
    ends = [value("x", (1, 4 + CLASSES, ANCHORS))], [value("found", (1, MOST, 6))]
    return nets.model(nodes, *ends, CONSTANTS, opset=17)


def regions() -> onnx.ModelProto:
    """Return the end of torchvision's detectors: x [1, 7, 60] to boxes [n, 4], scores [n] and labels [n], n up to 8."""
    constants = dict(CONSTANTS) | {
        "classes_wide": np.array(CLASSES),
        "no_count": np.array(0),
        "unit": np.array(1, np.float32),
    }
    nodes = [
        make("Transpose", ["x"], ["rows"], perm=[0, 2, 1]),
        make("Squeeze", ["rows", "zero"], ["anchors"]),
        make("Split", ["anchors", "parts"], ["corners", "logits"], axis=1),
        make("Reshape", ["logits", "last"], ["pairs"]),
        make("Greater", ["pairs", "least"], ["mask"]),
        make("NonZero", ["mask"], ["places"], name="above"),
        make("Transpose", ["places"], ["listed"], perm=[1, 0]),
        make("Squeeze", ["listed", "one"], ["pair"]),
        make("Gather", ["pairs", "pair"], ["score"], axis=0),
        make("Div", ["pair", "classes_wide"], ["anchor"]),
        make("Mod", ["pair", "classes_wide"], ["label"]),
        make("Gather", ["corners", "anchor"], ["box"], axis=0),
        make("Shape", ["box"], ["box_shape"]),
        make("ReduceProd", ["box_shape"], ["elements"], keepdims=0),
        make("Equal", ["elements", "no_count"], ["equal"]),
        make("Cast", ["equal"], ["is_empty"], to=BOOL),
        make("If", ["is_empty"], ["chosen"], name="none", then_branch=_nothing(), else_branch=_by_class()),
        make("Slice", ["chosen", "zero", "kept_at_most", "zero", "one"], ["best"]),
        *(make("Gather", [name, "best"], [out], axis=0) for name, out in _ENDS.items()),
    ]
    outputs = [value("boxes", ("n", 4)), value("scores", ("n",)), value("labels", ("n",), "int64")]
    return nets.model(nodes, [value("x", (1, 4 + CLASSES, ANCHORS))], outputs, constants)


_ENDS = {"box": "boxes", "score": "scores", "label": "labels"}


def _nothing() -> onnx.GraphProto:
    nodes = [
        make("Constant", [], ["size"], value=helper.make_tensor("s", INT64, [1], [0])),
        make("ConstantOfShape", ["size"], ["no_box"], value=helper.make_tensor("v", INT64, [1], [0])),
    ]
    return helper.make_graph(nodes, "nothing", [], [value("no_box", ("n",), "int64")])


def _by_class() -> onnx.GraphProto:
    """Return suppression by class: boxes of different classes are moved apart by more than the farthest corner."""
    nodes = [
        make("ReduceMax", ["box"], ["farthest"], keepdims=0),
        make("Cast", ["label"], ["label_float"], to=FLOAT),
        make("Add", ["farthest", "unit"], ["step"]),
        make("Mul", ["label_float", "step"], ["offset"]),
        make("Unsqueeze", ["offset", "one"], ["offset_column"]),
        make("Add", ["box", "offset_column"], ["moved"]),
        make("Unsqueeze", ["moved", "zero"], ["nms_boxes"]),
        make("Unsqueeze", ["score", "both"], ["nms_scores"]),
        make("NonMaxSuppression", ["nms_boxes", "nms_scores", "most", "overlap"], ["triples"], name="suppress"),
        make("Gather", ["triples", "of_index"], ["box_column"], axis=1),
        make("Squeeze", ["box_column", "one"], ["kept"]),
    ]
    return helper.make_graph(nodes, "by_class", [], [value("kept", ("m",), "int64")])


NETS = {"traced": traced, "captured": captured, "regions": regions}


def expected(proto: onnx.ModelProto, data: np.ndarray) -> Sequence[np.ndarray]:
    """Return what ONNX Runtime computes."""
    return nets.run(proto, {"x": data})
