"""Two models of one store: an application that uses both, and what each loses while the other one runs.

No assertion is about how long a run takes: this machine may be busy.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.integration.test_sdk import python_binding
from tests.support import bundles, picture_nets, sshd, state_nets
from tests.support.commands import done, parsed, toolchain
from tests.support.parts import require
from tests.support.paths import DATA
from toolchain import board, bundle
from toolchain.device import runner, verification
from toolchain.models.ort import onnxruntime
from toolchain.shell import SshOptions, open_shell

SIDE = picture_nets.SIDE
ANIMALS, COLOURS = ("cat", "dog", "owl"), ("red", "green", "blue", "black", "white")
STEPS = {
    "detector": ["resize:stretch=32", "scale=1/255", "yolo:nms=0.45,score=0.423,labels={}"],
    "classifier": ["resize:stretch=32", "scale=1/255", "softmax", "topk:k=1,labels={}"],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two networks with their labels, and a picture."""
    folder = tmp_path_factory.mktemp("models")
    onnx.save(picture_nets.detector(), folder / "detector.onnx")
    onnx.save(picture_nets.classifier(), folder / "classifier.onnx")
    for name, labels in {"detector": ANIMALS, "classifier": COLOURS}.items():
        (folder / f"{name}.txt").write_text("\n".join(labels) + "\n")
    noise = np.random.default_rng(2).integers(0, 256, (60, 81, 3))
    rows, columns = np.mgrid[0:60, 0:81] / np.array([60, 81]).reshape(2, 1, 1)
    pixels = ((np.stack([columns, rows, 1 - columns], -1) * 0.9 + 0.1) * noise).astype(np.uint8)  # redder to the right
    Image.fromarray(pixels).save(folder / "a.ppm")
    return folder


def deploy_both(models: Path, *words: object) -> None:
    """Deploy each network to a slot of its name."""
    for name, steps in STEPS.items():
        options = []
        for step in steps:
            last = step.partition(":")[0] in {"yolo", "softmax", "topk"}
            options += ["--post" if last else "--pre", step.format(models / f"{name}.txt")]
        done("deploy", models / f"{name}.onnx", *words, *options, "--slot", name, "--budget", 0)


def outputs_of(path: Path, pixels: np.ndarray) -> np.ndarray:
    """Resize a picture, and run a network on it with ONNX Runtime."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    resized = picture_nets.opencv_linear(pixels, SIDE, SIDE).transpose(2, 0, 1)[None] / np.float32(255)
    return session.run(None, {"x": resized.astype(np.float32)})[0]


def check_lines(text: str, models: Path) -> None:
    """Compare the lines of the application with numpy, ONNX Runtime and numpy's suppression."""
    pixels = np.asarray(Image.open(models / "a.ppm"))
    height, width = pixels.shape[:2]
    table = outputs_of(models / "detector.onnx", pixels)[0].T
    corners = np.concatenate([table[:, :2] - table[:, 2:4] / 2, table[:, :2] + table[:, 2:4] / 2, table[:, 4:]], 1)
    kept = picture_nets.suppressed(corners, 0.45, 0.423, 300)
    lines = [line.split() for line in text.splitlines()]
    assert len(lines) == len(kept) > 3
    boxes = np.array([[float(corner) for corner in line[:4]] for line in lines])
    scale = np.array([width, height, width, height]) / SIDE
    for row, number in kept:
        expected = np.clip(corners[row, :4] * scale, 0, [width, height] * 2)
        place = int(np.argmin(np.abs(boxes - expected).max(1)))  # scores that are almost equal may change places
        box, (label, score, colour, share) = boxes[place], lines[place][4:]
        np.testing.assert_allclose(box, expected, atol=0.5)
        assert label == ANIMALS[number]
        assert float(score) == pytest.approx(corners[row, 4 + number], abs=0.01)
        (left, top), (right, bottom) = np.floor(box[:2]).astype(int), np.ceil(box[2:]).astype(int)
        values = outputs_of(models / "classifier.onnx", pixels[top:bottom, left:right])[0]
        shares = np.exp(values - values.max()) / np.exp(values - values.max()).sum()
        assert colour == COLOURS[int(np.argmax(shares))]
        assert float(share) == pytest.approx(shares.max(), abs=0.02)
    assert len({line[6] for line in lines}) > 1


