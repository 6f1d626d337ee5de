from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

from tests.support import nets, relax_nets
from tests.support.relax_nets import net, normal
from toolchain.backends.graph import fold


def imported(proto):
    from tvm.relax.frontend.onnx import from_onnx

    return relax.transform.CanonicalizeBindings()(from_onnx(proto))


def names(module):
    return [name.removeprefix("relax.") for name, _ in relax_nets.calls(module)]


def same(proto):
    """Fold a model; what it computes must not change."""
    module = imported(proto)
    folded = fold.fold_constants(module)
    relax.analysis.well_formed(folded)
    feeds = relax_nets.feeds(proto)
    for actual, expected in zip(relax_nets.computed(folded, feeds), nets.run(proto, feeds), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    return folded


def test_the_limits_of_clip():
    weights = {"low": np.float32(-0.5), "high": np.float32(0.5)}
    proto = net([("Clip", "x low high", "y")], (1, 3, 4, 5), weights)
    assert "where" in names(imported(proto))
    assert names(same(proto)) == ["maximum", "minimum"]


def test_a_bias_gets_its_shape():
    proto = net([("Conv", "x w b", "y")], (1, 3, 4, 5), {"w": normal(6, 3, 1, 1), "b": normal(6)})
    assert "reshape" in names(imported(proto))
    assert names(same(proto)) == ["nn.conv2d", "add"]


def test_arithmetic_on_weights():
    weights = {"a": normal(3, 1, 1), "b": np.full((3, 1, 1), 0.5, np.float32), "order": np.array([0, 2, 1, 3])}
    nodes = [
        ("Mul", "a b", "c"),
        ("Add", "c b", "d"),
        ("Sub", "d a", "e"),
        ("Neg", "e", "f"),
        ("Mul", "f f", "g"),
        ("Sqrt", "g", "h"),
        ("Unsqueeze", "h zero", "i"),
        ("Transpose", "i", "j", {"perm": [0, 1, 3, 2]}),
        ("Squeeze", "j zero", "k"),
        ("Add", "x k", "y"),
    ]
    proto = net(nodes, (1, 3, 4, 5), weights | {"zero": np.array([0], np.int64)})
    assert names(same(proto)) == ["add"]


def test_what_numpy_is_not_asked_for_is_folded_too():
    proto = net([("Exp", "w", "a"), ("Neg", "a", "b"), ("Mul", "x b", "y")], (1, 3, 4, 5), {"w": normal(3, 1, 1)})
    folded = same(proto)
    assert [name for name in names(folded) if name != "GenericConst"] == ["multiply"]


def test_a_matrix_is_not_transposed():
    proto = net([("Gemm", "x w", "y", {"transB": 1})], (2, 3), {"w": normal(4, 3)})
    assert names(same(proto)) == ["permute_dims", "matmul"]


def test_a_constant_result_stays_a_result():
    proto = net([("Add", "a b", "z"), ("Relu", "x", "y")], (2, 3), {"a": normal(2), "b": normal(2)}, outputs=("y", "z"))
    assert len(same(proto)["main"].ret_ty.fields) == 2


def test_what_depends_on_the_input_is_left_alone():
    proto = net([("Neg", "x", "a"), ("Sqrt", "a", "y")], (2, 3))
    module = imported(proto)
    tvm.ir.assert_structural_equal(fold.fold_constants(module), module)


def test_open_shapes_are_no_obstacle():
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    proto = nets.model([node], [nets.value("x", ("n", 3))], [nets.value("y", ("n", 3))], {"w": normal(3)})
    assert names(fold.fold_constants(imported(proto))) == ["multiply"]


@pytest.mark.parametrize("shape", [(), (7,), (40, 50), (2, 3, 4)])
@pytest.mark.parametrize("transposed", [False, True])
def test_contiguous(shape, transposed):
    array = np.random.default_rng(0).random(shape)
    array = array.T if transposed else array
    copied = fold.contiguous(array)
    np.testing.assert_array_equal(copied, array)
    assert copied.shape == array.shape
    assert copied.flags.c_contiguous


def test_parts_of_constants_and_constants_put_together():
    matrix = normal(6, 5)
    builder = relax.BlockBuilder()
    argument = relax.Var("given", relax.TensorType((2, 5), "float32"))
    with builder.function("main", [argument]):
        with builder.dataflow():
            rows = relax.op.strided_slice(relax.const(matrix), axes=[0, -1], begin=[5, 1], end=[-7, 5], strides=[-3, 1])
            joined = builder.emit(relax.op.concat([builder.emit(rows), relax.const(matrix[:2, :1])], -1))
            out = builder.emit_output(relax.op.add(joined, argument))
        builder.emit_func_output(out)
    folded = fold.fold_constants(builder.get())
    assert names(folded) == ["add"]
    result = relax_nets.computed(folded, {"given": np.zeros((2, 5), np.float32)})
    np.testing.assert_array_equal(result[0], np.concatenate([matrix[5::-3, 1:], matrix[:2, :1]], 1))
