"""Releases with steps for pictures: deployed, run, and used by an application, beside numpy's own steps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.integration.test_sdk import compiled, python_binding, ran
from tests.support import anchors, picture_nets
from tests.support.commands import done, parsed, toolchain
from tests.support.parts import require
from tests.support.paths import DATA
from tests.support.picture_files import encoded, pillow
from toolchain import board, bundle, resources
from toolchain.errors import VerificationError
from toolchain.models.ort import onnxruntime
from toolchain.shell import SshOptions, open_shell

STEPS = ["--pre", "resize:letterbox=32,pad=114", "--pre", "scale=1/255"]
STEPS += ["--post", "yolo:nms=0.45,score=0.25,labels=labels.txt"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A detector, and a classifier with a pipeline.toml beside it; and a picture."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "classes").mkdir()
    onnx.save(picture_nets.detector(), folder / "detector.onnx")
    onnx.save(picture_nets.classifier(), folder / "classes" / "classifier.onnx")
    (folder / "classes" / "pipeline.toml").write_text(
        'pre = ["resize:crop=32,short=36,by=pillow", "scale=1/255", "mean=0.4,0.5,0.6", "std=0.2"]\n'
        'post = ["softmax", "topk=3"]\n'
    )
    (folder / "labels.txt").write_text("cat\ndog\nowl\n")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 81, 3), dtype=np.uint8)).save(folder / "a.png")
    return folder


def outputs_of(path, given):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": given.astype(np.float32)})[0]


def letterboxed(pixels):
    """Return the input of the model, by numpy."""
    height, width = pixels.shape[:2]
    ratio = min(32 / width, 32 / height)
    new = round(width * ratio), round(height * ratio)
    left, top = (32 - new[0]) // 2, (32 - new[1]) // 2
    canvas = np.full((32, 32, 3), 114, np.uint8)
    canvas[top : top + new[1], left : left + new[0]] = picture_nets.opencv_linear(pixels, *new)
    return canvas.transpose(2, 0, 1)[None].astype(np.float32) / 255, ratio, left, top


def expected_boxes(models, pixels):
    """Letterbox, model and suppression by numpy and ONNX Runtime: (class, score, corners in the picture)."""
    height, width = pixels.shape[:2]
    given, ratio, left, top = letterboxed(pixels)
    table = outputs_of(models / "detector.onnx", given)[0].T
    corners = np.concatenate([table[:, :2] - table[:, 2:4] / 2, table[:, :2] + table[:, 2:4] / 2, table[:, 4:]], 1)
    kept = picture_nets.suppressed(corners, 0.45, 0.25, 300)
    moved = (corners[:, :4] - [left, top, left, top]) / ratio
    boxes = np.clip(moved, 0, [width, height, width, height])
    return [(label, corners[box, 4 + label], boxes[box]) for box, label in kept]


def as_json(item):
    """Return an object of the Python binding as `run --json` has it."""
    return {"number": item.number, "label": item.label, "score": item.score, "box": item[3:7]}


def check_boxes(objects, expected):
    assert len(objects) == len(expected) > 3
    assert [item["number"] for item in objects] == [label for label, _, _ in expected]
    assert [item["label"] for item in objects] == [("cat", "dog", "owl")[label] for label, _, _ in expected]
    np.testing.assert_allclose([item["score"] for item in objects], [score for _, score, _ in expected], atol=0.01)
    np.testing.assert_allclose([item["box"] for item in objects], [box for _, _, box in expected], atol=0.5)


@pytest.fixture(scope="module")
def detector(models, tmp_path_factory):
    """The detector's bundle, deployed to a store of this machine, and the words that lead there."""
    root, folder = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("bundle") / "detector"
    words = ["--board", "local", "--root", root]
    steps = [word.replace("labels.txt", str(models / "labels.txt")) for word in STEPS]
    picture = ["--image", models / "a.png"]
    report = json.loads(
        done(
            "deploy", models / "detector.onnx", *words, *steps, *picture, "-o", folder, "--budget", 0, "--json", "-"
        ).out
    )
    # The device decodes the file itself, where it has the library.
    assert report["pictures"] == {"width": 81, "height": 60, "objects": report["pictures"]["objects"], "file": "PNG"}
    return bundle.load(folder), words


