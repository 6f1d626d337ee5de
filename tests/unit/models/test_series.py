"""The inputs of many runs, from files, pictures and by chance."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from toolchain.errors import InputError
from toolchain.models import inputs, series
from toolchain.tensors import TensorSpec

X = TensorSpec("x", (1, 3), "float32")
Z = TensorSpec("z", (), "int64")
PICTURE = TensorSpec("data", (1, 3, 8, 8), "float32")


def saved(folder, **arrays):
    np.savez(folder / "x.npz", **arrays)
    return folder / "x.npz"


def test_arrays_of_the_models_own_shapes_are_one_sample(tmp_path):
    samples = series.of_file(saved(tmp_path, x=np.ones((1, 3), np.float32), z=np.int64(4)), [X, Z])
    arrays = samples.take(range(1))
    assert (samples.count, samples.single) == (1, True)
    assert {name: value.shape for name, value in arrays.items()} == {"x": (1, 1, 3), "z": (1,)}


def test_one_more_axis_is_many_samples(tmp_path):
    data = np.arange(15, dtype=np.float32).reshape(5, 1, 3)
    samples = series.of_file(saved(tmp_path, x=data, z=np.arange(5)), [X, Z])
    assert (samples.count, samples.single) == (5, False)
    arrays = samples.take(range(2, 4))
    np.testing.assert_array_equal(arrays["x"], data[2:4])
    np.testing.assert_array_equal(arrays["z"], [2, 3])


def test_an_array_alone_is_the_only_input(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((7, 1, 3), np.float32))
    assert series.of_file(tmp_path / "x.npy", [X]).count == 7


@pytest.mark.parametrize(
    ("arrays", "details"),
    [
        (
            {"x": np.zeros((2, 1, 3), np.float32), "z": np.zeros(3, np.int64)},
            r"z: has \(3,\) int64, expected z 2 int64",
        ),
        ({"x": np.zeros((2, 1, 3), np.float32), "z": np.int64(1)}, r"z: has \(\) int64, expected z 2 int64"),
        ({"x": np.zeros((1, 3), np.float64), "z": np.int64(1)}, r"x: has \(1, 3\) float64.*[\s\S]*one more axis"),
        ({"x": np.zeros((2, 1, 3), np.int8), "z": np.zeros(2, np.int64)}, r"x: has \(2, 1, 3\) int8"),
        ({"x": np.zeros((1, 3), np.float32)}, "z: missing"),
        ({"y": np.zeros((1, 3), np.float32)}, "y: the model has no such input"),
        ({"x": np.zeros((0, 1, 3), np.float32), "z": np.zeros(0, np.int64)}, "one more axis in front"),
        ({"x": np.zeros((2, 2, 1, 3), np.float32), "z": np.int64(1)}, r"x: has \(2, 2, 1, 3\)"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, details):
    with pytest.raises(InputError, match=r"the arrays of x\.npz do not fit") as caught:
        series.of_file(saved(tmp_path, **arrays), [X, Z])
    assert re.search(details, caught.value.details)


@pytest.fixture
def pictures(tmp_path):
    for name, colour in (("b.png", "red"), ("a.jpg", "blue"), ("c.JPG", "green")):
        Image.new("RGB", (10, 10), colour).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no images")
    return tmp_path


def test_a_folder_of_pictures_is_taken_by_name(pictures):
    samples = series.of_pictures([pictures], [PICTURE])
    assert [name.rpartition("/")[2] for name in samples.names] == ["a.jpg", "b.png", "c.JPG"]
    arrays = samples.take(range(1, 3))["data"]
    np.testing.assert_array_equal(arrays[0], inputs.from_image(pictures / "b.png", [PICTURE])["data"])
    assert (arrays.shape, samples.single) == ((2, 1, 3, 8, 8), False)


def test_one_picture_is_one_sample_and_several_are_many(pictures):
    assert series.of_pictures([pictures / "a.jpg"], [PICTURE]).single
    samples = series.of_pictures([pictures / "b.png", pictures / "a.jpg"], [PICTURE])
    assert (samples.count, samples.single) == (2, False)
    assert samples.names[0].endswith("b.png")


def test_pictures_that_are_none_are_told_before_the_work(pictures):
    (pictures / "d.png").write_text("no images")
    with pytest.raises(InputError, match=r"cannot read the image .*d\.png"):
        series.of_pictures([pictures], [PICTURE])
    with pytest.raises(InputError, match="does not take one image"):
        series.of_pictures([pictures / "a.jpg"], [X])
    (pictures / "empty").mkdir()
    with pytest.raises(InputError, match="there are no images in"):
        series.of_pictures([pictures / "empty"], [PICTURE])


def test_random_samples_have_seeds_of_their_own():
    samples = series.random([X, Z], 5, 4)
    arrays = samples.take(range(1, 3))
    np.testing.assert_array_equal(arrays["x"][0], inputs.random([X, Z], 6)["x"])
    np.testing.assert_array_equal(arrays["x"][1], inputs.random([X, Z], 7)["x"])
    assert arrays["z"].shape == (2,)


def test_sounds_are_the_bytes_of_their_files(tmp_path):
    for name, size in (("b.wav", 5), ("a.WAV", 9), ("notes.txt", 3)):
        (tmp_path / name).write_bytes(bytes(range(size)))
    samples = series.of_raw_sounds([tmp_path], lambda contents: contents.size // 2)
    assert [name.rpartition("/")[2] for name in samples.names] == ["a.WAV", "b.wav"]
    assert (samples.count, samples.single, samples.raw_bytes, samples.windows) == (2, False, 9, 4)
    np.testing.assert_array_equal(samples.take(range(1, 2))["0"], range(5))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there are no sounds in"):
        series.of_raw_sounds([tmp_path / "empty"], len)

    def refuse(_):
        raise InputError("it is truncated")

    with pytest.raises(InputError, match=r"a\.WAV: it is truncated"):
        series.of_raw_sounds([tmp_path], refuse)
