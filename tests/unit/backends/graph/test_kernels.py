"""Kernels in a module: which are recognized, and what passes expect of others."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax, s_tir

from tests.support import nets
from tests.support.relax_nets import bindings, net, prepared
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.graph.kernels import as_opaque, meaning


def meanings(proto):
    module = prepared(proto)
    called = [
        binding.value
        for binding in bindings(module)
        if isinstance(binding.value, relax.Call) and binding.value.op.name == "relax.call_tir"
    ]
    return [meaning(call, module[call.args[0]]) for call in called]


def number(expression):
    return float(expression.value.numpy().reshape(()))


def test_clip_with_limits_that_are_constants():
    lower, upper = meanings(net([("Clip", "x a b", "y")], (2, 3), {"a": np.float32(-1), "b": np.float32(2)}))
    assert [(operation.name, number(operation.arguments[1])) for operation in (lower, upper)] == [
        ("maximum", -1),
        ("minimum", 2),
    ]


def test_clip_with_limits_in_the_kernel():
    node = helper.make_node("Clip", ["x"], ["y"], min=-1.0, max=2.0)
    proto = nets.model([node], [nets.value("x", (2, 3))], [nets.value("y", (2, 3))], opset=6)
    assert [(operation.name, number(operation.arguments[1])) for operation in meanings(proto)] == [
        ("maximum", -1),
        ("minimum", 2),
    ]


def test_padding_with_zeros():
    [pad] = meanings(net([("Pad", "x pads", "y")], (2, 3, 4), {"pads": np.array([1, 0, 2, 0, 3, 4])}))
    assert (pad.name, pad.values) == ("pad", (1, 0, 2, 0, 3, 4))


@pytest.mark.parametrize(
    ("node", "weights"),
    [
        (("Pad", "x pads", "y", {"mode": "reflect"}), {"pads": np.array([0, 1, 0, 1])}),
        (("Pad", "x pads", "y", {"mode": "edge"}), {"pads": np.array([0, 1, 0, 1])}),
        (("Pad", "x pads one", "y"), {"pads": np.array([0, 1, 0, 1]), "one": np.float32(1)}),
        (("Pad", "x pads", "y"), {"pads": np.array([0, -1, 0, 1])}),  # cuts off
    ],
)
def test_kernels_that_do_something_else(node, weights):
    assert meanings(net([node], (2, 3), weights)) == [None]


def test_a_function_that_is_not_there():
    module = prepared(net([("Pad", "x pads", "y")], (2, 3), {"pads": np.array([0, 1, 0, 1])}))
    [call] = [binding.value for binding in bindings(module)]
    assert meaning(call, None) is None


# --- functions of a module -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inputs", "wrapped"), [(1, True), (2, False)])
def test_kernels_with_one_input_become_a_block_and_stay_the_same_code(inputs, wrapped):
    arguments = [Argument(f"given{n}", (8,)) for n in range(inputs + 1)]

    def body(data, *others):
        emit.T.buffer_store(others[-1], data[0], [0])

    plain = emit.kernel(arguments, body, {})
    function = as_opaque(plain, {"some": "attribute"})
    assert isinstance(function.body, s_tir.SBlockRealize) is wrapped
    assert (str(function.attrs["some"]), int(function.attrs["op_pattern"])) == ("attribute", 8)
    assert "global_symbol" not in function.attrs
    sources = [
        tvm.compile(
            tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}), target="llvm"
        ).mod.inspect_source("ll")
        for kernel in (plain, function)
    ]
    assert sources[0] == sources[1]


def test_a_block_is_no_second_time_wrapped():
    function = as_opaque(emit.kernel([Argument("a", (8,)), Argument("b", (8,))], lambda *_: emit.T.evaluate(0), {}), {})
    tvm.ir.assert_structural_equal(as_opaque(function, {}), function)