def test_boxes_on_this_machine(detector, models, tmp_path):
    made, words = detector
    assert made.manifest.pictures.labels == ("cat", "dog", "owl")
    assert "--post yolo:nms=0.45,score=0.25,labels=labels.txt" in made.manifest.command
    found = parsed("run", *words, "--image", models / "a.png", "-o", tmp_path / "y.npz")
    pixels = np.asarray(Image.open(models / "a.png"))
    check_boxes(found["objects"][0]["objects"], expected_boxes(models, pixels))


def deployed_extras(models, name, model, step, tmp_path):
    """Deploy a detector with masks or key points; return its outputs by ONNX Runtime, and what a run finds."""
    onnx.save(model, tmp_path / f"{name}.onnx")
    words = ["--board", "local", "--root", tmp_path / "store"]
    step = step if ":" in step else f"yolo:{step}"
    steps = [*STEPS[:-1], f"{step},nms=0.45,score=0.25,labels={models / 'labels.txt'}"]
    given = [*words, *steps, "--image", models / "a.png", "-o", tmp_path / name, "--budget", 0]
    done("deploy", tmp_path / f"{name}.onnx", *given)
    found = parsed("run", *words, "--image", models / "a.png", "-o", tmp_path / "y.npz")["objects"][0]["objects"]
    session = onnxruntime.InferenceSession(str(tmp_path / f"{name}.onnx"), providers=["CPUExecutionProvider"])
    pixels = np.asarray(Image.open(models / "a.png"))
    return session.run(None, {"x": letterboxed(pixels)[0]}), found, pixels


def kept_columns(table):
    corners = np.concatenate([table[:, :2] - table[:, 2:4] / 2, table[:, :2] + table[:, 2:4] / 2, table[:, 4:7]], 1)
    return [box for box, _ in picture_nets.suppressed(corners, 0.45, 0.25, 300)]


def runs_of(mask):
    pixels = np.zeros(mask["width"] * mask["height"], bool)
    ends = np.cumsum(mask["runs"])
    for start, end in zip(ends[::2], ends[1::2], strict=False):
        pixels[start:end] = True
    assert ends[-1] == pixels.size
    return pixels.reshape(mask["height"], mask["width"])


def test_masks_on_this_machine(models, sdk, tmp_path):
    """Of the device, and of an application, beside numpy's interpolation of ONNX Runtime's outputs."""
    made = deployed_extras(models, "segmenter", picture_nets.segmenter(), "masks=protos", tmp_path)
    (table, prototypes), found, pixels = made
    kept = kept_columns(table[0].T)
    assert len(found) == len(kept) > 3
    edge_model = python_binding()
    with edge_model.Model(tmp_path / "segmenter", library=sdk / "lib" / "libedge_model.so.1") as model:
        with pytest.raises(edge_model.EdgeError, match="there are no masks"):
            model.mask(0)
        assert len(model.run_image(pixels)) == len(kept)
        for number, box in enumerate(kept):
            item = found[number]["mask"]
            coefficients, size = table[0, 7:, box], (pixels.shape[1], pixels.shape[0])
            left, top, levels = picture_nets.mask_of(coefficients, prototypes[0], size, np.array(found[number]["box"]))
            assert (item["left"], item["top"], item["width"], item["height"]) == (left, top, *levels.shape[::-1])
            sure = np.abs(levels) > 1e-3
            assert sure.mean() > 0.95
            np.testing.assert_array_equal(runs_of(item)[sure], (levels > 0)[sure])
            mask = model.mask(number)
            assert (mask.left, mask.top, mask.pixels.shape) == (left, top, levels.shape)
            np.testing.assert_array_equal(mask.pixels[sure], (levels > 0)[sure])
        with pytest.raises(edge_model.EdgeError, match="no such object"):
            model.mask(len(kept))
        model.run({"x": letterboxed(pixels)[0]})
        with pytest.raises(edge_model.EdgeError, match="there are no masks") as caught:
            model.mask(0)
        assert caught.value.code == 2
    assert any(0 < runs_of(item["mask"]).mean() < 1 for item in found)


