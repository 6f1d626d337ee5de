"""Models on boards from Python, as a notebook or a script does it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.support import bundles
from toolchain import api
from toolchain.bundle.reference import Reference
from toolchain.errors import BusyError, DeviceError, InputError


@pytest.fixture
def board(tmp_path):
    return dataclasses.replace(api.load_board(), root=str(tmp_path / "device"))


def test_a_bundle_is_deployed_run_and_gated(board, tiny, tmp_path):
    base, lines = bundles.variant(tiny, tmp_path / "base", {"graph.txt": b"of another compiler\n"}), []
    with (
        api.connect(board=board, progress=lines.append) as device,
        api.deploy(device, tiny, api.Settings(budget_s=0.1), progress=lines.append) as release,
    ):
        reference = Reference.read(tiny.folder / "reference.safetensors")
        outputs = release.run(reference.inputs)
        for name, expected in reference.outputs.items():
            np.testing.assert_allclose(outputs[name], expected, rtol=1e-5, atol=1e-6)
        assert release.latency.median > 0
        assert any("deploying" in line for line in lines)
        result = release.gate(str(base.folder), api.GateSettings(round_s=0.005))
        assert result.rounds


def test_a_reserved_device_is_in_use_for_others(board):
    with api.connect(board=board), pytest.raises(BusyError), api.connect(board=board):
        pass


def test_a_model_is_built(tmp_path):
    bundle = api.build("mlp", "local", tmp_path / "bundle")
    assert (bundle.manifest.name, bundle.manifest.board) == ("mlp", "local")


@pytest.mark.parametrize(
    ("action", "fault", "text"),
    [
        (lambda folder: api.build("nonesuch.onnx", "local", folder), InputError, "no model 'nonesuch.onnx'"),
        (lambda folder: api.build("mlp", "nonesuch", folder), InputError, "no board 'nonesuch'"),
        (lambda _: api.connect("me@127.0.0.1:1", "x86_64").__enter__(), DeviceError, "Connection refused"),
    ],
)
def test_a_wrong_input_leaves_nothing(action, fault, text, tmp_path):
    with pytest.raises(fault, match=text):
        action(tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
