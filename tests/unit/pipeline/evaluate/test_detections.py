"""Mean average precision: equal to that of pycocotools, on random pictures with boxes."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.support import coco_sets
from toolchain.errors import InputError
from toolchain.pipeline.evaluate import data, extras, precision
from toolchain.pipeline.evaluate.catalog import open_metric
from toolchain.pipeline.evaluate.coco import Object
from toolchain.pipeline.evaluate.data import Reader
from toolchain.pipeline.evaluate.detections import MeanPrecision
from toolchain.pipeline.evaluate.metrics import Score
from toolchain.pipeline.evaluate.paired import Verdict
from toolchain.pipeline.evaluate.precision import Box, Curves, Matches
from toolchain.tensors import TensorSpec

X, Y = TensorSpec("x", (1, 3, 8, 8), "float32"), TensorSpec("y", (1, 6), "float32")


def random_picture(stream, categories=3):
    """Draw objects, and boxes near some of them; scores are equal now and then."""
    objects, boxes = [], []
    for _ in range(stream.integers(0, 5)):
        box = (*stream.integers(0, 80, 2).tolist(), *stream.integers(1, 40, 2).tolist())
        category = int(stream.integers(1, categories + 1))
        objects.append(Object(category, box, float(box[2] * box[3]), bool(stream.random() < 0.15)))
        for _ in range(stream.integers(0, 4)):
            near = [float(side + stream.normal(0, 2)) for side in box]
            found = category if stream.random() < 0.8 else int(stream.integers(1, categories + 1))
            boxes.append(Box(found, (*near[:2], abs(near[2]), abs(near[3])), round(float(stream.random()), 1)))
    return objects, boxes


def by_pycocotools(pictures, categories=3):
    """Return the first figure of `COCOeval.summarize`, in its default settings."""
    images = [{"id": number} for number in range(len(pictures))]
    truth, guesses = [], []
    for number, (objects, boxes) in enumerate(pictures):
        truth += [
            {"image_id": number, "category_id": one.category, "bbox": list(one.box), "area": one.area}
            | {"iscrowd": int(one.crowd), "id": len(truth) + place}
            for place, one in enumerate(objects, 1)
        ]
        guesses += [
            {"image_id": number, "category_id": one.category, "bbox": list(one.box), "score": one.score}
            for one in boxes
        ]
    return coco_sets.mean_precision(images, truth, guesses, "bbox", categories)


def mean_precision(pictures, counts):
    matches = [Matches.unpack(precision.match(*picture).pack()) for picture in pictures]
    return Curves(matches).mean_precision(np.array([counts], np.float64))[0]


def check_equal(seed):
    stream = np.random.default_rng(seed)
    pictures = [random_picture(stream) for _ in range(stream.integers(2, 12))]
    pictures.append(([Object(1, (0, 0, 9, 9), 81)], [Box(1, (0, 1, 9, 9), 0.55)]))  # one thing to find, at least
    assert mean_precision(pictures, [1] * len(pictures)) == pytest.approx(by_pycocotools(pictures), abs=1e-12)
    # Pictures that count twice, or not at all, are the same as a set in which they stand as often. There, boxes of
    # one score are in another order.
    scores = iter(stream.permutation(1000) / 1000)
    pictures = [(truth, [replace(box, score=float(next(scores))) for box in boxes]) for truth, boxes in pictures]
    counts = [*stream.integers(0, 3, len(pictures) - 1).tolist(), 1]
    drawn = [picture for picture, count in zip(pictures, counts, strict=True) for _ in range(count)]
    assert mean_precision(pictures, counts) == pytest.approx(by_pycocotools(drawn), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_pycocotools(seed):
    check_equal(seed)


@pytest.mark.nightly
def test_equal_to_pycocotools_on_a_thousand_sets():
    for seed in range(1000):
        check_equal(seed)


@pytest.fixture
def reader(tmp_path):
    """Write a COCO file of two pictures, changed by keys; return how to read it."""

    def write(**changes):
        for name in ("a.png", "b.png"):
            Image.new("RGB", (100, 100)).save(tmp_path / name)
        table = {
            "info": {"year": 2026},
            "images": [{"id": 7, "file_name": "b.png"}, {"id": 3, "file_name": "a.png", "width": 100}],
            "annotations": [
                {"id": 0, "image_id": 3, "category_id": 1, "bbox": [10, 10, 20, 20], "segmentation": []},
                {"id": 1, "image_id": 3, "category_id": 9, "bbox": [50, 50, 20, 20.5], "iscrowd": 0, "area": 300},
            ],
            "categories": [{"id": 1, "name": "cat"}, {"id": 9, "name": "dog"}],
        }
        (tmp_path / "all.json").write_text(json.dumps(table | changes))
        return Reader(data.read(tmp_path / "all.json"), (X,))

    return write


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write functions of a user's project; return their module."""
    name = f"own_boxes_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(
        "import numpy as np\n"
        "def good(outputs, path):\n"
        "    row = outputs['y'].reshape(-1)\n"
        "    return [(row[:4], row[4], row[5])] if path.name == 'a.png' else []\n"
        "def named(outputs, path):\n    return [([10, 10, 20, 20], 0.9, 'cat'), ([50, 50, 20, 20], 0.8, 'dog')]\n"
        "def strange(outputs, path):\n    return [([10, 10, 20, 20], 0.9, 'cats')]\n"
        "def half(outputs, path):\n    return [([10, 10, 20, 20], 0.9, 1.5)]\n"
        "def short(outputs, path):\n    return [([10, 10, 20], 0.9, 1)]\n"
        "def inside(outputs, path):\n    return [([10, 10, -20, 2], 0.9, 1)]\n"
        "def nothing(outputs, path):\n    return None\n"
        "def raises(outputs, path):\n    raise KeyError('boxes')\n"
    )
    monkeypatch.chdir(tmp_path)
    return name


