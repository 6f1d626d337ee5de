"""Kernels whose cores share each step of a recurrence: no step begins before the last one is complete."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support import nets, networks
from toolchain.models import inputs, source
from toolchain.models.request import Model

LIMIT = 1e-4
GATES = {"LSTM": 4, "GRU": 3}


@pytest.mark.parametrize("operator", GATES)
def test_cores_wait_for_each_other(operator, native, program, tmp_path):
    """A step that begins before another core has written its units of the last one is wrong by tenths."""
    units, width, steps = 512, 128, 40
    stream = np.random.default_rng(0)
    rows = GATES[operator] * units
    weights = {
        "w": stream.standard_normal((1, rows, width), np.float32) / np.sqrt(width),
        "r": 2 * stream.standard_normal((1, rows, units), np.float32) / np.sqrt(units),
    }
    recurrence = onnx.helper.make_node(operator, ["x", "w", "r"], ["y"], hidden_size=units)
    ends = [nets.value("x", (steps, 1, width))], [nets.value("y", (steps, 1, 1, units))]
    path = nets.save(
        nets.model([recurrence], *ends, {name: array.astype(np.float32) for name, array in weights.items()}), tmp_path
    )
    feeds = inputs.random(source.load(path).inputs, 0)
    inputs_file = networks.fed(tmp_path / "inputs.npz", feeds)
    deployment = networks.deployed(Model(path, {}, inputs_file), native, program, tmp_path)
    assert deployment.difference.max_rel < LIMIT
