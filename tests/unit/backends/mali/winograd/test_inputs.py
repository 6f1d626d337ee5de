"""The kernel of components: what it computes is test_opencl_winograd's business."""

from __future__ import annotations

import math

import pytest
import tvm_ffi
from tvm import tirx

from toolchain.backends.mali.winograd import Tiling, inputs


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("image", [(1, 56, 56, 64), (2, 13, 9, 12), (1, 1, 1, 4)])
def test_each_work_item_computes_a_row_of_four_channels(size, image):
    tiling = Tiling(image, 8, (1, 1, 1, 1), size)
    kernel = inputs.kernel(tiling)
    extents = dict(_launched(kernel))
    assert math.prod(extents.values()) == tiling.tiles * tiling.side * image[3] // 4
    assert extents["threadIdx.x"] * extents["threadIdx.y"] <= 64
    assert kernel.attrs["tirx.is_scheduled"]


def _launched(kernel):
    loads = []

    def visit(node):
        if node.attr_key == "thread_extent":
            loads.append((str(node.node.thread_tag), int(node.value)))

    tvm_ffi.structural_walk(kernel.body, (tirx.AttrStmt, visit))
    return loads
