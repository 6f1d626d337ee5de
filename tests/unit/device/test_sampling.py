"""Many samples on a device: in pieces, in order, and nothing of them is left there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.support import deploys
from tests.support.stores import locked
from toolchain import tensors
from toolchain.bundle import PARAMS
from toolchain.device import runner, sampling
from toolchain.device.installed import DeviceRelease
from toolchain.device.store import Store
from toolchain.errors import DeviceError, VerificationError
from toolchain.models import series
from toolchain.shell import LocalShell
from toolchain.tensors import TensorSpec


@pytest.fixture
def release(tiny, program, tmp_path):
    """A release of a device whose lock is held."""
    shell, root = LocalShell(), tmp_path / "device"
    store = Store(shell, str(root))
    deploys.deploy(tiny, program, shell, store)
    with locked(store):
        device = deploys.connected(shell, store)
        yield DeviceRelease.of_device(tiny.manifest, tiny.digest, program, device, threads=1)


def expected(tiny, x):
    weights = tensors.load(tiny.folder / PARAMS).values()
    product, offset = (next(array for array in weights if array.ndim == rank) for rank in (2, 1))
    return np.maximum(x @ product + offset, 0)


def stored_names(root):
    """Return the names of what lies in a store for longer than a run."""
    return {path.name for kind in ("inputs", "blobs/sha256", "run") for path in (root / kind).iterdir()}


@pytest.mark.parametrize("piece", [3, 4096])
def test_samples_come_out_in_order_whatever_the_pieces(tiny, release, monkeypatch, piece):
    monkeypatch.setattr(sampling, "_PIECE_SAMPLES", piece)
    inputs, steps = series.random(tiny.manifest.inputs, 0, 10), []
    before = stored_names(Path(release.device.store.root))
    sampled = sampling.run_all(release, inputs, steps.append)
    x = inputs.take(range(10))["x"]
    np.testing.assert_allclose(sampled.outputs["y"], expected(tiny, x), rtol=1e-4, atol=1e-5)
    assert (len(sampled.each_ns), sampled.pieces, sampled.threads) == (10, -(-10 // piece), 1)
    assert min(sampled.each_ns) > 0
    assert [(step.done, step.total) for step in steps] == [(start, 10) for start in range(0, 10, piece)]
    assert stored_names(Path(release.device.store.root)) == before


def test_pieces_are_of_64_mib_or_one_sample():
    big, small = TensorSpec("x", (1 << 20,), "float32"), TensorSpec("y", (), "int8")
    assert [len(piece) for piece in sampling.pieces(40, [big])] == [16, 16, 8]
    assert [len(piece) for piece in sampling.pieces(2, [TensorSpec("x", (1 << 26,), "float64")])] == [1, 1]
    assert [len(piece) for piece in sampling.pieces(5000, [small])] == [4096, 904]
    assert [len(piece) for piece in sampling.pieces(3, [TensorSpec("x", (0,), "int8")])] == [3]
    assert [index for piece in sampling.pieces(100, [big, big]) for index in piece] == list(range(100))


def test_a_run_that_fails_leaves_no_inputs(release, monkeypatch):
    def fails(*_, **__):
        raise DeviceError("the model does not run")

    root = Path(release.device.store.root)
    before = stored_names(root)
    monkeypatch.setattr(runner, "call", fails)
    with pytest.raises(DeviceError, match="does not run"):
        sampling.run_all(release, series.random(release.manifest.inputs, 0, 3))
    assert stored_names(root) == before


def test_outputs_of_another_signature_are_refused(release, monkeypatch):
    honest = runner.call

    def short(*arguments, **options):
        run = honest(*arguments, **options)
        return dataclasses.replace(run, outputs={"y": run.outputs["y"][:-1]})

    monkeypatch.setattr(runner, "call", short)
    with pytest.raises(VerificationError, match="signature"):
        sampling.run_all(release, series.random(release.manifest.inputs, 0, 3))
