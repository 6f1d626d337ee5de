"""The steps for pictures: how they are read, and how they are checked against a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from toolchain import pictures, steps
from toolchain.errors import InputError
from toolchain.steps import Steps
from toolchain.tensors import TensorSpec

INPUT = TensorSpec("x", (1, 3, 640, 640), "float32")
BOXES = TensorSpec("boxes", (1, 84, 8400), "float32")
SCORES = TensorSpec("scores", (1, 1000), "float32")


def resolved(pre, post=(), inputs=(INPUT,), outputs=(BOXES,), folder=None):
    steps = Steps.read(tuple(pre), tuple(post), folder)
    return pictures.resolve(steps, inputs, outputs)


def test_the_steps_of_yolo():
    pipeline = resolved(["resize:letterbox=640,pad=114", "scale=1/255", "layout=nchw"], ["yolo:nms=0.5,score=0.2"])
    plan = pipeline.plan
    assert (plan.kernel, plan.fit, plan.pad, plan.layout, plan.order) == ("opencv", "letterbox", 114, "nchw", "rgb")
    assert [(item.kind, item.values) for item in plan.operations] == [("scale", (1 / 255,) * 3)]
    assert (plan.head, plan.classes, plan.candidates) == ("yolo-v8", 80, 8400)
    assert (plan.nms, plan.score, plan.most) == (0.5, 0.2, 300)
    assert pictures.faults(pipeline, (INPUT,), (BOXES,)) == []
    assert pictures.faults(pipeline, (INPUT,), (SCORES,)) != []


PROTOS = TensorSpec("protos", (1, 32, 160, 120), "float32")
SEGMENTS = TensorSpec("boxes", (1, 116, 8400), "float32")
POSES = TensorSpec("boxes", (1, 56, 8400), "float32")


def test_masks_and_key_points():
    outputs = (PROTOS, SEGMENTS)
    pipeline = resolved(["scale=1/255"], ["yolo:masks=protos"], outputs=outputs)
    plan = pipeline.plan
    assert (plan.classes, plan.candidates, plan.output, plan.mask_output) == (80, 8400, 1, 0)
    assert (plan.prototypes, plan.mask_width, plan.mask_height, plan.most) == (32, 120, 160, 300)
    assert pictures.faults(pipeline, (INPUT,), outputs) == []
    assert pictures.faults(pipeline, (INPUT,), (SEGMENTS,)) != []
    plan = resolved(["scale=1/255"], ["yolo:points=17"], outputs=(POSES,)).plan
    assert (plan.classes, plan.points, plan.point_numbers) == (1, 17, 3)
    plan = resolved(["scale=1/255"], ["yolo:points=17x2"], outputs=(POSES,)).plan
    assert (plan.classes, plan.points, plan.point_numbers) == (18, 17, 2)
    plan = resolved(["scale=1"], ["yolo:points=1024x2"], outputs=(TensorSpec("b", (1, 2060, 9000), "float32"),)).plan
    assert plan.most == 300


@pytest.mark.parametrize(
    ("step", "outputs", "message", "hint"),
    [
        ("yolo:points=0", (POSES,), "points is a number from 1 to 1024", "docs/pictures.md"),
        ("yolo:points=17x4", (POSES,), "points is a number from 1 to 1024", "docs/pictures.md"),
        ("yolo:points=18", (POSES,), "has no 54 numbers for key points", "docs/pictures.md"),
        ("yolo:pionts=17", (POSES,), "no parameter 'pionts'", "did you mean points"),
        ("yolo:points=17,masks=protos", (PROTOS, SEGMENTS), "key points or a mask", "leave points or masks out"),
        ("yolo:masks=proto", (PROTOS, SEGMENTS), "the model's outputs are protos, boxes", "did you mean protos"),
        ("yolo:masks=boxes", (SEGMENTS,), "the model's outputs are boxes", "masks=NAME"),
        ("yolo:masks=boxes", (PROTOS, SEGMENTS), "not a set of prototypes", "number x height x width"),
        (
            "yolo:masks=protos",
            (TensorSpec("protos", (1, 300, 9, 9), "float32"), SEGMENTS),
            "is too large",
            "at most 256",
        ),
        ("yolo:masks=protos", (TensorSpec("protos", (1, 8, 2000, 9), "float32"), SEGMENTS), "is too large", "at most"),
        ("yolo:masks=protos", (TensorSpec("protos", (1, 8, 9, 9), "int8"), SEGMENTS), "not a set of proto", "float32"),
        ("yolo:masks=protos,output=protos", (PROTOS, SEGMENTS), "the model's outputs are boxes", "output=boxes"),
        ("yolo:masks=protos", (PROTOS, TensorSpec("boxes", (1, 36, 99), "float32")), "no 32 numbers for masks", "docs"),
    ],
)
def test_masks_and_key_points_that_do_not_fit_are_refused(step, outputs, message, hint):
    with pytest.raises(InputError, match=message) as caught:
        resolved(["scale=1/255"], [step], outputs=outputs)
    assert hint in caught.value.hint


PLACES = TensorSpec("places", (1, 100, 4), "float32")
LOGITS = TensorSpec("logits", (1, 100, 92), "float32")


def test_boxes_in_an_output_of_their_own():
    step = "boxes:boxes=places,scores=logits,form=center,unit=share,by=softmax,background=last,score=0.7"
    pipeline = resolved(["scale=1/255"], [step], outputs=(LOGITS, PLACES))
    plan = pipeline.plan
    assert (plan.head, plan.output, plan.box_output, plan.classes, plan.candidates) == ("boxes", 0, 1, 92, 100)
    assert (plan.form, plan.shares, plan.softmax, plan.sigmoid, plan.background) == ("center", True, True, False, 92)
    assert pictures.faults(pipeline, (INPUT,), (LOGITS, PLACES)) == []
    assert pictures.faults(pipeline, (INPUT,), (PLACES, LOGITS)) != []
    plan = resolved(["scale=1/255"], ["yolo:head=rtdetr"], outputs=(TensorSpec("y", (1, 300, 84), "float32"),)).plan
    assert (plan.head, plan.shares, plan.classes, plan.candidates, plan.most) == ("detr", True, 80, 300, 300)


@pytest.mark.parametrize(
    ("step", "outputs", "message", "hint"),
    [
        ("boxes:scores=logits", (LOGITS, PLACES), "the model's outputs are logits, places", "write boxes=logits"),
        ("boxes:boxes=place,scores=logits", (LOGITS, PLACES), "outputs are logits, places", "did you mean places"),
        ("boxes:boxes=places,scores=places", (LOGITS, PLACES), "the model's outputs are logits", "scores=logits"),
        ("boxes:boxes=logits,scores=places", (LOGITS, PLACES), "has no four numbers for each of the 100", "docs"),
        ("boxes:boxes=places,scores=s", (PLACES, TensorSpec("s", (1, 100), "float32")), "not a table of sc", "classes"),
        ("boxes:boxes=places,scores=logits,form=round", (LOGITS, PLACES), "form is one of center, corners", "docs"),
        ("boxes:boxes=places,scores=logits,by=tanh", (LOGITS, PLACES), "by is one of none, sigmoid, softmax", "docs"),
        (
            "boxes:boxes=places,scores=s,background=last",
            (PLACES, TensorSpec("s", (1, 100, 1), "float32")),
            "has the background alone",
            "leave background out",
        ),
        ("yolo:head=rtdetr,nms=0.5", (TensorSpec("y", (1, 300, 84), "float32"),), "nms is not for head", "leave nms"),
        ("yolo:head=rtdetr", (TensorSpec("y", (1, 300, 4), "float32"),), "no classes in the layout of rtdetr", "docs"),
    ],
)
def test_boxes_that_do_not_fit_are_refused(step, outputs, message, hint):
    with pytest.raises(InputError, match=message) as caught:
        resolved(["scale=1/255"], [step], outputs=outputs)
    assert hint in caught.value.hint


LOC, CONF = TensorSpec("loc", (1, 8096, 4), "float32"), TensorSpec("conf", (1, 8096, 21), "float32")
PAIR = "boxes:boxes=loc,scores=conf"
LEVELS = "strides=8/16/32,scales=0.1/0.2/0.4/0.8,ratios=2"
FINE, COARSE = (TensorSpec(name, (1, 255, n, n), "float32") for name, n in (("fine", 80), ("coarse", 40)))
SIZES = "anchors=10x13+16x30+33x23/30x61+62x45+59x119"


def test_anchors_are_part_of_a_release(tmp_path):
    """By their numbers: another file of the same name makes another pipeline, and fewer anchors are a fault."""
    (tmp_path / "own").mkdir()
    np.save(tmp_path / "own" / "a.npy", np.ones((8096, 4), np.float32))
    step = f"{PAIR},anchors=own/a.npy,unit=share,background=first"
    pipeline = resolved(["scale=1/255"], [step], outputs=(LOC, CONF), folder=tmp_path)
    assert pipeline.post == (step.replace("own/", ""),)
    plan = pipeline.plan
    assert (plan.coding, plan.variances, plan.shares, plan.levels) == ("deltas", (0.1, 0.1, 0.2, 0.2), True, ())
    assert plan.table == "0000803f" * 4 * 8096
    assert pictures.faults(pipeline, (INPUT,), (LOC, CONF)) == []
    short = replace(pipeline, plan=replace(plan, table=plan.table[:-32]))
    (fault,) = pictures.faults(short, (INPUT,), (LOC, CONF))
    assert "has 8096 boxes, but there are 8095 anchors" in fault
    np.save(tmp_path / "own" / "a.npy", np.full((8096, 4), 2, np.float32))
    assert resolved(["scale=1/255"], [step], outputs=(LOC, CONF), folder=tmp_path) != pipeline


def test_the_head_of_a_network_that_does_not_decode():
    outputs = (COARSE, TensorSpec("other", (1, 3), "float32"), FINE)
    step = f"yolo:head=v5-raw,{SIZES},output=coarse+fine,nms=0.5"
    pipeline = resolved(["scale=1/255"], [step], outputs=outputs)
    plan = pipeline.plan
    assert (plan.head, plan.coding, plan.storage, plan.level_outputs) == ("grid", "yolo-v5", "planes", (2, 0))
    assert (plan.classes, plan.candidates, plan.nms) == (80, 3 * (80 * 80 + 40 * 40), 0.5)
    assert plan.levels[1].sizes == ((30, 61), (62, 45), (59, 119))
    assert pictures.faults(pipeline, (INPUT,), outputs) == []


@pytest.mark.parametrize(
    ("step", "outputs", "message", "hint"),
    [
        (f"{PAIR},anchors=ssd,{LEVELS}", (LOC, CONF), "has 8096 boxes, but there are 33600 anchors", "80x80x4 + 40x40"),
        (f"{PAIR},anchors=three.txt", (LOC, CONF), "has 8096 boxes, but there are 3 anchors", "the file of anchors"),
        (f"{PAIR},anchors=sdd", (LOC, CONF), "cannot read the anchors .*sdd", "did you mean ssd"),
        (f"{PAIR},anchors=short.txt", (LOC, CONF), "cannot read the anchors .*short.txt", "four numbers on each line"),
        (f"{PAIR},anchors=nan.txt", (LOC, CONF), "infinite or not a number", "four numbers"),
        (f"{PAIR},anchors=large.txt", (LOC, CONF), "infinite or not a number", "four numbers"),
        (f"{PAIR},anchors=empty.txt", (LOC, CONF), "has 0 anchors, and 1 to 16384", "four numbers"),
        (f"{PAIR},anchors=three.txt,ratios=2", (LOC, CONF), "ratios is not for a file", "leave ratios out"),
        (
            f"{PAIR},anchors=three.txt,form=corners",
            (LOC, CONF),
            "form is one of center, center-yx",
            "did you mean center",
        ),
        (f"{PAIR},anchors=three.txt,variances=1+1", (LOC, CONF), "variances are four numbers", "0.1+0.1+0.2+0.2"),
        (f"{PAIR},anchors=three.txt,points=6", (LOC, CONF), "x and y alone", "points=6x2"),
        (f"{PAIR},anchors=three.txt,points=6x2", (LOC, CONF), "has no 16 numbers for each of the 8096", "docs"),
        (f"{PAIR},anchors=ssd,unit=share,{LEVELS}", (LOC, CONF), "unit is for a file of anchors", "leave unit out"),
        (f"{PAIR},anchors=ssd,strides=8,ratios=2", (LOC, CONF), "it needs scales", "scales=0.2/0.4"),
        (f"{PAIR},anchors=ssd,strides=8,scales=1,ratios=2", (LOC, CONF), "must be 2 numbers with / between", "docs"),
        (f"{PAIR},anchors=ssd,scales=1", (LOC, CONF), "needs strides or cells", "strides=8/16/32"),
        (f"{PAIR},anchors=ssd,cells=0,scales=1/2,ratios=2", (LOC, CONF), "cells are such as 38", "cells=38/19"),
        (f"{PAIR},anchors=ssd,cells=8,scales=1/x,ratios=2", (LOC, CONF), "scales are numbers above 0", "scales=0.2"),
        (f"{PAIR},anchors=ssd,{LEVELS}/3", (LOC, CONF), "ratios has 2 levels, and 3 are needed", "docs/pictures.md"),
        (f"{PAIR},anchors=mediapipe,{LEVELS}", (LOC, CONF), "scales is not for anchors=mediapipe", "leave scales out"),
        (f"{PAIR},anchors=mediapipe,strides=8/8,each=9", (LOC, CONF), "18 anchors, and at most 16", "docs"),
        (f"{PAIR},ratios=2", (LOC, CONF), "ratios is for boxes with anchors", "anchors=FILE"),
        ("yolo:head=v5raw", (FINE, COARSE), "head is one of v5, .*, not 'v5raw'", "did you mean v5-raw"),
        ("yolo:head=v5-raw", (FINE, COARSE), "needs the anchors that the network was trained", "anchors=10x13"),
        (f"yolo:head=v5-raw,{SIZES}/9x9", (FINE, COARSE), "anchors of 3 levels, and 2 outputs", "output=NAME"),
        (f"yolo:head=v5-raw,{SIZES},output=fine+corse", (FINE, COARSE), "no output 'corse'", "did you mean coarse"),
        (f"yolo:head=v5-raw,{SIZES},points=3", (FINE, COARSE), "points is not for head=v5-raw", "leave points"),
        ("yolo:head=v5-raw,anchors=10+13", (FINE, COARSE), "sizes with \\+ between", "anchors=10x13"),
        (f"yolo:head=v5-raw,{SIZES},strides=8", (FINE, COARSE), "strides follow from outputs", "leave strides out"),
        (f"yolo:head=v5-raw,{SIZES}", (FINE, FINE), "two outputs have a grid of the same size", "output=NAME"),
        ("yolo:head=v5-raw,anchors=9x9+9x9/9x9", (FINE, COARSE), "is not a grid of 2 anchor", "1 x anchors x rows"),
        ("yolo:head=v5-raw,anchors=9x9/9x9+9x9+8x8", (FINE, COARSE), "different layouts or classes", "check output"),
        (f"yolo:head=yolox,{SIZES}", (FINE, COARSE), "head=yolox has no anchors", "leave anchors out"),
        ("yolo:head=yolox", (TensorSpec("y", (1, 8000, 85), "float32"),), "8000 boxes, but the grid has 8400", "80x80"),
        ("yolo:head=yolox,strides=7", (TensorSpec("y", (1, 8000, 85), "float32"),), "no whole cells of the", "docs"),
        ("yolo:head=v5,anchors=9x9", (TensorSpec("y", (1, 8000, 85), "float32"),), "does not decode its", "v5-raw"),
    ],
)
def test_anchors_that_do_not_fit_are_refused(step, outputs, message, hint, tmp_path):
    (tmp_path / "three.txt").write_text("1 2 3 4\n1,2,3,4\n1, 2, 3, 4\n")
    (tmp_path / "short.txt").write_text("1 2 3 4\n1 2 3\n")
    (tmp_path / "nan.txt").write_text("1 2 3 nan\n")
    (tmp_path / "large.txt").write_text("1 2 3 1e300\n")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match=message) as caught:
        resolved(["scale=1/255"], [step], outputs=outputs, folder=tmp_path)
    assert hint in caught.value.hint


def test_the_steps_of_a_classifier(tmp_path):
    (tmp_path / "labels.txt").write_text("cat\ndog\nowl\n")
    image = TensorSpec("x", (1, 224, 224, 3), "float32")
    pre = ["resize:crop=224,short=256,by=pillow", "color=bgr", "scale=1/255", "mean=0.4,0.5,0.6", "std=0.2"]
    scores = TensorSpec("scores", (1, 3, 1, 1), "float32")
    pipeline = resolved(pre, ["softmax", "topk:k=2,labels=labels.txt"], (image,), (scores,), tmp_path)
    plan = pipeline.plan
    assert (plan.short_side, plan.layout, plan.order, plan.softmax, plan.most) == (256, "nhwc", "bgr", True, 2)
    assert [item.kind for item in plan.operations] == ["scale", "mean", "std"]
    assert pipeline.labels == ("cat", "dog", "owl")


def test_a_file_beside_the_model(tmp_path):
    (tmp_path / "net.onnx").touch()
    assert steps.beside(str(tmp_path / "net.onnx")) is None
    (tmp_path / "pipeline.toml").write_text('pre = ["scale=1/255"]\npost = ["topk=5"]\n')
    file = steps.beside(str(tmp_path / "net.onnx"))
    assert steps.read_file(file) == Steps(("scale=1/255",), ("topk=5",))
    (tmp_path / "pipeline.toml").write_text('pre = ["scale=1/255"]\npots = ["topk=5"]\n')
    with pytest.raises(InputError) as caught:
        steps.read_file(file)
    assert "did you mean post?" in caught.value.details


# steps before and after, the model's input and output, and what the one error says, with its hint
WRONG = [
    (["resise:letterbox=640"], [], INPUT, BOXES, "no step 'resise'", "did you mean resize"),
    (["resize:leterbox=640"], [], INPUT, BOXES, "no parameter 'leterbox'", "did you mean letterbox"),
    (["resize:letterbox=640,by=opencw"], [], INPUT, BOXES, "by is one of .*opencw", "did you mean opencv"),
    (["resize:letterbox=320"], [], INPUT, BOXES, "input is 640x640, not 320x320", "letterbox=640x640"),
    (["resize:letterbox=big"], [], INPUT, BOXES, "a size such as 640", "docs/pictures.md"),
    (["resize:letterbox=640,stretch=640"], [], INPUT, BOXES, "needs one of", "resize:letterbox=640"),
    (["resize:crop=640,pad=114"], [], INPUT, BOXES, "pad is for letterbox", "leave pad out"),
    (["resize:crop=640,short=600"], [], INPUT, BOXES, "short must be a number from 640", "docs/pictures.md"),
    (["scale=1/0"], [], INPUT, BOXES, "one number other than 0, or three", "docs/pictures.md"),
    (["mean=1,2"], [], INPUT, BOXES, "one number, or three", "docs/pictures.md"),
    (["scale=1/255", "resize:stretch=640"], [], INPUT, BOXES, "must come before scale", "the order"),
    (["scale=2", "scale=3"], [], INPUT, BOXES, "two steps scale", "leave one"),
    (["layout=nhwc"], [], INPUT, BOXES, "no 3 channel", "docs/pictures.md"),
    (["color=gray"], [], INPUT, BOXES, "with 1 channel", "leave the pipeline out"),
    (["dtype=uint8"], [], INPUT, BOXES, "input is float32", "dtype=float32"),
    (["scale"], [], INPUT, BOXES, "one number other than 0", "docs/pictures.md"),
    (["Scale=1"], [], INPUT, BOXES, "not of the form", "resize:letterbox"),
    (["resize:letterbox"], [], INPUT, BOXES, "not of the form", "pad=114"),
    ([], ["topk=5"], INPUT, SCORES, "at least one step before", "--pre scale=1/255"),
    (["scale=1"], ["topk=5", "yolo"], INPUT, BOXES, "cannot be topk, yolo", "--post yolo"),
    (["scale=1"], ["topk=5"], INPUT, BOXES, "not one row of scores", "docs/pictures.md"),
    (["scale=1"], ["topk=0"], INPUT, SCORES, "topk must be a number from 1", "docs/pictures.md"),
    (["scale=1"], ["yolo"], INPUT, SCORES, "not a table of boxes", "docs/pictures.md"),
    (["scale=1"], ["yolo:head=v9"], INPUT, BOXES, "head is one of v5, v8, v11", "docs/pictures.md"),
    (["scale=1"], ["yolo:nms=2"], INPUT, BOXES, "nms must be a number from 0 to 1", "docs/pictures.md"),
    (["scale=1"], ["yolo:output=box"], INPUT, BOXES, "outputs are boxes", "did you mean boxes"),
    (["scale=1"], ["yolo:labels=none.txt"], INPUT, BOXES, "cannot read the labels", "one label on each line"),
    (["scale=1"], ["yolo:labels=two.txt"], INPUT, BOXES, "there are 2 labels", "one line for each class"),
    (["scale=1"], ["yolo"], TensorSpec("x", (2, 3, 640, 640), "float32"), BOXES, "one picture as", "--input"),
    (["scale=1"], ["yolo"], TensorSpec("x", (1, 3, 640, 640), "int64"), BOXES, "input is int64", "float32"),
    (["scale=1"], [], TensorSpec("x", (1, 3, 8, 3), "float32"), BOXES, "nchw or nhwc", "layout=nchw"),
    (["scale=1"], ["ctc"], INPUT, TensorSpec("y", (1, 9, 2), "float32"), "needs a file with the label", "labels=FILE"),
    (["scale=1"], ["ctc:labels=two.txt"], INPUT, BOXES, "there are 2 labels", "one line for each class"),
    (
        ["scale=1"],
        ["ctc:labels=two.txt"],
        INPUT,
        TensorSpec("y", (4, 9, 2), "float32"),
        "not a table of scores",
        "docs",
    ),
    (["scale=1"], ["yolo"], INPUT, TensorSpec("b", (1, 9, 9), "float32"), "does not show its layout", "head=v5"),
]


@pytest.mark.parametrize(("pre", "post", "model_input", "output", "message", "hint"), WRONG)
def test_a_wrong_step_has_one_clear_error(pre, post, model_input, output, message, hint, tmp_path):
    (tmp_path / "two.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match=message) as caught:
        resolved(pre, post, (model_input,), (output,), tmp_path)
    assert hint in caught.value.hint


def test_labels_are_lines_of_text(tmp_path):
    (tmp_path / "labels.txt").write_text("cat\n\ndog\n")
    with pytest.raises(InputError, match=r"line 2 of labels\.txt is not a label"):
        Steps.read(("scale=1",), ("topk:labels=labels.txt",), tmp_path)
