from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from toolchain.errors import InputError
from toolchain.models import inputs
from toolchain.quantize import samples
from toolchain.tensors import TensorSpec

SPEC = TensorSpec("x", (1, 3, 8, 8), "float32")
PAIR = (TensorSpec("a", (2,), "float32"), TensorSpec("b", (2,), "float32"))


def array(value=0.0):
    return np.full(SPEC.shape, value, dtype=np.float32)


def test_arrays_and_pictures_are_samples(tmp_path):
    np.save(tmp_path / "a.npy", array(1))
    np.savez(tmp_path / "b.npz", x=array(2))
    (tmp_path / "class").mkdir()
    Image.new("RGB", (20, 10), "red").save(tmp_path / "class" / "c.PNG")
    (tmp_path / "readme.txt").write_text("not a sample")
    folder = samples.Folder(tmp_path, [SPEC])
    assert [path.name for path in folder.paths] == ["a.npy", "b.npz", "c.PNG"]
    assert [sample["x"].flat[0] for sample in folder[:2]] == [1, 2]
    np.testing.assert_array_equal(folder[2]["x"], inputs.from_image(tmp_path / "class" / "c.PNG", [SPEC])["x"])


@pytest.mark.parametrize(("limit", "expected"), [(None, range(10)), (20, range(10)), (3, [0, 3, 6]), (1, [0])])
def test_some_are_taken_from_the_whole_folder(tmp_path, limit, expected):
    for number in range(10):
        np.save(tmp_path / f"{number}.npy", array(number))
    folder = samples.Folder(tmp_path, [SPEC], limit)
    assert len(folder) == len(expected)
    assert [sample["x"].flat[0] for sample in folder] == list(expected)


def test_a_folder_must_be_there_and_hold_samples(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        samples.Folder(tmp_path / "nowhere", [SPEC])
    with pytest.raises(InputError, match="no samples in"):
        samples.Folder(tmp_path, [SPEC])


def test_an_array_of_another_shape_is_named(tmp_path):
    np.save(tmp_path / "odd.npy", array()[0])
    with pytest.raises(InputError, match=r"odd\.npy") as fault:
        samples.Folder(tmp_path, [SPEC])[0]
    assert "expected x 1x3x8x8 float32" in fault.value.details


@pytest.mark.parametrize("name", ["odd.npy", "odd.npz", "odd.png"])
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00rubbish", b"PK\x03\x04 broken"])
def test_an_unreadable_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=r"cannot read .*odd"):
        samples.Folder(tmp_path, [SPEC])[0]


def test_pickles_are_not_loaded(tmp_path):
    np.save(tmp_path / "odd.npy", np.array([{}], dtype=object))
    with pytest.raises(InputError, match="cannot read"):
        samples.read(tmp_path / "odd.npy", [SPEC])


def test_one_array_is_not_two_inputs(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(2, dtype=np.float32))
    with pytest.raises(InputError, match="2 inputs"):
        samples.read(tmp_path / "one.npy", PAIR)
    np.savez(tmp_path / "two.npz", a=np.zeros(2, np.float32), b=np.ones(2, np.float32))
    assert samples.read(tmp_path / "two.npz", PAIR)["b"].tolist() == [1, 1]


def test_random_samples_differ_and_come_again():
    first, second = samples.random([SPEC], 2, seed=3)
    np.testing.assert_array_equal(first["x"], inputs.random([SPEC], 3)["x"])
    assert not np.array_equal(first["x"], second["x"])
