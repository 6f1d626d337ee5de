from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.support import relax_nets
from tests.support.relax_nets import bindings, calls, counts, layers, net, normal, prepared, processor
from toolchain.backends.cpu import graph

LANES = 8


pytestmark = pytest.mark.usefixtures("naive")


def moved(proto):
    module = graph.insert_stand_ins(prepared(proto), processor(LANES))
    relax.analysis.well_formed(module)
    return module


def places(layer):
    return [(activation.lanes, activation.first, activation.held) for activation in (layer.data, layer.out)]


def branches(*channels, shape=(1, 3, 4, 5)):
    """Return nodes and weights of convolutions of the input, named a, b, c ..."""
    names = "abcdef"[: len(channels)]
    nodes = [("Conv", f"x w{name}", name) for name in names]
    return nodes, {f"w{name}": normal(n, shape[1], 1, 1, seed=n) for name, n in zip(names, channels, strict=True)}


def test_layers_write_their_part_of_a_concatenation():
    nodes, weights = branches(8, 16, 5)
    module = moved(
        net(
            [*nodes, ("Concat", "a b c", "d", {"axis": 1}), ("MaxPool", "d", "y", {"kernel_shape": [2, 2]})],
            (1, 3, 4, 5),
            weights,
        )
    )
    assert [places(layer)[1] for layer in layers(module)[:3]] == [(8, 0, 4), (8, 1, 4), (8, 3, 4)]
    assert counts(module) == {"Conv": 3, "Pool": 1, "Map": 1}
    first, second, third = [binding.value for binding in bindings(module)[:3]]
    assert first.op.name == "relax.call_tir"
    for call, before in ((second, 0), (third, 1)):
        assert call.op.name == "relax.call_tir_inplace"
        assert [int(index) for index in call.attrs.inplace_indices] == [2]
        assert call.args[1].fields[2].same_as(bindings(module)[before].var)


def test_only_what_cannot_be_written_in_place_is_copied():
    nodes, weights = branches(8, 8)
    twice = [("Concat", "a b", "c", {"axis": 1}), ("Concat", "b a a", "d", {"axis": 1})]
    proto = net([*nodes, *twice, ("Relu", "c", "y"), ("Relu", "d", "z")], (1, 3, 4, 5), weights, outputs=("y", "z"))
    copies = [
        layer
        for layer in layers(moved(proto))
        if type(layer).__name__ == "Map" and not layer.epilogue and layer.out.lanes > 1
    ]
    assert [places(copy) for copy in copies] == [[(8, 1, 2), (8, 0, 3)], [(8, 0, 2), (8, 1, 3)], [(8, 0, 2), (8, 2, 3)]]


def test_a_plain_tensor_goes_straight_into_its_part():
    nodes, weights = branches(8)
    proto = net([*nodes, ("Concat", "a x", "c", {"axis": 1}), ("Relu", "c", "y")], (1, 3, 4, 5), weights)
    copy = layers(moved(proto))[1]
    assert places(copy) == [(1, 0, 0), (8, 1, 2)]


def test_parts_that_end_within_a_block_are_put_together_on_plain_layout():
    nodes, weights = branches(8, 4, 8)
    proto = net(
        [*nodes, ("Concat", "a b c", "d", {"axis": 1}), ("Conv", "d v", "y")],
        (1, 3, 4, 5),
        weights | {"v": normal(8, 20, 1, 1)},
    )
    module = moved(proto)
    assert "concat" not in counts(module)
    assert [places(layer)[1] for layer in layers(module)[3:6]] == [(1, 0, 20), (1, 8, 20), (1, 12, 20)]


def test_a_change_of_layout_is_made_once():
    nodes, weights = branches(8)
    back = [
        ("Softmax", "a", "s"),
        ("Transpose", "a", "t", {"perm": [0, 1, 3, 2]}),
        ("Conv", "s v", "y"),
        ("Conv", "s u", "z"),
    ]
    weights |= {"v": normal(8, 8, 1, 1), "u": normal(8, 8, 1, 1, seed=1)}
    module = moved(net([*nodes, *back], (1, 3, 4, 5), weights, outputs=("t", "y", "z")))
    names = [kind if isinstance(kind, str) else type(kind).__name__ for kind, _ in calls(module)]
    assert names.count("Map") == 4  # the first result out, the softmax in, and the two results out
    assert names.count("Conv") == 3