def compiled(compiler: str, sdk: Path, target: Path) -> Path:
    """Build the example as a reader of docs/sdk.md does."""
    warnings = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"]
    source = sdk / "example" / "crops.c"
    linked = ["-I", sdk / "include", "-L", sdk / "lib", "-ledge_model", f"-Wl,-rpath,{sdk / 'lib'}"]
    subprocess.run([compiler, *warnings, source, *linked, "-o", target], check=True)
    return target


@pytest.fixture(scope="module")
def root(models, tmp_path_factory):
    """A store of this machine with both models."""
    root = tmp_path_factory.mktemp("store") / "root"
    deploy_both(models, "--root", root)
    return root


# --- the application -----------------------------------------------------------------------------------------------


def test_an_application_detects_and_classifies(models, root, tmp_path):
    done("sdk", "--board", "local", "-o", tmp_path / "sdk")
    source = tmp_path / "sdk" / "example" / "crops.c"
    assert len(source.read_text().splitlines()) <= 80
    program = compiled("gcc", tmp_path / "sdk", tmp_path / "crops")
    releases = [root / "slots" / name / "current" for name in STEPS]
    seen = subprocess.run([program, *releases, models / "a.ppm"], capture_output=True, text=True, check=True)
    check_lines(seen.stdout, models)
    for name, content in {"text.ppm": b"P3 1 1 255\n0 0 0\n", "short.ppm": b"P6 9 9 255\nabc"}.items():
        (tmp_path / name).write_bytes(content)
        seen = subprocess.run([program, *releases, tmp_path / name], capture_output=True, text=True, check=False)
        assert (seen.returncode, seen.stdout) == (1, "")
        assert "is not a binary PPM" in seen.stderr


