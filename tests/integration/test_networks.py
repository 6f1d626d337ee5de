"""Every predefined network and every network of the onnx wheel, from its ONNX file to a release that runs."""

from __future__ import annotations

import onnx
import pytest

from tests import light
from toolchain import board, bundle, compiler, deploy, inputs, model, reference, runner, zoo
from toolchain.shell import LocalShell
from toolchain.store import Store

# Kernels are slow until they are scheduled: the largest networks take most of a minute for their one run.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def local():
    return board.load("local").resolved()


@pytest.fixture(scope="module")
def program(local):
    return runner.build(local)


def deployed(source, local, program, folder):
    fed = inputs.random(source.inputs, seed=0)
    expected = reference.run(source, fed)
    made = compiler.build(
        model.import_model(source),
        local,
        folder / "bundle",
        command="a test",
        reference=bundle.Reference(reference.NAME, fed, expected),
    )
    with LocalShell() as shell:
        store = Store(shell, str(folder / "device"))
        return deploy.deploy(made, program, shell, store, keep=1, threads=0)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_a_zoo_network_matches_onnxruntime_on_the_device(name, local, program, tmp_path):
    done = deployed(model.load(name), local, program, tmp_path)
    assert done.changed
    assert done.difference.max_rel < 1e-4


@pytest.mark.parametrize("name", light.NAMES)
def test_a_light_network_matches_onnxruntime_on_the_device(name, local, program, tmp_path):
    path = tmp_path / f"{name}.onnx"
    onnx.save(light.load(name), path)
    done = deployed(model.load(str(path)), local, program, tmp_path)
    assert done.changed
    assert done.difference.max_rel < 1e-4
