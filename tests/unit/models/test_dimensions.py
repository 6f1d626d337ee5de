"""Open dimensions of inputs, set by their names."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support import exported, nets
from tests.support.nets import node, value
from toolchain.errors import InputError
from toolchain.models import dimensions, inputs, reference, signature, source
from toolchain.models.request import Model

DECODER = (
    value("ids", ("batch_size", "length")),
    value("mask", ("batch_size", "past + length")),
    value("past", ("batch_size", 2, "past", 4)),
)


def with_inputs(*values):
    return nets.model([node("Identity", [values[0].name], ["y"])], values, [value("y", None)])


def shapes(proto):
    return {spec.name: spec.shape for spec in signature.specs(proto)}


def constants(proto):
    return {tensor.name: numpy_helper.to_array(tensor).shape for tensor in proto.graph.initializer}


@pytest.mark.parametrize("past", [0, 5])
def test_a_name_sets_every_input_that_has_it(past):
    proto = with_inputs(*DECODER)
    lines = signature.set_shapes(proto, {}, {"past": past, "length": 3})
    assert all("using a batch of 1 (set another with --dim batch_size=SIZE)" in line for line in lines)
    expected = {"ids": (1, 3), "mask": (1, past + 3), "past": (1, 2, past, 4)}
    assert shapes(proto) | constants(proto) == expected
    assert ("past" in constants(proto)) == (past == 0)


def test_a_batch_is_set_by_name_and_not_guessed():
    proto = with_inputs(*DECODER)
    assert signature.set_shapes(proto, {}, {"past": 0, "length": 1, "batch_size": 2}) == ()
    assert shapes(proto) | constants(proto) == {"ids": (2, 1), "mask": (2, 1), "past": (2, 2, 0, 4)}


def test_what_was_inferred_from_open_dimensions_is_dropped():
    proto = onnx.shape_inference.infer_shapes(
        nets.model(
            [node("Relu", ["x"], ["z"]), node("Relu", ["z"], ["y"])], [value("x", ("n", 3))], [value("y", ("n", 3))]
        )
    )
    assert proto.graph.value_info
    signature.set_shapes(proto, {}, {"n": 4})
    assert not proto.graph.value_info
    assert not proto.graph.output[0].type.tensor_type.HasField("shape")


def test_names_and_shapes_that_agree_are_combined():
    proto = with_inputs(*DECODER)
    signature.set_shapes(proto, {"mask": (2, 4)}, {"past": 3, "length": 1})
    assert shapes(proto) == {"ids": (2, 1), "mask": (2, 4), "past": (2, 2, 3, 4)}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [({"ids": (1, 5)}, "dimension length: 1 and 5"), ({"mask": (1, 9)}, r"dimension past \+ length: 4 and 9")],
)
def test_names_and_shapes_that_disagree(shapes, message):
    with pytest.raises(InputError, match=message):
        signature.set_shapes(with_inputs(*DECODER), shapes, {"past": 3, "length": 1})


def test_open_dimensions_are_listed_with_their_inputs_and_options():
    proto = with_inputs(*DECODER, value("z", ("?", 3, "?", "wide one")))
    with pytest.raises(InputError, match="inputs ids, mask, past, z have open dimensions") as caught:
        signature.set_shapes(proto, {})
    assert caught.value.details.splitlines() == [
        "ids: batch_size x length",
        "mask: batch_size x past + length",
        "past: batch_size x 2 x past x 4",
        "z: ? x 3 x ? x wide one",
        "dimension length of ids, mask",
        "dimension past of mask, past",
        "dimension wide one of z",
        "dimensions without a name of z",
    ]
    assert caught.value.hint == "set them, for example: --dim length=64 --dim past=64 --shape z:1,3,1,1"
    with pytest.raises(InputError, match="inputs mask, past have") as caught:
        signature.set_shapes(with_inputs(*DECODER), {}, {"length": 1})
    assert caught.value.hint == "set them, for example: --dim past=64"


@pytest.mark.parametrize("name", ["wide one", "a;b", "$x"])
def test_the_options_of_a_hint_are_quoted_for_a_shell(name):
    with pytest.raises(InputError) as caught:
        signature.set_shapes(with_inputs(value("x", (3, name))), {})
    assert f"--dim '{name}=64'" in caught.value.hint


@pytest.mark.parametrize(
    ("sizes", "message", "hint"),
    [
        ({"lenght": 1}, "no input of the model has a dimension 'lenght'", "did you mean length"),
        ({"?": 1}, "no input of the model has a dimension", "--shape NAME"),
        ({"length": -1}, "cannot have the size -1", "0 to 2147483647"),
        ({"length": 2**31}, "cannot have the size 2147483648", "0 to 2147483647"),
        ({"length": 1, "past": 0, "past + length": 2}, r"dimension past \+ length is 1, not 2", "past + length=2"),
    ],
)
def test_sizes_that_cannot_be_set(sizes, message, hint):
    with pytest.raises(InputError, match=message) as caught:
        dimensions.check(sizes, DECODER)
    assert hint in caught.value.hint


def test_a_sum_is_set_as_a_whole():
    proto = with_inputs(*DECODER)
    sizes = {"past": 3, "past + length": 4, "length": 1}
    dimensions.check(sizes, proto.graph.input)
    signature.set_shapes(proto, {}, sizes)
    assert shapes(proto)["mask"] == (1, 4)


def test_a_model_without_names():
    with pytest.raises(InputError, match="dimension 'n'") as caught:
        dimensions.check({"n": 1}, [value("x", (1, 3))])
    assert caught.value.details == "none of its dimensions has a name"


def test_a_constant_has_the_size_of_its_name(tmp_path):
    path = nets.save(nets.model([node("Add", ["x", "k"], ["y"])], [value("x", (3, "n")), value("k", ("n",))],
                                [value("y", (3, "n"))]), tmp_path)  # fmt: skip
    loaded = source.load(path, fixed={"k": "2"}, dims={"n": 4})
    assert constants(loaded.proto) == {"k": (4,)}
    with pytest.raises(InputError, match=r"has 3 numbers; input k is 4"):
        source.load(path, fixed={"k": "1,2,3"}, dims={"n": 4})
    with pytest.raises(InputError, match="input k has no elements, so --fix cannot set its value"):
        source.load(path, fixed={"k": "2"}, dims={"n": 0})


def test_a_name_equals_the_same_shape(tmp_path):
    path = nets.save(nets.relu(("n", 3)), tmp_path)
    assert source.load(path, dims={"n": 4}).sha256 == source.load(path, {"x": (4, 3)}).sha256


@pytest.mark.parametrize("past", [0, 3])
def test_the_reference_runs_with_a_cache_that_is_empty_or_not(past, tmp_path):
    loaded = source.load(nets.save(nets.cached_step(), tmp_path), dims={"past": past, "new": 2})
    arrays = inputs.random(loaded.inputs, 0)
    assert ("past" in arrays) == (past > 0)
    assert reference.run(loaded, arrays)["present"].shape == (1, 2, past + 2, 4)


def test_arrays_set_what_names_leave_open(tmp_path):
    path = nets.save(nets.cached_step(), tmp_path)
    arrays = {"past": np.zeros((2, 2, 3, 4), np.float32), "x": np.zeros((2, 2, 1, 4), np.float32)}
    np.savez(tmp_path / "x.npz", **arrays)
    data = inputs.Source(npz=tmp_path / "x.npz")
    loaded = source.load_request(Model(path, given=data, dims={"new": 1}))
    assert {spec.name: spec.shape for spec in loaded.inputs} == {
        **{name: array.shape for name, array in arrays.items()},
        "mask": (2, 4),
    }
    loaded = source.load_request(Model(path, given=data, dims={"new": 5, "past": 0, "batch": 1}))
    assert {spec.name: spec.shape for spec in loaded.inputs} == {"x": (1, 2, 5, 4), "mask": (1, 5)}


@pytest.mark.parametrize("name", [name for name in exported.NAMES if "-open-" in name])
def test_exported_networks_have_names_that_set_the_same_shapes(name, tmp_path):
    network = exported.load(name)
    path = nets.save(network.proto, tmp_path)
    declared = {item.name: item.type.tensor_type.shape.dim for item in network.proto.graph.input}
    sizes = {
        dim.dim_param: size
        for item, shape in network.shapes.items()
        for dim, size in zip(declared[item], shape, strict=True)
        if dim.dim_param
    }
    assert sizes
    by_name, by_shape = source.load(path, dims=sizes), source.load(path, network.shapes)
    assert by_name.inputs == by_shape.inputs
    assert by_name.sha256 == by_shape.sha256
