"""Weights that kernels read as images, and as buffers where a device has no such images: the same numbers."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
import tvm

from tests.support import nets, opencl, opencl_runtimes
from tests.support.nets import node, value
from tests.support.opencl_runtimes import INTEL, POCL
from tests.support.paths import ROOT
from toolchain import board
from toolchain.backends.mali.backend import Mali
from toolchain.models import importer, inputs, source

G610 = board.Gpu("g610", 4, 1000)
RUN = """
import sys, numpy as np, tvm
from tvm import relax
folder = sys.argv[1]
with np.load(folder + "/given.npz") as kept:
    given = [kept[name] for name in kept.files]
device = tvm.runtime.device("opencl", 0)
machine = relax.VirtualMachine(tvm.runtime.load_module(folder + "/net.so"), device)
made = machine["main"](*(tvm.runtime.tensor(one, device) for one in given))
np.save(folder + "/made.npy", (made if hasattr(made, "numpy") else made[0]).numpy())
"""


def network() -> onnx.ModelProto:
    """Return layers whose weights are images, of one pixel and a matrix, and others with windows and in groups."""
    draw = np.random.default_rng(0).standard_normal
    shapes = {"a": (64, 16, 3, 3), "b": (64, 1, 3, 3), "c": (256, 64, 1, 1), "d": (96, 256, 1, 1), "e": (96, 128)}
    constants = {name: (0.1 * draw(shape)).astype(np.float32) for name, shape in shapes.items()}
    return nets.model(
        [
            node("Conv", ["x", "a"], ["a1"], pads=[1, 1, 1, 1]),
            node("Conv", ["a1", "b"], ["b1"], pads=[1, 1, 1, 1], group=64, strides=[2, 2]),
            node("Conv", ["b1", "c"], ["c1"]),
            node("Relu", ["c1"], ["c2"]),
            node("Conv", ["c2", "d"], ["d1"]),
            node("GlobalAveragePool", ["d1"], ["d2"]),
            node("Flatten", ["d2"], ["d3"]),
            node("MatMul", ["d3", "e"], ["y"]),
        ],
        [value("x", (1, 16, 13, 11))],
        [value("y", (1, 128))],
        constants,
    )


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    return opencl.plugin(tmp_path_factory.mktemp("cache"))


def compiled(folder, *, half: bool) -> np.ndarray:
    """Compile the network for a GPU that reads images, of this machine; return what ONNX Runtime makes."""
    folder.mkdir()
    model = source.load(nets.save(network(), folder))
    feeds = inputs.random(model.inputs, 0)
    np.savez(folder / "given.npz", *feeds.values())
    kind = dataclasses.replace(board.load("opencl-local").resolved(), gpu=G610)
    backend = Mali(kind.with_precision(float16=True) if half else kind)
    finished = backend.apply_choices(backend.lower(importer.import_model(model).module), {})
    built = tvm.compile(finished, target=backend.target)
    built.export_library(str(folder / "net.so"))
    return nets.run(network(), feeds)[0]


def made(folder, shim: opencl.Shim, environment: dict[str, str]) -> tuple[np.ndarray, int]:
    """Run it in a process of its own; return its output, and how many images it had."""
    variables = {**os.environ, **shim.env(), **environment}
    subprocess.run([sys.executable, "-c", RUN, str(folder)], cwd=ROOT, env=variables, check=True, timeout=300)
    return np.load(folder / "made.npy"), shim.counts().images


@pytest.mark.parametrize("half", [False, True])
def test_images_give_what_buffers_give_to_the_bit(tmp_path, plugin, half):
    """On Intel's OpenCL with images and without; PoCL, which has none, computes in another order."""
    opencl_runtimes.require_one(INTEL)
    expected, shim = compiled(tmp_path / "net", half=half), opencl.Shim(tmp_path / "shim")
    chosen = opencl_runtimes.environment(INTEL) | plugin
    output, images = made(tmp_path / "net", shim, chosen)
    plain, none = made(tmp_path / "net", shim, chosen | {"EDGE_OPENCL_IMAGES": "0"})
    assert images == 3
    assert none == 0
    np.testing.assert_array_equal(output, plain)
    np.testing.assert_allclose(output, expected, atol=(2e-2 if half else 1e-4) * np.abs(expected).max(), rtol=0)


def test_a_device_without_images_reads_buffers(tmp_path, plugin):
    opencl_runtimes.require_one(POCL)
    expected, shim = compiled(tmp_path / "net", half=False), opencl.Shim(tmp_path / "shim")
    output, images = made(tmp_path / "net", shim, opencl_runtimes.environment(POCL) | plugin)
    assert images == 0
    np.testing.assert_allclose(output, expected, atol=1e-4 * np.abs(expected).max(), rtol=0)