def test_boxes_and_scores_in_two_outputs(models, sdk, tmp_path):
    """The boxes are those of the same network with one output."""
    step = "boxes:boxes=boxes,scores=logits,form=center,by=sigmoid"
    _, found, pixels = deployed_extras(models, "detr", picture_nets.detr(), step, tmp_path)
    check_boxes(found, expected_boxes(models, pixels))
    edge_model = python_binding()
    with edge_model.Model(tmp_path / "detr", library=sdk / "lib" / "libedge_model.so.1") as model:
        check_boxes(list(map(as_json, model.run_image(pixels))), expected_boxes(models, pixels))


def found_in(rows, pixels):
    """Return what is found of corners on the input and scores of classes, as `expected_boxes` has it."""
    height, width = pixels.shape[:2]
    _, ratio, left, top = letterboxed(pixels)
    moved = np.clip((rows[:, :4] - [left, top] * 2) / ratio, 0, [width, height] * 2)
    return [(label, rows[box, 4 + label], moved[box]) for box, label in picture_nets.suppressed(rows, 0.45, 0.25, 300)]


def test_a_head_that_does_not_decode_on_this_machine(models, sdk, tmp_path):
    """Of a deploy's check, a run and an application, beside YOLOv5's formulas for the device's outputs."""
    step = "yolo:head=v5-raw,anchors=3x4+6x5/9x12+20x16"
    _, found, pixels = deployed_extras(models, "raw", picture_nets.raw_detector(), step, tmp_path)
    outputs = [np.load(tmp_path / "y.npz")[name] for name in ("level4", "level8")]
    maps = [output.reshape(2, 8, *output.shape[2:]).transpose(0, 2, 3, 1) for output in outputs]
    rows = anchors.of_yolo("v5-raw", maps, [[(3, 4), (6, 5)], [(9, 12), (20, 16)]], 32)
    check_boxes(found, found_in(rows, pixels))
    edge_model = python_binding()
    with edge_model.Model(tmp_path / "raw", library=sdk / "lib" / "libedge_model.so.1") as model:
        check_boxes(list(map(as_json, model.run_image(pixels))), found_in(rows, pixels))


@pytest.mark.parametrize("made", ["table", "few"])
def test_differences_from_anchors_on_this_machine(made, models, sdk, tmp_path):
    """Anchors of a file, and of a few numbers, which the device makes itself; of the device's outputs."""
    own = anchors.of_tensorflow(32, [8], [0.3, 0.5], [])
    parameters = "anchors=mediapipe,strides=4,each=1,size=exp,variances=0.1+0.1+0.2+0.2"
    own[:, 2:] = 32
    if made == "table":
        own = np.concatenate([own[:64, :2], np.random.default_rng(1).uniform(4, 20, (64, 2))], axis=1)
        np.save(tmp_path / "own.npy", own.astype(np.float32))
        parameters = f"anchors={tmp_path / 'own.npy'}"
    else:
        own = own[::3]
    step = f"boxes:boxes=loc,scores=conf,by=softmax,background=last,{parameters}"
    _, found, pixels = deployed_extras(models, "ssd", picture_nets.ssd(), step, tmp_path)
    outputs = [np.load(tmp_path / "y.npz")[name] for name in ("loc", "conf")]
    assert str(tmp_path) not in (tmp_path / "ssd" / bundle.MANIFEST).read_text()
    shares = np.exp(outputs[1][0].astype(np.float64))
    shares = (shares / shares.sum(axis=1, keepdims=True))[:, :-1]
    corners = anchors.decoded(outputs[0][0], own, [0.1, 0.1, 0.2, 0.2])
    expected = found_in(np.concatenate([corners, shares], axis=1), pixels)
    check_boxes(found, expected)
    edge_model = python_binding()
    with edge_model.Model(tmp_path / "ssd", library=sdk / "lib" / "libedge_model.so.1") as model:
        check_boxes(list(map(as_json, model.run_image(pixels))), expected)


