"""The products of a Winograd convolution, the transform of its results, and the schedule of that."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from tvm import te, topi

from tests.support.opencl import thread_extents
from toolchain.backends.mali.layers import layer_of
from toolchain.backends.mali.winograd import Tiling, outputs
from toolchain.backends.mali.winograd.tiling import OUTPUTS

RANDOM = np.random.default_rng(0)
CPU = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})


def run(function, *arrays, shape):
    result = tvm.runtime.tensor(np.zeros(shape, np.float32))
    tvm.compile(function, target=CPU)["main"](*map(tvm.runtime.tensor, arrays), result)
    return result.numpy()


def multiplication(components=4, tiles=14, inputs=8, channels=16):
    a = te.placeholder((components, tiles, inputs), name="a")
    b = te.placeholder((components, inputs, channels), name="b")
    return te.create_prim_func([a, b, outputs.multiply(a, b)])


def test_each_component_has_its_own_weights():
    a, b = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((4, 14, 8), (4, 8, 16)))
    np.testing.assert_allclose(run(multiplication(), a, b, shape=(4, 14, 16)), a @ b, rtol=1e-4, atol=1e-5)


def test_pixels_are_loaded_past_weights_of_one_component():
    """That is what makes the products cheap: only the components are staged."""
    reads = layer_of(multiplication()).reads
    assert reads.is_batched
    assert reads.staged == (0,)


@pytest.mark.parametrize("size", [2, 4])
def test_results_are_those_of_both_transforms(size):
    tiling = Tiling((2, 7, 5, 4), 4, (1, 1, 1, 1), size)
    components = te.placeholder((tiling.components, tiling.tiles, 4), name="p")
    array = RANDOM.standard_normal([int(extent) for extent in components.shape]).astype(np.float32)
    results = run(te.create_prim_func([components, outputs.results(components, tiling)]), array, shape=(2, 7, 5, 4))
    matrix = np.array(OUTPUTS[size])
    split = array.reshape(tiling.side, tiling.side, 2, tiling.down, tiling.across, 4)
    transformed = np.einsum("ik,jl,klnyxc->nyixjc", matrix, matrix, split)
    expected = transformed.reshape(2, tiling.down * size, tiling.across * size, 4)[:, :7, :5]
    np.testing.assert_allclose(results, expected, rtol=1e-4, atol=1e-5)


# --- the schedule ----------------------------------------------------------------------------------------------------


def results(size, side=9, channels=8):
    tiling = Tiling((2, side, side, channels), channels, (1, 1, 1, 1), size)
    components = te.placeholder((tiling.components, tiling.tiles, channels), name="p")
    bias = te.placeholder((1, 1, 1, channels), name="bias")
    activated = topi.nn.relu(topi.add(outputs.results(components, tiling), bias))
    return tiling, te.create_prim_func([components, bias, activated])


@pytest.mark.parametrize(("size", "items"), [(2, 1), (4, 4)])
def test_work_items_share_a_tile_as_their_registers_allow(size, items):
    tiling, function = results(size)
    scheduled = outputs.schedule_outputs(tvm.IRModule({"main": function}))["main"]
    assert math.prod(extent for _, extent in thread_extents(scheduled)) == tiling.tiles * 8 // 4 * items
    assert scheduled.attrs["tirx.is_scheduled"]


def test_other_kernels_stay_as_they_are():
    x = te.placeholder((4, 8), name="x")
    module = tvm.IRModule({"main": te.create_prim_func([x, topi.nn.relu(x)])})
    tvm.ir.assert_structural_equal(outputs.schedule_outputs(module), module)
