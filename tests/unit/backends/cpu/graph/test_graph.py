from __future__ import annotations

import json

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support import naive_template, nets, nightly, random_graphs, relax_nets
from tests.support.relax_nets import counts, layers, net, normal, prepared, processor
from toolchain.backends.base import EXACT, LAYER
from toolchain.backends.cpu import graph, kernels
from toolchain.backends.cpu.layers import from_json, task_of, to_json


@pytest.fixture
def naive(monkeypatch):
    """Only the template of the plainest loops."""
    monkeypatch.setattr(kernels, "_TEMPLATES", {naive_template.NAME: naive_template})


def choice(machine):
    return lambda layer: kernels.default(layer, machine)


def realized(module, lanes):
    machine = processor(lanes)
    return graph.emit_kernels(graph.insert_stand_ins(module, machine), machine, choice(machine))


def check(proto, lanes):
    """Compare what the rewritten model computes with another implementation."""
    feeds = relax_nets.feeds(proto)
    mine = relax_nets.computed(realized(prepared(proto), lanes), feeds)
    for output, its in zip(mine, nets.run(proto, feeds), strict=True):
        assert output.shape == its.shape
        np.testing.assert_allclose(output, its, rtol=0, atol=1e-4 * max(0.1, np.abs(its).max()))


@pytest.mark.parametrize("seed", [*range(4), *map(nightly.left, range(4, 14))])
def test_random_graphs_compute_the_same_in_blocks_of_4(naive, seed):
    check(random_graphs.build(seed), 4)


@pytest.mark.parametrize(("seed", "lanes"), [(20, 8), (21, 16), (22, 8), (23, 16)])
def test_random_graphs_compute_the_same_in_larger_blocks(naive, seed, lanes):
    check(random_graphs.build(seed), lanes)


def residual():
    """Two layers and what both of them add to."""
    return net(
        [
            ("Conv", "x v", "a", {"pads": [1] * 4}),
            ("Relu", "a", "b"),
            ("Conv", "b w", "c", {"pads": [1] * 4}),
            ("Add", "c b", "d"),
            ("Relu", "d", "e"),
            ("Conv", "e w", "f", {"pads": [1] * 4}),
            ("Add", "f e", "g"),
            ("Relu", "g", "y"),
        ],
        (1, 3, 6, 7),
        {"v": normal(20, 3, 3, 3), "w": normal(20, 20, 3, 3, seed=1)},
    )


def test_what_follows_a_convolution_is_part_of_its_layer():
    module = graph.insert_stand_ins(prepared(residual()), processor(8))
    assert counts(module) == {"Conv": 3, "Map": 1}  # the map: the result, out of blocks
    assert [[op.kind for op in layer.epilogue] for layer in layers(module)[1:3]] == [["add", "relu"]] * 2


def test_the_same_layer_twice_is_one_kernel_and_packs_its_weights_once():
    machine = processor(8)
    built = realized(prepared(residual()), 8)
    second, third = (binding.value for _, binding in relax_nets.calls(built)[1:3])
    assert second.args[0].same_as(third.args[0])
    assert second.args[1].fields[1].same_as(third.args[1].fields[1])
    packed = second.args[1].fields[1].value.numpy()
    [layer] = set(layers(graph.insert_stand_ins(prepared(residual()), machine))[1:3])
    expected = kernels.pack(layer, machine, kernels.default(layer, machine), normal(20, 20, 3, 3, seed=1))
    np.testing.assert_array_equal(packed, expected)


def test_numbers_without_full_precision_become_zeros():
    """Products with them take a hundred times longer than others, and training leaves many."""
    smallest = np.finfo(np.float32).tiny
    weights, bias = normal(16, 3, 1, 1), normal(16)
    weights[1:3, 0], bias[4:6] = [[[1e-40]], [[-smallest]]], [-1e-40, smallest]
    proto = net([("Conv", "x w", "c"), ("Add", "c b", "y")], (1, 3, 4, 5), {"w": weights, "b": bias.reshape(16, 1, 1)})
    call = relax_nets.bindings(realized(prepared(proto), 8))[0].value
    actual = [argument.value.numpy() for argument in call.args[1].fields if isinstance(argument, tvm.ir.GenericConst)]
    assert len(actual) == 2
    for numbers, inputs in zip(actual, (weights, bias), strict=True):
        assert sorted(numbers[numbers != 0]) == sorted(inputs[np.abs(inputs) >= smallest])