def test_anchors_of_another_number_are_refused_before_a_build(models, tmp_path):
    onnx.save(picture_nets.ssd(), tmp_path / "ssd.onnx")
    step = "boxes:boxes=loc,scores=conf,anchors=ssd,strides=4/8,scales=0.1/0.3/0.5,ratios=2"
    seen = toolchain("build", tmp_path / "ssd.onnx", *STEPS[:-1], step, "-o", tmp_path / "no")
    assert (seen.code, "has 64 boxes, but there are 320 anchors" in seen.err) == (2, True), seen.err
    assert "they are 8x8x4 + 4x4x4" in seen.err


def test_key_points_on_this_machine(models, sdk, tmp_path):
    (table,), found, pixels = deployed_extras(models, "poser", picture_nets.detector(6), "points=2", tmp_path)
    kept = kept_columns(table[0].T)
    assert len(found) == len(kept) > 3
    _, ratio, left, top = letterboxed(pixels)
    points = table[0].T[kept, 7:].reshape(-1, 2, 3)
    places = np.clip((points[..., :2] - [left, top]) / ratio, 0, [pixels.shape[1], pixels.shape[0]])
    expected = np.concatenate([places, points[..., 2:]], axis=2)
    # A level of the resized picture may differ by 1, which the network multiplies.
    np.testing.assert_allclose([item["points"] for item in found], expected, atol=0.1)
    edge_model = python_binding()
    with edge_model.Model(tmp_path / "poser", library=sdk / "lib" / "libedge_model.so.1") as model:
        objects = model.run_image(pixels)
        np.testing.assert_allclose([item.points for item in objects], expected, atol=0.1)
        with pytest.raises(edge_model.EdgeError, match="has no masks"):
            model.mask(0)


def test_a_picture_after_the_first_allocates_nothing(models, sdk, tmp_path):
    """Nor do its masks."""
    onnx.save(picture_nets.segmenter(), tmp_path / "net.onnx")
    done("build", tmp_path / "net.onnx", *STEPS[:-1], "yolo:masks=protos", "-o", tmp_path / "made")
    np.asarray(Image.open(models / "a.png")).tofile(tmp_path / "a.rgb")
    program = compiled(sdk, DATA / "sdk" / "again.c", tmp_path / "again")
    seen = ran(program, tmp_path / "made", tmp_path / "a.rgb", 81, 60)
    assert (seen.returncode, seen.stderr) == (0, "")
    allocations, objects, masks = map(int, seen.stdout.split())
    assert allocations == 0
    assert masks == objects > 3


@pytest.mark.parametrize(("what", "message"), [("points", "other key points"), ("mask", "other masks")])
def test_a_device_with_other_masks_or_key_points_is_refused(what, message, models, tmp_path, monkeypatch):
    """As a device with a fault would: here, this machine's reference is another one."""
    from toolchain.native import pictures

    def moved(self):
        return right(self) + np.float32(0.5)

    def turned(self, *given):
        mask = right(self, *given)
        return pictures.Mask(mask.left, mask.top, 1 - mask.pixels)

    right = getattr(pictures.Computer, what)
    monkeypatch.setattr(pictures.Computer, what, moved if what == "points" else turned)
    model, step = picture_nets.detector(6), "points=2"
    if what == "mask":
        model, step = picture_nets.segmenter(), "masks=protos"
    onnx.save(model, tmp_path / "net.onnx")
    given = [*STEPS[:-1], f"yolo:{step}", "--board", "local", "--root", tmp_path / "store", "--budget", 0]
    seen = toolchain("deploy", tmp_path / "net.onnx", *given, "-o", tmp_path / "made")
    assert (seen.code, f"finds {message}" in seen.err) == (5, True), seen.err


