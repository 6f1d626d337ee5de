"""The Mali backend: targets, lowering and default schedules; what the kernels compute is test_opencl's business."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests import nets
from tests.nets import node, value
from toolchain import board, model
from toolchain.backends import BACKENDS, mali
from toolchain.errors import BuildError, InputError

BOARDS = ("hikey970", "odroid-n2", "opencl-local", "rk3399", "rk3588")


def imported(tmp_path):
    net = nets.model(
        [node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["r"]), node("Softmax", ["r"], ["y"])],
        [value("x", (1, 8, 9, 9))],
        [value("y", (1, 8, 9, 9))],
        {"w": np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32)},
    )
    return model.import_model(model.load(str(nets.save(net, tmp_path))))


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_has_a_target_for_its_gpu_and_one_for_its_cpu(name):
    kind = board.load(name).resolved()
    found = BACKENDS[kind.backend].target(kind)
    assert (found.kind.name, found.host.kind.name) == ("opencl", "llvm")
    assert "mali" in list(found.keys)
    assert found.attrs["max_threads_per_block"] == found.attrs["max_num_threads"] == kind.target.max_threads_per_block
    assert found.attrs["max_shared_memory_per_block"] == kind.target.max_shared_memory_per_block
    assert found.host.attrs["mtriple"] == kind.triple


def test_an_unknown_cpu_is_refused():
    kind = board.load("rk3399").resolved()
    wrong = dataclasses.replace(kind, target=dataclasses.replace(kind.target, mcpu="cortex-a0"))
    with pytest.raises(InputError, match="cortex-a0"):
        mali.target(wrong)


def test_every_kernel_is_scheduled_for_the_gpu(tmp_path):
    kind = board.load("rk3588").resolved()
    lowered = mali.lowered(imported(tmp_path).module, kind)
    finished = mali.finished(lowered, kind, {})
    kernels = [one for _, one in finished.functions_items() if isinstance(one, tirx.PrimFunc)]
    assert kernels
    assert all("threadIdx.x" in one.script() for one in kernels)


def test_kernels_become_opencl_c(tmp_path):
    kind = board.load("rk3588").resolved()
    finished = mali.finished(mali.lowered(imported(tmp_path).module, kind), kind, {})
    executable = tvm.compile(finished, target=mali.target(kind))
    (host,) = executable.mod.imports
    (kernels,) = host.imports
    assert kernels.kind == "opencl"
    assert "__kernel void" in kernels.inspect_source()


def test_there_are_no_templates():
    kind = board.load("rk3588").resolved()
    found = mali.templates(kind)
    assert (found.candidates("{}"), found.module("{}", {}), found.fits("{}", {})) == ([], None, False)
    for ask in (found.operator, found.gflop):
        with pytest.raises(BuildError):
            ask("{}")
    assert mali.shipped(kind) == ""
