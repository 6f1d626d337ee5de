from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from toolchain.errors import InputError
from toolchain.models import inputs
from toolchain.models.inputs import Guess, Source
from toolchain.tensors import DTYPES, TensorSpec

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
FIRST = TensorSpec("data", (1, 3, 8, 8), "float32")
LAST = TensorSpec("data", (1, 8, 8, 3), "float32")
NEAR = {"rtol": 1e-5, "atol": 1e-6}


# --- random ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 5)])
def test_random_has_the_signature(dtype, shape):
    array = inputs.random([TensorSpec("x", shape, dtype)], seed=0)["x"]
    assert isinstance(array, np.ndarray)
    assert (array.shape, str(array.dtype)) == (shape, dtype)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("uint8", 0, 255), ("int8", 0, 127), ("bool", 0, 1), ("int32", 0, 9), ("int64", 0, 9), ("uint16", 0, 9)],
)
def test_random_integers_use_their_whole_range(dtype, low, high):
    array = inputs.random([TensorSpec("x", (20_000,), dtype)], seed=0)["x"]
    assert (array.min(), array.max()) == (low, high)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_random_floats_are_standard_normal(dtype):
    array = inputs.random([TensorSpec("x", (20_000,), dtype)], seed=0)["x"].astype("float64")
    assert array.mean() == pytest.approx(0, abs=0.03)
    assert array.std() == pytest.approx(1, abs=0.03)


@given(st.integers(0, 2**63), st.text())
def test_random_is_reproducible(seed, name):
    spec = TensorSpec(name, (4,), "float32")
    np.testing.assert_array_equal(inputs.random([spec], seed)[name], inputs.random([spec], seed)[name])


def test_known_random_values():
    array = inputs.random([TensorSpec("data", (3,), "float32")], seed=0)["data"]
    np.testing.assert_allclose(array, np.random.default_rng([0, 2918445923]).standard_normal(3, np.float32))


def test_random_depends_on_the_seed_and_on_the_name_only():
    a, b = TensorSpec("a", (4,), "float32"), TensorSpec("b", (4,), "float32")
    single, together = inputs.random([a], 0)["a"], inputs.random([b, a], 0)
    np.testing.assert_array_equal(single, together["a"])
    assert not np.array_equal(together["a"], together["b"])
    assert not np.array_equal(single, inputs.random([a], 1)["a"])


# --- which source ----------------------------------------------------------------------------------------------


def test_two_sources():
    with pytest.raises(InputError, match="cannot be combined"):
        inputs.make(Source(npz=Path("a"), image=Path("b")), [FIRST])


def test_make_draws_by_default():
    np.testing.assert_array_equal(inputs.make(Source(seed=3), [FIRST])["data"], inputs.random([FIRST], 3)["data"])


def test_make_reads_arrays(tmp_path):
    np.savez(tmp_path / "in.npz", data=np.ones((1, 3, 8, 8), "float32"))
    assert inputs.make(Source(npz=tmp_path / "in.npz"), [FIRST])["data"].sum() == 192


def test_make_reads_an_image(tmp_path):
    Image.new("RGB", (9, 9)).save(tmp_path / "in.png")
    assert inputs.make(Source(image=tmp_path / "in.png"), [FIRST])["data"].shape == (1, 3, 8, 8)


# --- .npz ------------------------------------------------------------------------------------------------------

SPECS = (TensorSpec("a", (2, 3), "float32"), TensorSpec("b", (), "int64"))
GOOD = {"a": np.arange(6, dtype="float32").reshape(2, 3), "b": np.array(7)}


def npz(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "in.npz", **arrays)
    return folder / "in.npz"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save):
    save(tmp_path / "in.npz", **GOOD)
    read = inputs.from_npz(tmp_path / "in.npz", SPECS)
    assert read.keys() == GOOD.keys()
    for name, array in GOOD.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize(
    ("arrays", "fault"),
    [
        ({"a": GOOD["a"]}, "b: missing, expected b scalar int64"),
        ({**GOOD, "c": GOOD["a"]}, "c: the model has no such input"),
        ({**GOOD, "a": GOOD["a"].T}, "a: has (3, 2) float32, expected a 2x3 float32"),
        ({**GOOD, "a": GOOD["a"].astype("float64")}, "a: has (2, 3) float64, expected a 2x3 float32"),
        ({**GOOD, "b": np.array([7])}, "b: has (1,) int64, expected b scalar int64"),
    ],
    ids=["missing", "extra", "shape", "dtype", "rank"],
)
def test_npz_that_does_not_fit(tmp_path, arrays, fault):
    with pytest.raises(InputError, match=r"in\.npz do not fit the model") as caught:
        inputs.from_npz(npz(tmp_path, **arrays), SPECS)
    assert caught.value.details == fault


