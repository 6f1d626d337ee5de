"""Every predefined network and every network of the onnx wheel, from its ONNX file to a release that runs.

OpenCL takes minutes on a CPU, so that a few of them stand for all there; `make networks` runs the others too.
"""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

from tests import light, opencl
from toolchain import board, deploy, inputs, zoo
from toolchain.pipeline import Model, Pipeline
from toolchain.shell import LocalShell
from toolchain.store import Store

DATA = Path(__file__).parents[1] / "data" / "models"

# Kernels are slow until they are scheduled: the largest networks take most of a minute for their one run.
pytestmark = pytest.mark.timeout(900)


LIMIT = {"local": 1e-4, "opencl-local": 1e-3}
"""Of the largest relative difference, by board: this machine's CPU, and the OpenCL device that it has."""


OF_EACH_KIND = {"resnet-18", "mobilenet", "squeezenet_v1.1", "mlp", "inception_v1", "shufflenet"}
"""What OpenCL runs by default."""


def cases(names):
    """Return boards and networks."""
    few = OF_EACH_KIND if "TOOLCHAIN_NETWORKS" not in os.environ else set(names)
    return [(kind, name) for kind in LIMIT for name in names if kind == "local" or name in few]


def usable(kind):
    """Return a board that is here."""
    if kind == "opencl-local":
        opencl.require_opencl()
    return board.load(kind).resolved()


def deployed(source, kind, program, folder):
    """Build a model and deploy it to this machine, without the benchmark."""
    made = Pipeline(kind, lambda _line: None).build(Model(source, {}, inputs.Source()), folder / "bundle")
    with LocalShell() as shell:
        store = Store(shell, str(folder / "device"))
        return deploy.deploy(made, program, shell, store, keep=1, threads=0)


@pytest.mark.parametrize(("kind", "name"), cases(zoo.NAMES))
def test_a_zoo_network_matches_onnxruntime_on_the_device(kind, name, program, tmp_path):
    done = deployed(name, usable(kind), program, tmp_path)
    assert done.changed
    assert done.difference.max_rel < LIMIT[kind]


@pytest.mark.parametrize(("kind", "name"), cases(light.NAMES))
def test_a_light_network_matches_onnxruntime_on_the_device(kind, name, program, tmp_path):
    path = tmp_path / f"{name}.onnx"
    onnx.save(light.load(name), path)
    done = deployed(str(path), usable(kind), program, tmp_path)
    assert done.changed
    assert done.difference.max_rel < LIMIT[kind]


@pytest.mark.parametrize(("name", "limit"), [("float16", 2e-2), ("quantized", 5e-2)])
def test_a_model_in_few_bits_matches_onnxruntime_on_the_device(name, limit, native, program, tmp_path):
    done = deployed(str(DATA / f"{name}.onnx"), native, program, tmp_path)
    assert done.difference.ok
    assert done.difference.tolerance == limit
