"""The mean intersection over union of pixels."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from toolchain.errors import InputError
from toolchain.pipeline.evaluate import data
from toolchain.pipeline.evaluate.catalog import open_metric
from toolchain.pipeline.evaluate.data import Reader, Target
from toolchain.pipeline.evaluate.paired import Verdict
from toolchain.tensors import TensorSpec

X = TensorSpec("x", (1, 3, 4, 4), "float32")
Y = TensorSpec("y", (1, 3, 4, 4), "float32")
CLASSES = TensorSpec("y", (1, 4, 4), "int64")


def scores_of(classes, count=3):
    return np.eye(count, dtype=np.float32)[classes].transpose(2, 0, 1)[None]


def mean_iou(truths, guesses, count):
    """Compute it by sets of pixels."""
    ratios = []
    for number in range(count):
        in_truth = {
            (sample, *pixel) for sample, mask in enumerate(truths) for pixel in np.argwhere(mask == number).tolist()
        }
        in_guess = {
            (sample, *pixel)
            for sample, (mask, guess) in enumerate(zip(truths, guesses, strict=True))
            for pixel in np.argwhere((guess == number) & (mask != 255)).tolist()
        }
        if in_truth | in_guess:
            ratios.append(len(in_truth & in_guess) / len(in_truth | in_guess))
    return 100 * sum(ratios) / len(ratios)


@pytest.fixture
def reader(tmp_path):
    """Write pictures with masks, and return how to read them."""

    def write(*masks):
        lines = ["file,label"]
        for number, mask in enumerate(masks):
            Image.new("RGB", (9, 9)).save(tmp_path / f"{number}.png")
            if isinstance(mask, np.ndarray):
                Image.fromarray(mask.astype(np.uint8)).save(tmp_path / f"mask{number}.png")
            lines.append(f"{number}.png,{f'mask{number}.png' if isinstance(mask, np.ndarray) else mask}")
        (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
        return Reader(data.read(tmp_path / "all.csv"), (X,))

    return write


def masks(count, seed=0):
    stream = np.random.default_rng(seed)
    return [np.where(stream.random((4, 4)) < 0.1, 255, stream.integers(0, 3, (4, 4))) for _ in range(count)]


@pytest.mark.parametrize("spec", [Y, CLASSES], ids=["scores", "classes"])
def test_the_total_is_that_of_all_pixels(spec, reader):
    truths, guesses = masks(30), [np.minimum(mask, 2) for mask in masks(30, 1)]
    read = reader(*truths)
    metric = open_metric("miou", read.dataset, None)
    metric.check(read, [spec])
    outputs = [scores_of(guess) if spec is Y else guess[None] for guess in guesses]
    scored = [
        metric.score({"y": output}, read.target(sample))
        for output, sample in zip(outputs, read.dataset.samples, strict=True)
    ]
    assert metric.total(scored) == pytest.approx(mean_iou(truths, guesses, 3))
    assert scored[0].value == pytest.approx(mean_iou(truths[:1], guesses[:1], 3) / 100)


def test_a_loss_and_no_loss_of_many_samples(reader):
    truths = [np.minimum(mask, 2) for mask in masks(60)]
    read = reader(*truths)
    metric = open_metric("miou", read.dataset, None)
    targets = [read.target(sample) for sample in read.dataset.samples]
    right = [metric.score({"y": scores_of(mask)}, target) for mask, target in zip(truths, targets, strict=True)]
    wrong = [
        metric.score({"y": scores_of(np.where(np.arange(16).reshape(4, 4) < 3, 0, mask))}, target)
        for mask, target in zip(truths, targets, strict=True)
    ]
    assert metric.compare(right, right).verdict is Verdict.SAME
    loss = metric.compare(right, wrong)
    assert loss.verdict is Verdict.WORSE
    assert loss.value == pytest.approx(metric.total(right) - metric.total(wrong))
    assert 0 < loss.low < loss.value < loss.high
    assert metric.compare(wrong, right).verdict is Verdict.BETTER


def test_scores_that_are_not_numbers_are_of_no_class(reader):
    read = reader(np.zeros((4, 4)))
    metric = open_metric("miou", read.dataset, None)
    score = metric.score({"y": np.full((1, 3, 4, 4), np.nan, np.float32)}, read.target(read.dataset.samples[0]))
    assert score.value == 0


def test_masks_in_arrays(tmp_path):
    np.savez(tmp_path / "all.npz", x=np.zeros((2, 1, 3, 4, 4), np.float32), mask=np.ones((2, 4, 4), np.int32))
    read = Reader(data.read(tmp_path / "all.npz"), (X,))
    metric = open_metric("miou", read.dataset, None)
    metric.check(read, [Y])
    assert metric.score({"y": scores_of(np.ones((4, 4), int))}, read.target(read.dataset.samples[1])).value == 1


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.zeros((4, 5)), r"has 4x5 pixels, and the output 4x4"),
        ("", "has no mask, which miou needs"),
        ("absent.png", r"cannot read the mask .*absent\.png"),
        ("all.csv", "cannot read the mask"),
    ],
)
def test_a_wrong_mask_is_refused_first(mask, message, reader):
    read = reader(mask)
    with pytest.raises(InputError, match=message):
        open_metric("miou", read.dataset, None).check(read, [Y])


def test_a_class_that_the_model_lacks(reader):
    read = reader(np.full((4, 4), 7))
    metric = open_metric("miou", read.dataset, None)
    with pytest.raises(InputError, match="has class 7, but the model has classes 0 to 2"):
        metric.score({"y": scores_of(np.zeros((4, 4), int))}, read.target(read.dataset.samples[0]))


def test_a_mask_in_colours(tmp_path, reader):
    read = reader("colours.png")
    Image.new("RGB", (4, 4)).save(tmp_path / "colours.png")
    with pytest.raises(InputError, match="not one class for each pixel"):
        open_metric("miou", read.dataset, None).score(
            {"y": scores_of(np.zeros((4, 4), int))}, Target("0", "colours.png", {})
        )


@pytest.mark.parametrize("shape", [(1, 10), (2, 3, 4, 4), (1, 1, 4, 4)])
def test_an_output_of_another_kind(shape, reader):
    read = reader(np.zeros((4, 4)))
    with pytest.raises(InputError, match="miou needs the scores of classes"):
        open_metric("miou", read.dataset, None).check(read, [TensorSpec("y", shape, "float32")])
