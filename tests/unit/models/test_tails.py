"""Tails behind an operator whose number of results depends on the data: compiled as a whole, or refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support import nets
from tests.unit.models.test_bounded import model, results
from toolchain.errors import InputError
from toolchain.models import importer, source, tails
from toolchain.tensors import Bound

BOXES, CLASSES = 12, 3
make = helper.make_node


def detector():
    """Return a head with its suppression inside, as exporters write it: box, score and class of each result."""
    nodes = [
        make("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["chosen"], name="nms"),
        make("Gather", ["chosen", "column"], ["box_column"], axis=1),
        make("Squeeze", ["box_column", "column_axis"], ["box_index"]),
        make("Gather", ["first", "box_index"], ["box"], axis=0),
        make("Slice", ["chosen", "from", "to", "columns"], ["class_index"]),
        make("Cast", ["class_index"], ["class"], to=onnx.TensorProto.FLOAT),
        make("Transpose", ["of_boxes"], ["by_box"], perm=[1, 0]),
        make("Concat", ["box_2d", "class_index"], ["pair"], axis=1),
        make("GatherND", ["by_box", "pair"], ["score"]),
        make("Reshape", ["score", "as_column"], ["score_column"]),
        make("Mul", ["box", "scale"], ["scaled"]),
        make("Concat", ["scaled", "score_column", "class"], ["found"], axis=1),
    ]
    before = [
        make("Squeeze", ["boxes", "zero"], ["first"]),
        make("Squeeze", ["scores", "zero"], ["of_boxes"]),
    ]
    after = [make("Reshape", ["box_index", "as_column"], ["box_2d"])]
    nodes = [*before, *nodes[:3], *after, *nodes[3:]]
    constants = {
        "most": np.array([4]), "overlap": np.array([0.5], np.float32), "least": np.array([0.3], np.float32),
        "column": np.array([2]), "column_axis": np.array([1]), "from": np.array([1]), "to": np.array([2]),
        "columns": np.array([1]), "zero": np.array([0]), "as_column": np.array([-1, 1]),
        "scale": np.array([[2.0, 3.0, 4.0, 5.0]], np.float32),
    }  # fmt: skip
    ends = [("boxes", np.zeros((1, BOXES, 4), "float32")), ("scores", np.zeros((1, CLASSES, BOXES), "float32"))]
    return model(nodes, ends, ("found",), constants)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_detector_with_its_suppression_inside(share):
    stream = np.random.default_rng(0)
    corner = stream.random((1, BOXES, 2), np.float32)
    boxes = np.concatenate([corner, corner + 0.1 + 0.3 * stream.random((1, BOXES, 2), np.float32)], axis=2)
    scores = (share * (0.3 + stream.random((1, CLASSES, BOXES)))).astype(np.float32)
    proto = detector()
    (wanted,) = nets.run(proto, {"boxes": boxes, "scores": scores})
    (found,) = results(proto, boxes, scores)
    assert found.shape == wanted.shape
    assert len(found) == 0 if share == 0 else len(found) > CLASSES
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_all_outputs_of_a_tail_share_a_count(tmp_path):
    nodes = [
        make("NonZero", ["x"], ["places"]),
        make("Transpose", ["places"], ["rows"]),
        make("Split", ["rows"], ["y", "z"], axis=1, num_outputs=2),
    ]
    path = tmp_path / "tail.onnx"
    data = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
    proto = model(nodes, [("x", data)], ("rows", "y", "z"))
    onnx.save(proto, path)
    rows, first, second, count = importer.import_model(source.load(str(path))).outputs
    assert [rows.bound, first.bound, second.bound] == [Bound(0, count.name)] * 3
    wanted = np.argwhere(data)
    for found, expected in zip(results(proto, data), (wanted, wanted[:, :1], wanted[:, 1:]), strict=True):
        np.testing.assert_array_equal(found, expected)


FLOATS = {
    "table": np.ones((6, 2), "float32"),
    "row": np.ones((1, 6), "float32"),
    "axis": np.array(0),
    "axes": np.array([0]),
}


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([make("ReduceSum", ["rows", "axes"], ["y"])], id="a sum of the results"),
        pytest.param([make("Shape", ["rows"], ["y"])], id="their number"),
        pytest.param([make("Gather", ["rows", "axes"], ["y"], axis=0)], id="one of them"),
        pytest.param([make("Concat", ["rows", "rows"], ["y"], axis=0)], id="joined with others"),
        pytest.param([make("Cast", ["places"], ["f"], to=1), make("Add", ["f", "row"], ["y"])], id="another size"),
        pytest.param([make("Reshape", ["rows", "flat"], ["y"])], id="cut into others"),
        pytest.param([make("CumSum", ["rows", "axis"], ["y"])], id="an unknown operator"),
        pytest.param([make("Softmax", ["float"], ["y"], axis=0)], id="a share of all"),
    ],
)
def test_what_needs_the_number_of_results_is_refused(nodes, tmp_path):
    first = [
        make("NonZero", ["x"], ["places"], name="where"),
        make("Transpose", ["places"], ["rows"]),
        make("Cast", ["rows"], ["float"], to=1),
    ]
    proto = model([*first, *nodes], [("x", np.zeros((2, 3), "float32"))], constants=FLOATS | {"flat": np.array([-1])})
    assert tails.followed(proto, "places", 1) == {}
    onnx.save(proto, tmp_path / "middle.onnx")
    with pytest.raises(InputError, match=r"cannot be compiled|cannot import"):
        importer.import_model(source.load(str(tmp_path / "middle.onnx")))