def test_one_call_gives_what_the_steps_give(root, tmp_path):
    """And it allocates nothing after the first pictures, whatever the boxes, and names the model that fails."""
    done("sdk", "--board", "local", "-o", tmp_path / "sdk")
    warnings = ["-std=gnu99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    linked = [tmp_path / "sdk" / "lib" / "libedge_model.so.1", f"-Wl,-rpath,{tmp_path / 'sdk' / 'lib'}"]
    words = ["gcc", *warnings, DATA / "sdk" / "crops.c", "-I", tmp_path / "sdk" / "include", *linked]
    subprocess.run([*words, "-o", tmp_path / "crops"], check=True)
    releases = [root / "slots" / name / "current" for name in STEPS]
    seen = subprocess.run([tmp_path / "crops", *releases], capture_output=True, text=True, check=False)
    assert (seen.returncode, seen.stderr) == (0, "")
    assert int(seen.stdout) > 3


def test_one_call_in_python(models, root, tmp_path):
    edge_model = python_binding()
    done("sdk", "--board", "local", "-o", tmp_path / "sdk")
    library = tmp_path / "sdk" / "lib" / "libedge_model.so.1"
    detector, classifier = ((root / "slots" / name / "current").resolve() for name in STEPS)
    pixels = np.asarray(Image.open(models / "a.ppm"))
    with (
        edge_model.Model(detector, library=library) as first,
        edge_model.Model(classifier, library=library) as second,
    ):
        assert (first.digest, second.digest) == (detector.name, classifier.name)
        crops = first.run_crops(second, pixels)
        lines = [
            f"{' '.join(map(repr, crop.box[3:7]))} {crop.box.label} {crop.box.score} {inner.label} {inner.score}"
            for crop in crops
            for inner in crop.objects
        ]
        check_lines("\n".join(lines), models)
        assert {crop.text for crop in crops} == {""}
        assert first.run_crops(second, pixels, most=2) == crops[:2]
        with pytest.raises(edge_model.EdgeError, match="the first model, classifier: the release finds no boxes"):
            second.run_crops(first, pixels)


def test_the_application_on_a_virtual_board(virtual_boards, models, tmp_path):
    compiler = f"{board.load('rpi4').triple}-gcc"
    require(compiler, "g++-aarch64-linux-gnu", shutil.which(compiler) is not None)
    host = virtual_boards.name("rpi4")
    words = ["--board", "rpi4", "--host", host, "--devices", virtual_boards.devices]
    deploy_both(models, *words, "--root", "~/two-models", "--toolchain", "host")
    done("sdk", "--board", "rpi4", "-o", tmp_path / "sdk")
    program = compiled(compiler, tmp_path / "sdk", tmp_path / "crops")
    with open_shell(host, config=SshOptions(config_file=virtual_boards.config, agent=False)) as shell:
        for path in (tmp_path / "sdk" / "lib" / "libedge_model.so.1", program, models / "a.ppm"):
            shell.push(path, f"two-models/{path.name}")
        releases = " ".join(f"slots/{name}/current" for name in STEPS)
        script = f"cd two-models; chmod +x crops; LD_LIBRARY_PATH=. ./crops {releases} a.ppm"
        seen = shell.run(script, timeout=300)
        shell.run("rm -rf two-models")
    check_lines(seen.stdout, models)


def test_a_text_is_read_in_each_box(models, root, tmp_path):
    """As an application does that finds and reads signs; numpy reads the rows of ONNX Runtime greedily."""
    onnx.save(picture_nets.reader(), tmp_path / "reader.onnx")
    (tmp_path / "letters.txt").write_text("_\na\nb\nc\n")
    words = [
        "--pre",
        "resize:stretch=32",
        "--pre",
        "scale=1/255",
        "--post",
        f"ctc:labels={tmp_path / 'letters.txt'},blank=0",
    ]
    done("deploy", tmp_path / "reader.onnx", "--root", root, *words, "--slot", "reader", "--budget", 0)
    words = ["--root", root, "--slot", "detector", "--image", models / "a.ppm", "-o", tmp_path / "y.npz"]
    (sample,) = parsed("run", *words, "--crops", "reader")["objects"]
    done("sdk", "--board", "local", "-o", tmp_path / "sdk")
    binding, library = python_binding(), tmp_path / "sdk" / "lib" / "libedge_model.so.1"
    releases = (root / "slots" / name / "current" for name in ("detector", "reader"))
    pixels = np.asarray(Image.open(models / "a.ppm"))
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(binding.Model(path, library=library)) for path in releases)
        crops = first.run_crops(second, pixels)
    assert [box["text"] for box in sample["objects"]] == [crop.text for crop in crops]
    assert [len(box["crops"]) for box in sample["objects"]] == [len(crop.objects) for crop in crops]
    for crop in crops:
        (left, top), (right, bottom) = np.floor(crop.box[3:5]).astype(int), np.ceil(crop.box[5:7]).astype(int)
        best = outputs_of(tmp_path / "reader.onnx", pixels[top:bottom, left:right])[0].argmax(1)
        assert crop.text == "".join("_abc"[label] for label, _ in itertools.groupby(best) if label)
    assert len({crop.text for crop in crops}) > 3


def test_run_shows_what_is_in_each_box(models, root, tmp_path):
    words = ["--root", root, "--slot", "detector", "--image", models / "a.ppm", "-o", tmp_path / "y.npz"]
    seen = done("run", *words, "--crops", "classifier")
    assert "IN THE BOX" in seen.out
    document = parsed("run", *words, "--crops", "classifier")
    digest = (root / "slots" / "classifier" / "current").resolve().name
    assert document["second"] == {"slot": "classifier", "model": "classifier", "digest": f"sha256:{digest}"}
    (sample,) = document["objects"]
    lines = []
    for box in sample["objects"]:
        (inner,) = box["crops"]
        corners = " ".join(map(repr, box["box"]))
        lines.append(f"{corners} {box['label']} {box['score']} {inner['label']} {inner['score']}")
        assert (box["text"], inner["box"], inner["crops"]) == ("", [], [])
    check_lines("\n".join(lines), models)


def deploy_second(name, model, step, models, root, tmp_path):
    onnx.save(model, tmp_path / f"{name}.onnx")
    words = ["--root", root, "--pre", "resize:letterbox=32", "--pre", "scale=1/255", "--post", step]
    done("deploy", tmp_path / f"{name}.onnx", *words, "--slot", name, "--budget", 0)
    return ["--root", root, "--slot", "detector", "--image", models / "a.ppm", "-o", tmp_path / "y.npz"]


