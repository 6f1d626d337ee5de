"""Many inputs compared with the reference: what one input does not show, and what is counted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.support import bundles, deploys
from toolchain.bundle.reference import RandomSamples, Sample
from toolchain.device import verification
from toolchain.device.store import Store
from toolchain.errors import InputError, VerificationError
from toolchain.shell import LocalShell
from toolchain.tensors import Bound, TensorSpec

SAMPLES = 256


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """A bundle that carries samples."""
    return bundles.build(tmp_path_factory.mktemp("sampled"), rows=8, columns=4, samples=SAMPLES)


@pytest.fixture(scope="module")
def saturating(tmp_path_factory):
    """A bundle whose library is wrong where an input is greater than 3, which one of 740 elements is."""
    return bundles.build(tmp_path_factory.mktemp("saturating"), rows=8, columns=4, samples=SAMPLES, most=3.0)


@pytest.fixture
def ship(program, tmp_path):
    def ship(bundle, count, **options):
        shell = LocalShell()
        store = Store(shell, str(tmp_path / "device"))
        return deploys.deploy(bundle, program, shell, store, samples=count, **options)

    return ship


def test_a_right_release_matches_on_all_of_them(sampled, ship, tmp_path):
    fidelity = ship(sampled, SAMPLES).fidelity
    assert (fidelity.samples, fidelity.seed, fidelity.beyond, fidelity.flips, fidelity.rows) == (
        SAMPLES,
        0,
        0,
        0,
        SAMPLES,
    )
    assert fidelity.difference.ok
    assert 0 <= fidelity.difference.max_rel <= 1e-4
    assert bundles.whole_release(tmp_path / "device") == sampled.digest


def test_a_kernel_that_is_wrong_for_few_values_is_found_by_many_samples_and_not_by_one(saturating, ship, tmp_path):
    assert ship(saturating, 1).fidelity is None
    with pytest.raises(VerificationError, match=r"from the reference for dense, on \d+ of 256") as caught:
        ship(saturating, SAMPLES)
    assert caught.value.exit_code == 5
    assert "a different class in" in caught.value.details
    assert bundles.whole_release(tmp_path / "device") == saturating.digest  # of the deploy with one


def test_a_refused_release_does_not_become_current(saturating, ship, tmp_path):
    with pytest.raises(VerificationError):
        ship(saturating, SAMPLES)
    assert bundles.whole_release(tmp_path / "device") is None


def test_the_users_tolerance_is_that_of_all_samples(saturating, ship):
    fidelity = ship(saturating, SAMPLES, tolerance=10.0).fidelity
    assert fidelity.difference.tolerance == 10.0
    assert fidelity.difference.max_rel > 1e-3


def test_fewer_samples_than_there_are(sampled, ship):
    assert ship(sampled, 5).fidelity.samples == 5


def test_more_samples_than_there_are_are_refused_with_the_next_command(sampled, tiny):
    with pytest.raises(InputError, match=r"--samples 300 is more than the reference of dense has: 256") as caught:
        verification.random_reference(sampled, 300)
    assert "toolchain build dense.onnx --samples 300" in caught.value.hint
    with pytest.raises(InputError, match="has: 1"):
        verification.random_reference(tiny, 2)


def test_inputs_that_are_drawn_otherwise_are_told(sampled, monkeypatch, ship):
    monkeypatch.setattr(
        verification.series.inputs, "random", lambda specs, _: {spec.name: np.ones(spec.shape) for spec in specs}
    )
    with pytest.raises(VerificationError, match="random inputs differ"):
        ship(sampled, 3)


def _compared(got, expected, manifest, *limits):
    limits = limits or (None,) * len(expected)
    samples = RandomSamples(
        3, tuple(Sample("a" * 64, limit) for limit in limits), tuple({"y": np.array(output)} for output in expected)
    )
    return verification.compare_samples({"y": np.array(got)}, samples, manifest)


@pytest.fixture
def classes(tiny):
    return dataclasses.replace(tiny.manifest, outputs=(TensorSpec("y", (1, 3), "float64"),))


def test_the_worst_sample_and_flips_are_counted(classes):
    expected = [[[0.0, 1.0, 0.5]], [[1.0, 0.99999, 0.0]], [[0.0, 0.0, 1.0]]]
    got = [[[0.0, 1.0, 0.5]], [[0.99999, 1.0, 0.0]], [[0.0, 0.5, 1.0]]]
    fidelity = _compared(got, expected, classes)
    assert (fidelity.worst, fidelity.beyond, fidelity.flips, fidelity.rows, fidelity.seed) == (2, 1, 1, 3, 3)
    assert fidelity.difference.max_rel == pytest.approx(0.5)


def test_a_sample_beyond_its_own_limit_is_worse_than_one_further_off_within(classes):
    fidelity = _compared([[[0.0, 1.1, 0.0]], [[0.0, 1.01, 0.0]]], [[[0.0, 1.0, 0.0]]] * 2, classes, 0.5, 0.001)
    assert (fidelity.worst, fidelity.beyond) == (1, 1)


def test_an_output_that_is_not_finite_is_beyond(classes):
    assert _compared([[[0.0, np.nan, 0.0]]], [[[0.0, 1.0, 0.0]]], classes).beyond == 1


@pytest.mark.parametrize("shape", [(3,), (2, 1), (1, 2, 2)])
def test_what_is_no_table_of_classes_has_no_flips(tiny, shape):
    manifest = dataclasses.replace(tiny.manifest, outputs=(TensorSpec("y", shape, "float64"),))
    fidelity = _compared(np.ones((2, *shape)), np.ones((2, *shape)), manifest)
    assert (fidelity.flips, fidelity.rows) == (None, 0)


def test_outputs_with_a_bound_are_compared_by_their_counts(tiny):
    specs = (TensorSpec("y", (4,), "float64", Bound(0, "y.count")), TensorSpec("y.count", (1,), "int64"))
    manifest = dataclasses.replace(tiny.manifest, outputs=specs)
    samples = RandomSamples(0, (Sample("a" * 64),) * 2, ({"y": np.ones(2)}, {"y": np.ones(3)}))
    outputs = {"y": np.array([[1, 1, 9, 9], [1, 1, 1, 9.0]]), "y.count": np.array([[2], [3]])}
    assert verification.compare_samples(outputs, samples, manifest).beyond == 0
