"""The command, as it is called."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support import int8_nets, nets, qdq_nets
from tests.support.commands import toolchain
from toolchain import quantize
from toolchain.models import source


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return nets.save(int8_nets.residual(), tmp_path)


@pytest.fixture
def folder(tmp_path):
    samples = tmp_path / "samples"
    samples.mkdir()
    for number in range(10):
        np.savez(samples / f"{number}.npz", x=np.random.default_rng(number).standard_normal((1, 3, 14, 14), np.float32))
    return samples


def test_a_model_becomes_a_quantized_one(file, folder, tmp_path):
    result = toolchain("quantize", file, "--calibration", folder, "--samples", 8)
    assert result.code == 0, result.err
    assert "quantizing 6 convolutions of net with 8 sample(s)" in result.err.splitlines()
    rows = {line.split()[0]: line for line in result.out.splitlines() if line}
    assert "dB" in rows["fourth"]
    assert "<<" in rows["fourth"]
    assert rows["on"] == "on floats  none"
    assert "warning" not in result.out
    assert quantize.is_quantized(source.load(str(tmp_path / "net-int8.onnx")))


def test_a_zoo_network_and_random_samples(tmp_path):
    output = tmp_path / "out.onnx"
    result = toolchain("quantize", "squeezenet_v1.1", "--calibration", "random", "--samples", 1, "-o", output, "--json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert (document["samples"], len(document["layers"]), document["left"]) == (1, 26, [])
    assert "random numbers" in document["warnings"][0]
    assert document["file"] == str(output)
    assert document["sha256"] == source.load(str(output)).sha256


def test_a_quantized_file_needs_no_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = nets.save(qdq_nets.quantized(qdq_nets.residual(), tmp_path), tmp_path)
    result = toolchain("quantize", path)
    assert result.code == 0, result.err
    assert "within the file's own ranges" in result.out
    assert "signal over noise, against the model's own" in result.out
    document = json.loads(toolchain("quantize", path, "-o", tmp_path / "b.onnx", "--json").out)
    assert (document["method"], document["refitted"], document["samples"]) == ("file", True, 8)


def test_a_file_on_floats_does(file):
    result = toolchain("quantize", file)
    assert (result.code, "ranges of its activations are not known" in result.err) == (2, True)
    assert "--calibration" in result.err
    result = toolchain("quantize", file, "--calibration", "random", "--method", "file")
    assert (result.code, "without quantization ranges" in result.err) == (2, True)


def test_two_runs_write_the_same(file, folder, tmp_path):
    for name in ("a", "b"):
        toolchain(
            "quantize",
            file,
            "--calibration",
            folder,
            "-o",
            tmp_path / f"{name}.onnx",
            "--report",
            tmp_path / f"{name}.json",
        )
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    first, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "ab")
    assert first | {"file": ""} == second | {"file": ""}
    assert first["top1_agreement"] == 1


def test_a_quantized_model_is_left_as_it_is(file, folder, tmp_path):
    toolchain("quantize", file, "--calibration", folder, "-o", tmp_path / "a.onnx")
    result = toolchain("quantize", tmp_path / "a.onnx", "--calibration", folder, "-o", tmp_path / "b.onnx")
    assert result.code == 0
    assert "left as it is" in result.out
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_options_reach_the_quantizer(file, folder):
    result = toolchain("quantize", file, "--calibration", folder, "--exclude", "third", "--method", "max")
    assert "on floats  third" in result.out
    assert "scales by max" in result.out


def test_an_open_shape_can_be_set(folder, tmp_path):
    proto = int8_nets.residual()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    path = nets.save(proto, tmp_path)
    arguments = ["quantize", path, "--calibration", folder, "-o", tmp_path / "out.onnx"]
    result = toolchain(*arguments)
    assert (result.code, "using a batch of 1" in result.err) == (0, True)
    assert toolchain(*arguments, "--shape", "x:2,3,14,14").code == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("odd.npz", b"rubbish", "odd.npz"), ("odd.npy", b"", "odd.npy"), ("odd.jpg", b"no images", "odd.jpg")],
)
def test_a_bad_sample_is_named_and_nothing_is_written(file, folder, tmp_path, name, content, message):
    (folder / name).write_bytes(content)
    result = toolchain("quantize", file, "--calibration", folder)
    assert result.code == 2
    assert message in result.err
    assert {path.name for path in tmp_path.iterdir()} == {"net.onnx", "samples"}


def test_wrong_folders(file, tmp_path):
    (tmp_path / "empty").mkdir()
    for calibration, message in (("empty", "no samples"), ("nowhere", "no folder")):
        result = toolchain("quantize", file, "--calibration", tmp_path / calibration)
        assert (result.code, message in result.err) == (2, True)


@pytest.mark.parametrize("option", ["-o", "--report"])
def test_what_cannot_be_written_is_told_first(file, folder, tmp_path, option):
    result = toolchain("quantize", file, "--calibration", folder, option, tmp_path / "nowhere" / "out")
    assert result.code == 2
    assert "cannot write" in result.err
    assert "quantizing" not in result.err


def test_the_written_model_runs(file, folder, tmp_path):
    toolchain("quantize", file, "--calibration", folder, "-o", tmp_path / "a.onnx")
    proto = onnx.load(tmp_path / "a.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert nets.run(proto, {"x": np.zeros((1, 3, 14, 14), np.float32)})[0].shape == (1, 10)


def test_only_results_of_quantize_are_replaced(file, folder, tmp_path):
    arguments = ("quantize", file, "--calibration", folder, "--samples", 2)
    before = Path(file).read_bytes()
    result = toolchain(*arguments, "-o", file)
    assert (result.code, "is the model itself" in result.err) == (2, True)
    other = tmp_path / "other.onnx"
    other.write_bytes(before)
    (tmp_path / "package.json").write_text('{"name": "webapp"}')
    for more in (["-o", other], ["--report", tmp_path / "package.json"], ["--report", other]):
        result = toolchain(*arguments, *more)
        assert (result.code, "something other" in result.err) == (2, True), result.err
    assert (Path(file).read_bytes(), other.read_bytes()) == (before, before)
    assert (tmp_path / "package.json").read_text() == '{"name": "webapp"}'
    for _ in range(2):
        result = toolchain(*arguments, "-o", tmp_path / "q.onnx", "--report", tmp_path / "q.json")
        assert result.code == 0, result.err


# --- real scales -----------------------------------------------------------------------------------------------


def test_real_scales_for_a_cpu(file, folder, tmp_path):
    result = toolchain("quantize", file, "--for", "cpu", "--calibration", folder, "--report", tmp_path / "q.json")
    assert result.code == 0, result.err
    assert "quantizing 7 layers of net with 10 sample(s)" in result.err
    assert "ranges by max" in result.out
    assert "signal over noise, against floats" in result.out
    document = json.loads((tmp_path / "q.json").read_text())
    assert (document["method"], document["samples"], document["kept"]) == ("max", 10, [])
    assert document["sha256"] == source.load(str(tmp_path / "net-int8.onnx")).sha256
    again = toolchain("quantize", file, "--for", "mali", "--calibration", folder)
    assert again.code == 0, again.err
    assert document["sha256"] in again.out, "the same file is for both, and replaces that of the earlier run"


def test_layers_stay_float_for_a_limit(file, folder):
    arguments = ("quantize", file, "--for", "cpu", "--calibration", folder)
    plain = json.loads(toolchain(*arguments, "--json").out)
    limit = plain["output_snr_db"] + 1
    result = toolchain(*arguments, "--min-snr", limit)
    assert result.code == 0, result.err
    assert "COMPUTED IN" in result.out
    assert "with all layers in int8" in result.out
    document = json.loads(toolchain(*arguments, "--min-snr", limit, "--json").out)
    assert document["output_snr_db"] >= limit
    assert 1 <= len(document["kept"]) < len(plain["layers"])
    assert all(layer["gives_back"] > 0 for layer in document["kept"])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--for", "gpu"], "'gpu' is not one of 'cpu', 'mali', 'vta'"),
        (["--min-snr", "30"], "--min-snr is not supported with powers of two"),
        (
            ["--for", "vta", "--budget", "1", "--metric", "top1", "--data", "samples"],
            "not supported with powers of two",
        ),
        (["--method", "entropy"], "--method entropy is not supported with powers of two"),
        (["--for", "cpu", "--method", "mse"], "--method mse is not supported with real scales"),
        (["--for", "cpu", "--budget", "0.5"], "--budget needs --metric and --data"),
        (["--for", "cpu", "--budget", "-1"], "-1"),
        (["--for", "cpu", "--budget", "nan"], "not a valid limit"),
        (["--for", "cpu", "--metric", "top1"], "--metric needs --data"),
        (["--for", "cpu", "--data", "samples"], "--data needs --metric"),
        (["--for", "cpu", "--labels", "names.txt"], "--labels needs --metric"),
        (["--for", "cpu", "--budget", "1", "--min-snr", "30"], "cannot be combined"),
        (["--for", "cpu", "--metric", "top1", "--data", "samples"], "no label"),
        (["--for", "cpu", "--exclude", "c9x"], "no layer 'c9x'"),
        (["--for", "cpu", "--shape", "x:1,3,15,15"], "shape"),
    ],
)
def test_wrong_options_of_real_scales(file, folder, tmp_path, options, error):
    result = toolchain("quantize", file, "--calibration", folder, *options)
    assert result.code == 2
    assert error in result.err
    assert {path.name for path in tmp_path.iterdir()} == {"net.onnx", "samples"}


def test_wrong_samples_and_models_of_real_scales(file, folder, tmp_path):
    arguments = ("quantize", file, "--for", "cpu")
    assert "ranges of its activations are not known" in toolchain(*arguments).err
    (tmp_path / "empty").mkdir()
    assert "no samples" in toolchain(*arguments, "--calibration", tmp_path / "empty").err
    np.savez(folder / "z.npz", x=np.zeros((1, 3, 15, 15), np.float32))
    result = toolchain(*arguments, "--calibration", folder)
    assert (result.code, "z.npz" in result.err, "quantizing" in result.err) == (2, True, False)
    path = nets.save(qdq_nets.quantized(qdq_nets.residual(), tmp_path), tmp_path)
    result = toolchain("quantize", path, "--for", "cpu", "--calibration", "random")
    assert (result.code, "quantized already" in result.err) == (2, True)
