"""What is refused before a release is run on a user's inputs; the runs themselves are in cli/test_run.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from toolchain import sounds
from toolchain.errors import InputError
from toolchain.native.steps import OBJECT
from toolchain.pipeline import run as running
from toolchain.pipeline.run import RunRequest
from toolchain.steps import Steps
from toolchain.tensors import TensorSpec


@pytest.fixture
def npz(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 8), np.float32))
    return tmp_path / "x.npz"


def test_what_is_complete_is_taken(npz, tmp_path):
    RunRequest(tmp_path / "y.npz", npz=npz).check()


def test_inputs_are_wanted_and_of_one_kind(npz, tmp_path):
    with pytest.raises(InputError, match="nothing to run"):
        RunRequest(tmp_path / "y.npz").check()
    with pytest.raises(InputError, match="cannot be combined"):
        RunRequest(tmp_path / "y.npz", npz=npz, pictures=(npz,)).check()


@pytest.mark.parametrize("field", ["npz", "pictures", "labels"])
def test_a_file_that_is_missing(npz, tmp_path, field):
    none = tmp_path / "none"
    options = {"npz": npz, field: (none,) if field == "pictures" else none}
    if field == "pictures":
        del options["npz"]
    with pytest.raises(InputError, match=r"there is no file .*none"):
        RunRequest(tmp_path / "y.npz", **options).check()


def test_what_is_read_is_not_replaced(npz):
    with pytest.raises(InputError, match="--output would overwrite"):
        RunRequest(npz, npz=npz).check()


def test_an_output_of_somebody_elses(npz, tmp_path):
    (tmp_path / "picture.jpg").write_bytes(b"no images")
    with pytest.raises(InputError, match="something other"):
        RunRequest(tmp_path / "picture.jpg", npz=npz).check()
    with pytest.raises(InputError, match="cannot write"):
        RunRequest(tmp_path / "none" / "y.npz", npz=npz).check()


def test_texts_and_seconds_of_sounds():
    steps = Steps(("wav:rate=16000",), ("ctc:labels=FILE",), ("-", "|", "a"))
    inputs, outputs = [TensorSpec("x", (1, 1600), "float32")], [TensorSpec("y", (1, 9, 3), "float32")]
    pipeline = sounds.resolve(steps, inputs, outputs)
    manifest = SimpleNamespace(pipeline=pipeline, sounds=pipeline, pictures=None, name="m")
    objects = np.array([(2, 0.5, 0, 0, 0.25, 0), (1, 1, 0.25, 0, 0.5, 0), (2, 1, 0.5, 0, 1, 0)], OBJECT)
    assert running._texts(["a.wav"], [objects], manifest) == (("a.wav", "a a"),)
    items = running._objects(objects, manifest)
    assert (items[0].label, items[0].box, items[0].seconds) == ("a", (), (0.0, 0.25))
    assert items[0].cells == ("0.5", "a", "0.00", "0.25")
    pictures = SimpleNamespace(pipeline=None, sounds=None, pictures=None, name="m")
    with pytest.raises(InputError, match="m has no steps for sounds"):
        RunRequest(Path("y.npz"), sounds=(Path("a.wav"),)).series(SimpleNamespace(**vars(pictures), states=()))
    with pytest.raises(InputError, match="the steps of m are for sounds"):
        RunRequest(Path("y.npz"), pictures=(Path("a.png"),)).series(SimpleNamespace(**vars(manifest), states=()))