def test_npz_that_would_fill_the_memory(tmp_path, monkeypatch):
    """A thousand bytes of zeros are one in the archive, which says beforehand how many they are."""
    np.savez_compressed(tmp_path / "in.npz", a=np.zeros(1 << 20))
    monkeypatch.setattr("toolchain.models.inputs.available_bytes", lambda: 1 << 20)
    with pytest.raises(InputError, match=r"in\.npz have 8\.4 MB, but this machine has"):
        inputs.from_npz(tmp_path / "in.npz", SPECS)


def test_npy_of_the_only_input(tmp_path):
    np.save(tmp_path / "in.npy", GOOD["a"])
    np.testing.assert_array_equal(inputs.from_npz(tmp_path / "in.npy", SPECS[:1])["a"], GOOD["a"])


def test_npy_of_one_input_of_two(tmp_path):
    np.save(tmp_path / "in.npy", GOOD["a"])
    with pytest.raises(InputError, match=r"in\.npy contains one array, but the model has 2 inputs") as caught:
        inputs.from_npz(tmp_path / "in.npy", SPECS)
    assert "numpy.savez" in caught.value.hint


def test_npy_that_does_not_fit(tmp_path):
    np.save(tmp_path / "in.npy", GOOD["a"].T)
    with pytest.raises(InputError, match="do not fit the model"):
        inputs.from_npz(tmp_path / "in.npy", SPECS[:1])


