"""Arrays in an .npz file that only its own kind replaces."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain import arrays
from toolchain.errors import InputError


def test_numpy_reads_what_is_written(tmp_path):
    path = tmp_path / "y.npz"
    outputs = {"file": np.arange(6.0).reshape(2, 3).T, "/a/b:0": np.float16(4), "none": np.zeros((0, 3), np.int8)}
    arrays.save(path, outputs, "x")
    with np.load(path) as file:
        assert set(file.files) == set(outputs)
        for name, value in outputs.items():
            np.testing.assert_array_equal(file[name], value)
            assert file[name].dtype == np.asarray(value).dtype
    assert [path.name for path in tmp_path.iterdir()] == ["y.npz"]


def test_an_earlier_result_is_replaced_and_nothing_else(tmp_path):
    arrays.save(tmp_path / "y.npz", {"y": np.ones(2)}, "x")
    arrays.save(tmp_path / "y.npz", {"y": np.zeros(2)}, "x")
    np.savez(tmp_path / "mine.npz", x=np.ones(3))
    (tmp_path / "picture.jpg").write_bytes(b"no images")
    for name in ("mine.npz", "picture.jpg"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(InputError, match="something other than the outputs of a run"):
            arrays.save(tmp_path / name, {"y": np.zeros(2)}, "x")
        assert (tmp_path / name).read_bytes() == before


def test_a_place_that_cannot_be_written(tmp_path):
    for path in (tmp_path, tmp_path / "none" / "y.npz"):
        with pytest.raises(InputError, match="cannot write"):
            arrays.check_target(path)
