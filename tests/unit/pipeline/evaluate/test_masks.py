"""Mean average precision of masks: equal to that of pycocotools, on random polygons and runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as tools

from tests.support import coco_sets
from toolchain.errors import InputError
from toolchain.pipeline.evaluate import data, masks, precision
from toolchain.pipeline.evaluate.catalog import open_metric
from toolchain.pipeline.evaluate.coco import Object
from toolchain.pipeline.evaluate.data import Reader
from toolchain.pipeline.evaluate.precision import Box, Curves
from toolchain.tensors import TensorSpec

HEIGHT, WIDTH = SIZE = (37, 61)
NOWHERE = (0.0, 0.0, 0.0, 0.0)


def drawn(stream):
    """Return a mask as a file has it, in one of three forms, and its pixels."""
    left, top = stream.integers(0, WIDTH - 8), stream.integers(0, HEIGHT - 8)
    width, height = stream.integers(3, 30, 2)
    if stream.random() < 0.5:
        right, bottom = left + width, top + height
        corners = [[left, top, right, top, right, bottom, left, bottom], [0, 0, 4, 0, 0, 4]][: stream.integers(1, 3)]
        polygons = [[float(number) for number in corner] for corner in corners]
        return polygons, tools.decode(tools.merge(tools.frPyObjects(polygons, HEIGHT, WIDTH)))
    pixels = (stream.random(SIZE) < 0.8).astype(np.uint8)
    pixels[:top], pixels[top + height :], pixels[:, :left], pixels[:, left + width :] = 0, 0, 0, 0
    if stream.random() < 0.5:
        return {"size": [*SIZE], "counts": tools.encode(np.asfortranarray(pixels))["counts"].decode()}, pixels
    changes = np.flatnonzero(np.diff(pixels.reshape(-1, order="F"), prepend=0, append=2))
    return {"size": [*SIZE], "counts": np.diff(changes, prepend=0).tolist()}, pixels


def random_picture(stream):
    objects, found = [], []
    for _ in range(stream.integers(1, 5)):
        mask, pixels = drawn(stream)
        category = int(stream.integers(1, 4))
        objects.append(Object(category, NOWHERE, float(pixels.sum()), bool(stream.random() < 0.15), mask))
        for _ in range(stream.integers(0, 3)):
            near = np.roll(pixels, stream.integers(-2, 3, 2), (0, 1))
            score = float(stream.random())
            found.append(Box(category, NOWHERE, score, masks.runs(near, SIZE)))
    return objects, found


def by_pycocotools(pictures):
    images = [{"id": number, "height": HEIGHT, "width": WIDTH} for number in range(len(pictures))]
    truth, guesses = [], []
    for number, (objects, found) in enumerate(pictures):
        truth += [
            {"image_id": number, "category_id": one.category, "segmentation": one.mask, "area": one.area}
            | {"iscrowd": int(one.crowd), "id": len(truth) + place, "bbox": [0, 0, 1, 1]}
            for place, one in enumerate(objects, 1)
        ]
        guesses += [
            {"image_id": number, "category_id": one.category, "segmentation": one.runs, "score": one.score}
            for one in found
        ]
    return coco_sets.mean_precision(images, truth, guesses, "segm")


def check_equal(seed):
    stream = np.random.default_rng(seed)
    pictures = [random_picture(stream) for _ in range(stream.integers(2, 9))]
    whole = masks.runs(np.ones(SIZE), SIZE)
    whole_object = Object(1, NOWHERE, float(HEIGHT * WIDTH), mask={"size": [*SIZE], "counts": [0, HEIGHT * WIDTH]})
    pictures.append(([whole_object], [Box(1, NOWHERE, 0.55, whole)]))  # one thing to find, at least
    matches = [precision.match(*picture, SIZE) for picture in pictures]
    mean = Curves(matches).mean_precision(np.ones((1, len(pictures))))[0]
    assert mean == pytest.approx(by_pycocotools(pictures), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_pycocotools(seed):
    check_equal(seed)


@pytest.mark.nightly
def test_equal_to_pycocotools_on_a_thousand_sets():
    for seed in range(1000):
        check_equal(seed)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.ones((2, 3)), "a mask of the shape"),
        ([[1.0, 2.0, 3.0, 4.0]], "neither polygons nor runs"),
        ([[0.0, 0.0, 1e12, 0.0, 0.0, 9.0]], "neither polygons nor runs"),
        ({"size": [3, 3], "counts": [9]}, "for a picture of 37 x 61 pixels"),
        ({"size": [*SIZE], "counts": [9]}, "have 9 pixels, not 2257"),
        ({"size": [*SIZE], "counts": [-1, 2258]}, "neither polygons nor runs"),
        ({"size": [*SIZE], "counts": "2"}, "not those of 2257 pixels"),
        ({"size": [*SIZE], "counts": "zzz"}, "not those of 2257 pixels"),
        ({"size": [*SIZE], "counts": ""}, "neither polygons nor runs"),
        (None, "neither polygons nor runs"),
    ],
)
def test_what_is_no_mask(mask, words):
    with pytest.raises(ValueError, match=words):
        masks.runs(mask, SIZE)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Write a COCO file of one picture, changed by keys, and a user's functions; return how to read it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_masks.py").write_text(
        "import numpy as np\n\n\ndef good(outputs, path):\n"
        "    mask = np.zeros((37, 61), bool)\n    mask[4:14, 4:24] = True\n    return [(mask, 0.9, 'cat')]\n\n\n"
        "def short(outputs, path):\n    return [(np.ones((3, 3)), 0.9, 'cat')]\n"
    )
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "a.png")
    polygon = [[4, 4, 24, 4, 24, 14, 4, 14]]

    def write(image=None, **changes):
        one = {"id": 0, "image_id": 3, "category_id": 1, "bbox": [4, 4, 20, 10], "segmentation": polygon} | changes
        picture = {"id": 3, "file_name": "a.png"} | (image or {"width": WIDTH, "height": HEIGHT})
        table = {"images": [picture], "annotations": [one], "categories": [{"id": 1, "name": "cat"}]}
        (tmp_path / "all.json").write_text(json.dumps(table))
        return Reader(data.read(tmp_path / "all.json"), (TensorSpec("x", (1, 3, 8, 8), "float32"),))

    return write


def score(read, function="good"):
    metric = open_metric("map-masks", read.dataset, None, f"own_masks:{function}")
    metric.check(read, [])
    return metric.score({}, read.target(read.dataset.samples[0]))


def test_the_score_of_a_mask(reader):
    assert score(reader()).value > 0.99
    assert score(reader()).answer == "1 of 1 objects"
    assert score(reader(segmentation=[[30, 4, 50, 4, 50, 14, 30, 14]])).value == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"segmentation": []}, r"a\.png has a cat without a segmentation"),
        ({"segmentation": [[1, 2]]}, r"a mask of a\.png in the COCO file is not right"),
        ({"image": {"width": 61}}, r"a\.png has no height and width, which map-masks needs"),
    ],
)
def test_what_masks_need(change, words, reader):
    with pytest.raises(InputError, match=words):
        score(reader(**change))


def test_a_mask_of_another_size(reader):
    with pytest.raises(InputError, match=r"own_masks:short returned no masks .* for a\.png") as caught:
        score(reader(), "short")
    assert "a mask as an array [height, width]" in caught.value.hint
