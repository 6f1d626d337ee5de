"""Predefined networks and those of the onnx wheel, from the ONNX file to a release that runs.

Some stand for others like them, and OpenCL takes minutes on a CPU; `make networks` runs every one on both.
"""

from __future__ import annotations

import os

import onnx
import pytest

from tests.support import light, opencl, paths
from tests.support.networks import deployed
from toolchain import board
from toolchain.models import zoo

DATA = paths.DATA / "models"

# Kernels are slow until they are scheduled: the largest networks take most of a minute for their one run.
pytestmark = pytest.mark.timeout(900)


LIMIT = {"local": 1e-4, "opencl-local": 1e-3}
"""Of the largest relative difference, by board: this machine's CPU, and the OpenCL device that it has."""


ALIKE = {
    *("resnet-34", "resnet-50", "resnet-101", "resnet3d-18", "resnet50", "mobilenet_v2", "inception_v3"),
    *("resnet-18-v2", "resnet-34-v2", "resnet-50-v2", "resnet-101-v2"),
    *("squeezenet", "vgg19", "zfnet512", "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2"),
}
"""Larger ones of a kind of which another one is run; `make networks` runs them too."""

OF_EACH_KIND = {"mlp"}
"""What OpenCL runs by default: the kernels of convolutions have tests of their own, on the same device."""


def cases(names):
    """Return boards and networks."""
    few = {"local": set(names) - ALIKE, "opencl-local": OF_EACH_KIND}
    everything = "TOOLCHAIN_NETWORKS" in os.environ
    return [(kind, name) for kind in LIMIT for name in names if everything or name in few[kind]]


def usable(kind):
    """Return a board that is here."""
    if kind == "opencl-local":
        opencl.require_opencl()
    return board.load(kind).resolved()


@pytest.mark.parametrize(("kind", "name"), cases(zoo.NAMES))
def test_a_zoo_network_matches_onnxruntime_on_the_device(kind, name, program, tmp_path):
    deployment = deployed(name, usable(kind), program, tmp_path)
    assert deployment.changed
    assert deployment.difference.max_rel < LIMIT[kind]


@pytest.mark.parametrize(("kind", "name"), cases(light.NAMES))
def test_a_light_network_matches_onnxruntime_on_the_device(kind, name, program, tmp_path):
    path = tmp_path / f"{name}.onnx"
    onnx.save(light.load(name), path)
    deployment = deployed(str(path), usable(kind), program, tmp_path)
    assert deployment.changed
    assert deployment.difference.max_rel < LIMIT[kind]


@pytest.mark.parametrize(("name", "limit"), [("float16", 2e-2), ("quantized", 5e-2)])
def test_a_model_in_few_bits_matches_onnxruntime_on_the_device(name, limit, native, program, tmp_path):
    deployment = deployed(str(DATA / f"{name}.onnx"), native, program, tmp_path)
    assert deployment.difference.ok
    assert deployment.difference.tolerance == limit
