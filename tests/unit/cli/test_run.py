"""A release of this machine's is run on inputs; and many samples are compared at a deploy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.support import bundles, nets
from tests.support.commands import done, parsed, toolchain
from toolchain import bundle as bundle_room
from toolchain import tensors
from toolchain.device import runner, sampling
from toolchain.errors import DeviceError


@pytest.fixture(scope="module")
def device(tmp_path_factory, tiny):
    folder = tmp_path_factory.mktemp("device")
    done("deploy", tiny.folder, "--root", folder / "root", "--budget", 0)
    return folder / "root"


@pytest.fixture
def reference(tiny):
    return bundle_room.Reference.read(tiny.reference)


def test_one_sample(device, reference, tmp_path):
    np.savez(tmp_path / "x.npz", **reference.inputs)
    result = done("run", "--root", device, "--input", tmp_path / "x.npz", "-o", tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as outputs:
        np.testing.assert_allclose(outputs["y"], reference.outputs["y"], rtol=1e-4)
    assert "y 1x4 float32 in" in result.out


def test_many_samples(device, tiny, reference, tmp_path):
    x = np.repeat(reference.inputs["x"][None], 20, axis=0) * np.arange(20, dtype=np.float32)[:, None, None]
    np.save(tmp_path / "x.npy", x)
    report = parsed("run", "--root", device, "--input", tmp_path / "x.npy", "-o", tmp_path / "y.npz")
    assert report["outputs"] == {"y": {"shape": [20, 1, 4], "dtype": "float32"}}
    assert (report["samples"], report["pieces"], report["emulated"]) == (20, 1, False)
    assert report["bundle_digest"] == f"sha256:{tiny.digest}"
    assert len(report["latency_ms"]["samples"]) == 20
    y = np.load(tmp_path / "y.npz")["y"]
    np.testing.assert_allclose(y[1], reference.outputs["y"], rtol=1e-4)
    assert len({row.tobytes() for row in y}) > 10


def test_the_best_classes_of_each_sample(device, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones((3, 1, 8), np.float32))
    (tmp_path / "labels.txt").write_text("ant\nbee\ncat\ndog\n")
    arguments = ["run", "--root", device, "--input", tmp_path / "x.npz", "-o", tmp_path / "y.npz"]
    report = parsed(*arguments, "--labels", tmp_path / "labels.txt")
    assert [sample["sample"] for sample in report["top"]] == ["0", "1", "2"]
    y = np.load(tmp_path / "y.npz")["y"]
    assert report["top"][0]["classes"][0]["index"] == int(y[0].argmax())
    assert report["top"][0]["classes"][0]["label"] in done(*arguments, "--labels", tmp_path / "labels.txt").out


def test_pictures(tmp_path):
    """A network that tells how red, green and blue a picture is."""
    node = nets.node("ReduceMean", ["data"], ["flat"], axes=[2, 3], keepdims=0)
    proto = nets.model([node], [nets.value("data", (1, 3, 8, 8))], [nets.value("flat", (1, 3))], opset=13)
    onnx.save(proto, tmp_path / "means.onnx")
    (tmp_path / "in").mkdir()
    for index, colour in enumerate([(255, 0, 0), (0, 255, 0), (0, 0, 255)]):
        Image.new("RGB", (20, 30), colour).save(tmp_path / "in" / f"{index}.png")
    (tmp_path / "labels.txt").write_text("red\ngreen\nblue\n")
    done("deploy", tmp_path / "means.onnx", "--root", tmp_path / "root", "--budget", 0)
    arguments = ["run", "--root", tmp_path / "root", "-o", tmp_path / "y.npz", "--labels", tmp_path / "labels.txt"]
    report = parsed(*arguments, "--image", tmp_path / "in")
    assert [sample["classes"][0]["label"] for sample in report["top"]] == ["red", "green", "blue"]
    assert [sample["sample"].rpartition("/")[2] for sample in report["top"]] == ["0.png", "1.png", "2.png"]
    assert report["outputs"]["flat"]["shape"] == [3, 1, 3]
    assert parsed(*arguments, "--image", tmp_path / "in" / "1.png")["outputs"]["flat"]["shape"] == [1, 3]


def test_outputs_whose_size_depends_on_the_data(tmp_path):
    proto = nets.model(
        [nets.node("NonZero", ["x"], ["y"])],
        [nets.value("x", (4,))],
        [nets.value("y", (1, "n"), "int64")],
    )
    onnx.save(proto, tmp_path / "nonzero.onnx")
    done("deploy", tmp_path / "nonzero.onnx", "--root", tmp_path / "root", "--budget", 0)
    arguments = ["run", "--root", tmp_path / "root", "-o", tmp_path / "y.npz", "--input", tmp_path / "x.npz"]
    np.savez(tmp_path / "x.npz", x=np.array([0, 1, 0, 1], np.float32))
    done(*arguments)
    with np.load(tmp_path / "y.npz") as outputs:
        assert outputs.files == ["y"]
        np.testing.assert_array_equal(outputs["y"], [[1, 3]])
    np.savez(tmp_path / "x.npz", x=np.array([[0, 1, 0, 1], [0, 0, 0, 5]], np.float32))
    done(*arguments)
    with np.load(tmp_path / "y.npz") as outputs:
        np.testing.assert_array_equal(outputs["y"], [[[1, 3]], [[3, 0]]])
        np.testing.assert_array_equal(outputs["y.count"], [[2], [1]])


def test_nothing_is_left_behind(device, tmp_path):
    before = {path for path in (device / "blobs").rglob("*") if path.is_file()} | set((device / "inputs").iterdir())
    np.savez(tmp_path / "x.npz", x=np.full((9, 1, 8), 7, np.float32))
    done("run", "--root", device, "--input", tmp_path / "x.npz", "-o", tmp_path / "y.npz")
    after = {path for path in (device / "blobs").rglob("*") if path.is_file()} | set((device / "inputs").iterdir())
    assert after == before
    assert list((device / "run").iterdir()) == []


@pytest.mark.parametrize(("fault", "code"), [(KeyboardInterrupt(), 130), (DeviceError("gone"), 4)])
def test_a_run_that_breaks_off_keeps_the_earlier_outputs_and_leaves_nothing(device, tmp_path, monkeypatch, fault, code):
    np.savez(tmp_path / "x.npz", x=np.ones((4, 1, 8), np.float32))
    arguments = ["run", "--root", device, "--input", tmp_path / "x.npz", "-o", tmp_path / "y.npz"]
    done(*arguments)
    before, inputs = (tmp_path / "y.npz").read_bytes(), sorted((device / "inputs").iterdir())
    calls, honest = [], runner.call

    def breaks_off(*positional, **more):
        calls.append(1)
        if len(calls) > 1:
            raise fault
        return honest(*positional, **more)

    monkeypatch.setattr(sampling, "_PIECE_SAMPLES", 2)
    monkeypatch.setattr(runner, "call", breaks_off)
    assert toolchain(*arguments).code == code
    assert (tmp_path / "y.npz").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npz", "y.npz"]
    assert sorted((device / "inputs").iterdir()) == inputs
    monkeypatch.undo()
    done(*arguments)


def test_it_needs_no_compiler_and_no_reference(device, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones((4, 1, 8), np.float32))
    arguments = ["run", "--root", str(device), "--input", str(tmp_path / "x.npz"), "-o", str(tmp_path / "y.npz")]
    code = f"""import sys; from toolchain.cli import main; sys.argv = ["toolchain", *{arguments!r}]
