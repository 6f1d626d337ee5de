"""Metrics: the score of a sample, and data that have none."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from toolchain.errors import InputError
from toolchain.pipeline.evaluate import data, functions
from toolchain.pipeline.evaluate.catalog import open_metric
from toolchain.pipeline.evaluate.data import Reader, Target
from toolchain.pipeline.evaluate.metrics import NOT_A_NUMBER
from toolchain.tensors import TensorSpec

X, Y = TensorSpec("x", (1, 2), "float32"), TensorSpec("y", (1, 6), "float32")
SCORES = {"y": np.array([[0.1, 0.9, 0.3, 0.2, 0.5, 0.0]], np.float32)}


@pytest.fixture
def rows(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "all.npz", x=np.zeros((2, 1, 2), np.float32), **arrays)
        return Reader(data.read(tmp_path / "all.npz"), (X,))

    return write


def opened(name, reader, labels=None):
    metric = open_metric(name, reader.dataset, labels)
    metric.check(reader, [Y])
    return metric


def test_classes_by_number(rows):
    top1, top5 = (opened(name, rows(label=np.array([1, 5]))) for name in ("top1", "top5"))
    assert top1.score(SCORES, Target("s", "1", {})).value == 1
    assert top1.score(SCORES, Target("s", "2", {})).value == 0
    assert top1.score(SCORES, Target("s", "2", {})).answer == "1"
    assert top5.score(SCORES, Target("s", "0", {})).value == 1
    assert top5.score(SCORES, Target("s", "5", {})).value == 0
    score = top1.score({"y": np.full((1, 6), np.nan, np.float32)}, Target("s", "0", {}))
    assert (score.value, score.answer) == (0, NOT_A_NUMBER)


def test_classes_by_name(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(tmp_path / "data" / name / "0.png")
    reader = Reader(data.read(tmp_path / "data"), (TensorSpec("x", (1, 3, 8, 8), "float32"),))
    with pytest.raises(InputError, match="2 folders of classes, but the model has 6 classes"):
        opened("top1", reader)
    (tmp_path / "names.txt").write_text("fly\nbee\nant\nowl\nowl\nelk\n")
    metric = opened("top1", reader, tmp_path / "names.txt")
    assert metric.score(SCORES, Target("s", "bee", {})) == metric.score(SCORES, Target("s", "1", {}))
    with pytest.raises(InputError, match="2 classes are called 'owl'"):
        metric.index(Target("s", "owl", {}))
    with pytest.raises(InputError, match="class 'be', which the model does not have"):
        metric.index(Target("s", "be", {}))
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    with pytest.raises(InputError, match="2 labels for 6 classes"):
        opened("top1", reader, tmp_path / "names.txt")


def test_wrong_labels(rows):
    with pytest.raises(InputError, match=r"all\.npz\[0\] has no label"):
        opened("top1", rows())
    with pytest.raises(InputError, match=r"is of class 6, but the model has classes 0 to 5"):
        opened("top1", rows(label=np.array([0, 6])))
    with pytest.raises(InputError, match="has the shape"):
        opened("top1", rows(label=np.zeros((2, 6))))
    reader = rows(label=np.array([0, 1]))
    with pytest.raises(InputError, match="one score for each class"):
        open_metric("top1", reader.dataset, None).check(reader, [TensorSpec("y", (1, 6, 4), "float32")])


def test_distances(rows):
    target = np.array([[1, 0, 0, 0, 0, 0]], np.float32)
    reader = rows(y=np.stack([target, target]))
    assert opened("cosine", reader).score({"y": 3 * target}, Target("s", "", {"y": target})).value == pytest.approx(1)
    assert opened("mse", reader).score({"y": 3 * target}, Target("s", "", {"y": target})).value == pytest.approx(4 / 6)
    with pytest.raises(InputError, match="no expected outputs, which mse needs"):
        opened("mse", rows())
    with pytest.raises(InputError, match=r"array z .* is not an output"):
        opened("mse", rows(z=np.zeros((2, 1))))
    with pytest.raises(InputError, match=r"array y .* is not an output"):
        opened("mse", rows(y=np.zeros((2, 7))))


def test_a_function_of_the_user(rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_metric.py").write_text(
        "def score(outputs, target):\n    return outputs['y'].max(), f'label {target}'\n"
        "def text(outputs, target):\n    return 'x'\n"
        "def fails(outputs, target):\n    return outputs['z']\n"
    )
    reader = rows(label=np.array([0, 1]))
    score = opened("own_metric:score", reader).score(SCORES, Target("s", "1", {}))
    assert (score.value, score.answer) == (pytest.approx(0.9), "label 1")
    with pytest.raises(InputError, match="own_metric:text returned str for s"):
        opened("own_metric:text", reader).score(SCORES, Target("s", "1", {}))
    with pytest.raises(InputError, match="own_metric:fails failed for s") as caught:
        opened("own_metric:fails", reader).score(SCORES, Target("s", "1", {}))
    assert "KeyError" in caught.value.details


def test_wrong_names(rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = rows()
    with pytest.raises(InputError, match="there is no metric 'top2'") as caught:
        opened("top2", reader)
    assert "did you mean top" in caught.value.hint
    with pytest.raises(InputError, match="cannot import no_such_module"):
        functions.load("no_such_module:score")
    with pytest.raises(InputError, match="no function lods") as caught:
        functions.load("json:lods")
    assert caught.value.hint == "did you mean loads?"
    with pytest.raises(InputError, match="not of the form"):
        functions.load("json:")
    with pytest.raises(InputError, match="--labels has no effect"):
        opened("mse", reader, tmp_path / "names.txt")
    with pytest.raises(InputError, match="cannot read the labels"):
        opened("top1", reader, tmp_path / "names.txt")