def test_what_stays_keeps_its_binding():
    nodes, weights = branches(8)
    proto = net([*nodes, ("Softmax", "a", "s", {"axis": 1}), ("Relu", "s", "y")], (1, 3, 4, 5), weights)
    before, after = prepared(proto), moved(proto)
    remaining = {binding.var.name: binding.value.op.name for binding in bindings(before)}
    for kind, binding in calls(after):
        if isinstance(kind, str):
            assert remaining[binding.var.name] == kind


def test_an_intermediate_result_may_be_an_output_too():
    nodes, weights = branches(8)
    proto = net([*nodes, ("Relu", "a", "r"), ("Exp", "r", "y")], (1, 3, 4, 5), weights, outputs=("a", "r", "y"))
    module = moved(proto)
    assert [len(layer.epilogue) for layer in layers(module)] == [0, 1, 0, 0, 0]
    assert len(module["main"].ret_ty.fields) == 3


def test_a_pixel_becomes_a_row_without_a_copy():
    nodes, weights = branches(16)
    proto = net(
        [*nodes, ("GlobalAveragePool", "a", "g"), ("Flatten", "g", "f"), ("Gemm", "f v", "y")],
        (1, 3, 4, 5),
        weights | {"v": normal(16, 4)},
    )
    assert [kind if isinstance(kind, str) else type(kind).__name__ for kind, _ in calls(moved(proto))] == [
        "Conv",
        "Pool",
        "relax.reshape",
        "Dense",
    ]


def test_numbers_for_each_channel_are_filled_up_with_zeros():
    nodes, weights = branches(12)
    proto = net([*nodes, ("Relu", "a", "r"), ("Add", "r n", "y")], (1, 3, 4, 5), weights | {"n": normal(12, 1, 1)})
    call = bindings(moved(proto))[0].value
    numbers = call.args[1].fields[-1].value.numpy()
    assert numbers.shape == (2, 8)
    np.testing.assert_array_equal(numbers.reshape(-1), [*normal(12, 1, 1).reshape(-1), 0, 0, 0, 0])


def test_rows_are_made_of_other_shapes_and_back():
    proto = net([("MatMul", "x v", "d"), ("Relu", "d", "y")], (2, 3, 6), {"v": normal(6, 4)})
    module = moved(proto)
    assert [kind if isinstance(kind, str) else type(kind).__name__ for kind, _ in calls(module)] == [
        "relax.reshape",
        "Dense",
        "relax.reshape",
    ]


def test_a_matrix_that_is_stored_the_other_way_round_is_not_copied():
    proto = net([("Gemm", "x v", "y", {"transB": 1})], (2, 6), {"v": normal(4, 6)})
    before = prepared(proto)
    after = graph.insert_stand_ins(before, processor(LANES))
    [matrix] = [binding.value.args[0] for binding in bindings(before) if binding.value.op.name == "relax.permute_dims"]
    dense = bindings(after)[0]
    assert dense.value.args[1].fields[1].same_as(matrix)


def test_a_view_is_no_call():
    nodes, weights = branches(24)
    proto = net(
        [*nodes, ("Split", "a parts", "b c", {"axis": 1}), ("Conv", "b v", "d"), ("Conv", "c u", "y")],
        (1, 3, 4, 5),
        weights | {"parts": np.array([8, 16]), "v": normal(4, 8, 1, 1), "u": normal(4, 16, 1, 1)},
        outputs=("d", "y"),
    )
    module = moved(proto)
    assert [places(layer)[0] for layer in layers(module)] == [(1, 0, 0), (8, 0, 3), (8, 1, 3), (8, 0, 0), (8, 0, 0)]
    assert len(layers(module)) == relax_nets.counts(module)["Conv"] + 2