def test_scores_of_pictures(reader, own):
    read = reader()
    assert [(sample.name, sample.label) for sample in read.dataset.samples] == [
        ("a.png", "1 cat, 1 dog"),
        ("b.png", ""),
    ]
    metric = open_metric("map", read.dataset, None, f"{own}:good")
    metric.check(read, [Y])
    targets = [read.target(sample) for sample in read.dataset.samples]
    outputs = {"y": np.array([[10, 10, 20, 20, 0.9, 1]], np.float32)}
    scores = [metric.score(outputs, target) for target in targets]
    assert [score.value for score in scores] == pytest.approx([0.5, 1])
    assert [score.answer for score in scores] == ["1 of 2 objects", "no objects"]
    assert metric.total(scores) == pytest.approx(50)
    found = open_metric("map", read.dataset, None, f"{own}:named").score(outputs, targets[0])
    assert (found.answer, found.value > 0.9) == ("2 of 2 objects", True)
    assert math.isnan(metric.score({"y": np.full((1, 6), np.nan, np.float32)}, targets[0]).value)


def test_a_loss_of_many_pictures_has_an_interval():
    stream, metric_scores = np.random.default_rng(1), [[], []]
    for _ in range(12):
        objects = [Object(1 + number % 2, (40 * number, 0, 30, 30), 900) for number in range(2)]
        exact = [Box(one.category, one.box, float(stream.random())) for one in objects]
        moved = [Box(box.category, (box.box[0] + 6, 4, 30, 30), box.score) for box in exact]
        for scores, boxes in zip(metric_scores, (exact, moved), strict=True):
            scores.append(precision.match(objects, boxes))
    metric = MeanPrecision("map", unit="points", scale=100.0, categories={1: "a", 2: "b"}, objects=None)
    first, second = (
        [Score(1.0 - side, "", 0, one.pack()) for one in scores] for side, scores in enumerate(metric_scores)
    )
    assert metric.compare(first, first).verdict is Verdict.SAME
    loss = metric.compare(first, second)
    assert (loss.verdict, loss.worse) == (Verdict.WORSE, 12)
    assert loss.value == pytest.approx(metric.total(first) - metric.total(second))
    assert loss.low <= loss.value <= loss.high


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": 5}, "not a COCO file of boxes"),
        ({"annotations": [{"image_id": 3, "category_id": 1}]}, "not a COCO file of boxes"),
        ({"annotations": [{"image_id": 3, "category_id": 1, "bbox": [1, 2, -3, 4]}]}, "not a COCO file of boxes"),
        ({"annotations": [{"image_id": 4, "category_id": 1, "bbox": [1, 2, 3, 4]}]}, "annotation 0 .* of picture 4"),
        ({"annotations": [{"image_id": 3, "category_id": 2, "bbox": [1, 2, 3, 4]}]}, "annotation 0 .* of category 2"),
        ({"images": [{"id": 3, "file_name": "c.png"}], "annotations": []}, r"picture 3 .* is not in .*'c\.png'"),
        ({"images": [{"id": 3, "file_name": "a.png"}] * 2}, "2 of the images .* have the id 3"),
        ({"images": [], "annotations": []}, "there are no pictures"),
        ({"images": [{"id": 3, "file_name": "all.json"}], "annotations": []}, "is neither a picture nor an .npz file"),
    ],
)
def test_a_wrong_file(changes, words, reader):
    with pytest.raises(InputError, match=words):
        reader(**changes).check()


def test_a_file_that_is_not_json(tmp_path):
    (tmp_path / "all.json").write_text("{")
    with pytest.raises(InputError, match="not a COCO file of boxes"):
        data.read(tmp_path / "all.json")
    with pytest.raises(InputError, match="--pictures is for a COCO file"):
        data.read(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("strange", "an object of category 'cats', which the data do not have"),
        ("half", "returned no boxes with scores and categories for a.png"),
        ("short", "returned no boxes"),
        ("inside", "returned no boxes"),
        ("nothing", "returned no boxes"),
        ("raises", "failed for a.png"),
    ],
)
def test_a_wrong_function(function, words, reader, own):
    read = reader()
    metric = open_metric("map", read.dataset, None, f"{own}:{function}")
    with pytest.raises(InputError, match=words):
        metric.score({"y": np.zeros((1, 6))}, read.target(read.dataset.samples[0]))


def test_what_map_needs(reader, own, tmp_path, monkeypatch):
    read = reader()
    with pytest.raises(InputError, match="has boxes, which are for the metrics map, map-masks, map-keypoints"):
        open_metric("top1", read.dataset, None)
    with pytest.raises(InputError, match="map needs boxes, which no step of the release finds"):
        open_metric("map", read.dataset, None).of_release(None, ["y"], own_reader=False)
    empty = reader(annotations=[])
    with pytest.raises(InputError, match="no objects, which map needs"):
        open_metric("map", empty.dataset, None, f"{own}:good").check(empty, [Y])
    np.savez(tmp_path / "rows.npz", x=np.zeros((2, 1)))
    with pytest.raises(InputError, match="map needs a COCO file"):
        open_metric("map", data.read(tmp_path / "rows.npz"), None, f"{own}:good")

    def absent(module):
        raise ModuleNotFoundError(f"No module named {module!r}")

    monkeypatch.setattr(extras, "load", absent)
    with pytest.raises(InputError, match="map needs pycocotools, which is not installed") as caught:
        open_metric("map", read.dataset, None, f"{own}:good")
    assert caught.value.hint == "pip install 'pycocotools>=2.0.10'"
