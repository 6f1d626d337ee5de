"""Default schedules for Mali: what kernels compute on an OpenCL device, against ONNX Runtime, and their form."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx

from tests.support import nets, opencl
from tests.support.nets import node, value
from toolchain import board
from toolchain.backends.mali import schedules
from toolchain.backends.mali.backend import Mali
from toolchain.models import importer, source

KIND = board.load("opencl-local").resolved()
TARGET = Mali(KIND).target
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    with opencl.device(tmp_path_factory.mktemp("cache")) as opened:
        yield opened


def weights(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def net(nodes, shape, initializers=None):
    """Return a network from x to y; the shape of y is what ONNX Runtime says."""
    draft = nets.model(nodes, [value("x", shape)], [value("y", None)], initializers)
    (result,) = nets.run(draft, {"x": np.zeros(shape, np.float32)})
    return nets.model(nodes, [value("x", shape)], [value("y", result.shape)], initializers)


def compiled(proto, folder, kind=KIND):
    imported = importer.import_model(source.load(nets.save(proto, folder)))
    backend = Mali(kind)
    finished = backend.apply_choices(backend.lower(imported.module), {})
    return finished, tvm.compile(finished, target=backend.target)


def check(proto, device, folder) -> tvm.IRModule:
    """Compare all outputs of a network on the device with ONNX Runtime's; return its kernels."""
    finished, executable = compiled(proto, folder)
    executable.export_library(str(folder / "net.so"))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(folder / "net.so")), device)
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    array = weights(*shape)
    (expected,) = nets.run(proto, {"x": array})
    result = machine["main"](tvm.runtime.tensor(array, device))
    result = (result if hasattr(result, "numpy") else result[0]).numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    return finished


def sources(executable: Any) -> str:
    """Return the OpenCL C of a network."""
    (host,) = executable.mod.imports
    return "".join(imported.inspect_source() for imported in host.imports)


# --- what kernels compute --------------------------------------------------------------------------------------------