def test_kernels_say_what_is_tuned_before_and_after_they_are_written():
    before = graph.insert_stand_ins(prepared(residual()), processor(8))
    for function in (before[name] for name in before.get_global_vars()):
        if not isinstance(function, relax.Function):
            exact = from_json(str(function.attrs[EXACT]))
            assert str(function.attrs[LAYER]) == to_json(task_of(exact))
    after = realized(prepared(residual()), 8)
    described = [
        json.loads(str(after[name].attrs[LAYER]))["kind"]
        for name in after.get_global_vars()
        if name.name_hint != "main"
    ]
    assert sorted(described) == ["conv", "conv", "map"]


def test_neither_step_changes_its_module():
    module, machine = prepared(residual()), processor(8)
    text = module.script(show_meta=True)
    moved = graph.insert_stand_ins(module, machine)
    assert module.script(show_meta=True) == text
    moved_text = moved.script(show_meta=True)
    graph.emit_kernels(moved, machine, choice(machine))
    assert moved.script(show_meta=True) == moved_text


def test_kernels_without_code_survive_the_passes_that_fuse_the_rest():
    module = graph.insert_stand_ins(prepared(residual()), processor(8))
    with relax_nets.TARGET:
        fused = relax.get_pipeline("zero")(module)
    assert counts(fused) == counts(module)
    relax.analysis.well_formed(fused)


def test_nothing_happens_without_templates():
    module = prepared(residual())
    same = graph.insert_stand_ins(module, processor(8), frozenset(kernels.NAMES))
    tvm.ir.assert_structural_equal(same, module)


def test_a_template_that_is_left_out_is_not_used():
    machine = processor(8)
    module = graph.insert_stand_ins(prepared(residual()), machine, frozenset({"map"}))
    assert layers(module) == []  # nothing could bring the result out of blocks


def test_functions_that_nobody_calls_any_more_are_gone():
    proto = net(
        [("Conv", "x w", "a"), ("Clip", "a low high", "y")],
        (1, 3, 4, 4),
        {"w": normal(4, 3, 1, 1), "low": np.float32(0), "high": np.float32(6)},
    )
    before = prepared(proto)
    assert {name.name_hint for name in before.get_global_vars()} >= {"maximum", "minimum"}
    after = graph.insert_stand_ins(before, processor(4))
    assert not {name.name_hint for name in after.get_global_vars()} & {"maximum", "minimum"}


def dense_block(count=9, channels=24, growth=8):
    """A tensor that grows: each layer reads all that was made so far."""
    nodes, weights, windows = [("Conv", "x first", "c0")], {"first": normal(channels, 3, 1, 1)}, "c0"
    for number in range(count):
        weights[f"w{number}"] = normal(growth, channels, 3, 3, seed=number)
        nodes.append(("Conv", f"{windows} w{number}", f"n{number}", {"pads": [1] * 4}))
        nodes.append(("Relu", f"n{number}", f"r{number}"))
        nodes.append(("Concat", f"{windows} r{number}", f"c{number + 1}", {"axis": 1}))
        windows, channels = f"c{number + 1}", channels + growth
    return net([*nodes, ("Relu", windows, "y")], (1, 3, 5, 6), weights)


