"""What exporters write around the layers is gone before the import, and the results stay."""

from __future__ import annotations

import collections

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support import nets
from tests.support.nets import node, value
from toolchain.errors import InputError
from toolchain.models import simplify, source, zoo

PLAIN = frozenset(
    {"Add", "Concat", "Gather", "Identity", "Mul", "Relu", "Reshape", "Transpose", "Unsqueeze", "com.microsoft.Gelu"}
)


def simple(proto, tmp_path, shapes=None, convertible=PLAIN, fixed=None):
    """Simplify a model, and compare what both compute."""
    loaded = source.load(nets.save(proto, tmp_path), shapes, fixed=fixed)
    simplified = simplify.simplified(loaded, convertible)
    stream = np.random.default_rng(0)
    feeds = {spec.name: stream.standard_normal(spec.shape).astype(spec.dtype) for spec in loaded.inputs}
    if not any(item.domain or "." in item.op_type for item in simplified.graph.node):
        for output, expected in zip(
            nets.run(simplified, feeds), nets.run(source.as_declared(loaded), feeds), strict=True
        ):
            np.testing.assert_allclose(output, expected, rtol=1e-6, atol=1e-6)
    return simplified


def counted(proto):
    return dict(collections.Counter(item.op_type for item in proto.graph.node))


def test_a_network_of_plain_layers_is_left_as_it_is():
    loaded = source.load("squeezenet_v1.1")
    convertible = {item.op_type for item in loaded.proto.graph.node}
    assert simplify.simplified(loaded, convertible) == loaded.proto
    assert "squeezenet_v1.1" in zoo.NAMES


def test_chains_of_shapes_are_folded(tmp_path):
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Constant", [], ["first"], value=numpy_helper.from_array(np.array([0]))),
        node("Gather", ["s", "first"], ["n"]),
        node("Concat", ["n", "rest"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["y"]),
    ]
    ends = [value("x", ("batch", 3, "side"))], [value("y", None)]
    simplified = simple(nets.model(nodes, *ends, {"rest": np.array([-1])}), tmp_path, {"x": (2, 3, 4)})
    assert counted(simplified) == {"Reshape": 1}


def branches(condition, weights):
    def branch(operator, name):
        return nets.graph([node(operator, ["x"], [name])], [], [value(name, None)])

    choose = node("If", ["c"], ["y"], then_branch=branch("Relu", "a"), else_branch=branch("Neg", "b"))
    return nets.model([*condition, choose], [value("x", (2, 3)), value("k", (), "int64")], [value("y", None)], weights)


@pytest.mark.parametrize(("fixed", "remaining"), [("16", {"Relu": 1}), ("8", {"Neg": 1})])
def test_a_branch_on_a_fixed_input(fixed, remaining, tmp_path):
    proto = branches([node("Equal", ["k", "rate"], ["c"])], {"rate": np.array(16)})
    assert counted(simple(proto, tmp_path, fixed={"k": fixed}, convertible=PLAIN | {"Neg"})) == remaining


def test_a_branch_for_other_shapes_is_never_looked_at(tmp_path):
    inner = nets.graph([node("MatMul", ["x", "narrow"], ["a"])], [], [value("a", None)])
    other = nets.graph([node("MatMul", ["x", "wide"], ["b"])], [], [value("b", None)])
    nodes = [node("Equal", ["k", "one"], ["c"]), node("If", ["c"], ["y"], then_branch=inner, else_branch=other)]
    weights = {"one": np.array(1), "narrow": np.ones((3, 2), "float32"), "wide": np.ones((5, 2), "float32")}
    ends = [value("x", ("batch", "width")), value("k", (), "int64")], [value("y", None)]
    simplified = simple(
        nets.model(nodes, *ends, weights), tmp_path, {"x": (1, 3)}, fixed={"k": "1"}, convertible={"MatMul"}
    )
    assert counted(simplified) == {"MatMul": 1}


def loop(trips, condition="", goes_on=None, extra=()):
    body = helper.make_graph(
        [
            goes_on or node("Identity", ["on"], ["still"]),
            node("Cast", ["i"], ["number"], to=TensorProto.FLOAT),
            node("Add", ["state", "number"], ["sum"]),
            node("Mul", ["sum", "x"], ["next"]),
            *extra,
        ],
        "body",
        [value("i", (), "int64"), value("on", (), "bool"), value("state", (2, 3))],
        [value("still", (), "bool"), value("next", (2, 3)), value("sum", (2, 3))],
        [numpy_helper.from_array(np.float32(2), "two")],
    )
    nodes = [node("Loop", ["trips", condition, "x"], ["last", "all"], name="rounds", body=body)]
    weights = {"trips": np.array(trips), "yes": np.ones((), bool)}
    return nets.model(nodes, [value("x", (2, 3))], [value("last", None), value("all", None)], weights)


@pytest.mark.parametrize("condition", ["", "yes"])
@pytest.mark.parametrize(
    "goes_on", [None, node("Constant", [], ["still"], value=numpy_helper.from_array(np.ones((), bool)))]
)
def test_a_loop_is_unrolled(condition, goes_on, tmp_path):
    simplified = simple(loop(3, condition, goes_on), tmp_path)
    assert "Loop" not in counted(simplified)
    assert counted(simplified)["Mul"] == 3


