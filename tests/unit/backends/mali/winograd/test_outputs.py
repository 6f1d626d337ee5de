"""The schedule of results: which kernels get it, and how many work-items share a tile."""

from __future__ import annotations

import math

import pytest
import tvm
from tvm import te, topi

from tests.support.opencl import thread_extents
from toolchain.backends.mali.winograd import Tiling, outputs, products


def results(size, side=9, channels=8):
    tiling = Tiling((2, side, side, channels), channels, (1, 1, 1, 1), size)
    components = te.placeholder((tiling.components, tiling.tiles, channels), name="p")
    bias = te.placeholder((1, 1, 1, channels), name="bias")
    activated = topi.nn.relu(topi.add(products.results(components, tiling), bias))
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
