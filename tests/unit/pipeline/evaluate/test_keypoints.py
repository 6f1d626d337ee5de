"""Mean average precision of key points: equal to that of pycocotools, on random people and other objects."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from tests.support import coco_sets
from toolchain import pictures
from toolchain.errors import InputError
from toolchain.pipeline.evaluate import data, precision
from toolchain.pipeline.evaluate.catalog import open_metric
from toolchain.pipeline.evaluate.coco import Object
from toolchain.pipeline.evaluate.data import Reader
from toolchain.pipeline.evaluate.precision import Box, Curves
from toolchain.steps import Steps
from toolchain.tensors import TensorSpec

NOWHERE = (0.0, 0.0, 0.0, 0.0)
X = TensorSpec("x", (1, 3, 61, 61), "float32")


def random_picture(stream, points, categories=2):
    """Draw objects with key points, of which some are not marked, and others near them."""
    objects, found = [], []
    for _ in range(stream.integers(0, 5)):
        left, top, width, height = (*stream.integers(0, 80, 2).tolist(), *stream.integers(5, 60, 2).tolist())
        places = stream.uniform([left, top], [left + width, top + height], (points, 2))
        marks = stream.integers(0, 3, points) if stream.random() < 0.9 else np.zeros(points, int)
        category, crowd = int(stream.integers(1, categories + 1)), bool(stream.random() < 0.15)
        rows = np.concatenate([places, marks[:, None]], axis=1)
        area = float(width * height * stream.uniform(0.3, 1))
        objects.append(Object(category, (left, top, width, height), area, crowd, points=rows.reshape(-1).tolist()))
        for _ in range(stream.integers(0, 12)):  # more than 20 of a category now and then
            near = np.concatenate([places + stream.normal(0, 3, (points, 2)), np.ones((points, 1))], axis=1)
            score = round(float(stream.random()), 2)
            own = category if stream.random() < 0.8 else int(stream.integers(1, categories + 1))
            found.append(Box(own, NOWHERE, score, points=tuple(near.reshape(-1).tolist())))
    return objects, found


def by_pycocotools(drawn, sigmas):
    truth, guesses = [], []
    for number, (objects, found) in enumerate(drawn):
        truth += [
            {"image_id": number, "category_id": one.category, "keypoints": list(one.points), "area": one.area}
            | {"iscrowd": int(one.crowd), "id": len(truth) + place, "bbox": list(one.box)}
            | {"num_keypoints": int(np.count_nonzero(np.array(one.points[2::3])))}
            for place, one in enumerate(objects, 1)
        ]
        guesses += [
            {"image_id": number, "category_id": one.category, "keypoints": list(one.points), "score": one.score}
            for one in found
        ]
    images = [{"id": number} for number in range(len(drawn))]
    return coco_sets.mean_precision(images, truth, guesses, "keypoints", 2, sigmas)


def check_equal(seed):
    stream = np.random.default_rng(seed)
    points = 17 if seed % 2 == 0 else int(stream.integers(1, 30))
    drawn = [random_picture(stream, points) for _ in range(stream.integers(2, 12))]
    row = tuple(float(number) for _ in range(points) for number in (4, 5, 2))
    drawn.append(([Object(1, (0, 0, 9, 9), 81, points=list(row))], [Box(1, NOWHERE, 0.55, points=row)]))
    matches = [precision.match(*picture, points=points) for picture in drawn]
    mean = Curves(matches).mean_precision(np.ones((1, len(drawn))))[0]
    sigmas = () if points == 17 else np.full(points, 0.05)
    assert mean == pytest.approx(by_pycocotools(drawn, sigmas), abs=1e-12)
    return mean


@pytest.mark.parametrize("seed", range(6))
def test_equal_to_pycocotools(seed):
    check_equal(seed)


@pytest.mark.nightly
def test_equal_to_pycocotools_on_a_thousand_sets():
    means = [check_equal(seed) for seed in range(1000)]
    assert np.std(means) > 0.05


def test_where_a_point_may_be_off_more_it_counts_less():
    """COCO's own number for a hip is four times that of an eye."""
    truth = np.concatenate([np.full((17, 2), 50.0), np.zeros((17, 1))], axis=1)
    scores = []
    for joint in (1, 11):
        marked, near = truth.copy(), truth.copy()
        marked[joint, 2] = 2
        near[joint, 0] += 8
        own = Object(1, (0, 0, 100, 100), 1e4, points=marked.reshape(-1).tolist())
        matches = precision.match([own], [Box(1, NOWHERE, 0.9, points=tuple(near.reshape(-1)))], points=17)
        scores.append(int(matches.detections[0].hits).bit_count())
    thresholds = np.linspace(0.5, 0.95, 10)
    expected = [np.exp(-(8**2) / 1e4 / 2 / (2 * sigma) ** 2) for sigma in (0.025, 0.107)]
    assert scores == [sum(similarity >= thresholds) for similarity in expected]
    assert scores[0] < scores[1]


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Write a COCO file of one picture, changed by keys; return how to read it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_points.py").write_text(
        "import numpy as np\n\n\ndef good(outputs, path):\n    return [([[4, 5], [20, 9]], 0.9, 'cat')]\n\n\n"
        "def seen(outputs, path):\n    return [(np.array([[4, 5, 0.3], [90, 9, 0.3]]), 0.9, 1)]\n\n\n"
        "def short(outputs, path):\n    return [([[4, 5]], 0.9, 'cat')]\n\n\n"
        "def nan(outputs, path):\n    return [([[4, float('nan')], [2, 3]], 0.9, 'cat')]\n"
    )
    Image.new("RGB", (61, 37)).save(tmp_path / "a.png")

    def write(annotations=1, **changes):
        one = {"id": 0, "image_id": 3, "category_id": 1, "bbox": [4, 4, 20, 10], "keypoints": [4, 5, 2, 20, 9, 1]}
        rows = [one | changes, *({**one, "id": 1, "keypoints": [1, 2, 2]} for _ in range(annotations - 1))]
        images = [{"id": 3, "file_name": "a.png"}]
        table = {"images": images, "annotations": rows, "categories": [{"id": 1, "name": "cat"}]}
        (tmp_path / "all.json").write_text(json.dumps(table))
        return Reader(data.read(tmp_path / "all.json"), (X,))

    return write


