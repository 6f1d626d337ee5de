"""What the reference gives for given inputs and for random ones."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support import bundles, nets, state_nets
from toolchain import files, states, tensors
from toolchain.models import inputs, reference
from toolchain.models import source as model
from toolchain.models.request import Model
from toolchain.pipeline.expected import ReferenceModel


@pytest.fixture
def source(tmp_path):
    onnx.save(bundles.dense(8, 4), tmp_path / "dense.onnx")
    return model.load(str(tmp_path / "dense.onnx"))


def test_outputs_and_limit_of_one(source):
    arrays = inputs.random(source.inputs, 0)
    expected = ReferenceModel(source, unoptimized=False, float16=False).run(arrays)
    assert np.array_equal(expected.outputs["y"], reference.run(source, arrays)["y"])
    assert (expected.tolerance, expected.amplified) == (None, {})


def test_half_precision_has_its_own_limit(source):
    expected = ReferenceModel(source, unoptimized=False, float16=True).run(inputs.random(source.inputs, 0))
    assert (expected.tolerance, expected.amplified) == (2e-2, {})


def test_inputs_that_amplify_rounding_are_told(source, monkeypatch):
    limits = {"y": tensors.Limit(0.03, tensors.ROUNDING)}
    monkeypatch.setattr(reference, "limits", lambda *_: limits)
    expected = ReferenceModel(source, unoptimized=False, float16=False).run(inputs.random(source.inputs, 0))
    assert (expected.tolerance, expected.amplified) == (limits, limits)


def test_random_samples(source):
    steps = []
    expected = ReferenceModel(source, unoptimized=False, float16=False).run_random(4, 3, steps.append)
    for index in range(3):
        arrays = inputs.random(source.inputs, 4 + index)
        assert expected.samples[index].sha256 == files.sha256_bytes(tensors.encode(arrays))
        np.testing.assert_array_equal(expected.outputs[index]["y"], reference.run(source, arrays)["y"])
    assert expected.seed == 4
    assert [(step.done, step.total) for step in steps] == [(0, 3), (1, 3), (2, 3)]


def test_a_session_serves_all_samples(source, monkeypatch):
    sessions, opened = [], reference.open_model

    def noted(*arguments, **more):
        sessions.append(more)
        return opened(*arguments, **more)

    monkeypatch.setattr(reference, "open_model", noted)
    ReferenceModel(source, unoptimized=False, float16=False).run_random(0, 5, lambda _line: None)
    assert len(sessions) == 2  # one with optimisations, and one without, for the limit


def test_a_model_with_a_state_runs_sequences_and_random_first_steps(tmp_path):
    source = model.load_request(Model(nets.save(state_nets.gru(), tmp_path), states={"h": "hn"}))
    reference_model = ReferenceModel(source, unoptimized=False, float16=False)
    arrays = inputs.make(inputs.Source(), source.step_inputs, is_sequence=True)
    expected = reference_model.run(arrays)
    assert expected.outputs["y"].shape == (states.STEPS, 1, 4)
    state = np.zeros((1, 1, 24), np.float32)
    for step in range(3):
        outputs = reference.run(source, {"x": arrays["x"][step], "h": state})
        np.testing.assert_array_equal(expected.outputs["y"][step], outputs["y"])
        state = outputs["hn"]
    random = reference_model.run_random(0, 2, lambda _line: None)
    assert [outputs["y"].shape for outputs in random.outputs] == [(1, 4)] * 2
    first = reference_model.run({name: value[:1] for name, value in arrays.items()})
    np.testing.assert_array_equal(first.outputs["y"], expected.outputs["y"][:1])
