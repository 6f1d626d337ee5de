"""Tails behind an operator whose number of results depends on the data: compiled as a whole, or refused."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support import detector_nets, nets
from tests.unit.models.test_bounded import model, results
from toolchain.errors import InputError
from toolchain.models import importer, source
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
    (expected,) = nets.run(proto, {"boxes": boxes, "scores": scores})
    (output,) = results(proto, boxes, scores)
    assert output.shape == expected.shape
    assert len(output) == 0 if share == 0 else len(output) > CLASSES
    np.testing.assert_allclose(output, expected, rtol=1e-6)


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
    coordinates = np.argwhere(data)
    for output, expected in zip(
        results(proto, data), (coordinates, coordinates[:, :1], coordinates[:, 1:]), strict=True
    ):
        np.testing.assert_array_equal(output, expected)


NONE, SOME, FEW, ALL = 0.0, 0.255, 0.6, 1


@pytest.mark.parametrize("share", [NONE, SOME, FEW, ALL])
@pytest.mark.parametrize("name", detector_nets.NETS)
def test_detectors_as_exporters_write_them(name, share):
    proto, data = detector_nets.NETS[name](), detector_nets.scene(share)
    theirs = detector_nets.expected(proto, data)
    ours = results(proto, data)
    for got, other in zip(ours, theirs, strict=True):
        assert got.shape == other.shape
        np.testing.assert_allclose(got, other, rtol=1e-6)
    rows = [int((output[..., 4] > 0).sum()) if output.ndim == 3 else len(output) for output in theirs]
    above = int((data[:, 4:].max(axis=1) > detector_nets.SCORE).sum())
    assert rows[0] == {NONE: 0, SOME: rows[0], FEW: detector_nets.MOST, ALL: detector_nets.MOST}[share]
    assert share != SOME or 0 < rows[0] < detector_nets.MOST
    assert share != ALL or above == detector_nets.ANCHORS


@pytest.mark.parametrize("share", [NONE, SOME, ALL])
def test_each_image_has_results_of_its_own(share):
    proto, data = detector_nets.traced(2), detector_nets.scene(share, images=2)
    data[1] = detector_nets.scene(FEW, 1)[0]
    (theirs,), (ours,) = detector_nets.expected(proto, data), results(proto, data)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert (theirs[1, :, 4] > 0).all()


def test_room_for_every_anchor():
    proto, data = detector_nets.traced(rows=detector_nets.ANCHORS), detector_nets.scene(ALL)
    (theirs,), (ours,) = detector_nets.expected(proto, data), results(proto, data)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert detector_nets.MOST < (theirs[0, :, 4] > 0).sum() < detector_nets.ANCHORS


CONSTANTS = {
    "table": np.arange(14, dtype="float32").reshape(7, 2),
    "row": np.ones((1, 6), "float32"),
    "matrix": np.arange(6, dtype="float32").reshape(2, 3),
    "axis": np.array(0),
    "axes": np.array([0]),
    "one": np.array([1]),
    "flat": np.array([-1]),
    "zero": np.array([0]),
    "two": np.array([2]),
    "all_but_one": np.array([-1]),
    "all": np.array([np.iinfo(np.int64).max]),
    "scalar_1": np.array(1),
    "first": np.array(0),
    "three": np.array([3]),
    "pads": np.array([1, 0, 2, 0]),
    "value": np.array(7.0, np.float32),
    "six": np.array([6]),
    "half": np.array(0.5, np.float32),
}
FIRST = [
    make("NonZero", ["x"], ["places"], name="where"),
    make("Transpose", ["places"], ["rows"]),
    make("Cast", ["rows"], ["float"], to=1),
    make("Shape", ["rows"], ["sizes"]),
    make("Gather", ["sizes", "axes"], ["number"]),
    make("Slice", ["rows", "one", "two", "one"], ["column"]),
    make("Squeeze", ["column", "one"], ["index"]),
]


def _after(nodes):
    return model([*FIRST, *nodes], [("x", np.zeros((2, 3), "float32"))], constants=CONSTANTS)


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([make("ReduceSum", ["float", "axes"], ["y"])], id="a sum"),
        pytest.param([make("ReduceProd", ["float"], ["y"], keepdims=0)], id="a product of all"),
        pytest.param([make("ReduceSum", ["float", "one"], ["y"])], id="a sum of each"),
        pytest.param([make("Shape", ["rows"], ["y"])], id="their number"),
        pytest.param([make("Size", ["rows"], ["y"])], id="the number of their elements"),
        pytest.param([make("Cast", ["number"], ["n"], to=1), make("Div", ["float", "n"], ["y"])], id="divided by it"),
        pytest.param([make("Concat", ["rows", "rows"], ["y"], axis=0)], id="twice"),
        pytest.param([make("Concat", ["float", "table", "float"], ["y"], axis=0)], id="between others"),
        pytest.param([make("Concat", ["rows", "rows"], ["y"], axis=1)], id="side by side"),
        pytest.param([make("Reshape", ["rows", "flat"], ["y"])], id="flat"),
        pytest.param([make("Flatten", ["rows"], ["y"], axis=0)], id="flattened"),
        pytest.param([make("Slice", ["rows", "zero", "two", "axes"], ["y"])], id="the first two"),
        pytest.param([make("Slice", ["rows", "one", "all", "axes"], ["y"])], id="all but the first"),
        pytest.param([make("Slice", ["rows", "zero", "all_but_one", "axes"], ["y"])], id="all but the last"),
        pytest.param([make("Slice", ["rows", "zero", "number", "axes"], ["y"])], id="as many as there are"),
        pytest.param([make("Gather", ["table", "index"], ["y"])], id="rows of a table"),
        pytest.param([make("Neg", ["index"], ["n"]), make("Gather", ["table", "n"], ["y"])], id="from its end"),
        pytest.param([make("Add", ["index", "two"], ["n"]), make("Gather", ["table", "n"], ["y"])], id="further on"),
        pytest.param(
            [make("Sub", ["index", "two"], ["m"]), make("Abs", ["m"], ["n"]), make("Gather", ["table", "n"], ["y"])],
            id="an index that is large behind the results",
        ),
        pytest.param([make("Expand", ["value", "number"], ["y"])], id="a value for each"),
        pytest.param([make("Mul", ["number", "two"], ["n"]), make("ConstantOfShape", ["n"], ["y"])], id="two for each"),
        pytest.param(
            [make("Squeeze", ["number"], ["n"]), make("Range", ["first", "n", "scalar_1"], ["y"])], id="counted"
        ),
        pytest.param([make("Pad", ["float", "pads", "value"], ["y"])], id="padding around"),
        pytest.param(
            [
                make("Sub", ["six", "number"], ["n"]),
                make("Concat", ["zero", "zero", "n", "zero"], ["p"], axis=0),
                make("Pad", ["float", "p", "value"], ["y"]),
            ],
            id="padding to a fixed number",
        ),
        pytest.param(
            [make("Min", ["number", "two"], ["k"]), make("TopK", ["float", "k"], ["y", "z"], axis=0)], id="the best two"
        ),
        pytest.param([make("TopK", ["float", "one"], ["y", "z"], axis=1)], id="the best of each"),
        pytest.param([make("NonZero", ["rows"], ["y"])], id="places among the results"),
        pytest.param(
            [make("Greater", ["index", "first"], ["c"]), make("Compress", ["rows", "c"], ["y"], axis=0)], id="a choice"
        ),
        pytest.param(
            [
                make("Greater", ["index", "first"], ["c"]),
                make("NonZero", ["c"], ["n"]),
                make("Squeeze", ["n", "zero"], ["at"]),
                make("Sub", ["at", "number"], ["m"]),
                make("Gather", ["float", "m"], ["y"]),
            ],
            id="a choice from the end",
        ),
        pytest.param(
            [make("Add", ["index", "one"], ["n"]), make("Div", ["index", "n"], ["m"]), make("Mod", ["m", "n"], ["y"])],
            id="whole divisions",
        ),
        pytest.param([make("MatMul", ["float", "matrix"], ["y"])], id="a product with a matrix"),
        pytest.param([make("Gemm", ["float", "matrix"], ["y"])], id="a layer"),
        pytest.param([make("ArgMax", ["float"], ["y"], axis=1)], id="the largest of each"),
    ],
)
def test_what_follows_the_results(nodes):
    """For no result, one, some and all of them; ONNX Runtime says what is right."""
    proto = _after(nodes)
    for selected in ([], [4], [1, 3, 5], range(6)):
        data = np.zeros(6, np.float32)
        data[list(selected)] = 1
        data = data.reshape(2, 3)
        theirs = nets.run(proto, {"x": data})
        for got, other in zip(results(proto, data), theirs, strict=True):
            assert (got.shape, got.dtype) == (other.shape, other.dtype)
            np.testing.assert_array_equal(got, other)


@pytest.mark.parametrize(
    ("operator", "selected"), [("ReduceMax", [1]), ("ReduceMin", [1, 3, 5]), ("ArgMax", [1, 5]), ("ArgMin", [4, 5])]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_what_lies_behind_the_results_is_no_extreme(operator, selected, sign):
    """What is there is far from 0, on either side: ONNX Runtime has no answer for no result."""
    data = np.zeros((2, 3), np.float32)
    data.reshape(-1)[selected] = 1
    nodes = [make("Sub", ["float", "value"], ["far"]) if sign < 0 else make("Add", ["float", "value"], ["far"])]
    is_index = operator.startswith("Arg")
    nodes.append(make(operator, ["far"], ["y"], axis=0) if is_index else make(operator, ["far", "axes"], ["y"]))
    proto = _after(nodes)
    np.testing.assert_array_equal(results(proto, data)[0], nets.run(proto, {"x": data})[0])


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        pytest.param([make("Gather", ["rows", "axes"], ["y"], axis=0)], "may not be there", id="one of them"),
        pytest.param([make("Add", ["places", "index_6"], ["y"])], "another size", id="another size"),
        pytest.param([make("TopK", ["float", "two"], ["y", "z"], axis=0)], "more results", id="two of them"),
        pytest.param([make("CumSum", ["rows", "axis"], ["y"])], "CumSum node 'y' uses them", id="an unknown operator"),
        pytest.param([make("Softmax", ["float"], ["y"], axis=0)], "not treated by themselves", id="a share of all"),
        pytest.param([make("ReduceMean", ["float", "axes"], ["y"])], "ReduceMean node", id="their mean"),
        pytest.param([make("Slice", ["rows", "zero", "all", "axes", "two"], ["y"])], "every few", id="every second"),
        pytest.param(
            [make("Transpose", ["rows"], ["t"]), make("MatMul", ["t", "rows"], ["y"])], "", id="their products"
        ),
        pytest.param([make("Expand", ["index", "three"], ["y"])], "another size|repeated", id="one that is repeated"),
    ],
)
def test_what_needs_the_number_of_results_is_refused(nodes, reason, tmp_path):
    constants = CONSTANTS | {"index_6": np.zeros((1, 6), np.int64)}
    proto = model([*FIRST, *nodes], [("x", np.zeros((2, 3), "float32"))], constants=constants)
    onnx.save(proto, tmp_path / "middle.onnx")
    with pytest.raises(InputError, match=r"NonZero node 'where' cannot be compiled") as caught:
        importer.import_model(source.load(str(tmp_path / "middle.onnx")))
    assert re.search(reason, caught.value.details)


def test_a_branch_that_is_not_for_no_results_is_refused(tmp_path):
    proto = detector_nets.regions()
    branch = next(node for node in proto.graph.node if node.op_type == "If")
    nothing = next(attribute.g for attribute in branch.attribute if attribute.name == "then_branch")
    nothing.node[0].attribute[0].t.int64_data[:] = [3]
    onnx.save(proto, tmp_path / "branch.onnx")
    with pytest.raises(InputError, match="cannot be compiled") as caught:
        importer.import_model(source.load(str(tmp_path / "branch.onnx")))
    assert "other branch has results of its own" in caught.value.details
