"""Weights of layers in half precision are scaled, and their sums of products never overflow."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from toolchain.backends.mali.half.mixed_precision import to_mixed_precision
from toolchain.backends.mali.half.weight_scales import LIMIT, PRODUCTS, greatest_sums, scale_weights, scaling_exponents

RANDOM = np.random.default_rng(0)
CONV = {"padding": 1, "data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
CPU = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})


def network(shape, layer):
    """Return a function of one input with one layer."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(layer(x)))
        builder.emit_func_output(result)
    return builder.get()


def constants(module):
    arrays = []
    tvm.relax.analysis.post_order_visit(
        module["main"].body,
        lambda node: arrays.append(node.value.numpy()) if isinstance(node, tvm.ir.GenericConst) else 0,
    )
    return arrays


def computed(module, x):
    executable = tvm.compile(tvm.transform.Sequential([relax.get_pipeline("zero")])(module), target=CPU)
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def unequal(*shape):
    """Weights whose output channels have very different sizes."""
    return (RANDOM.standard_normal(shape) * 10.0 ** np.linspace(-5, 3, shape[-1])).astype(np.float32)


@pytest.mark.parametrize("layer", ["conv", "dense"])
def test_each_channel_has_its_own_scale(layer):
    weight = unequal(3, 3, 8, 12) if layer == "conv" else unequal(64, 12)
    shape = (1, 6, 6, 8) if layer == "conv" else (2, 64)
    constant = relax.const(weight)
    call = (
        (lambda x: relax.op.nn.conv2d(x, constant, **CONV))
        if layer == "conv"
        else lambda x: relax.op.matmul(x, constant)
    )
    module = network(shape, call)
    rewritten = scale_weights(to_mixed_precision(module))
    (half,) = [array for array in constants(rewritten) if array.dtype == np.float16]
    rows = np.moveaxis(half, -1, 0).reshape(12, -1)
    assert (greatest_sums(rows) <= LIMIT * 1.001).all()
    assert (greatest_sums(rows) > LIMIT / 2.01).all()
    x = RANDOM.standard_normal(shape).astype(np.float32)
    got, expected = computed(rewritten, x), computed(module, x)
    scale = np.abs(expected).max(axis=tuple(range(expected.ndim - 1)))
    # The last channels leave half precision, whatever sums them up; those of 1e-5 keep their digits.
    fits = scale < 6e4
    assert fits.sum() >= 10
    assert (np.abs(got - expected).max(axis=tuple(range(expected.ndim - 1)))[fits] <= 2e-3 * scale[fits] + 6e-8).all()


def test_weights_that_are_no_constants_stay():
    module = network((4, 4), lambda x: relax.op.matmul(x, relax.op.nn.relu(x)))
    assert not [array for array in constants(scale_weights(to_mixed_precision(module))) if array.dtype == np.float32]


# --- bounds ----------------------------------------------------------------------------------------------------------

GREATEST = np.float16(65504)


def test_only_as_many_as_are_summed_count():
    rows = np.array([[1.0] * 40, [-4.0, *[0.0] * 39]])
    np.testing.assert_array_equal(greatest_sums(rows), [PRODUCTS, 4.0])


def test_rows_are_brought_near_to_the_limit():
    rows = RANDOM.standard_normal((64, 200)) * 10.0 ** RANDOM.integers(-20, 20, (64, 1))
    rows[0] = 0
    sums = greatest_sums(np.ldexp(rows, scaling_exponents(rows)[:, None]))
    assert sums[0] == 0
    assert ((sums[1:] > LIMIT / 2) & (sums[1:] <= LIMIT)).all()
    assert scaling_exponents(np.array([[np.inf, 1.0], [np.nan, 1.0]])).tolist() == [0, 0]


def test_no_order_of_any_inputs_overflows():
    for _ in range(50):
        row = RANDOM.standard_normal((1, PRODUCTS)) * 10.0 ** RANDOM.uniform(-3, 6)
        weights = np.ldexp(row, scaling_exponents(row)[:, None]).astype(np.float16)[0]
        total = np.float16(0)
        for weight_row in weights:  # each product is as great as it can be
            total += weight_row * np.copysign(GREATEST, weight_row)
        assert np.isfinite(total)
        assert total > GREATEST / 4
