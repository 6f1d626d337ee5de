"""A first hour with int8: a network is quantized with random numbers, and deployed to this machine."""

from __future__ import annotations

import json

import pytest

from tests.support.commands import toolchain
from toolchain.tensors import TOLERANCE


@pytest.mark.parametrize("network", ["mobilenet", pytest.param("squeezenet_v1.1", marks=pytest.mark.nightly)])
def test_a_quantized_network_is_computed_as_its_file_says(network, tmp_path):
    """Float layers lie between its int8 ones; rounding some halves another way made 9.2e-2 of MobileNet."""
    path = tmp_path / f"{network}-int8.onnx"
    outcome = toolchain("quantize", network, "--calibration", "random", "--samples", 1, "-o", path)
    assert outcome.code == 0, outcome.err
    outcome = toolchain("deploy", path, "--root", tmp_path / "root", "--budget", 0.1, "--json", "-")
    assert outcome.code == 0, outcome.err
    outputs = json.loads(outcome.out)["outputs"]
    assert outputs["reference"].endswith("without optimisations")
    assert outputs["max_rel_diff"] < TOLERANCE["float32"], "far below the limit for int8, which allows for a step"


def test_real_scales_are_computed_as_onnx_runtime_does(tmp_path):
    """On a CPU with dot products of bytes our own kernels compute them; on others they are computed in floats."""
    path = tmp_path / "int8.onnx"
    command = ["quantize", "squeezenet_v1.1", "--for", "cpu", "--calibration", "random", "--samples", 1, "-o", path]
    outcome = toolchain(*command, "--json")
    assert outcome.code == 0, outcome.err
    assert len(json.loads(outcome.out)["layers"]) == 26
    outcome = toolchain("deploy", path, "--root", tmp_path / "root", "--budget", 0.1, "--json", "-")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["outputs"]["max_rel_diff"] < 5e-2
