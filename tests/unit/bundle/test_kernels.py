"""Kernels as a bundle's graph in words has them."""

import json

import pytest

from toolchain.bundle import GRAPH_TEXT, kernels

_TEXT = """class Module:
    @T.prim_func(private=True, s_tir=True)
    def c(x: T.Buffer((1, 2, 8, 8, 16), "float32"), w: T.Buffer((T.int64(4), 3), "int8"), o: T.Buffer((), "float32")):
        T.func_attr({"op_pattern": 8, "toolchain.choice": "{\\"a\\":1}", "toolchain.layer": "{\\"kind\\":\\"conv\\"}"})
        T.evaluate(0)

    def softmax(x: T.Buffer((T.int64(1), T.int64(9)), "float32"), y: T.Buffer((T.int64(1), T.int64(9)), "float32")):
        T.func_attr({"toolchain.operations": "123", "op_pattern": 4})
"""


def test_a_graph_is_read():
    by_name = kernels.read(_TEXT)
    assert list(by_name) == ["c", "softmax"]
    conv, softmax = by_name.values()
    assert conv.buffers == (("float32", (1, 2, 8, 8, 16)), ("int8", (4, 3)), ("float32", ()))
    assert (conv.layer, conv.choice, conv.exact, conv.operations) == ('{"kind":"conv"}', '{"a":1}', "", 0)
    assert conv.shape == "1x2x8x8x16, 4x3 -> scalar"
    assert (softmax.operations, softmax.is_float32, conv.is_float32) == (123, True, False)


_MAIN = """
    def main(x: R.Tensor((1, 9), dtype="float32")) -> R.Tensor((1, 9), dtype="float32"):
        R.func_attr({"num_input": 1, "toolchain.nodes": %s})
"""


def with_nodes(text: str) -> str:
    return _TEXT + _MAIN % json.dumps(text)


def test_the_calls_of_a_kernel_name_their_nodes():
    calls = [["c", ["conv1", 'a "quoted" one']], ["softmax", []], ["c", ["conv2"]]]
    by_name = kernels.read(with_nodes(json.dumps(calls)))
    assert by_name["c"].nodes == (("conv1", 'a "quoted" one'), ("conv2",))
    assert [by_name["c"].nodes_of(call, 2) for call in (0, 1)] == [("conv1", 'a "quoted" one'), ("conv2",)]
    assert by_name["c"].nodes_of(3, 4) == ("conv2",), "the second row of a batch"
    assert by_name["c"].nodes_of(0, 3) == (), "nobody knows which of the three calls these are"
    assert by_name["softmax"].nodes == ((),)
    assert kernels.read(_TEXT)["c"].nodes == (), "a bundle of an older toolchain"


@pytest.mark.parametrize("nonsense", ["nothing", "5", "[1]", '[["c"]]', '[["c", 5]]', '[["c", null]]', "[" * 20_000])
def test_nodes_that_are_not_a_list_are_passed_over(nonsense):
    assert kernels.read(with_nodes(nonsense))["c"].nodes == ()


def test_what_is_no_graph_has_no_kernels():
    assert kernels.read("") == {}
    assert kernels.read("\x00" * 100 + "\n    def f(x: T.Buffer((((") == {}
    odd = _TEXT.replace('"123"', '"1e99"').replace('"{\\"kind\\":\\"conv\\"}"', '"\\x"')
    by_name = kernels.read(odd)
    assert (by_name["softmax"].operations, by_name["c"].layer) == (0, "")


def test_a_real_bundle_tells_of_each_kernel_with_a_template_or_counts_it(tiny):
    by_name = kernels.read((tiny.folder / GRAPH_TEXT).read_text(encoding="utf-8"))
    assert by_name
    assert all(kernel.buffers and (kernel.layer or kernel.operations) for kernel in by_name.values())
