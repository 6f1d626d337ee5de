"""Evaluations here: a sound build, planted faults, an int8 file, a release of the device, and a resumed run."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.support import bundles, nets, shapes_data
from tests.support.commands import Outcome, done, toolchain
from toolchain.bundle import Bundle
from toolchain.device import sampling
from toolchain.errors import UnreachableError


@dataclass(frozen=True)
class Desk:
    """Pictures, the classifier as a file, and what builds its bundles."""

    folder: Path
    weights: Any

    @property
    def words(self) -> list[object]:
        return ["--data", self.folder / "test", "--model", self.folder / "float.onnx", "--metric", "top1"]

    def built(self, fault: shapes_data.Fault = "") -> Bundle:
        folder = self.folder / (fault or "good")
        folder.mkdir()
        given = {"x": np.zeros((1, 3, shapes_data.SIZE, shapes_data.SIZE), np.float32)}
        return bundles.of_model(shapes_data.classifier(self.weights, fault), folder, given)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    shapes_data.write(folder / "train", 60, 0)
    shapes_data.write(folder / "test", 50, 1)
    weights = shapes_data.weights(folder / "train")
    onnx.save(shapes_data.classifier(weights), folder / "float.onnx")
    return Desk(folder, weights)


@pytest.fixture(scope="module")
def good(desk):
    return desk.built()


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    """A cache of journals for each test; the programs for devices are in that of the session."""
    from toolchain.pipeline.evaluate import journal

    monkeypatch.setattr(journal.files, "check_cache", lambda: tmp_path)


def evaluated(bundle: Bundle, desk: Desk, tmp_path: Path, *words: object) -> tuple[Outcome, dict[str, Any]]:
    report = tmp_path / "evaluation.json"
    outcome = toolchain("evaluate", bundle.folder, *desk.words, "--root", tmp_path / "root", "--json", report, *words)
    return outcome, json.loads(report.read_text())


def journals(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "evaluations").iterdir())


def test_a_sound_build_loses_nothing(good, desk, tmp_path):
    files = ["--junit", tmp_path / "e.xml", "--html", tmp_path / "e.html", "--most-lost", 5]
    outcome, report = evaluated(good, desk, tmp_path, *files)
    assert outcome.code == 0, outcome.err
    assert (report["verdict"], report["changed"], report["warnings"]) == ("not significantly different", [], [])
    assert [side["value"] for side in report["sides"]] == [100, 100]
    assert len(report["samples"]) == 200
    assert ET.parse(tmp_path / "e.xml").getroot().get("failures") == "0"  # noqa: S314 - our own
    assert "not significantly different" in (tmp_path / "e.html").read_text()
    assert journals(tmp_path) == []
    assert not any((tmp_path / "root/releases").iterdir()), "the device keeps nothing"


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("layout", "channels last: a wrong layout"), ("mean", "a wrong mean"), ("saturation", "saturation")],
)
def test_planted_faults_are_significant_and_named(fault, cause, desk, tmp_path):
    files = ["--junit", tmp_path / "e.xml", "--html", tmp_path / "e.html", "--most-lost", 0]
    outcome, report = evaluated(desk.built(fault), desk, tmp_path, *files)
    assert outcome.code == 6, outcome.err
    assert report["verdict"] == "worse"
    assert report["comparisons"][0]["low"] > 0
    assert "float.onnx is another file than model.onnx" in report["warnings"][0]
    assert cause in report["warnings"][1]
    changed = report["changed"][0]
    sample = next(sample for sample in report["samples"] if sample["name"] == changed)
    assert sample["reference"]["answer"] == sample["label"] != sample["device"]["answer"]
    assert ET.parse(tmp_path / "e.xml").getroot().get("failures") == "1"  # noqa: S314 - our own
    page = (tmp_path / "e.html").read_text()
    assert 'src="data:image/png;base64,' in page
    assert "img-src data:" in page


def test_the_compiled_file_tells_its_own_loss_from_the_boards(desk, tmp_path):
    """A stand-in for int8: the file that was built computes something else than the float model."""
    folder = tmp_path / "int8"
    folder.mkdir()
    given = {"x": np.zeros((1, 3, shapes_data.SIZE, shapes_data.SIZE), np.float32)}
    built = bundles.of_model(shapes_data.classifier(desk.weights, "mean"), folder, given)
    outcome, report = evaluated(built, desk, tmp_path, "--compiled", folder / "model.onnx", "--limit", 100)
    assert outcome.code == 0, outcome.err
    verdicts = {(one["first"], one["second"]): one["verdict"] for one in report["comparisons"]}
    assert verdicts == {
        ("reference", "device"): "worse",
        ("reference", "compiled"): "worse",
        ("compiled", "device"): "not significantly different",
    }
    assert any("quantization loses" in warning for warning in report["warnings"])
    wrong = toolchain("evaluate", built.folder, *desk.words, "--compiled", desk.folder / "float.onnx")
    assert (wrong.code, "was not built from" in wrong.err) == (2, True)


def test_a_lost_board_is_continued(good, desk, tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "_PIECE_SAMPLES", 80)
    run, calls = sampling.run_all, []

    def losing(*arguments):
        calls.append(arguments[1].count)
        if len(calls) == 2:
            raise UnreachableError("the board is lost")
        return run(*arguments)

    monkeypatch.setattr(sampling, "run_all", losing)
    outcome, _ = evaluated(good, desk, tmp_path)
    assert outcome.code == 4
    assert len(journals(tmp_path)) == 2
    outcome, report = evaluated(good, desk, tmp_path)
    assert outcome.code == 0, outcome.err
    assert calls == [80, 80, 80, 40]
    assert [side["resumed"] for side in report["sides"]] == [200, 80]
    assert report["sides"][1]["value"] == 100


def test_the_current_release_with_an_own_metric(good, desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_margin.py").write_text(
        "def score(outputs, target):\n"
        "    scores = sorted(outputs['y'].reshape(-1))\n"
        "    return float(scores[-1] - scores[-2])\n"
    )
    root = ["--root", tmp_path / "root"]
    done("deploy", good.folder, *root, "--budget", 0)
    words = [*desk.words[:-1], "own_margin:score", "--limit", 12, *root]
    report = json.loads(done("evaluate", "current", *words, "--json").out)
    assert (report["metric"], report["verdict"]) == ("own_margin:score", "not significantly different")
    assert report["package"] == "current"


def test_wrong_inputs_end_before_the_device_is_contacted(good, desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("toolchain.cli.evaluate.open_device", lambda *_: pytest.fail("the device was contacted"))
    (tmp_path / "bad_metric.py").write_text("def score(outputs, target):\n    raise ValueError('no boxes')\n")
    (tmp_path / "names.txt").write_text("bars\ncolumns\ndisc\nframes\n")
    (tmp_path / "empty").mkdir()
    onnx.save(bundles.dense(8, 4), tmp_path / "other.onnx")
    model, data = ["--model", desk.folder / "float.onnx"], ["--data", desk.folder / "test"]
    top1 = ["--metric", "top1"]
    cases = [
        ([*model, *top1], "missing option '--data'"),
        ([*model, *data], "missing option '--metric'"),
        ([*data, *top1], "does not contain the model.*--model model.onnx"),
        ([*model, *data, "--metric", "top3"], "no metric 'top3'"),
        ([*model, *data, "--metric", "mse"], "no expected outputs"),
        ([*model, "--data", tmp_path / "empty", *top1], "no samples"),
        ([*model, *data, *top1, "--labels", tmp_path / "names.txt"], "class 'frame'.*did you mean frames"),
        ([*model, *data, "--metric", "bad_metric:score"], "bad_metric:score failed.*ValueError: no boxes"),
        (["--model", tmp_path / "other.onnx", *data, *top1], "other inputs than the package"),
        (["--model", tmp_path / "none.onnx", *data, *top1], "there is no model"),
    ]
    for words, message in cases:
        outcome = toolchain("evaluate", good.folder, *words)
        assert outcome.code == 2, (words, outcome.err)
        assert all(part in outcome.err for part in message.split(".*")), (message, outcome.err)


@pytest.mark.parametrize(
    ("new", "limit", "code", "verdict"), [("mean", 1, 6, "regression"), ("", 20, 0, "pass"), ("", 0, 7, "inconclusive")]
)
def test_the_accuracy_of_a_gate(new, limit, code, verdict, good, desk, tmp_path):
    words = ["--accuracy", limit, "--data", desk.folder / "test", "--metric", "top1", "--retrained", "--limit", 100]
    words += ["--root", tmp_path / "root", "--round-ms", 1, "--worst", 900, "--least", 800]
    words += ["--json", tmp_path / "gate.json", "--junit", tmp_path / "gate.xml", "--html", tmp_path / "gate.html"]
    folder = tmp_path / "new"
    folder.mkdir()
    given = {"x": np.ones((1, 3, shapes_data.SIZE, shapes_data.SIZE), np.float32)}
    built = bundles.of_model(shapes_data.classifier(desk.weights, new), folder, given)
    outcome = toolchain("gate", built.folder, "--base", good.folder, *words)
    assert outcome.code == code, outcome.err
    compared = json.loads((tmp_path / "gate.json").read_text())["accuracy"]
    assert (compared["verdict"], compared["samples"], compared["base"]) == (verdict, 100, 100)
    assert bool(compared["changed"]) is bool(new)
    cases = {case.get("name"): case for case in ET.parse(tmp_path / "gate.xml").getroot().iter("testcase")}  # noqa: S314 - our own
    assert [child.get("type") for child in cases["accuracy"]] == ([] if code == 0 else [verdict])
    assert "top1" in (tmp_path / "gate.html").read_text()


def test_a_deploy_refuses_a_release_that_loses_too_much(desk, tmp_path):
    table = tmp_path / "evaluation.toml"
    table.write_text(
        f'data = "{desk.folder / "test"}"\nmetric = "top1"\nmost_lost = 20\nmodel = "{desk.folder / "float.onnx"}"\n'
    )
    words = ["--evaluate", table, "--root", tmp_path / "root", "--budget", 0, "--json", tmp_path / "report.json"]
    good = toolchain("deploy", desk.folder / "float.onnx", *words)
    assert good.code == 0, good.err
    summary = json.loads((tmp_path / "report.json").read_text())["evaluation"]
    assert (summary["samples"], summary["device"], summary["loss"]["value"]) == (200, 100, 0)
    current = json.loads(toolchain("status", "--root", tmp_path / "root", "--json", "-").out)["current"]
    worse = tmp_path / "worse.onnx"
    onnx.save(shapes_data.classifier(desk.weights, "mean"), worse)
    refused = toolchain("deploy", worse, *words)
    assert refused.code == 6
    assert "the limit is 20" in refused.err
    assert "keeps its previous release" in refused.err
    assert json.loads(toolchain("status", "--root", tmp_path / "root", "--json", "-").out)["current"] == current


def test_a_deploy_in_int8_within_a_budget(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evaluation.toml").write_text(f'data = "{desk.folder / "test"}"\nmetric = "top1"\nmost_lost = 20\n')
    words = [
        "--int8",
        desk.folder / "train",
        "--accuracy-budget",
        1,
        "--metric",
        "top1",
        "--data",
        desk.folder / "test",
    ]
    words += ["--limit", 40, "--evaluate", "evaluation.toml", "--root", tmp_path / "root", "--budget", 0, "--json"]
    report = json.loads(done("deploy", desk.folder / "float.onnx", *words).out)
    quantized = report["quantized"]
    assert (quantized["file"], [layer["operator"] for layer in quantized["layers"]]) == ("float-int8.onnx", ["Gemm"])
    assert (quantized["metric"]["samples"], quantized["limit"]) == (40, "a loss of 1 points of top1")
    assert report["model"] == "float-int8"
    assert report["evaluation"]["device"] == 100
    same = tmp_path / "same.onnx"
    done("quantize", desk.folder / "float.onnx", "--for", "cpu", "--calibration", desk.folder / "train", "-o", same)
    assert same.read_bytes() == (tmp_path / "float-int8.onnx").read_bytes()


def test_a_deploy_in_int8_that_cannot_be_contacts_no_device(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("toolchain.cli.device.open_device", lambda *_, **__: pytest.fail("the device was contacted"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/0.png").write_bytes(b"no picture")
    (tmp_path / "names.txt").write_text("bars\ncolumns\ndisc\nframes\n")
    int8, top1 = ["--int8", desk.folder / "train"], ["--metric", "top1", "--data", desk.folder / "test"]
    cases = [
        (["--int8", tmp_path / "none"], "there is no folder"),
        (["--int8", tmp_path / "empty"], "there are no samples in"),
        (["--int8", tmp_path / "damaged"], "cannot read the image.*0.png"),
        (["--accuracy-budget", 1, *top1], "--accuracy-budget needs --int8"),
        (["--data", desk.folder], "--data needs --int8"),
        ([*int8, "--accuracy-budget", 1], "--accuracy-budget needs --metric and --data"),
        ([*int8, "--accuracy-budget", 1, "--min-snr", 30, *top1], "cannot be combined"),
        ([*int8, *top1, "--accuracy-budget", 1, "--labels", tmp_path / "names.txt"], "class 'frame'.*frames"),
        ([*int8, *top1[:2], "--data", tmp_path / "empty"], "there are no samples"),
        (
            [*int8, "--accuracy-budget", 1, *top1, "--board", "vta-sim"],
            "--accuracy-budget is not supported with powers",
        ),
    ]
    for words, message in cases:
        outcome = toolchain("deploy", desk.folder / "float.onnx", "--root", tmp_path / "root", *words)
        assert outcome.code == 2, (words, outcome.err)
        assert all(part in outcome.err for part in message.split(".*")), (message, outcome.err)
    assert not list(tmp_path.glob("*.onnx"))


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ('data = "test"\nmetric = "top1"\n', "most_lost: is missing"),
        ('data = "test"\nmetric = "top1"\nmost_lost = -1\n', "most_lost"),
        ('data = "test"\nmetric = "top1"\nmost_lost = 1\nlabel = "x"\n', "labels"),
        ('data = "absent"\nmetric = "top1"\nmost_lost = 1\n', "there are no data"),
        ('data = "test"\nmetric = "top6"\nmost_lost = 1\n', "there is no metric 'top6'"),
        ("data = [\n", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_before_the_build(text, phrase, desk, tmp_path):
    table = desk.folder / "wrong.toml"
    table.write_text(text)
    outcome = toolchain("deploy", desk.folder / "float.onnx", "--evaluate", table, "--root", tmp_path / "root")
    assert (outcome.code, phrase in outcome.err) == (2, True), outcome.err
    assert not (tmp_path / "root").exists()


def test_pixels_of_pictures(tmp_path, monkeypatch):
    """A network that gives each pixel the class of its brightest colour, and one that exchanges two colours."""
    monkeypatch.chdir(tmp_path)
    stream = np.random.default_rng(0)
    lines = ["file,label"]
    for number in range(30):
        picture = stream.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
        Image.fromarray(picture.argmax(axis=2).astype(np.uint8)).save(tmp_path / f"mask{number}.png")
        lines.append(f"{number}.png,mask{number}.png")
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "colours.py").write_text(
        "import numpy as np\nfrom PIL import Image\n\n\ndef read(path):\n"
        "    return np.asarray(Image.open(path), np.float32).transpose(2, 0, 1)[None]\n"
    )
    shape = (1, 3, 16, 16)
    for name, kernel in {"good": np.eye(3), "swapped": np.eye(3)[[1, 0, 2]]}.items():
        weights = {"w": kernel.astype(np.float32)[:, :, None, None]}
        values = [nets.value("x", shape)], [nets.value("y", shape)]
        proto = nets.model([nets.node("Conv", ["x", "w"], ["y"])], *values, weights)
        onnx.save(proto, tmp_path / f"{name}.onnx")
        (tmp_path / name).mkdir()
        built = bundles.of_model(proto, tmp_path / name, {"x": np.ones(shape, np.float32)})
        words = ["--data", tmp_path / "all.csv", "--metric", "miou", "--preprocess", "colours:read", "--most-lost", 1]
        words += ["--model", tmp_path / "good.onnx", "--root", tmp_path / "root", "--json", tmp_path / "report.json"]
        outcome = toolchain("evaluate", built.folder, *words)
        assert outcome.code == (0 if name == "good" else 6), outcome.err
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["sides"][0]["value"] == 100
        assert len(report["changed"]) == (0 if name == "good" else 30)


def test_boxes_of_pictures(tmp_path, monkeypatch):
    """A network that finds a bright square by its brightest row and column, and one that reads them exchanged."""
    monkeypatch.chdir(tmp_path)
    stream = np.random.default_rng(0)
    images, annotations = [], []
    (tmp_path / "pictures").mkdir()
    for number in range(30):
        left, top = stream.integers(0, 12, 2).tolist()
        picture = np.zeros((16, 16), np.uint8)
        picture[top : top + 4, left : left + 4] = 200
        Image.fromarray(picture).save(tmp_path / f"pictures/{number}.png")
        images.append({"id": number, "file_name": f"{number}.png"})
        annotations.append({"id": number, "image_id": number, "category_id": 5, "bbox": [left, top, 4, 4]})
    table = {"images": images, "annotations": annotations, "categories": [{"id": 5, "name": "square"}]}
    (tmp_path / "squares.json").write_text(json.dumps(table))
    (tmp_path / "squares.py").write_text(
        "import numpy as np\nfrom PIL import Image\n\n\ndef read(path):\n"
        "    return np.asarray(Image.open(path), np.float32)[None, None]\n\n\n"
        "def boxes(outputs, path):\n"
        "    left, top = (int(np.argmax(outputs[name].reshape(-1) > 100)) for name in ('columns', 'rows'))\n"
        "    return [([left, top, 4, 4], 0.9, 'square')]\n"
    )
    shape = (1, 1, 16, 16)
    for name, axes in {"good": (2, 3), "exchanged": (3, 2)}.items():
        nodes = [
            nets.node("ReduceMax", ["x"], [output], axes=[axis], keepdims=0)
            for output, axis in zip(("columns", "rows"), axes, strict=True)
        ]
        outputs = [nets.value(output, (1, 1, 16)) for output in ("columns", "rows")]
        proto = nets.model(nodes, [nets.value("x", shape)], outputs, {})
        onnx.save(proto, tmp_path / f"{name}.onnx")
        (tmp_path / name).mkdir()
        built = bundles.of_model(proto, tmp_path / name, {"x": np.ones(shape, np.float32)})
        words = ["--data", "squares.json", "--pictures", "pictures", "--metric", "map", "--preprocess", "squares:read"]
        words += ["--postprocess", "squares:boxes", "--most-lost", 1, "--json", tmp_path / "report.json"]
        outcome = toolchain("evaluate", built.folder, *words, "--model", "good.onnx", "--root", tmp_path / "root")
        assert outcome.code == (0 if name == "good" else 6), outcome.err
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["sides"][0]["value"] == pytest.approx(100)
        assert report["samples"][0]["reference"]["answer"] == "1 of 1 objects"
        assert bool(report["changed"]) is (name == "exchanged")


def squares_by_blocks(share, *, points=False):
    """Return a network with YOLOv8's outputs: a box, a class and a coefficient of a mask for each block of 4x4 pixels.

    share: what of a block's brightness its score is.
    points: whether a box has a key point in its middle, instead of the coefficient.
    """
    centres = np.stack(np.meshgrid(np.arange(8) * 4 + 2, np.arange(8) * 4 + 2), 0).reshape(1, 2, 64)
    boxes = np.concatenate([centres, np.full((1, 2, 64), 4)], axis=1).astype(np.float32)
    constants = {
        "boxes": boxes,
        "centres": centres.astype(np.float32),
        "row": np.array([1, 1, 64], np.int64),
        "ones": np.ones((1, 1, 64), np.float32),
        "share": np.float32(share),
        "dark": np.float32(0.3),
    }
    nodes = [
        nets.node("AveragePool", ["x"], ["pooled"], kernel_shape=[4, 4], strides=[4, 4]),
        nets.node("ReduceMean", ["pooled"], ["mean"], axes=[1], keepdims=1),
        nets.node("Reshape", ["mean", "row"], ["blocks"]),
        nets.node("Mul", ["blocks", "share"], ["scores"]),
        nets.node("Concat", ["boxes", "scores", *(["centres"] if points else []), "ones"], ["y"], axis=1),
        nets.node("Sub", ["mean", "dark"], ["prototypes"]),
    ]
    outputs = [nets.value("y", (1, 8 if points else 6, 64)), nets.value("prototypes", (1, 1, 8, 8))]
    return nets.model(nodes, [nets.value("x", (1, 3, 32, 32))], outputs, constants)


@pytest.mark.parametrize("metric", ["map", "map-masks", "map-keypoints"])
def test_objects_by_the_steps_of_a_release(metric, tmp_path, monkeypatch):
    """A detector whose own steps find boxes, masks and key points, and the same one with scores that are too low."""
    monkeypatch.chdir(tmp_path)
    stream, images, annotations = np.random.default_rng(0), [], []
    for number in range(20):
        left, top = (4 * stream.integers(0, 8, 2)).tolist()
        picture = np.zeros((64, 64, 3), np.uint8)
        picture[2 * top : 2 * top + 8, 2 * left : 2 * left + 8] = 200
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 64, "height": 64})
        sides = [2 * left, 2 * top, 2 * left + 8, 2 * top + 8]
        polygon = [[sides[index] for index in (0, 1, 2, 1, 2, 3, 0, 3)]]
        middle = [2 * left + 4, 2 * top + 4, 2]
        box = {"bbox": [*sides[:2], 8, 8], "segmentation": polygon, "keypoints": middle}
        annotations.append({"id": number, "image_id": number, "category_id": 5, **box})
    table = {"images": images, "annotations": annotations, "categories": [{"id": 5, "name": "square"}]}
    (tmp_path / "squares.json").write_text(json.dumps(table))
    (tmp_path / "names.txt").write_text("square\n")
    steps = ["--pre", "resize:letterbox=32,by=nearest", "--pre", "scale=1/255", "--pre", "layout=nchw"]
    steps += ["--post", "yolo:head=v8,score=0.5,labels=names.txt,output=y"]
    steps[-1] += ",points=1" if metric == "map-keypoints" else ",masks=prototypes"
    for name, share in {"good": 1.0, "dim": 0.5}.items():
        onnx.save(squares_by_blocks(share, points=metric == "map-keypoints"), tmp_path / f"{name}.onnx")
        outcome = toolchain("build", f"{name}.onnx", *steps, "-o", tmp_path / name)
        assert outcome.code == 0, outcome.err
    words = ["--data", "squares.json", "--metric", metric, "--root", tmp_path / "root"]
    words += ["--json", tmp_path / "report.json"]
    for name in ("good", "dim"):
        outcome = toolchain("evaluate", tmp_path / name, *words, "--model", "good.onnx", "--most-lost", 1)
        assert outcome.code == (0 if name == "good" else 6), outcome.err
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["sides"][0]["value"] > 90
        assert report["samples"][0]["reference"]["answer"] == "1 of 1 objects"
    (tmp_path / "squares.json").write_text(json.dumps(table | {"categories": [{"id": 5, "name": "sqare"}]}))
    outcome = toolchain("evaluate", tmp_path / "good", *words, "--model", "good.onnx")
    assert outcome.code == 2
    assert "no class of the release is called 'sqare'" in outcome.err
    assert "square" in outcome.err


def test_words_of_tones(tmp_path, monkeypatch):
    """A network that hears four tones in a sound, each a word, and one that hears them half as loud."""
    monkeypatch.chdir(tmp_path)
    stream, length = np.random.default_rng(0), 64
    tones = np.sin(np.outer(np.arange(length), 2 * np.pi * np.array([3, 5, 8, 13]) / length)).astype(np.float32)
    names, lines = ("do", "re", "mi", "fa"), ["file,transcript"]
    for number in range(40):
        heard = np.flatnonzero(stream.random(4) < 0.6)
        (tmp_path / f"{number}.f32").write_bytes((tones[:, heard].sum(axis=1)).astype(np.float32).tobytes())
        lines.append(f"{number}.f32,{' '.join([names[tone] for tone in heard])}")
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "tones.py").write_text(
        "import numpy as np\n\n\ndef read(path):\n    return np.fromfile(path, np.float32)[None]\n\n\n"
        "def text(outputs, path):\n"
        "    return ' '.join(np.array('do re mi fa'.split())[outputs['y'].reshape(-1) > 20])\n"
    )
    for name, loudness in {"good": 1, "quiet": 0.5}.items():
        values = [nets.value("x", (1, length))], [nets.value("y", (1, 4))]
        proto = nets.model([nets.node("MatMul", ["x", "w"], ["y"])], *values, {"w": tones * np.float32(loudness)})
        onnx.save(proto, tmp_path / f"{name}.onnx")
    (tmp_path / "quiet").mkdir()
    built = bundles.of_model(proto, tmp_path / "quiet", {"x": np.ones((1, length), np.float32)})
    words = ["--data", "all.csv", "--metric", "wer", "--preprocess", "tones:read", "--postprocess", "tones:text"]
    words += ["--model", "good.onnx", "--most-lost", 1, "--root", tmp_path / "root", "--json", tmp_path / "report.json"]
    outcome = toolchain("evaluate", built.folder, *words)
    assert outcome.code == 6, outcome.err
    report = json.loads((tmp_path / "report.json").read_text())
    assert [side["value"] for side in report["sides"]] == [0, 100]
    assert any("the device answers (no words)" in warning for warning in report["warnings"])