def test_key_points_in_each_box(models, root, tmp_path):
    """Those of a run of the second network alone on the part of the picture, moved by where that lies."""
    words = deploy_second(
        "poser", picture_nets.detector(6), "yolo:points=2,nms=0.45,score=0.4,max=9", models, root, tmp_path
    )
    (sample,) = parsed("run", *words, "--crops", "poser")["objects"]
    pixels, seen = np.asarray(Image.open(models / "a.ppm")), 0
    for box in sample["objects"][:4]:
        (left, top), (right, bottom) = np.floor(box["box"][:2]).astype(int), np.ceil(box["box"][2:]).astype(int)
        Image.fromarray(pixels[top:bottom, left:right]).save(tmp_path / "part.png")
        alone = ["--root", root, "--slot", "poser", "--image", tmp_path / "part.png", "-o", tmp_path / "z.npz"]
        (part,) = parsed("run", *alone)["objects"]
        assert len(part["objects"]) == len(box["crops"])
        for inner, own in zip(box["crops"], part["objects"], strict=True):
            expected = np.add(own["points"], [left, top, 0])
            np.testing.assert_allclose(inner["points"], expected, rtol=1e-6, atol=1e-4)
            seen += len(expected)
    assert seen > 3


def test_what_crops_do_not_have_is_refused(models, root, tmp_path):
    words = deploy_second("segmenter", picture_nets.segmenter(), "yolo:masks=protos", models, root, tmp_path)
    seen = toolchain("run", *words, "--crops", "segmenter")
    assert (seen.code, "segmenter has masks, which --crops does not find in boxes" in seen.err) == (2, True), seen.err
    words = deploy_second("many", picture_nets.detector(36), "yolo:points=12", models, root, tmp_path)
    seen = toolchain("run", *words, "--crops", "many")
    assert (seen.code, "1,080,000 key points in all boxes, and 1,048,576 are possible" in seen.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        (["--slot", "detector", "--crops", "clasifier"], "has no slot 'clasifier'"),
        (["--slot", "detector", "--crops", "detector"], "names the slot that finds the boxes"),
        (["--slot", "classifier", "--crops", "detector"], "classifier finds no boxes"),
    ],
)
def test_models_that_do_not_fit_each_other_are_named(root, models, words, phrase, tmp_path):
    seen = toolchain("run", "--root", root, "--image", models / "a.ppm", "-o", tmp_path / "y.npz", *words)
    assert (seen.code, phrase in seen.err) == (2, True), seen.err
    seen = toolchain("run", "--root", root, "--input", models / "a.ppm", "-o", tmp_path / "y.npz", *words)
    assert (seen.code, "--crops is for pictures" in seen.err) == (2, True), seen.err


# --- bench --beside ------------------------------------------------------------------------------------------------


def check_document(document: dict, slots: tuple[str, str]) -> None:
    assert [side["slot"] for side in document["sides"]] == list(slots)
    for side in document["sides"]:
        low, high = side["slowdown"]["ci99"]
        assert 0 < low <= side["slowdown"]["value"] <= high
        assert len(side["slowdown"]["rounds"]) == 12
        assert min(len(side[company]["samples"]) for company in ("alone", "beside")) >= 36
    assert document["bundle_digest"] == document["sides"][0]["digest"]


def test_two_models_beside_each_other(root, tmp_path):
    words = ["bench", "--root", root, "--slot", "detector", "--beside", "classifier", "--threads", 1, "--budget", 0]
    files = ["--json", tmp_path / "report.json", "--html", tmp_path / "page.html"]
    seen = done(*words, *files)
    document = json.loads((tmp_path / "report.json").read_text())
    check_document(document, ("detector", "classifier"))
    assert document["threads"] == 1
    assert "TIMES AS LONG" in seen.out
    assert "classifier" in seen.out
    assert "Times as long" in (tmp_path / "page.html").read_text()
    assert done(*words, *files).code == 0  # its own reports are replaced