# data, weight, and attributes of Conv; the weight's second number counts the channels of a group
CONVS = {
    "first of a network": ((1, 3, 11, 9), (8, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "wide window": ((1, 3, 17, 15), (8, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    "pointwise": ((1, 16, 7, 7), (8, 16, 1, 1), {}),
    "pointwise with steps": ((1, 8, 9, 9), (12, 8, 1, 1), {"strides": [2, 2]}),
    "tiles over the edge": ((1, 8, 13, 13), (8, 8, 3, 3), {"pads": [1, 1, 1, 1]}),
    "no padding, odd result": ((1, 4, 19, 19), (4, 4, 3, 3), {}),
    "no four channels": ((1, 6, 8, 8), (10, 6, 3, 3), {"pads": [1, 1, 1, 1]}),
    "one channel": ((1, 5, 8, 8), (1, 5, 3, 3), {}),
    "uneven padding": ((1, 4, 8, 8), (4, 4, 3, 2), {"pads": [0, 1, 2, 0]}),
    "dilated": ((1, 4, 12, 10), (8, 4, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    "one row": ((1, 4, 1, 30), (8, 4, 1, 5), {"pads": [0, 2, 0, 2]}),
    "two images": ((2, 4, 6, 6), (8, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    "depthwise": ((1, 16, 13, 10), (16, 1, 3, 3), {"group": 16, "pads": [1, 1, 1, 1]}),
    "depthwise with steps": ((1, 8, 14, 14), (8, 1, 5, 5), {"group": 8, "pads": [2, 2, 2, 2], "strides": [2, 2]}),
    "depthwise, twice": ((1, 8, 9, 9), (16, 1, 3, 3), {"group": 8}),
    "two groups": ((1, 8, 9, 9), (8, 4, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "groups of six": ((1, 12, 8, 8), (12, 6, 1, 1), {"group": 2}),
    "one step": ((1, 8, 4, 5), (16, 1, 1, 1), {"group": 8, "pads": [1, 0, 1, 2]}),
    "uneven steps": (
        (1, 2, 4, 10),
        (6, 1, 3, 2),
        {"group": 2, "strides": [1, 2], "dilations": [2, 1], "pads": [2, 2, 0, 2]},
    ),
    "many groups": ((1, 251, 5, 5), (251, 1, 3, 3), {"group": 251, "pads": [1, 1, 1, 1]}),
    "one dimension": ((1, 4, 33), (8, 4, 3), {"pads": [1, 1]}),
    "three dimensions": ((1, 4, 5, 7, 6), (8, 4, 3, 3, 3), {"pads": [1] * 6, "strides": [1, 2, 1]}),
}


@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name, device, tmp_path):
    shape, weight, attributes = CONVS[name]
    nodes = [node("Conv", ["x", "w", "b"], ["c"], **attributes), node("Sigmoid", ["c"], ["y"])]
    check(net(nodes, shape, {"w": weights(*weight), "b": weights(weight[0])}), device, tmp_path)


OTHERS = {
    "dense": ([node("Gemm", ["x", "w", "b"], ["y"], transB=1)], (1, 130), {"w": weights(12, 130), "b": weights(12)}),
    "dense, odd": (
        [node("Gemm", ["x", "w", "b"], ["y"], transB=1)],
        (1, 33),
        {"w": weights(1001, 33), "b": weights(1)},
    ),
    "dense, prime": ([node("MatMul", ["x", "w"], ["y"])], (1, 6), {"w": weights(6, 1004)}),
    "dense of rows": ([node("MatMul", ["x", "w"], ["y"])], (7, 17), {"w": weights(17, 20)}),
    "batches": ([node("MatMul", ["x", "w"], ["y"])], (3, 5, 6), {"w": weights(3, 6, 8)}),
    "maximum": ([node("MaxPool", ["c"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)], (1, 4, 13, 13), {}),
    "maximum, rounded up": (
        [node("MaxPool", ["c"], ["y"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)],
        (1, 4, 12, 12),
        {},
    ),
    "average": ([node("AveragePool", ["c"], ["y"], kernel_shape=[3, 3], pads=[1] * 4)], (1, 4, 9, 9), {}),
    "average with padding": (
        [node("AveragePool", ["c"], ["y"], kernel_shape=[2, 2], pads=[1, 0, 0, 1], count_include_pad=1)],
        (1, 4, 9, 9),
        {},
    ),
    "average of all": ([node("GlobalAveragePool", ["c"], ["y"])], (1, 4, 7, 5), {}),
    "mean over rows": ([node("ReduceMean", ["x"], ["y"], axes=[-1], keepdims=0)], (3, 5, 30), {}),
    "maximum of all": ([node("ReduceMax", ["x"], ["y"], keepdims=0)], (3, 50), {}),
    "largest": ([node("ArgMax", ["x"], ["i"], axis=1), node("Cast", ["i"], ["y"], to=1)], (2, 31, 4), {}),
    "softmax": ([node("Softmax", ["x"], ["y"], axis=-1)], (1, 1001), {}),
    "softmax over channels": ([node("Softmax", ["c"], ["y"], axis=1)], (1, 4, 5, 5), {}),
    "transposed": ([node("Transpose", ["x"], ["y"], perm=[2, 0, 1])], (4, 5, 8), {}),
    "joined": ([node("Concat", ["x", "w"], ["y"], axis=1)], (1, 3, 4, 4), {"w": weights(1, 6, 4, 4)}),
    "chosen": (
        [node("Greater", ["x", "w"], ["g"]), node("Where", ["g", "x", "w"], ["y"])],
        (4, 8),
        {"w": weights(4, 8)},
    ),
    "logical": (
        [node("Greater", ["x", "w"], ["g"]), node("Not", ["g"], ["n"]), node("Cast", ["n"], ["y"], to=1)],
        (4, 8),
        {"w": weights(4, 8)},
    ),
    "leaky": ([node("LeakyRelu", ["c"], ["y"], alpha=0.1)], (1, 4, 5, 5), {}),
    "elu": ([node("Elu", ["c"], ["y"])], (1, 4, 5, 5), {}),
    "prelu": ([node("PRelu", ["c", "w"], ["y"])], (1, 4, 5, 5), {"w": weights(4, 1, 1)}),
    "swish": ([node("HardSwish", ["c"], ["y"])], (1, 4, 5, 5), {}),
    "compared": (
        [node("Greater", ["c", "w"], ["g"]), node("Cast", ["g"], ["y"], to=1)],
        (1, 4, 5, 5),
        {"w": weights(4, 1, 1)},
    ),
    "remainder": ([node("Mod", ["x", "w"], ["y"], fmod=1)], (4, 8), {"w": weights(4, 8) + 3}),
    "scalar": ([node("ReduceSum", ["x"], ["s"], keepdims=0), node("Sqrt", ["a"], ["y"])], (5,), {}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_layers(name, device, tmp_path):
    nodes, shape, constants = OTHERS[name]
    read = {name_ for each in nodes for name_ in each.input}
    before = [node("Conv", ["x", "k"], ["c"])] if "c" in read else []
    between = [node("Abs", ["s"], ["a"])] if "a" in read else []
    kernel = {"k": weights(shape[1], shape[1], 1, 1)} if before else {}
    proto = net([*before, *nodes[:1], *between, *nodes[1:]], shape, {**constants, **kernel})
    check(proto, device, tmp_path)


# --- what kernels look like ------------------------------------------------------------------------------------------


def scheduled(shape, weight, attributes, folder) -> str:
    proto = net([node("Conv", ["x", "w"], ["y"], **attributes)], shape, {"w": weights(*weight)})
    return sources(compiled(proto, folder)[1])


def test_a_pixel_that_is_loaded_meets_four_channels_of_several_pixels(tmp_path):
    code = scheduled((1, 32, 32, 32), (64, 32, 1, 1), {}, tmp_path)
    assert "float4 conv2d_nhwc_local_ptr[4]" in code
    loads = re.findall(r"__global float4\*\)\((\w+)", code)
    assert len(loads) >= 8
    assert "__local" not in code


def test_a_row_of_a_window_is_loaded_once(tmp_path):
    code = scheduled((1, 8, 64, 64), (8, 1, 3, 3), {"group": 8, "pads": [1, 1, 1, 1]}, tmp_path)
    assert "float4 pad_temp_local_ptr[6]" in code
    assert "float4 group_conv2d_nhwc_local_ptr[4]" in code


# data, weight, and attributes of Conv, and the vectors of four that its accumulators and what they share may fill
NARROW = {
    "a pixel of five": ((1, 16, 5, 5), (2048, 16, 1, 1), {}),
    "a pixel of seven": ((1, 16, 7, 7), (2048, 16, 1, 1), {}),
    "a window on seven": ((1, 16, 7, 7), (512, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    "depthwise with steps, to seven": (
        (1, 16, 14, 14),
        (16, 1, 3, 3),
        {"group": 16, "pads": [1] * 4, "strides": [2, 2]},
    ),
    "a wide window with steps": ((1, 16, 14, 14), (16, 1, 7, 7), {"group": 16, "pads": [3] * 4, "strides": [2, 2]}),
    "the first layer": ((1, 3, 28, 28), (16, 3, 7, 7), {"pads": [3] * 4, "strides": [2, 2]}),
}


@pytest.mark.parametrize("name", NARROW)
def test_a_work_item_has_the_registers_for_its_tile(name, tmp_path):
    """A thread has 64 scalars: what goes beyond is kept in memory, which costs more than a larger tile brings."""
    shape, weight, attributes = NARROW[name]
    proto = net([node("Conv", ["x", "w"], ["y"], **attributes)], shape, {"w": weights(*weight)})
    backend = Mali(KIND)
    lowered = backend.lower(importer.import_model(source.load(nets.save(proto, tmp_path))).module)
    (kernel,) = [function for name, function in lowered.functions_items() if "conv2d" in name.name_hint]
    schedule = schedules.Tiles().apply(kernel, TARGET, False)  # noqa: FBT003 - as TVM calls it
    assert 2 < schedules.registers(schedule) <= 11


@pytest.mark.parametrize(("width", "columns"), [(7, 7), (16, 4), (20, 5), (5, 5)])
def test_pixels_are_streamed_past_weights_that_stay(width, columns, tmp_path):
    """Of one channel's four weights each is loaded once for up to seven pixels, in a tile without a tail."""
    code = scheduled((1, 32, width, width), (1024, 32, 1, 1), {}, tmp_path)
    assert re.search(rf"float4 conv2d_nhwc_local_ptr\[{columns}\]", code)
    assert "float pad_temp_local_ptr[4]" in code


def test_a_small_layer_has_small_tiles(tmp_path):
    """Else most of the GPU would have nothing to do."""
    assert "float4 conv2d_nhwc_local_ptr[1]" in scheduled((1, 16, 8, 8), (16, 16, 1, 1), {}, tmp_path)


def groups_of(module: tvm.IRModule) -> list[int]:
    """Return the number of work-items of each kernel's groups."""
    sizes = []
    for _, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            extents = re.findall(r"T.thread_binding\((?:T.int64\()?(\d+)\)?, thread=\"threadIdx", function.script())
            sizes.append(int(np.prod([int(extent) for extent in extents])))
    return sizes


@pytest.mark.parametrize("limit", [8, 64, 256])
def test_groups_stay_within_the_limit_of_the_device(limit, tmp_path):
    kind = dataclasses.replace(KIND, target=dataclasses.replace(KIND.target, max_threads_per_block=limit))
    proto = net(
        [node("Conv", ["x", "w"], ["c"]), node("Sigmoid", ["c"], ["y"])], (1, 16, 31, 31), {"w": weights(64, 16, 1, 1)}
    )
    finished, _ = compiled(proto, tmp_path, kind)
    sizes = groups_of(finished)
    assert sizes
    assert max(sizes) <= min(limit, 64)


def elementwise(shape) -> tirx.PrimFunc:
    x = te.placeholder(shape, name="x")
    return te.create_prim_func([x, te.compute(shape, lambda *i: x(*i) + 1.0, name="y")])


def test_four_neighbours_are_computed_at_once_where_there_are_four():
    for shape, lanes in (((3, 8), "4"), ((3, 6), "2"), ((3, 5), None)):
        schedule = schedules.Vectors().apply(elementwise(shape), TARGET, False)  # noqa: FBT003 - as TVM calls it
        vector = re.search(r"T.vectorized\((\d+)\)", schedule.mod.script())
        assert (vector and vector[1]) == lanes


def test_rules_leave_to_others_what_they_do_not_know():
    size = tirx.Var("n", "int64")
    unknown = elementwise((size, 4))
    x = te.placeholder((4, 32), name="x")
    k = te.reduce_axis((0, 32), name="k")
    along = te.create_prim_func([x, te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="y")])
    for rule, function in (
        (schedules.Vectors(), unknown),
        (schedules.Tiles(), unknown),
        (schedules.Tiles(), along),
        (schedules.Vectors(), along),
        (schedules.Tiles(), elementwise((4, 4))),
    ):
        assert rule.apply(function, TARGET, False) is None  # noqa: FBT003


def test_a_tuned_kernel_keeps_its_schedule(tmp_path):
    proto = net([node("Conv", ["x", "w"], ["y"])], (1, 8, 8, 8), {"w": weights(8, 8, 1, 1)})
    lowered = Mali(KIND).lower(importer.import_model(source.load(nets.save(proto, tmp_path))).module)
    (name,) = [variable for variable, function in lowered.functions_items() if "conv2d" in variable.name_hint]
    schedule = s_tir.Schedule(lowered[name].with_attr("global_symbol", "main"))
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        loop = schedule.fuse(*schedule.get_loops(block)[:4])
        schedule.bind(loop, "threadIdx.x")
    tuned = schedule.mod["main"].with_attr("tirx.is_scheduled", 1)
    lowered[name] = tuned
    assert tvm_ffi.structural_equal(Mali(KIND).apply_choices(lowered, {})[name], tuned)


def test_it_computes_in_half_precision_and_accumulates_in_single(tmp_path):
    proto = net([node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["y"])], (1, 8, 8, 8), {"w": weights(8, 8, 1, 1)})
    code = sources(compiled(proto, tmp_path, KIND.with_precision(float16=True))[1])
    assert "#pragma OPENCL EXTENSION cl_khr_fp16 : enable" in code
    assert re.search(r"__global half\* restrict", code)
    assert "float4 conv2d_nhwc" in code
    assert "convert_half4" in code
