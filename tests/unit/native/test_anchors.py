"""Boxes of networks that do not decode their anchors, beside the formulas of their authors in numpy."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.support import anchors as reference
from tests.support import picture_nets
from tests.support.paths import ROOT
from toolchain import pictures
from toolchain.errors import InputError
from toolchain.native.pictures import Computer
from toolchain.steps import Steps
from toolchain.tensors import TensorSpec


def opened(step, outputs, side=64, folder=None, width=None):
    given = [TensorSpec("x", (1, 3, side, width or side), "float32")]
    specs = [TensorSpec(name, array.shape, "float32") for name, array in outputs.items()]
    steps = Steps.read((f"resize:letterbox={width or side}x{side}",), (step,), folder)
    return pictures.resolve(steps, given, specs).plan


def check(plan, outputs, rows, side, limits=(0.4, 0.25, 20)):
    """Compare what is found with the suppression of decoded rows: corners on the input, and the scores of classes."""
    width, height = 2 * side, side  # of the picture: the model sees it at half its size, in the middle
    found = Computer(plan).find(width, height, list(outputs.values()))
    kept = picture_nets.suppressed(rows, *limits)
    assert len(kept) > 3
    assert [int(label) for label in found["label"]] == [label for _, label in kept]
    np.testing.assert_allclose(found["score"], [rows[box, 4 + label] for box, label in kept], rtol=1e-5)
    moved = (rows[[box for box, _ in kept], :4] - [0, side // 4] * 2) * 2
    sides = np.stack([found[name] for name in ("left", "top", "right", "bottom")], axis=1)
    np.testing.assert_allclose(sides, np.clip(moved, 0, [width, height] * 2), rtol=1e-5, atol=1e-3)


def drawn(stream, count, classes):
    deltas = stream.normal(0, 1, (1, count, 4)).astype(np.float32)
    scores = stream.uniform(0, 0.3, (1, count, classes)).astype(np.float32)
    best = stream.choice(count, 40, replace=False)
    scores[0, best, stream.integers(0, classes, 40)] = stream.uniform(0.3, 1, 40)
    return {"loc": deltas, "conf": scores}


SSD_SCALES = [0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05]
SSD_RATIOS = [[2], [2, 3], [2, 3], [2, 3], [2], [2]]
SSD300 = "anchors=ssd,strides=8/16/32/64/100/300,scales=0.07/0.15/0.33/0.51/0.69/0.87/1.05,ratios=2/2+3/2+3/2+3/2/2"
SSDLITE = "anchors=ssd,cells=20/10/5/3/2/1,scales=0.2/0.35/0.5/0.65/0.8/0.95/1,ratios=2+3"
RETINANET = "anchors=retinanet,strides=8/16/32,scales=32+40+50/64+80+101/128+161+203,ratios=0.5+1+2"
TENSORFLOW = "anchors=tensorflow,cells=19/10/5/3/2/1,scales=0.2/0.35/0.5/0.65/0.8/0.95/1,ratios=1+2+0.5+3+0.3333"


def ssd300():
    cells = [(number, number) for number in (38, 19, 10, 5, 3, 1)]
    return reference.of_torchvision_ssd((300, 300), cells, [8, 16, 32, 64, 100, 300], SSD_SCALES, SSD_RATIOS)


def ssdlite():
    cells = [(number, number) for number in (20, 10, 5, 3, 2, 1)]
    scales = [0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.0]
    return reference.of_torchvision_ssd((320, 320), cells, None, scales, [[2, 3]] * 6)


def retinanet():
    sizes = [(32, 40, 50), (64, 80, 101), (128, 161, 203)]
    return reference.of_torchvision_retinanet((256, 256), [8, 16, 32], sizes, [0.5, 1.0, 2.0])


def tensorflow():
    scales = [0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.0]
    return reference.of_tensorflow(300, [19, 10, 5, 3, 2, 1], scales, [1.0, 2.0, 0.5, 3.0, 0.3333])


KNOWN = [
    (SSD300, 300, ssd300, 8732, (0.1, 0.1, 0.2, 0.2)),
    (SSDLITE, 320, ssdlite, 3234, (0.1, 0.1, 0.2, 0.2)),
    (RETINANET, 256, retinanet, 12096, (1, 1, 1, 1)),
    (TENSORFLOW, 300, tensorflow, 1917, (0.1, 0.1, 0.2, 0.2)),
]


@pytest.mark.parametrize(("parameters", "side", "known", "count", "variances"), KNOWN)
def test_anchors_of_a_few_numbers_are_those_of_their_library(parameters, side, known, count, variances):
    anchors, stream = known(), np.random.default_rng(count)
    assert len(anchors) == count  # as their documentation has it
    outputs = drawn(stream, count, 4)
    plan = opened(f"boxes:boxes=loc,scores=conf,nms=0.4,max=20,{parameters}", outputs, side)
    assert plan.variances == variances
    corners = reference.decoded(outputs["loc"][0], anchors, variances)
    check(plan, outputs, np.concatenate([corners, outputs["conf"][0]], axis=1), side)


@pytest.mark.parametrize("form", ["center", "center-yx"])
@pytest.mark.parametrize("unit", ["pixels", "share"])
@pytest.mark.parametrize("kind", ["npy", "txt"])
def test_anchors_of_a_file(form, unit, kind, tmp_path):
    """In the order and the unit of the step; with the background first, as SSD has it, and softmax."""
    stream, count = np.random.default_rng(7), 300
    anchors = np.concatenate([stream.uniform(0, 64, (count, 2)), stream.uniform(4, 30, (count, 2))], axis=1)
    anchors = anchors.astype(np.float32)
    written = anchors / np.float32(64) if unit == "share" else anchors
    order = [0, 1, 2, 3] if form == "center" else [1, 0, 3, 2]
    if kind == "npy":
        np.save(tmp_path / "anchors.npy", written[:, order])
    else:
        lines = (" ".join(map(repr, map(float, row))) for row in written[:, order])
        (tmp_path / "anchors.txt").write_text("\n".join(lines) + "\n")
    deltas = stream.normal(0, 1, (1, count, 4)).astype(np.float32)
    logits = stream.normal(0, 2, (1, count, 4)).astype(np.float32)
    parameters = f"anchors=anchors.{kind},form={form},unit={unit},variances=0.2+0.1+0.3+0.4"
    step = f"boxes:boxes=loc,scores=conf,nms=0.4,score=0.25,max=20,by=softmax,background=first,{parameters}"
    outputs = {"loc": deltas[..., order], "conf": logits}
    plan = opened(step, outputs, folder=tmp_path)
    # The factors are those of x, y, width, height in any form.
    corners = reference.decoded(deltas[0], anchors, np.array([0.2, 0.1, 0.3, 0.4]))
    shares = np.exp(logits[0].astype(np.float64))
    shares = (shares / shares.sum(axis=1, keepdims=True))[:, 1:]
    check(plan, outputs, np.concatenate([corners, shares], axis=1), 64)


def test_faces_and_their_key_points_of_mediapipe():
    """BlazeFace: differences in pixels of the input, sizes that are no exponents, and six key points."""
    anchors, stream = reference.of_mediapipe(128, [8, 16, 16, 16]), np.random.default_rng(3)
    assert len(anchors) == 896
    numbers = np.concatenate([stream.normal(0, 4, (896, 2)), stream.uniform(8, 60, (896, 2))], axis=1)
    numbers = np.concatenate([numbers, stream.normal(0, 20, (896, 12))], axis=1).astype(np.float32)
    logits = stream.normal(-4, 2, (1, 896, 1)).astype(np.float32)
    outputs = {"classificators": logits, "regressors": numbers[None]}
    step = "boxes:boxes=regressors,scores=classificators,by=sigmoid,anchors=mediapipe,strides=8/16/16/16,points=6x2"
    plan = opened(f"{step},nms=0.4,max=20", outputs, 128)
    middles, half = numbers[:, :2] + anchors[:, :2], numbers[:, 2:4] / 2
    shares = 1 / (1 + np.exp(-logits[0].astype(np.float64)))
    rows = np.concatenate([middles - half, middles + half, shares], axis=1)
    check(plan, outputs, rows, 128)
    computer = Computer(plan)
    computer.find(128, 128, list(outputs.values()))
    kept = [box for box, _ in picture_nets.suppressed(rows, 0.4, 0.25, 20)]
    places = numbers[kept, 4:].reshape(-1, 6, 2) + anchors[kept, None, :2]
    np.testing.assert_allclose(computer.points()[..., :2], np.clip(places, 0, 128), rtol=1e-5, atol=1e-3)
    assert (computer.points()[..., 2] == 1).all()


ANCHORS = [[(4, 5), (8, 6)], [(16, 12), (20, 30)], [(40, 30), (50, 60)]]
WRITTEN = "anchors=4x5+8x6/16x12+20x30/40x30+50x60"


def raw_maps(stream, head, classes=3):
    """Draw the numbers of three levels of an input of 64x64, a few of which are objects."""
    maps = []
    for number in (8, 4, 2):
        shape = (1 if head == "yolox" else 2, number, number, 5 + classes)
        values = stream.normal(0, 0.6, shape)
        values[..., 4] += stream.choice([-4, 3], shape[:3], p=[0.7, 0.3])
        if head == "yolox":
            values[..., 4:] = 1 / (1 + np.exp(-values[..., 4:]))
        maps.append(values.astype(np.float32))
    return maps


STORED = {
    "joined": lambda values: values.reshape(1, -1, values.shape[-1]),
    "rows": lambda values: values[None],
    "planes": lambda values: values.transpose(0, 3, 1, 2).reshape(1, -1, *values.shape[1:3]),
    "cells": lambda values: values.transpose(1, 2, 0, 3).reshape(1, *values.shape[1:3], -1),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("storage", STORED)
@pytest.mark.parametrize("head", ["v3-raw", "v5-raw", "yolox"])
def test_raw_heads_of_yolo_are_decoded_as_their_authors_do(head, storage, seed):
    maps = raw_maps(np.random.default_rng(seed), head)
    stored = [STORED[storage](values) for values in maps]
    # The outputs of a model may have any order.
    outputs = {"all": np.concatenate(stored, axis=1)} if storage == "joined" else dict(zip("bca", stored, strict=True))
    step = f"yolo:head={head},nms=0.4,score=0.3,max=20" + ("" if head == "yolox" else f",{WRITTEN}")
    plan = opened(step, dict(sorted(outputs.items())))
    assert plan.storage == storage
    outputs = dict(sorted(outputs.items()))
    rows = reference.of_yolo(head, maps, None if head == "yolox" else ANCHORS, 64)
    check(plan, outputs, rows, 64, (0.4, 0.3, 20))


def test_other_outputs_and_numbers_that_are_none():
    maps = raw_maps(np.random.default_rng(1), "v5-raw")
    maps[0][..., :2] = np.nan
    maps[1][0, 0, 0, 4], maps[1][1, 0, 0, 2] = np.nan, np.inf
    outputs = {"mask": np.zeros((1, 7), np.float32)}
    outputs |= {f"level{number}": STORED["planes"](values) for number, values in enumerate(maps)}
    plan = opened(f"yolo:head=v5-raw,{WRITTEN},output=level2+level0+level1,score=0.3,nms=1", outputs)
    found = Computer(plan).find(64, 64, list(outputs.values()))
    rows = reference.of_yolo("v5-raw", maps, ANCHORS, 64)
    good = np.isfinite(rows).all(axis=1) & (rows[:, 4:].max(axis=1) > 0.3)
    assert 3 < len(found) == good.sum()


def test_outputs_of_another_size_are_refused():
    maps = raw_maps(np.random.default_rng(1), "v5-raw")
    outputs = {f"level{number}": STORED["planes"](values) for number, values in enumerate(maps)}
    plan = opened(f"yolo:head=v5-raw,{WRITTEN}", outputs)
    with pytest.raises(InputError, match="output of level 2 has 3 numbers, and the pipeline reads 256"):
        Computer(plan).find(64, 64, [maps[0], np.zeros(3, np.float32), maps[2]])


KNOWN_NETWORKS = {  # of the documentation: side of the input, anchors and numbers of a box
    "ssd300_vgg16": (300, 8732, 4),
    "RetinaNet": (640, 76725, 4),
    "SSD MobileNet": (300, 1917, 4),
    "BlazeFace": (128, 896, 16),
    "YOLOv5": (640, 25200, 0),
    "YOLOv7": (640, 25200, 0),
    "YOLOX": (640, 8400, 0),
}


def test_the_documented_steps_fit_the_networks_that_they_name():
    text, seen = (ROOT / "docs" / "pictures.md").read_text(), set()
    for step, name in re.findall(r"^--post (\S+) +# (?:torchvision's |TensorFlow's )?(.+)$", text, re.MULTILINE):
        if name not in KNOWN_NETWORKS:
            continue
        side, count, numbers = KNOWN_NETWORKS[name]
        outputs = {"y": np.empty((1, count, 85), np.float32)}
        if numbers:
            words = dict(re.findall(r"(boxes|scores)=(\w+)", step))
            outputs = {words["boxes"]: np.empty((1, count, numbers), np.float32)}
            outputs[words["scores"]] = np.empty((1, count, 21), np.float32)
        assert opened(step, outputs, side).candidates == count
        seen.add(name)
    assert seen == set(KNOWN_NETWORKS)