def score(read, function="good"):
    metric = open_metric("map-keypoints", read.dataset, None, f"own_points:{function}")
    metric.check(read, [])
    return metric.score({}, read.target(read.dataset.samples[0]))


def test_the_score_of_key_points(reader):
    assert (score(reader()).value > 0.99, score(reader()).answer) == (True, "1 of 1 objects")
    assert 0 < score(reader(), "seen").value < 0.2  # one of two points: 0.5, the lowest threshold
    assert np.isnan(score(reader(), "nan").value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"keypoints": None}, r"a\.png has a cat without key points, which map-keypoints needs"),
        ({"keypoints": [1, 2]}, r"a\.png has a cat without key points"),
        ({"keypoints": [1, 2, "3"]}, r"a\.png has a cat without key points"),
        ({"annotations": 2}, r"a\.png has a cat without 2 key points as others"),
        ({"keypoints": [1, 2, 0, 3, 4, 0]}, "no key point is visible"),
    ],
)
def test_what_key_points_need(change, words, reader):
    with pytest.raises(InputError, match=words):
        score(reader(**change))


def test_another_number_of_key_points(reader):
    with pytest.raises(InputError, match=r"own_points:short returned no key points .* for a\.png") as caught:
        score(reader(), "short")
    assert "key points as an array [points, 2 or 3]" in caught.value.hint
    assert caught.value.details == "the key points are an array [1, 2], not [2, 2 or 3]"


def steps_of(step, columns):
    steps = Steps(("scale=1",), (step,), ("cat",))
    return pictures.resolve(steps, [X], [TensorSpec("y", (1, columns, 9), "float32")])


def test_the_steps_of_a_release_find_key_points(reader):
    read = reader()
    metric = open_metric("map-keypoints", read.dataset, None)
    metric.of_release(steps_of("yolo:head=v8,points=2", 11), ["y"], own_reader=False).check(read, [])
    with pytest.raises(InputError, match="finds 3 key points of an object, and the data have 2"):
        metric.of_release(steps_of("yolo:head=v8,points=3", 14), ["y"], own_reader=False).check(read, [])
    with pytest.raises(InputError, match="needs key points, which no step of the release finds") as caught:
        metric.of_release(steps_of("yolo:head=v8", 5), ["y"], own_reader=False)
    assert "--post yolo:points=NUMBER" in caught.value.hint
