"""The Mali backend: targets, lowering and default schedules; what the kernels compute is test_opencl's business."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests.support import nets
from tests.support.nets import node, value
from toolchain import board
from toolchain.backends import backend_of
from toolchain.backends.cpu.backend import Cpu
from toolchain.backends.cpu.layers import Dense, to_json
from toolchain.backends.mali import images
from toolchain.backends.mali.backend import Mali
from toolchain.errors import InputError
from toolchain.models import importer, source
from toolchain.records import tasks

BOARDS = ("hikey970", "odroid-n2", "opencl-local", "rk3399", "rk3588")


def imported(tmp_path):
    net = nets.model(
        [node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["r"]), node("Softmax", ["r"], ["y"])],
        [value("x", (1, 8, 9, 9))],
        [value("y", (1, 8, 9, 9))],
        {"w": np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32)},
    )
    return importer.import_model(source.load(str(nets.save(net, tmp_path))))


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_has_a_target_for_its_gpu_and_one_for_its_cpu(name):
    kind = board.load(name).resolved()
    target = backend_of(kind).target
    assert (target.kind.name, target.host.kind.name) == ("opencl", "llvm")
    assert "mali" in list(target.keys)
    assert target.attrs["max_threads_per_block"] == target.attrs["max_num_threads"] == kind.target.max_threads_per_block
    assert target.attrs["max_shared_memory_per_block"] == kind.target.max_shared_memory_per_block
    assert target.host.attrs["mtriple"] == kind.triple


def test_an_unknown_cpu_is_refused():
    kind = board.load("rk3399").resolved()
    wrong = dataclasses.replace(kind, target=dataclasses.replace(kind.target, mcpu="cortex-a0"))
    with pytest.raises(InputError, match="cortex-a0"):
        _ = Mali(wrong).target


def test_every_kernel_is_scheduled_for_the_gpu(tmp_path):
    backend = Mali(board.load("rk3588").resolved())
    finished = backend.apply_choices(backend.lower(imported(tmp_path).module), {})
    kernels = [function for _, function in finished.functions_items() if isinstance(function, tirx.PrimFunc)]
    assert kernels
    assert all("threadIdx.x" in kernel.script() for kernel in kernels)


def test_kernels_become_opencl_c(tmp_path):
    backend = Mali(board.load("rk3588").resolved())
    finished = backend.apply_choices(backend.lower(imported(tmp_path).module), {})
    executable = tvm.compile(finished, target=backend.target)
    (host,) = executable.mod.imports
    (kernels,) = host.imports
    assert kernels.kind == "opencl"
    assert "__kernel void" in kernels.inspect_source()


def test_templates_of_the_cpu_and_records_of_the_projects_are_none_of_its_own():
    backend = Mali(board.load("rk3588").resolved())
    layer = to_json(Dense(1, 64, 64))
    assert backend.template_names == ("winograd",)
    assert Cpu(backend.board).templates.candidates(layer)
    assert not backend.templates.candidates(layer)
    assert not backend.templates.fits(layer, Cpu(backend.board).templates.candidates(layer)[0])
    assert not backend.computes_int8
    assert backend.machine_model is None
    assert Mali(board.load("opencl-local").resolved()).shipped == ""


def large(tmp_path):
    """A convolution that gains by Winograd's algorithm."""
    weights = np.random.default_rng(0).standard_normal((128, 128, 3, 3)).astype(np.float32)
    net = nets.model(
        [node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["y"])],
        [value("x", (1, 128, 28, 28))],
        [value("y", (1, 128, 28, 28))],
        {"w": weights},
    )
    return importer.import_model(source.load(str(nets.save(net, tmp_path))))


@pytest.mark.parametrize(
    ("without", "options", "tiled"),
    [((), {}, True), (("winograd",), {}, False), ((), {"float16": True}, False)],
)
def test_large_convolutions_are_winograd_s_in_single_precision_unless_it_is_left_out(tmp_path, without, options, tiled):
    kind = board.load("rk3588").resolved()
    backend = Mali(dataclasses.replace(kind, target=dataclasses.replace(kind.target, **options)), without)
    lowered = backend.lower(large(tmp_path).module)
    names = {variable.name_hint for variable in lowered.functions}
    assert ({"winograd_inputs", "winograd_products", "fused_winograd_conv2d_relu"} <= names) == tiled
    assert any("winograd" in name for name in names) == tiled


def test_products_are_what_is_tuned_of_winograd_s_convolution(tmp_path):
    """Transforms are written as they are to run."""
    backend = Mali(board.load("rk3588").resolved())
    names = [task.name for task in tasks.extract(backend.lower(large(tmp_path).module), backend)]
    assert "winograd_products" in names
    assert not any("inputs" in name or "conv2d" in name for name in names)


def test_what_is_tuned_and_costed_reads_weights_as_what_is_built(tmp_path):
    """A task is a kernel without its network, which alone knows what is constant."""
    weights = {"w": np.ones((256, 64), np.float32)}
    net = nets.model([node("MatMul", ["x", "w"], ["y"])], [value("x", (5, 256))], [value("y", (5, 64))], weights)
    backend = Mali(board.load("rk3588").resolved())
    lowered = backend.lower(importer.import_model(source.load(str(nets.save(net, tmp_path)))).module)
    (task,) = tasks.extract(lowered, backend)
    (built,) = [
        function
        for function in backend.apply_choices(lowered, {}).functions.values()
        if isinstance(function, tirx.PrimFunc)
    ]
    names = [parameter.name for parameter in backend.schedule(task.module)["main"].params]
    assert names == [parameter.name for parameter in built.params]
    assert sum(images.MARK in name for name in names) == 1