try: main()
finally: print(sorted({{"tvm", "onnx", "onnxruntime"}} & set(sys.modules)))"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.splitlines()[-1] == "[]"


# --- many samples of a deploy ---


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    onnx.save(bundles.dense(8, 4), folder / "dense.onnx")
    return folder / "dense.onnx"


def test_a_deploy_compares_as_many_samples_as_it_is_told(model, tmp_path):
    arguments = ["deploy", model, "--root", tmp_path / "root", "--budget", 0, "--samples", 12]
    assert ", a different class in 0 of 12" in done(*arguments).out
    done(*arguments, "--json", tmp_path / "report.json")
    fidelity = json.loads((tmp_path / "report.json").read_text())["fidelity"]
    assert [fidelity[key] for key in ("samples", "beyond", "flips", "rows", "ok")] == [12, 0, 0, 12, True]
    assert fidelity["max_rel_diff"] <= fidelity["tolerance"]


def test_a_package_carries_the_samples_that_it_was_built_with(model, tmp_path):
    done("build", model, "-o", tmp_path / "bundle", "--samples", 6)
    done("package", tmp_path / "bundle", "-o", tmp_path / "dense.tar")
    arguments = ["deploy", tmp_path / "dense.tar", "--root", tmp_path / "root", "--budget", 0, "--json", "-"]
    assert json.loads(done(*arguments, "--samples", 6).out)["fidelity"]["samples"] == 6
    assert json.loads(done(*arguments).out)["fidelity"] is None
    shutil.rmtree(tmp_path / "root")
    result = toolchain(*arguments, "--samples", 7)
    assert result.code == 2
    assert "--samples 7 is more than the reference of dense has: 6" in result.err
    assert not (tmp_path / "root" / "blobs").exists()


def test_samples_change_a_bundles_digest_and_none_of_its_files(model, tmp_path):
    done("build", model, "-o", tmp_path / "one")
    done("build", model, "-o", tmp_path / "many", "--samples", 3)
    single, many = (bundle_room.load(tmp_path / name) for name in ("one", "many"))
    assert (single.digest == many.digest, single.manifest.files == many.manifest.files) == (False, True)
    assert len(tensors.load(many.reference)) == len(tensors.load(single.reference)) + 3