def test_a_loop_in_a_loop_reads_from_both(tmp_path):
    inner = helper.make_graph(
        [node("Identity", ["on2"], ["still2"]), node("Add", ["state2", "sum"], ["next2"])],
        "inner",
        [value("i2", (), "int64"), value("on2", (), "bool"), value("state2", (2, 3))],
        [value("still2", (), "bool"), value("next2", (2, 3))],
    )
    extra = [node("Loop", ["trips", "", "x"], ["unused"], name="inside", body=inner)]
    simplified = simple(loop(2, extra=extra), tmp_path)
    assert "Loop" not in counted(simplified)


def test_a_loop_that_ends_when_its_data_says_so_is_left(tmp_path):
    maximum = node("ReduceMax", ["state"], ["most"], keepdims=0)
    stops = node("Less", ["most", "two"], ["still"])
    assert counted(simple(loop(3, goes_on=maximum, extra=[stops]), tmp_path))["Loop"] == 1


def test_a_loop_that_counts_by_itself_is_unrolled(tmp_path):
    stops = node("Less", ["i", "trips"], ["still"])
    simplified = simple(loop(3, goes_on=stops), tmp_path)
    assert counted(simplified)["Mul"] == 3


@pytest.mark.parametrize(("trips", "pattern"), [(10_000, "too long to be unrolled"), (0, "has no rounds")])
def test_a_loop_that_cannot_be_unrolled(trips, pattern, tmp_path):
    with pytest.raises(InputError, match=f"Loop node 'rounds' .*{pattern}"):
        simplify.simplified(source.load(nets.save(loop(trips), tmp_path)), PLAIN)


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_is_unrolled(backwards, axis, tmp_path):
    body = helper.make_graph(
        [node("Add", ["state", "part"], ["next"]), node("Mul", ["next", "part"], ["made"])],
        "body",
        [value("state", (3,)), value("part", (3,))],
        [value("next", (3,)), value("made", (3,))],
    )
    options = {"scan_input_axes": [axis], "scan_output_axes": [1 - axis]}
    turned = {"scan_input_directions": [backwards], "scan_output_directions": [1 - backwards]}
    nodes = [node("Scan", ["start", "x"], ["last", "all"], body=body, num_scan_inputs=1, **options, **turned)]
    ends = [value("x", (3, 3))], [value("last", None), value("all", None)]
    simplified = simple(nets.model(nodes, *ends, {"start": np.ones(3, "float32")}), tmp_path)
    assert "Scan" not in counted(simplified)
    assert counted(simplified)["Add"] == 3


def test_functions_of_the_file_are_inlined(tmp_path):
    inside = [node("Relu", ["a"], ["t"]), node("Add", ["t", "a"], ["b"])]
    function = helper.make_function("mine", "Twice", ["a"], ["b"], inside, [helper.make_opsetid("", 17)])
    proto = nets.model([node("Twice", ["x"], ["y"], domain="mine")], [value("x", (2, 3))], [value("y", None)])
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    assert counted(simple(proto, tmp_path)) == {"Relu": 1, "Add": 1}


def test_functions_of_the_standard_that_nobody_converts_are_expanded(tmp_path):
    proto = nets.model([node("HardSwish", ["x"], ["y"])], [value("x", (2, 3))], [value("y", None)])
    assert counted(simple(proto, tmp_path, convertible={"HardSwish"})) == {"HardSwish": 1}
    assert "HardSwish" not in counted(simple(proto, tmp_path, convertible={"HardSigmoid", "Mul"}))


def test_old_operators_are_converted(tmp_path):
    proto = nets.model(
        [node("Squeeze", ["x"], ["s"], axes=[0]), node("Softmax", ["s"], ["y"], axis=1)],
        [value("x", (1, 2, 3, 4))], [value("y", None)], opset=11,
    )  # fmt: skip
    simplified = simple(proto, tmp_path)
    assert [entry.version for entry in simplified.opset_import if not entry.domain] == [13]


def test_an_opset_of_the_future_is_refused(tmp_path):
    loaded = source.load(nets.save(nets.relu(), tmp_path))
    loaded.proto.opset_import[0].version = 999
    with pytest.raises(InputError, match="the opset of the model is 999"):
        simplify.simplified(loaded, PLAIN)


def test_other_domains_are_a_part_of_the_name(tmp_path):
    proto = nets.model([node("Gelu", ["x"], ["y"], domain="com.microsoft")], [value("x", (2, 3))], [value("y", (2, 3))])
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    simplified = simple(proto, tmp_path)
    assert [(item.op_type, item.domain) for item in simplified.graph.node] == [("com.microsoft.Gelu", "")]


def test_what_onnx_runtime_cannot_load_is_left_to_the_importer(tmp_path):
    nodes = [node("Shape", ["x"], ["s"]), node("Mine", ["s"], ["y"], domain="mine")]
    proto = nets.model(nodes, [value("x", (2, 3))], [value("y", (2,), "int64")])
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    assert counted(simple(proto, tmp_path)) == {"Shape": 1, "mine.Mine": 1}


def test_the_file_stays_as_it_is(tmp_path):
    loaded = source.load(nets.save(loop(3), tmp_path))
    before = loaded.proto.SerializeToString(deterministic=True)
    first = simplify.simplified(loaded, PLAIN)
    assert loaded.proto.SerializeToString(deterministic=True) == before
    assert simplify.simplified(loaded, PLAIN).SerializeToString(deterministic=True) == first.SerializeToString(
        deterministic=True
    )
    assert isinstance(first, onnx.ModelProto)
