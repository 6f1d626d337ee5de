"""The samples of an evaluation, and what is refused before a device is contacted."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from toolchain.errors import InputError
from toolchain.pipeline.evaluate import data
from toolchain.pipeline.evaluate.data import Reader
from toolchain.pipeline.evaluate.functions import UserFunction
from toolchain.tensors import TensorSpec

X = TensorSpec("x", (1, 4), "float32")
PICTURE = TensorSpec("x", (1, 3, 8, 8), "float32")


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (9, 9), (10, 20, 30)).save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    for name in ("b/2.png", "a/1.png", "a/0.png"):
        picture(tmp_path / "data" / name)
    return tmp_path / "data"


def test_a_folder_for_each_class(folder):
    (folder / "a/notes.txt").write_text("no picture")
    dataset = data.read(folder)
    assert [(sample.name, sample.label) for sample in dataset.samples] == [
        ("a/0.png", "a"),
        ("a/1.png", "a"),
        ("b/2.png", "b"),
    ]
    assert (dataset.kind, dataset.classes) == ("pictures", ("a", "b"))
    Reader(dataset, (PICTURE,)).check()


def test_a_table_of_files(folder):
    table = folder / "list.csv"
    table.write_text("label,file\n3,a/0.png\ncat,b/2.png\n")
    assert [(sample.name, sample.label) for sample in data.read(table).samples] == [
        ("a/0.png", "3"),
        ("b/2.png", "cat"),
    ]


def test_many_samples_in_a_file(tmp_path):
    values = np.arange(12, dtype=np.float32).reshape(3, 1, 4)
    np.savez(tmp_path / "all.npz", x=values, y=values + 1, label=np.array([2, 0, 1]))
    dataset = data.read(tmp_path / "all.npz")
    reader = Reader(dataset, (X,))
    reader.check()
    assert np.array_equal(reader.inputs(dataset.samples[1])["x"], values[1])
    target = reader.target(dataset.samples[1])
    assert (target.label, target.arrays["y"].tolist()) == ("0", (values[1] + 1).tolist())


def test_a_limit_is_spread_over_all_classes(folder):
    assert [sample.name for sample in data.read(folder).limited(2).samples] == ["a/0.png", "a/1.png"]
    assert len(data.read(folder).limited(99).samples) == 3
    rows = data.Dataset(folder, "rows", tuple(data.Sample(str(row), folder) for row in range(100)))
    assert [sample.name for sample in rows.limited(4).samples] == ["0", "25", "50", "75"]


def test_the_digest_depends_on_contents_and_labels(folder):
    digest = data.read(folder).digest
    assert digest == data.read(folder).digest
    (folder / "a/1.png").rename(folder / "b/1.png")
    moved = data.read(folder).digest
    picture(folder / "b/1.png").write_bytes((folder / "a/0.png").read_bytes() + b"x")
    assert len({digest, moved, data.read(folder).digest}) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name,label\nx,1\n", "columns file and label"),
        ("file,label\n", "no samples"),
        ("file,label\nnone.png,1\n", r"line 2 of .* names a file that does not exist: 'none.png'"),
    ],
)
def test_wrong_tables(tmp_path, content, message):
    (tmp_path / "list.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        data.read(tmp_path / "list.csv")


def test_wrong_folders(folder, tmp_path):
    with pytest.raises(InputError, match="there are no data"):
        data.read(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there are no samples"):
        data.read(tmp_path / "empty")
    (folder / "c").mkdir()
    with pytest.raises(InputError, match="have no samples, such as c"):
        data.read(folder)
    (folder / "c/3.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"cannot read the image .*c/3\.png"):
        data.read(folder)
    (folder / "c/3.png").rename(folder / "c/3.npz")
    with pytest.raises(InputError, match="samples of several kinds"):
        data.read(folder)
    (tmp_path / "data.txt").write_text("x")
    with pytest.raises(InputError, match="not a data set"):
        data.read(tmp_path / "data.txt")


def test_wrong_arrays(tmp_path):
    np.savez(tmp_path / "0.npz", x=np.zeros((1, 5), np.float32))
    with pytest.raises(InputError, match=r"0\.npz do not fit the model"):
        Reader(data.read(tmp_path), (X,)).check()
    np.savez(tmp_path / "0.npz", x=np.zeros((3, 4), np.float32), label=np.zeros(2))
    with pytest.raises(InputError, match="same number of samples"):
        data.read(tmp_path / "0.npz")
    (tmp_path / "0.npz").write_bytes(b"no arrays")
    with pytest.raises(InputError, match="cannot read"):
        Reader(data.read(tmp_path), (X,)).check()


def test_a_function_reads_the_files(folder):
    function = UserFunction("mine:read", lambda path: np.full((1, 4), len(path.name), np.float32), "")
    reader = Reader(data.read(folder), (X,), function)
    reader.check()
    assert reader.inputs(reader.dataset.samples[0])["x"].tolist() == [[5, 5, 5, 5]]
    wrong = UserFunction("mine:read", lambda _path: np.zeros(4), "")
    with pytest.raises(InputError, match=r"the result of mine:read for a/0\.png do not fit"):
        Reader(data.read(folder), (X,), wrong).check()
    with pytest.raises(InputError, match=r"mine:read failed for a/0\.png"):
        Reader(data.read(folder), (X,), UserFunction("mine:read", lambda path: path / 0, "")).check()


def test_pictures_for_another_model(folder):
    with pytest.raises(InputError, match="does not take one image"):
        Reader(data.read(folder), (X,)).check()
    with pytest.raises(InputError, match="several pictures at once"):
        Reader(data.read(folder), (TensorSpec("x", (2, 3, 8, 8), "float32"),)).check()


def test_sounds_are_read_by_steps_or_by_a_function(tmp_path):
    for name in ("a.wav", "b.WAV"):
        (tmp_path / name).write_bytes(bytes(range(4)))
    (tmp_path / "c.flac").write_bytes(b"\0")
    (tmp_path / "data.csv").write_text("file,label\na.wav,0\nb.WAV,1\n")
    dataset = data.read(tmp_path / "data.csv")
    reader = Reader(dataset, (X,), convert=lambda contents: contents[None].astype(np.float32))
    reader.check()
    np.testing.assert_array_equal(reader.inputs(dataset.samples[1])["x"], [[0, 1, 2, 3]])
    assert reader.target(dataset.samples[1]).label == "1"
    with pytest.raises(InputError, match="neither a picture nor"):
        Reader(dataset, (X,)).check()
    (tmp_path / "data.csv").write_text("file,label\na.wav,0\nc.flac,1\n")
    assert data.read(tmp_path / "data.csv").kind == "files"
