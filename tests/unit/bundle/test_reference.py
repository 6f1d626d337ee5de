"""What outputs are compared with: what no device can agree with is refused, and what any device can."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support import bundles
from toolchain import bundle, tensors
from toolchain.bundle.reference import RandomSamples, Sample
from toolchain.errors import VerificationError
from toolchain.tensors import LARGEST_TOLERANCE, MODEL, ROUNDING, Bound, Limit, TensorSpec

X, BOXES = TensorSpec("x", (2, 3), "float32"), TensorSpec("boxes", (5, 4), "float32", Bound(0, "count"))
COUNT = TensorSpec("count", (), "int64")


def check(outputs, *specs):
    manifest = SimpleNamespace(
        step_inputs=(),
        step_outputs=specs,
        outputs=specs,
        steps=lambda _arrays: 0,
        pictures=None,
        sounds=None,
        variants=(),
    )
    bundle.Reference("", {}, outputs).check(manifest)


def test_a_reference_that_fits_is_taken():
    check({"x": np.zeros((2, 3), np.float32)}, X)
    check({"x": np.zeros((2, 3), np.float32), "boxes": np.zeros((2, 4), np.float32)}, X, BOXES, COUNT)


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"y": np.zeros((2, 3), np.float32)},
        {"x": np.zeros((2, 3), np.float64)},
        {"x": np.zeros((3, 2), np.float32)},
        {"x": np.zeros(6, np.float32)},
        {"x": np.zeros((2, 3), np.float32), "boxes": np.zeros((6, 4), np.float32)},
        {"x": np.zeros((2, 3), np.float32), "count": np.zeros((), np.int64)},
    ],
)
def test_one_that_does_not_is_refused(outputs):
    with pytest.raises(VerificationError, match="does not fit its model"):
        check(outputs, X, *((BOXES, COUNT) if len(outputs) > 1 else ()))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_without_a_finite_value_is_refused(value):
    bundle.Reference("", {}, {"y": np.array([value, 1.0])}).check_comparable()
    bundle.Reference("", {}, {"y": np.zeros((0, 2))}).check_comparable()
    with pytest.raises(VerificationError, match="no finite value in y") as caught:
        bundle.Reference("", {}, {"x": np.ones(1), "y": np.array([value, value])}).check_comparable()
    assert "--seed" in caught.value.hint


def noted(folder, **notes):
    tensors.save(folder / bundle.REFERENCE, {"input.x": np.ones(1)}, notes)
    return folder / bundle.REFERENCE


@pytest.mark.parametrize("tolerance", ["inf", "-inf", "nan", "0", "-1e-4", "0.151", "1e300"])
def test_a_tolerance_that_lets_anything_pass_is_refused(tmp_path, tolerance):
    with pytest.raises(VerificationError, match=r"a tolerance of .* at most 0\.15"):
        bundle.Reference.read(noted(tmp_path, tolerance=tolerance))


def test_the_widest_tolerance_that_is_written_is_read(tmp_path):
    assert bundle.Reference.read(noted(tmp_path, tolerance=repr(LARGEST_TOLERANCE))).tolerance == LARGEST_TOLERANCE


@pytest.mark.parametrize("tolerance", ["Infinity", "NaN", "1", "0", "-1"])
def test_nor_may_a_sample_have_such_a_one(tmp_path, tolerance):
    sample = f'{{"sha256": "{"0" * 64}", "tolerance": {tolerance}}}'
    with pytest.raises(VerificationError, match="samples in an unknown form"):
        bundle.Reference.read(noted(tmp_path, samples=f'{{"seed": 0, "samples": [{sample}]}}'))


@pytest.mark.parametrize("notes", [{"tolerance": [1]}, {"runtime": 7}, [], "text", None])
def test_notes_that_are_no_texts_are_refused(tmp_path, notes):
    (tmp_path / bundle.REFERENCE).write_bytes(with_notes(json.dumps(notes)))
    with pytest.raises(VerificationError, match="not a readable safetensors file"):
        bundle.Reference.read(tmp_path / bundle.REFERENCE)


def test_notes_of_any_depth_are_refused(tmp_path):
    (tmp_path / bundle.REFERENCE).write_bytes(with_notes("[" * 100_000))
    with pytest.raises(VerificationError, match="not a readable safetensors file"):
        bundle.Reference.read(tmp_path / bundle.REFERENCE)


def with_notes(text):
    header = json.dumps({"__metadata__": {"notes": text}}).encode()
    return len(header).to_bytes(8, "little") + header


def test_a_tensor_of_another_kind_is_refused(tmp_path):
    tensors.save(tmp_path / bundle.REFERENCE, {"wanted.x": np.ones(1)})
    with pytest.raises(VerificationError, match="a tensor in an unknown form"):
        bundle.Reference.read(tmp_path / bundle.REFERENCE)


def test_a_reference_of_another_bundle_is_refused(tiny, tmp_path):
    other = bundles.reweighted(tiny, tmp_path / "other", seed=3)
    (other.folder / bundle.REFERENCE).write_bytes(tiny.reference.read_bytes())
    with pytest.raises(VerificationError, match="not the one that the bundle was built with"):
        bundle.load(other.folder)


def test_a_reference_beside_a_bundle_that_was_built_without_is_refused(tiny, tmp_path):
    other = bundles.variant(tiny, tmp_path / "other", {})
    (other.folder / bundle.REFERENCE).unlink()
    bare = bundles.described(tiny, other.folder)
    assert (bare.manifest.reference, bare.digest == tiny.digest) == (None, False)
    (other.folder / bundle.REFERENCE).write_bytes(tiny.reference.read_bytes())
    with pytest.raises(VerificationError, match="not the one that the bundle was built with"):
        bundle.load(other.folder)


def test_limits_of_outputs_are_kept(tmp_path):
    limits = {"y": Limit(1e-2, ROUNDING), "z": Limit(LARGEST_TOLERANCE, MODEL)}
    sample = Sample("0" * 64, limits)
    samples = RandomSamples(7, (sample,), ({"y": np.ones(2)},))
    bundle.Reference("", {"x": np.ones(1)}, {"y": np.ones(2)}, limits, samples).save(tmp_path)
    loaded = bundle.Reference.read(tmp_path / bundle.REFERENCE)
    assert (loaded.tolerance, loaded.random.samples) == (limits, (sample,))


@pytest.mark.parametrize(
    "limit",
    [
        '{"value": 0.2, "reason": "rounding"}',
        '{"value": 0, "reason": "rounding"}',
        '{"value": NaN, "reason": "rounding"}',
        '{"value": 0.1, "reason": "because"}',
        '{"value": 0.1}',
        "0.1",
    ],
)
def test_a_limit_that_no_build_writes_is_refused(tmp_path, limit):
    with pytest.raises(VerificationError, match="limits in an unknown form"):
        bundle.Reference.read(noted(tmp_path, limits=f'{{"y": {limit}}}'))


def test_a_release_with_steps_for_pictures_needs_a_picture():
    manifest = SimpleNamespace(
        step_inputs=(),
        step_outputs=(),
        outputs=(),
        steps=lambda _arrays: 0,
        pictures=object(),
        sounds=None,
        variants=(),
    )
    for picture, message in [(None, "no picture"), (np.zeros((2, 2, 4), np.uint8), "neither RGB pixels nor")]:
        with pytest.raises(VerificationError) as caught:
            bundle.Reference("", {}, {}, picture=picture).check(manifest)
        assert message in caught.value.details
    bundle.Reference("", {}, {}, picture=np.zeros((2, 2, 3), np.uint8)).check(manifest)
    bundle.Reference("", {}, {}, picture=np.zeros(7, np.uint8)).check(manifest)
