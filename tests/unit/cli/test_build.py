"""Models become bundles, and bundles packages."""

from __future__ import annotations

import json

import numpy as np

from tests.support import nets
from tests.support.commands import done, parsed, toolchain


def test_a_model_with_an_open_dimension_is_built(tmp_path):
    path = nets.save(nets.relu(("batch", 3)), tmp_path)
    made = parsed("build", path, "--shape", "x:4,3", "-o", tmp_path / "out")
    assert made["manifest"]["inputs"][0]["shape"] == [4, 3]
    assert made["manifest"]["command"] == "toolchain build net.onnx --board local --shape x:4,3 --seed 0 --no-records"


def test_the_end_of_the_support_is_written(tmp_path):
    path = nets.save(nets.relu((1, 3)), tmp_path)
    made = parsed("build", path, "--supported-until", "2031-12-31", "-o", tmp_path / "out")["manifest"]
    assert made["supported_until"] == "2031-12-31"
    assert made["command"].endswith("--board local --supported-until 2031-12-31 --seed 0 --no-records")
    seen = toolchain("build", path, "--supported-until", "soon", "-o", tmp_path / "other")
    assert (seen.code, "does not match the format" in seen.err) == (2, True)


def test_the_reference_of_another_host_gives_its_digest(tmp_path):
    """ONNX Runtime's last bits depend on the CPU: the other host's are here the same numbers with some added."""
    from tests.support import bundles
    from toolchain import bundle, tensors

    path = nets.save(nets.relu((1, 3)), tmp_path)
    done("build", path, "-o", tmp_path / "here")
    here = bundle.load(tmp_path / "here")
    stored = tensors.load(here.reference)
    for name, shift in {"there": 1e-6, "wrong": 1e-3}.items():
        changed = {**stored, "output.y": stored["output.y"] * np.float32(1 + shift)}
        content = tensors.encode(changed, tensors.notes(here.reference))
        bundles.variant(here, tmp_path / name, {bundle.REFERENCE: content})
    there = bundle.load(tmp_path / "there")
    assert there.digest != here.digest
    done("package", there.folder, "-o", tmp_path / "there.oci.tar")
    for number, source in enumerate((there.folder, tmp_path / "there.oci.tar")):
        made = parsed("build", path, "--reference", source, "-o", tmp_path / f"again{number}")
        assert made["digest"] == f"sha256:{there.digest}"
    refused = {
        ("--reference", tmp_path / "wrong"): "its outputs differ by 1.0e-03",
        ("--reference", there.folder, "--seed", "1"): "its inputs are others",
    }
    for words, text in refused.items():
        seen = toolchain("build", path, *words, "-o", tmp_path / "refused")
        assert (seen.code, text in seen.err, (tmp_path / "refused").exists()) == (5, True, False), seen.err


def test_build_and_package_tell_the_same_digest(tmp_path):
    made = parsed("build", "mlp", "-o", tmp_path / "mlp")
    packed = parsed("package", tmp_path / "mlp", "-o", tmp_path / "mlp.oci.tar")
    assert packed["digest"] == made["digest"]
    assert packed["bytes"] == (tmp_path / "mlp.oci.tar").stat().st_size
    report = json.loads(
        done("deploy", tmp_path / "mlp.oci.tar", "--root", tmp_path / "root", "--budget", 0, "--json", "-").out
    )
    assert report["bundle_digest"] == made["digest"]
    assert report["outputs"]["ok"] is True


def test_given_inputs_are_what_the_device_computes_with(tmp_path):
    path = nets.save(nets.relu((2, 3)), tmp_path)
    np.savez(tmp_path / "in.npz", x=np.full((2, 3), -1, np.float32))
    done("build", path, "--input", tmp_path / "in.npz", "-o", tmp_path / "out")
    from toolchain import tensors

    both = tensors.load(tmp_path / "out" / "reference.safetensors")
    assert both["input.x"].tolist() == [[-1] * 3] * 2
    assert both["output.y"].tolist() == [[0] * 3] * 2


def test_progress_goes_to_stderr_and_results_to_stdout(tmp_path):
    seen = done("build", "mlp", "-o", tmp_path / "mlp", "--json")
    assert "compiling" in seen.err
    json.loads(seen.out)


def test_the_usual_folder_is_looked_at_before_the_compiler_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build" / "mlp-local").mkdir(parents=True)
    (tmp_path / "build" / "mlp-local" / "thesis.txt").write_text("mine")
    seen = toolchain("build", "mlp")
    assert seen.code == 2
    assert "thesis.txt" in seen.err
    assert "compiling" not in seen.err
