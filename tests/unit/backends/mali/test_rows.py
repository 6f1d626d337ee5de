"""Reductions row by row: what they compute on an OpenCL device, and who computes a row."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tvm import te, tirx

from tests.support import opencl
from tests.support.nets import node
from tests.unit.backends.mali.test_schedules import (  # noqa: F401 - a fixture
    KIND,
    TARGET,
    check,
    compiled,
    device,
    net,
    sources,
    weights,
)
from toolchain.backends.mali.rows import Rows

# nodes from x to y, the shape of x, weights, and how many work-items share a row
NETS = {
    "softmax of many short rows": ([node("Softmax", ["x"], ["y"])], (4, 16, 17), {}, 1),
    "softmax of few rows": ([node("Softmax", ["x"], ["y"])], (3, 1001), {}, 64),
    "softmax of more than fits into local memory": ([node("Softmax", ["x"], ["y"])], (1, 40000), {}, 64),
    "softmax of a prime": ([node("Softmax", ["x"], ["y"])], (7, 37), {}, 8),
    "softmax in the middle": ([node("Softmax", ["x"], ["y"], axis=1)], (5, 9, 12), {}, 1),
    "logarithm": ([node("LogSoftmax", ["x"], ["y"])], (25, 29), {}, 1),
    "normalised": (
        [node("LayerNormalization", ["x", "s", "b"], ["y"], axis=-1)],
        (1, 17, 192),
        {"s": weights(192), "b": weights(192)},
        32,
    ),
    "normalised images": (
        [node("InstanceNormalization", ["x", "s", "b"], ["y"])],
        (2, 6, 9, 7),
        {"s": weights(6), "b": weights(6)},
        8,
    ),
    "mean of large images": (
        [node("Conv", ["x", "k"], ["a"]), node("GlobalAveragePool", ["a"], ["y"])],
        (1, 3, 30, 31),
        {"k": weights(24, 3, 1, 1)},
        64,
    ),
    "largest of large images": ([node("GlobalMaxPool", ["x"], ["y"])], (1, 5, 30, 31), {}, 64),
    "mean of small images": (
        [node("Conv", ["x", "k"], ["a"]), node("GlobalAveragePool", ["a"], ["y"])],
        (1, 3, 7, 7),
        {"k": weights(24, 3, 1, 1)},
        1,
    ),
    "all": ([node("ReduceSum", ["x"], ["y"], keepdims=0)], (3, 170), {}, 64),
    "a row": ([node("ReduceMax", ["x"], ["y"], axes=[-1], keepdims=0)], (3000, 12), {}, 1),
    "chosen products": (
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Greater", ["c", "w0"], ["g"]),
            node("Where", ["g", "m", "w0"], ["y"]),
        ],
        (4, 16, 8),
        {"w": weights(4, 8, 16), "c": weights(16, 16), "w0": np.float32(0)},
        1,
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_rows_are_right(name, device, tmp_path):  # noqa: F811 - the fixture
    nodes, shape, constants, sharing = NETS[name]
    kernels = check(net(nodes, shape, constants), device, tmp_path)
    extents = [
        dict(opencl.thread_extents(function))
        for _, function in kernels.functions_items()
        if isinstance(function, tirx.PrimFunc)
    ]
    if sharing > 1:
        assert sharing in {size for axes in extents if "threadIdx.y" in axes for size in axes.values()}
    else:
        assert not any("threadIdx.y" in axes and "threadIdx.z" not in axes for axes in extents)


def test_a_small_gate_of_channels_not_in_fours(device, tmp_path):  # noqa: F811 - the fixture
    """A layer whose result is spread over an image."""
    gate = [node("GlobalAveragePool", ["x"], ["m"]), node("Conv", ["m", "w"], ["c"]), node("HardSigmoid", ["c"], ["g"])]
    check(net([*gate, node("Mul", ["x", "g"], ["y"])], (2, 5, 7, 3), {"w": weights(5, 5, 1, 1)}), device, tmp_path)


def test_softmax_keeps_no_row_in_local_memory(tmp_path):
    """40,000 numbers of one row are 160 KB; a Mali's core has 32."""
    code = sources(compiled(net([node("Softmax", ["x"], ["y"])], (1, 40000)), tmp_path)[1])
    assert "__local float" in code
    assert "40000]" not in code


def test_rows_that_others_read_have_a_group_of_their_own(tmp_path):
    """Between what one work-item writes and others read, TVM puts no barrier where a group has several rows."""
    finished, executable = compiled(net([node("Softmax", ["x"], ["y"])], (6, 64)), tmp_path)
    (extents,) = [
        dict(opencl.thread_extents(function))
        for _, function in finished.functions_items()
        if isinstance(function, tirx.PrimFunc)
    ]
    assert extents["blockIdx.x"] == 6
    after_maximum = sources(executable).partition(" T_softmax_maxelem_shared_ptr[0] = ")[2]
    assert after_maximum.index("barrier(") < after_maximum.index("- T_softmax_maxelem_shared_ptr[0]")


@pytest.mark.parametrize("limit", [4, 8, 64])
def test_groups_stay_within_the_limit_of_the_device(limit, tmp_path):
    kind = dataclasses.replace(KIND, target=dataclasses.replace(KIND.target, max_threads_per_block=limit))
    finished, _ = compiled(net([node("Softmax", ["x"], ["y"])], (32, 64)), tmp_path, kind)
    for _, function in finished.functions_items():
        if isinstance(function, tirx.PrimFunc):
            extents = dict(opencl.thread_extents(function))
            assert extents["threadIdx.x"] * extents.get("threadIdx.y", 1) <= limit


def test_what_is_no_reduction_and_of_unknown_size_is_left_to_others():
    size = tirx.Var("n", "int64")
    k = te.reduce_axis((0, size), name="k")
    x = te.placeholder((4, size), name="x")
    unknown = te.create_prim_func([x, te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="y")])
    z = te.placeholder((4, 4), name="z")
    plain = te.create_prim_func([z, te.compute((4, 4), lambda *i: z(*i) + 1.0, name="y")])
    for function in (unknown, plain):
        assert Rows().apply(function, TARGET, False) is None  # noqa: FBT003 - as TVM calls it