class Trap:
    """Says so when somebody unpickles it."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_pickled_objects_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot read inputs") as caught:
        inputs.from_npz(npz(tmp_path, a=np.array([Trap()], object)), SPECS)
    assert "allow_pickle=False" in caught.value.details


def zipped(name: str, data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, data)
    return stream.getvalue()


def damaged() -> bytes:
    """Compress an array and damage it where zlib, not the zip format, finds out."""
    stream = io.BytesIO()
    np.savez_compressed(stream, a=np.random.default_rng(0).standard_normal(1000))
    data = bytearray(stream.getvalue())
    data[60:600] = bytes(540)
    return bytes(data)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        b"PK\x03\x04 not really",
        damaged(),
        damaged()[:500],
        zipped("a.npy", b"\x93NUMPY\x01\x00"),
    ],
    ids=["empty", "text", "zip in name only", "damaged", "truncated", "cut array"],
)
def test_file_that_is_no_npz(tmp_path, content):
    (tmp_path / "in.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"cannot read inputs from .*in\.npz") as caught:
        inputs.from_npz(tmp_path / "in.npz", SPECS)
    assert caught.value.details
    assert "numpy.savez" in caught.value.hint


def test_zip_of_something_else(tmp_path):
    (tmp_path / "in.npz").write_bytes(zipped("readme.txt", b"hello"))
    with pytest.raises(InputError, match="do not fit the model") as caught:
        inputs.from_npz(tmp_path / "in.npz", SPECS)
    assert "readme.txt: the model has no such input" in caught.value.details


def test_zip_of_text_under_an_inputs_name(tmp_path):
    (tmp_path / "in.npz").write_bytes(zipped("a", b"hello"))
    with pytest.raises(InputError, match="do not fit the model") as caught:
        inputs.from_npz(tmp_path / "in.npz", SPECS)
    assert "a: has () |S5, expected a 2x3 float32" in caught.value.details


@pytest.mark.parametrize("name", ["missing.npz", "."])
def test_no_npz(tmp_path, name):
    with pytest.raises(InputError, match="cannot read inputs"):
        inputs.from_npz(tmp_path / name, SPECS)


# --- images ----------------------------------------------------------------------------------------------------


def picture(folder: Path, image: Image.Image, name: str = "in.png") -> Path:
    image.save(folder / name)
    return folder / name


def quarters(size: int = 64) -> Image.Image:
    """Red, green, blue and white in the corners, in reading order."""
    image = Image.new("RGB", (size, size), "red")
    half = size // 2
    image.paste((0, 255, 0), (half, 0, size, half))
    image.paste("blue", (0, half, half, size))
    image.paste("white", (half, half, size, size))
    return image


def normalized(*rgb: int) -> np.ndarray:
    return (np.array(rgb) / 255 - MEAN) / STD


@pytest.mark.parametrize("size", [(8, 8), (256, 256), (1, 1), (3, 200), (300, 20)], ids=str)
@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (10, 100, 200)], ids=str)
def test_a_plain_picture_keeps_its_colour(tmp_path, size, colour):
    pixels = inputs.from_image(picture(tmp_path, Image.new("RGB", size, colour)), [FIRST])["data"]
    assert (pixels.shape, pixels.dtype) == ((1, 3, 8, 8), np.float32)
    expected = np.broadcast_to(normalized(*colour)[:, None, None], (3, 8, 8))
    np.testing.assert_allclose(pixels[0], expected, **NEAR)


def test_layouts_hold_the_same_pixels(tmp_path):
    path = picture(tmp_path, quarters())
    first, last = (inputs.from_image(path, [spec])["data"] for spec in (FIRST, LAST))
    assert last.shape == (1, 8, 8, 3)
    np.testing.assert_array_equal(first[0].transpose(1, 2, 0), last[0])


def test_corners_stay_where_they_are(tmp_path):
    pixels = inputs.from_image(picture(tmp_path, quarters()), [LAST])["data"][0]
    np.testing.assert_allclose(pixels[1, 1], normalized(255, 0, 0), **NEAR)
    np.testing.assert_allclose(pixels[1, 6], normalized(0, 255, 0), **NEAR)
    np.testing.assert_allclose(pixels[6, 1], normalized(0, 0, 255), **NEAR)
    np.testing.assert_allclose(pixels[6, 6], normalized(255, 255, 255), **NEAR)


def test_sides_of_a_wide_picture_are_cut(tmp_path):
    image = Image.new("RGB", (96, 32), "red")
    image.paste("blue", (32, 0, 64, 32))
    pixels = inputs.from_image(picture(tmp_path, image), [LAST])["data"][0]
    np.testing.assert_allclose(pixels[:, 1:-1], np.broadcast_to(normalized(0, 0, 255), (8, 6, 3)), **NEAR)


def test_height_and_width_are_not_mixed_up(tmp_path):
    image = Image.new("RGB", (40, 80), "red")
    image.paste("blue", (0, 40, 40, 80))
    tall = inputs.from_image(picture(tmp_path, image), [TensorSpec("data", (1, 3, 16, 8), "float32")])["data"]
    assert tall.shape == (1, 3, 16, 8)
    np.testing.assert_allclose(tall[0, :, 3, :].T, np.broadcast_to(normalized(255, 0, 0), (8, 3)), **NEAR)
    np.testing.assert_allclose(tall[0, :, 12, :].T, np.broadcast_to(normalized(0, 0, 255), (8, 3)), **NEAR)


def test_a_batch_repeats_the_picture(tmp_path):
    pixels = inputs.from_image(picture(tmp_path, quarters()), [TensorSpec("data", (2, 3, 8, 8), "float32")])["data"]
    np.testing.assert_array_equal(pixels[0], pixels[1])


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_picture_in_the_models_type(tmp_path, dtype):
    pixels = inputs.from_image(picture(tmp_path, quarters()), [TensorSpec("data", (1, 3, 8, 8), dtype)])["data"]
    assert str(pixels.dtype) == dtype


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 100, (100, 100, 100)),
        ("RGBA", (9, 8, 7, 50), (9, 8, 7)),
        ("LA", (77, 0), (77, 77, 77)),
        ("1", 1, (255,) * 3),
    ],
)
def test_modes_of_a_picture(tmp_path, mode, colour, expected):
    pixels = inputs.from_image(picture(tmp_path, Image.new(mode, (16, 16), colour)), [LAST])["data"]
    np.testing.assert_allclose(pixels[0, 4, 4], normalized(*expected), **NEAR)


def test_palette_picture(tmp_path):
    path = picture(tmp_path, quarters().convert("P"), "in.gif")
    pixels = inputs.from_image(path, [LAST])["data"][0]
    np.testing.assert_allclose(pixels[6, 1], normalized(0, 0, 255), **NEAR)


def encoded(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def broken_chunk() -> bytes:
    """Damage the second of the chunks that hold the pixels: the decoder finds it late, with an error of its own."""
    data = bytearray(encoded(Image.effect_noise((512, 512), 50), "PNG"))
    second = data.index(b"IDAT", data.index(b"IDAT") + 4)
    data[second : second + 4] = b"\xca!\x96\x83"
    return bytes(data)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        encoded(quarters(), "PNG")[:60],
        encoded(quarters(), "JPEG")[:200],
        broken_chunk(),
        b"\x89PNG\r\n\x1a\n",
    ],
    ids=["empty", "text", "cut PNG", "cut JPEG", "broken chunk", "signature only"],
)
def test_file_that_is_no_picture(tmp_path, content):
    (tmp_path / "in.png").write_bytes(content)
    with pytest.raises(InputError, match=r"cannot read the image .*in\.png") as caught:
        inputs.from_image(tmp_path / "in.png", [FIRST])
    assert caught.value.details


@pytest.mark.parametrize("name", ["missing.png", "."])
def test_no_picture(tmp_path, name):
    with pytest.raises(InputError, match="cannot read the image"):
        inputs.from_image(tmp_path / name, [FIRST])


@pytest.mark.parametrize(
    "specs",
    [
        [],
        [FIRST, LAST],
        [TensorSpec("x", (1, 3), "float32")],
        [TensorSpec("x", (1, 1, 28, 28), "float32")],
        [TensorSpec("x", (1, 8, 3, 8), "float32")],
        [TensorSpec("x", (1, 3, 16, 112, 112), "float32")],
        [TensorSpec("x", (1, 3, 8, 8), "uint8")],
    ],
    ids=["none", "two", "rank", "grey", "channels in between", "video", "integers"],
)
def test_models_that_take_no_picture(tmp_path, specs):
    with pytest.raises(InputError, match="does not take one image") as caught:
        inputs.from_image(picture(tmp_path, quarters()), specs)
    assert "--input FILE.npz" in caught.value.hint
    assert all(str(spec) in caught.value.details for spec in specs)


# --- labels ----------------------------------------------------------------------------------------------------


def test_labels(tmp_path):
    (tmp_path / "labels").write_text("tench\ngoldfish, Carassius\nhaie blanc à dents\n", encoding="utf-8")
    assert inputs.read_labels(tmp_path / "labels", 3) == ["tench", "goldfish, Carassius", "haie blanc à dents"]


@pytest.mark.parametrize("content", [None, b"caf\xe9"], ids=["missing", "not UTF-8"])
def test_unreadable_labels(tmp_path, content):
    if content is not None:
        (tmp_path / "labels").write_bytes(content)
    with pytest.raises(InputError, match="cannot read the labels"):
        inputs.read_labels(tmp_path / "labels", 1)


def test_top_five():
    scores = np.array([[0.1, 0.5, 0.05, 0.2, 0.04, 0.11]], "float32")
    guesses = inputs.top(scores, list("abcdef"))
    assert "".join(guess.label for guess in guesses) == "bdfac"
    assert guesses[0] == Guess(1, "b", 0.5)


@pytest.mark.parametrize("shape", [(6,), (1, 6), (1, 6, 1, 1)])
def test_top_of_any_shape(shape):
    scores = np.arange(6, dtype="float32").reshape(shape)
    assert [guess.index for guess in inputs.top(scores, list("abcdef"), count=2)] == [5, 4]


def test_ties_keep_their_order():
    assert [guess.index for guess in inputs.top(np.array([1, 2, 1, 2, 1]), list("abcde"))] == [1, 3, 0, 2, 4]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16"])
def test_top_of_scores_that_have_no_negatives(dtype):
    assert [guess.index for guess in inputs.top(np.array([0, 127, 5], dtype), list("abc"), 2)] == [1, 2]


def test_what_is_not_a_number_comes_last():
    assert [guess.index for guess in inputs.top(np.array([np.nan, -1, 1]), list("abc"))] == [2, 1, 0]


def test_fewer_classes_than_rows():
    assert len(inputs.top(np.array([1, 2]), list("ab"))) == 2


def test_more_labels_than_classes():
    assert [guess.label for guess in inputs.top(np.array([1, 2]), list("abc"))] == ["b", "a"]


def test_fewer_labels_than_classes(tmp_path):
    (tmp_path / "labels").write_text("a\nb\n")
    assert inputs.read_labels(tmp_path / "labels", 1) == ["a", "b"]
    with pytest.raises(InputError, match="2 labels for 3 classes") as caught:
        inputs.read_labels(tmp_path / "labels", 3)
    assert "one line for each class" in caught.value.hint


# --- sequences -----------------------------------------------------------------------------------------------------

STEP = (TensorSpec("x", (2,), "float32"), TensorSpec("position", (), "int64"))


def test_a_sequence_has_an_axis_of_steps(tmp_path):
    samples = inputs.make(inputs.Source(), STEP, is_sequence=True)
    assert {name: value.shape for name, value in samples.items()} == {"x": (32, 2), "position": (32,)}
    np.savez(tmp_path / "x.npz", x=np.ones((5, 2), np.float32), position=np.arange(5))
    assert inputs.make(inputs.Source(tmp_path / "x.npz"), STEP, is_sequence=True)["x"].shape == (5, 2)


@pytest.mark.parametrize(
    ("arrays", "details"),
    [
        ({"x": np.ones((5, 2), np.float32), "position": np.arange(4)}, "position: has"),
        (
            {"x": np.ones((5000, 2), np.float32), "position": np.arange(5000)},
            "5000 steps, but at most 4096",
        ),
        ({"x": np.float32(1), "position": np.arange(5)}, "an axis of steps is missing"),
    ],
)
def test_a_sequence_of_another_form_is_refused(arrays, details, tmp_path):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match="do not fit the steps of the model") as caught:
        inputs.make(inputs.Source(tmp_path / "x.npz"), STEP, is_sequence=True)
    assert details in caught.value.details
    with pytest.raises(InputError, match="--image is one picture"):
        inputs.make(inputs.Source(image=tmp_path / "cat.png"), STEP, is_sequence=True)
