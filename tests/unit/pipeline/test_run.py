"""What is refused before a release is run on a user's inputs; the runs themselves are in cli/test_run.py."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain.errors import InputError
from toolchain.pipeline.run import RunRequest


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
