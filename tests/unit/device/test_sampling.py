"""Many samples on a device: in pieces, in order, and nothing of them is left there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.support.stores import locked
from toolchain import tensors
from toolchain.bundle import PARAMS
from toolchain.device import deploy, sampling
from toolchain.device.sampling import Place
from toolchain.device.store import Store
from toolchain.errors import DeviceError, VerificationError
from toolchain.models import series
from toolchain.shell import LocalShell
from toolchain.tensors import TensorSpec


@pytest.fixture
def place(tiny, program, tmp_path):
    """A device whose lock is held, with a release."""
    shell, root = LocalShell(), tmp_path / "device"
    store = Store(shell, str(root))
    deploy.deploy(tiny, program, shell, store, keep=2, threads=1)
    with locked(store):
        yield Place(shell, store, program, store.facts(), tiny.manifest, tiny.digest, 1)


def expected(tiny, x):
    weights = tensors.load(tiny.folder / PARAMS).values()
    product, offset = (next(one for one in weights if one.ndim == rank) for rank in (2, 1))
    return np.maximum(x @ product + offset, 0)


def kept(root):
    """Return the names of what lies in a store for longer than a run."""
    return {path.name for kind in ("inputs", "blobs/sha256", "run") for path in (root / kind).iterdir()}


@pytest.mark.parametrize("piece", [3, 4096])
def test_samples_come_out_in_order_whatever_the_pieces(tiny, place, monkeypatch, piece):
    monkeypatch.setattr(sampling, "_PIECE_SAMPLES", piece)
    given, told = series.random(tiny.manifest.inputs, 0, 10), []
    before = kept(Path(place.store.root))
    found = sampling.run_all(place, given, told.append)
    x = given.take(range(10))["x"]
    np.testing.assert_allclose(found.outputs["y"], expected(tiny, x), rtol=1e-4, atol=1e-5)
    assert (len(found.each_ns), found.pieces, found.threads) == (10, -(-10 // piece), 1)
    assert min(found.each_ns) > 0
    assert [(step.done, step.total) for step in told] == [(at, 10) for at in range(0, 10, piece)]
    assert kept(Path(place.store.root)) == before


def test_pieces_are_of_64_mib_or_one_sample():
    big, small = TensorSpec("x", (1 << 20,), "float32"), TensorSpec("y", (), "int8")
    assert [len(part) for part in sampling.pieces(40, [big])] == [16, 16, 8]
    assert [len(part) for part in sampling.pieces(2, [TensorSpec("x", (1 << 26,), "float64")])] == [1, 1]
    assert [len(part) for part in sampling.pieces(5000, [small])] == [4096, 904]
    assert [len(part) for part in sampling.pieces(3, [TensorSpec("x", (0,), "int8")])] == [3]
    assert [at for part in sampling.pieces(100, [big, big]) for at in part] == list(range(100))


def test_a_run_that_fails_leaves_no_inputs(place, monkeypatch):
    def fails(*_, **__):
        raise DeviceError("the model does not run")

    root = Path(place.store.root)
    before = kept(root)
    monkeypatch.setattr(sampling.runner, "call", fails)
    with pytest.raises(DeviceError, match="does not run"):
        sampling.run_all(place, series.random(place.manifest.inputs, 0, 3))
    assert kept(root) == before


def test_outputs_of_another_signature_are_refused(place, monkeypatch):
    honest = sampling.runner.call

    def short(*words, **more):
        run = honest(*words, **more)
        return dataclasses.replace(run, outputs={"y": run.outputs["y"][:-1]})

    monkeypatch.setattr(sampling.runner, "call", short)
    with pytest.raises(VerificationError, match="signature"):
        sampling.run_all(place, series.random(place.manifest.inputs, 0, 3))
