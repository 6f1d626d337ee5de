"""What the reference gives for given inputs and for random ones."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support import bundles
from toolchain import files, tensors
from toolchain.models import inputs, reference
from toolchain.models import source as model
from toolchain.pipeline.expected import Expecting


@pytest.fixture
def source(tmp_path):
    onnx.save(bundles.dense(8, 4), tmp_path / "dense.onnx")
    return model.load(str(tmp_path / "dense.onnx"))


def test_outputs_and_limit_of_one(source):
    fed = inputs.random(source.inputs, 0)
    found = Expecting(source, unoptimized=False, float16=False).of(fed)
    assert np.array_equal(found.outputs["y"], reference.run(source, fed)["y"])
    assert (found.tolerance, found.amplified) == (None, {})


def test_half_precision_has_its_own_limit(source):
    found = Expecting(source, unoptimized=False, float16=True).of(inputs.random(source.inputs, 0))
    assert (found.tolerance, found.amplified) == (2e-2, {})


def test_inputs_that_amplify_rounding_are_told(source, monkeypatch):
    limits = {"y": tensors.Limit(0.03, tensors.ROUNDING)}
    monkeypatch.setattr(reference, "limits", lambda *_: limits)
    found = Expecting(source, unoptimized=False, float16=False).of(inputs.random(source.inputs, 0))
    assert (found.tolerance, found.amplified) == (limits, limits)


def test_random_samples(source):
    told = []
    found = Expecting(source, unoptimized=False, float16=False).of_random(4, 3, told.append)
    for at in range(3):
        fed = inputs.random(source.inputs, 4 + at)
        assert found.samples[at].sha256 == files.sha256_bytes(tensors.encode(fed))
        np.testing.assert_array_equal(found.outputs[at]["y"], reference.run(source, fed)["y"])
    assert found.seed == 4
    assert [(step.done, step.total) for step in told] == [(0, 3), (1, 3), (2, 3)]


def test_a_session_serves_all_samples(source, monkeypatch):
    seen, opened = [], reference.open_model

    def noted(*given, **more):
        seen.append(more)
        return opened(*given, **more)

    monkeypatch.setattr(reference, "open_model", noted)
    Expecting(source, unoptimized=False, float16=False).of_random(0, 5, lambda _line: None)
    assert len(seen) == 2  # one with optimisations, and one without, for the limit
