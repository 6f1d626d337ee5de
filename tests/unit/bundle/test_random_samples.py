"""Reference outputs for many random inputs, in a file and back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from toolchain import bundle as bundles
from toolchain import tensors
from toolchain.bundle.reference import RandomSamples, Sample
from toolchain.errors import VerificationError

DRAWN = RandomSamples(
    7,
    (Sample("a" * 64), Sample("b" * 64, 0.125)),
    ({"y.z": np.ones((1, 2), np.float32)}, {"y.z": np.zeros((1, 3), np.float32)}),  # sizes may hang on the data
)


@pytest.fixture
def reference():
    return bundles.Reference("numpy", {"x": np.ones(2)}, {"y.z": np.ones(2)}, 0.125, DRAWN)


def test_it_comes_back(reference, tmp_path):
    reference.save(tmp_path)
    loaded = bundles.Reference.read(tmp_path / bundles.REFERENCE)
    assert (loaded.random.seed, loaded.random.samples) == (7, DRAWN.samples)
    assert [outputs["y.z"].tolist() for outputs in loaded.random.outputs] == [[[1, 1]], [[0, 0, 0]]]
    assert (loaded.tolerance, list(loaded.inputs), list(loaded.outputs)) == (0.125, ["x"], ["y.z"])


def test_the_same_samples_are_the_same_bytes(reference, tmp_path):
    reference.save(tmp_path)
    first = (tmp_path / bundles.REFERENCE).read_bytes()
    bundles.Reference.read(tmp_path / bundles.REFERENCE).save(tmp_path)
    assert (tmp_path / bundles.REFERENCE).read_bytes() == first


def test_without_samples_there_are_none(tmp_path):
    bundles.Reference("numpy", {"x": np.ones(2)}, {"y": np.ones(2)}).save(tmp_path)
    assert bundles.Reference.read(tmp_path / bundles.REFERENCE).random is None


@pytest.mark.parametrize(
    ("key", "note"),
    [
        ("sample.2.y", {}),
        ("sample.-1.y", {}),
        ("sample.one.y", {}),
        (f"sample.{'1' * 5000}.y", {}),
        ("sample.\u0661.y", {}),
        ("sample.0.y", {"seed": "first"}),
        ("sample.0.y", {"samples": [{"sha256": "none"}]}),
        ("sample.0.y", {"samples": None}),
    ],
)
def test_samples_that_nobody_wrote(tmp_path, key, note):
    samples = {**json.loads(DRAWN.notes()["samples"]), **note}
    path = tmp_path / bundles.REFERENCE
    tensors.save(path, {key: np.ones(2)}, {"samples": json.dumps(samples)})
    with pytest.raises(VerificationError, match="samples in an unknown form"):
        bundles.Reference.read(path)