def test_a_growing_tensor_is_one_buffer_all_along():
    module = graph.insert_stand_ins(prepared(dense_block()), processor(8))
    assert counts(module) == {"Conv": 10, "Map": 2}  # the last ReLU, and out of blocks: nothing is copied
    constants = {layer.out.held for layer in layers(module)[:10]}
    assert constants == {(24 + 9 * 8) // 8}
    assert [layer.data.channels for layer in layers(module)[1:10]] == [24 + 8 * number for number in range(9)]
    kinds = [binding.value.op.name for kind, binding in relax_nets.calls(module) if not isinstance(kind, str)]
    assert kinds.count("relax.call_tir_inplace") == 9


def test_a_growing_tensor_keeps_its_buffer_until_the_last_reader(naive):
    check(dense_block(), 8)


def bottlenecks(count=4, channels=16, growth=8):
    """Return layers as DenseNet has them: each 3x3 convolution writes the next part of the same buffer."""
    nodes, before, weights = [("Relu", "x", "c0")], channels, {"w": normal(growth, growth, 3, 3, seed=9)}
    for number in range(count):
        weights[f"v{number}"] = normal(growth, before, 1, 1, seed=number)
        nodes += [
            ("Conv", f"c{number} v{number}", f"a{number}"),
            ("Conv", f"a{number} w", f"b{number}", {"pads": [1] * 4}),
            ("Concat", f"c{number} b{number}", f"c{number + 1}", {"axis": 1}),
        ]
        before += growth
    return net([*nodes, ("Relu", f"c{count}", "y")], (1, channels, 5, 6), weights)


def test_one_kernel_writes_to_all_places_of_a_buffer():
    proto = bottlenecks()
    module = graph.insert_stand_ins(prepared(proto), processor(8))
    stand_ins = {to_json(layer) for layer in layers(module) if getattr(layer, "kernel", None) == (3, 3)}
    built = realized(prepared(proto), 8)
    calls = [binding.value for _, binding in relax_nets.calls(built)]
    called = [call for call in calls if "3x3" in getattr(call.args[0], "name_hint", "")]
    assert len(called) == len(stand_ins) == 4
    assert len({call.args[0].name_hint for call in called}) == 1
    offsets = [field for call in called for field in call.args[1].fields if isinstance(field, tvm.tirx.IntImm)]
    assert [int(offset) for offset in offsets] == [2, 3, 4, 5]
    check(proto, 8)


def test_a_layer_reads_and_writes_parts_of_the_same_buffer(naive):
    proto = net(
        [
            ("Conv", "x v", "a"),
            ("Conv", "a w", "b", {"pads": [1] * 4}),
            ("Concat", "a b", "c", {"axis": 1}),
            ("MaxPool", "c", "y", {"kernel_shape": [2, 2]}),
        ],
        (2, 3, 5, 6),
        {"v": normal(8, 3, 1, 1), "w": normal(12, 8, 3, 3)},
    )
    module = graph.insert_stand_ins(prepared(proto), processor(4))
    assert [type(layer).__name__ for layer in layers(module)] == ["Conv", "Conv", "Pool", "Map"]
    check(proto, 4)


def test_fast_templates_compute_the_same():
    """One network with all of them, at the widest blocks."""
    proto = net(
        [
            ("Conv", "x v", "a", {"pads": [1] * 4, "strides": [2, 2]}),
            ("Clip", "a low high", "b"),
            ("Conv", "b depth", "c", {"pads": [1] * 4, "group": 24}),
            ("Relu", "c", "d"),
            ("Conv", "d w", "e", {"pads": [1] * 4}),
            ("Add", "e d", "f"),
            ("MaxPool", "f", "g", {"kernel_shape": [2, 2]}),
            ("Concat", "g g", "h", {"axis": 1}),
            ("Sigmoid", "h", "i"),
            ("GlobalAveragePool", "i", "j"),
            ("Flatten", "j", "k"),
            ("Gemm", "k m n", "y", {"transB": 1}),
        ],
        (1, 3, 13, 10),
        {
            "v": normal(24, 3, 3, 3),
            "depth": normal(24, 1, 3, 3),
            "w": normal(24, 24, 3, 3),
            "m": normal(10, 48),
            "n": normal(10),
            "low": np.float32(0),
            "high": np.float32(6),
        },
    )
    check(proto, 16)


def test_layers_with_zero_blocks_of_weights_get_sparse_kernels():
    weights = {
        "w": normal(64, 32, 3, 3) * (np.arange(32) % 8 == 0)[None, :, None, None],
        "g": normal(64, 64) * (np.arange(64) % 5 == 0),
    }
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    proto = net(
        [
            ("Conv", "x w", "a", {"pads": [1] * 4}),
            ("Relu", "a", "b"),
            ("GlobalAveragePool", "b", "c"),
            ("Flatten", "c", "d"),
            ("Gemm", "d g", "y", {"transB": 1}),
        ],
        (1, 32, 14, 14),
        weights,
    )
    check(proto, 8)
    names = {str(variable.name_hint) for variable in realized(prepared(proto), 8).get_global_vars()}
    assert {"sparse_conv_3x3_kernel", "sparse_dense"} <= names
