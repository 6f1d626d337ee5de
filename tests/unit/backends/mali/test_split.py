"""Sums that work-items share: what they compute on an OpenCL device, and who computes which part."""

from __future__ import annotations

import dataclasses

import pytest
from tvm import tirx

from tests.support import opencl
from tests.support.nets import node
from tests.unit.backends.mali.test_schedules import (  # noqa: F401 - a fixture
    KIND,
    check,
    compiled,
    device,
    net,
    sources,
    weights,
)


def dense(rows, depth, columns):
    nodes = [node("Gemm", ["x", "w", "b"], ["a"]), node("Relu", ["a"], ["y"])]
    return net(nodes, (rows, depth), {"w": weights(depth, columns), "b": weights(columns)})


def extents(module):
    """Return the extents of thread axes of the only kernel."""
    (kernel,) = [function for _, function in module.functions_items() if isinstance(function, tirx.PrimFunc)]
    return dict(opencl.thread_extents(kernel))


SHARED = {
    "a layer of one row": (1, 768, 64),
    "no columns in fours": (1, 640, 10),
    "odd columns": (2, 999, 7),
    "three rows": (3, 1024, 36),
}
"""Rows, products and columns."""


@pytest.mark.parametrize("name", SHARED)
def test_few_results_of_many_products_are_shared(name, device, tmp_path):  # noqa: F811 - the fixture
    sizes = SHARED[name]
    axes = extents(check(dense(*sizes), device, tmp_path))
    assert axes["threadIdx.y"] >= 8
    assert sizes[1] % axes["threadIdx.y"] == 0
    assert axes["threadIdx.x"] * axes["threadIdx.y"] <= 64


def test_parts_are_left_in_local_memory_and_one_work_item_stores(tmp_path):
    code = sources(compiled(dense(1, 768, 64), tmp_path)[1])
    assert code.count("barrier(CLK_LOCAL_MEM_FENCE)") == 1
    assert "__local float" in code
    assert "if ((convert_int(get_local_id(1))) < 1)" in code


def test_what_is_multiplied_is_loaded_in_vectors(tmp_path):
    code = sources(compiled(dense(1, 768, 64), tmp_path)[1])
    assert "vload4" not in code  # each is aligned
    assert "float x_local_ptr[4]" in code


def test_matrices_of_heads_are_shared(device, tmp_path):  # noqa: F811 - the fixture
    """Both arguments are computed, and choose by the head."""
    nodes = [node("Relu", ["w"], ["v"]), node("MatMul", ["x", "v"], ["y"])]
    axes = extents(check(net(nodes, (3, 1, 256), {"w": weights(3, 256, 16)}), device, tmp_path))
    assert axes["threadIdx.y"] >= 8


@pytest.mark.parametrize(("rows", "depth", "columns"), [(64, 256, 64), (1, 24, 8), (1, 211, 8)])
def test_enough_results_or_few_products_or_a_prime_of_them_are_not(rows, depth, columns, device, tmp_path):  # noqa: F811
    code = check(dense(rows, depth, columns), device, tmp_path)
    assert "shared" not in str(code)


def test_groups_stay_within_the_limit_of_the_device(tmp_path):
    kind = dataclasses.replace(KIND, target=dataclasses.replace(KIND.target, max_threads_per_block=16))
    axes = extents(compiled(dense(1, 768, 64), tmp_path, kind)[0])
    assert 1 < axes["threadIdx.x"] * axes["threadIdx.y"] <= 16