def test_the_releases_without_a_slot_beside_one_over_ssh(tiny_for_ssh, models, tmp_path):
    """A state, and another model; the store's own releases are the first of the two."""
    onnx.save(state_nets.gru(), tmp_path / "gru.onnx")
    with sshd.running(tmp_path / "sshd") as server:
        device = ["--board", "x86_64", "--host", "board", "--ssh-config", server.config, "--root", tmp_path / "device"]
        done("deploy", tiny_for_ssh.folder, *device, "--budget", 0)
        done("deploy", tmp_path / "gru.onnx", "--state", "auto", *device, "--slot", "stream", "--budget", 0)
        document = parsed("bench", *device, "--beside", "stream", "--budget", 0)
        check_document(document, ("", "stream"))
        assert not list((tmp_path / "device" / "run").iterdir())


@pytest.mark.parametrize(
    ("words", "code", "phrase"),
    [
        (["--slot", "detector", "--beside", "clasifier"], 2, "has no slot 'clasifier'"),
        (["--slot", "nobody", "--beside", "detector"], 2, "has no slot 'nobody'"),
        (["--slot", "detector", "--beside", "detector"], 2, "names the slot that is measured"),
        (["--beside", "detector"], 4, "no release is deployed"),
        (["--slot", "detector", "--beside", "../x"], 2, "../x"),
        (["--slot", "detector", "--beside", "classifier", "--period", "10ms"], 2, "cannot be combined"),
        (["--slot", "detector", "--beside", "classifier", "--junit", "x.xml"], 2, "cannot be combined"),
    ],
)
def test_a_model_that_is_not_there_is_named(root, words, code, phrase, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = toolchain("bench", "--root", root, *words)
    assert (seen.code, phrase in seen.err) == (code, True), seen.err
    assert seen.out == ""


def test_a_slot_without_a_release_is_named(root, tmp_path):
    """As after a first deploy that failed."""
    copied = tmp_path / "root"
    shutil.copytree(root, copied, symlinks=True)
    (copied / "slots" / "classifier" / "current").unlink()
    seen = toolchain("bench", "--root", copied, "--slot", "detector", "--beside", "classifier")
    assert (seen.code, "no release is deployed on slot classifier" in seen.err) == (4, True), seen.err


@pytest.fixture
def argv(tiny, program, tmp_path):
    """A command line of the runner with a release beside, without the latter's inputs."""
    runner.tensors.save(tmp_path / runner.INPUTS, verification.samples_of(tiny).inputs)
    folders = {"runners": str(program.path.parent), "inputs": str(tmp_path)}
    plan = runner.Plan(budget_s=0.0, max_runs=3)
    return [*runner.command(folders, str(tiny.folder), str(tmp_path), plan, threads=1), "--beside", str(tiny.folder)]


def test_faults_of_the_model_beside_are_its_own(argv, tiny, tmp_path):
    inputs = tmp_path / runner.INPUTS
    damaged = bundles.variant(tiny, tmp_path / "damaged", {})
    (damaged.folder / bundle.LIBRARY).write_bytes(b"no library")
    cases = {
        ("--beside-inputs", tmp_path / "nothing"): (3, "the model beside: "),
        ("--beside-inputs", inputs, "--beside-steps", 2): (3, "the model beside: input"),
        ("--beside-inputs", inputs, "--beside-variant", "no"): (2, "the model beside: "),
        (): (2, "--beside and --beside-inputs need each other"),
        ("--beside-inputs", inputs, "--period-us", 1000): (2, "--beside is for timed runs"),
    }
    for words, (code, phrase) in cases.items():
        seen = subprocess.run([*argv, *map(str, words)], capture_output=True, text=True, check=False)
        assert (seen.returncode, phrase in seen.stderr) == (code, True), (words, seen.stderr)
    argv[argv.index("--beside") + 1] = str(damaged.folder)
    seen = subprocess.run([*argv, "--beside-inputs", inputs], capture_output=True, text=True, check=False)
    assert (seen.returncode in {3, 4}, "the model beside: " in seen.stderr) == (True, True), seen.stderr


def test_the_model_beside_ends_with_the_runner(argv, tmp_path):
    seen = subprocess.run([*argv, "--beside-inputs", tmp_path / runner.INPUTS], capture_output=True, check=True)
    assert seen.stderr == b""
    own = str(tmp_path).encode()
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if own in line]