def test_classes_of_a_file_beside_the_model(models, tmp_path):
    words = ["--board", "local", "--root", tmp_path / "store"]
    done("deploy", models / "classes" / "classifier.onnx", *words, "--budget", 0)
    found = parsed("run", *words, "--image", models / "a.png", "-o", tmp_path / "y.npz")
    image = Image.open(models / "a.png").resize((36 * 81 // 60, 36), Image.Resampling.BILINEAR).crop((8, 2, 40, 34))
    given = (np.asarray(image) / 255 - [0.4, 0.5, 0.6]) / 0.2
    scores = outputs_of(models / "classes" / "classifier.onnx", given.transpose(2, 0, 1)[None])[0]
    shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    objects = found["objects"][0]["objects"]
    assert [item["number"] for item in objects] == list(np.argsort(-shares)[:3])
    np.testing.assert_allclose([item["score"] for item in objects], np.sort(shares)[::-1][:3], atol=0.02)


def test_a_wrong_step_and_a_package_with_steps_are_refused(detector, models, tmp_path):
    seen = toolchain("build", models / "detector.onnx", "--pre", "resise:stretch=32", "-o", tmp_path / "no")
    assert (seen.code, "did you mean resize?" in seen.err) == (2, True)
    seen = toolchain("deploy", detector[0].folder, *detector[1], "--pre", "scale=2")
    assert (seen.code, "--pre is for models" in seen.err) == (2, True)


def test_without_its_library_the_device_gets_pixels(detector, models, monkeypatch):
    from toolchain.device import sampling
    from toolchain.errors import DeviceError

    real, sent = sampling.run_raw, []

    def run_raw(release, raw, *arguments, **options):
        sent.append(raw["0"].ndim)
        if sent == [1]:
            raise DeviceError("it failed", details="no libpng16.so.16 here, which decodes PNG: install it")
        return real(release, raw, *arguments, **options)

    monkeypatch.setattr(sampling, "run_raw", run_raw)
    report = json.loads(done("deploy", detector[0].folder, *detector[1], "--budget", 0, "--json", "-").out)
    assert (sent, report["pictures"]["file"]) == ([1, 3], "")


def test_what_devices_refuse_is_refused_here(detector, models, tmp_path):
    Image.open(models / "a.png").convert("CMYK").save(tmp_path / "print.jpg")
    (tmp_path / "cut.jpg").write_bytes(encoded(Image.open(models / "a.png"), "JPEG")[:-90])
    for name, message in {"print.jpg": "4 colours (CMYK): save it as RGB", "cut.jpg": "Premature end"}.items():
        seen = toolchain("run", *detector[1], "--image", tmp_path / name, "-o", tmp_path / "y.npz")
        assert (seen.code, f"{name}: the JPEG file" in seen.err, message in seen.err) == (2, True, True), seen.err


def test_other_steps_in_a_manifest_are_refused(detector, tmp_path):
    text = (detector[0].folder / bundle.MANIFEST).read_text()
    changed = text.replace('"pad": 114', '"pad": 115')
    assert changed != text
    with pytest.raises(VerificationError, match="not valid") as caught:
        bundle.read_manifest(changed.encode(), "it")
    assert "the plan is not that of the steps" in caught.value.details


def test_a_device_that_prepares_otherwise_is_refused(detector, monkeypatch):
    """As a device with a fault would: here, this machine's reference is another one."""
    from toolchain.native import pictures

    wrong = pictures.Computer.prepare
    monkeypatch.setattr(pictures.Computer, "prepare", lambda self, raw: wrong(self, raw) * np.float32(1.001))
    seen = toolchain("deploy", detector[0].folder, *detector[1], "--budget", 0)
    assert (seen.code, "makes another input of a picture" in seen.err) == (5, True)


@pytest.fixture(scope="module")
def sdk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdk") / "sdk"
    done("sdk", "--board", "local", "-o", folder)
    return folder


@pytest.fixture(scope="module")
def application(detector, sdk):
    """The Python binding of the SDK, with the release of the store open."""
    edge_model = python_binding()
    with edge_model.Model(detector[0].folder, library=sdk / "lib" / "libedge_model.so.1") as model:
        yield edge_model, model


def test_an_application_gets_the_same_boxes(application, models):
    edge_model, model = application
    pixels = np.asarray(Image.open(models / "a.png"))
    expected = expected_boxes(models, pixels)
    alpha = np.dstack([pixels, pixels[..., 0]])
    for name, array in {"rgb": pixels, "bgr": pixels[..., ::-1], "rgba": alpha}.items():
        found = model.run_image(array, name)
        check_boxes([as_json(item) for item in found], expected)
    # Without colour the formats of cameras are levels from 16 to 235, in OpenCV's 20 binary digits.
    luma = np.random.default_rng(5).integers(16, 236, (20, 30), dtype=np.uint8)
    gray = (((luma.astype(np.int64) - 16) * 1220542 + (1 << 19)) >> 20).astype(np.uint8)
    same = model.run_image(np.dstack([gray] * 3))
    yuyv = np.full((20, 30, 2), 128, np.uint8)
    yuyv[..., 0] = luma
    nv12 = np.concatenate([luma.reshape(-1), np.full(300, 128, np.uint8)])
    assert len(same) > 3
    assert model.run_image(gray, "gray") == same
    assert model.run_image(yuyv, "yuyv", (30, 20)) == model.run_image(nv12, "nv12", (30, 20)) == same
    with pytest.raises(edge_model.EdgeError, match="its size and stride need") as caught:
        model.run_image(nv12[:-1], "nv12", (30, 20))
    assert caught.value.code == 2
    with pytest.raises(ValueError, match="needs its size"):
        model.run_image(nv12, "nv12")


def test_an_application_passes_files(application, models):
    edge_model, model = application
    image = Image.open(models / "a.png")
    found = model.run_image((models / "a.png").read_bytes())
    check_boxes([as_json(item) for item in found], expected_boxes(models, np.asarray(image)))
    data = encoded(image, "JPEG", quality=90)
    pixels = model.decode_image(data)
    np.testing.assert_array_equal(pixels, pillow(data))
    assert model.run_image(data) == model.run_image(pixels) != []
    for wrong, message in {data[:-99]: "Premature end", b"": "is empty", b"GIF89a": "something else"}.items():
        with pytest.raises(edge_model.EdgeError, match=message) as caught:
            model.run_image(wrong)
        assert caught.value.code == 2


HIDE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
void* dlopen(const char* name, int flags) {
  void* (*next)(const char*, int) = (void* (*)(const char*, int))dlsym(RTLD_NEXT, "dlopen");
  return name && (strstr(name, "turbojpeg") || strstr(name, "png16")) ? NULL : next(name, flags);
}
"""


def written(folder, models):
    """A JPEG file and a PNG file of the same pixels; returns what `files.c` prints for them."""
    data = encoded(Image.open(models / "a.png"), "JPEG", quality=90)
    (folder / "a.jpg").write_bytes(data)
    pixels = pillow(data)
    Image.fromarray(pixels).save(folder / "b.png")
    total = 0
    for value in pixels.reshape(-1).tolist():
        total = (total * 31 + value) & 0xFFFFFFFF
    return f"{pixels.shape[1]}x{pixels.shape[0]} {total}\n"


def test_an_application_in_c_passes_files(application, detector, models, sdk, tmp_path):
    expected = written(tmp_path, models)
    words = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{sdk / 'include'}"]
    linked = [sdk / "lib" / "libedge_model.so.1", f"-Wl,-rpath,{sdk / 'lib'}"]
    for source in (DATA / "sdk" / "files.c", sdk / "example" / "objects.c"):
        subprocess.run(["gcc", *words, source, *linked, "-o", tmp_path / source.stem], check=True)
    argv = [tmp_path / "files", detector[0].folder, tmp_path / "a.jpg", tmp_path / "b.png"]
    seen = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert (seen.returncode, seen.stdout, seen.stderr) == (0, expected, "")
    (tmp_path / "hide.c").write_text(HIDE)
    hide = tmp_path / "hide.so"
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "hide.c", "-o", hide, "-ldl"], check=True)
    seen = subprocess.run(
        [*argv, "hidden"], check=False, capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": str(hide)}
    )
    assert (seen.returncode, seen.stderr) == (0, "")
    seen = subprocess.run([tmp_path / "objects", *argv[1:3]], check=True, capture_output=True, text=True)
    found = application[1].run_image((tmp_path / "a.jpg").read_bytes())
    assert [line.split()[1:4] for line in seen.stdout.splitlines()] == [
        [str(item.number), item.label, f"{item.score:.3f}"] for item in found
    ]


@pytest.mark.nightly
def test_all_processors_round_alike(tmp_path):
    """What a deploy takes for granted when it wants the same bits of a device."""
    rooms = [resources.RUNTIME / room for room in ("steps", "pictures")]
    sources = [path for room in rooms for path in sorted(room.glob("*.cc")) if path.name != "host.cc"]
    sources = [path for path in sources if path.name not in {"decoder.cc", "jpeg.cc", "png.cc"}]  # they open libraries
    flags = ["-static", "-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    digests = {}
    for prefix, emulator in {"": "", "aarch64-linux-gnu-": "aarch64", "arm-linux-gnueabihf-": "arm"}.items():
        words = [f"qemu-{emulator}-static"] if emulator else []
        require(f"{prefix}g++ and qemu-user-static", "g++", all(map(shutil.which, [f"{prefix}g++", *words])))
        program = tmp_path / f"digest-{emulator}"
        argv = [f"{prefix}g++", *flags, f"-I{resources.RUNTIME}", *sources, DATA / "pictures" / "digest.cc"]
        subprocess.run([*argv, "-o", program], check=True)
        ran = subprocess.run([*words, program], check=True, capture_output=True, text=True)
        digests[emulator] = ran.stdout.strip()
    assert len(set(digests.values())) == 1, digests


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["rpi4", "pynq"])
def test_boxes_on_an_emulated_board(virtual_boards, models, name, tmp_path):
    """Also from a JPEG file, which the board decodes to the same pixels, by an application there."""
    words = ["--board", name, "--host", virtual_boards.name(name), "--devices", virtual_boards.devices]
    steps = [word.replace("labels.txt", str(models / "labels.txt")) for word in STEPS]
    expected = written(tmp_path, models)
    picture = ["--image", tmp_path / "a.jpg", "--toolchain", "host"]
    deployed = done("deploy", models / "detector.onnx", *words, *steps, *picture, "--budget", 0, "--json", "-")
    report = json.loads(deployed.out)["pictures"]
    assert (report["width"], report["height"], report["file"]) == (81, 60, "JPEG")
    found = parsed("run", *words, "--image", models / "a.png", "-o", tmp_path / "y.npz", "--threads", 1)
    check_boxes(found["objects"][0]["objects"], expected_boxes(models, np.asarray(Image.open(models / "a.png"))))
    done("sdk", "--board", name, "-o", tmp_path / "sdk")
    triple, lib = board.load(name).triple, tmp_path / "sdk" / "lib"
    argv = [f"{triple}-gcc", "-std=c99", f"-I{tmp_path / 'sdk' / 'include'}", DATA / "sdk" / "files.c"]
    subprocess.run([*argv, lib / "libedge_model.so.1", "-o", tmp_path / "files"], check=True)
    options = SshOptions(config_file=virtual_boards.config, agent=False)
    with open_shell(virtual_boards.name(name), config=options) as shell:
        shell.run("mkdir -p files-test")
        for path in (lib / "libedge_model.so.1", tmp_path / "files", tmp_path / "a.jpg", tmp_path / "b.png"):
            shell.push(path, f"files-test/{path.name}")
        root = "../.local/share/edge-toolchain/current"
        run = f"cd files-test; chmod +x files; LD_LIBRARY_PATH=. ./files {root} a.jpg b.png"
        assert shell.run(run, timeout=300).stdout == expected
