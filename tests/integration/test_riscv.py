"""64-bit RISC-V: networks from the model to a release that runs, under emulation, with and without vectors."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess

import onnx
import pytest

from tests.support import nets, qdq_nets, riscv
from tests.support.networks import NINE, deployed
from tests.support.parts import require
from tests.support.paths import DATA
from toolchain import board
from toolchain.native import programs

# The device programs for RISC-V take a minute to compile; in CI, unit tests compile for these boards.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture
def device():
    with riscv.emulated() as patch:
        yield patch


@pytest.mark.parametrize("name", NINE)
@pytest.mark.parametrize("kind", riscv.CPUS)
def test_networks_match_onnxruntime(device, kind, name, tmp_path):
    done = riscv.deploy(device, kind, name, tmp_path)
    assert done.changed
    assert done.difference.max_rel < 1e-4


def test_a_quantized_network_matches_onnxruntime(device, tmp_path):
    """Its layers compute in floats, and round as ONNX Runtime's do.

    Without vectors: QEMU 7.2 aborts at conversions of vectors that name a rounding mode (vfcvt.rtz).
    """
    held = {"w": qdq_nets.weights(16, 16, 3, 3), "v": qdq_nets.weights(32, 256)}
    nodes = [nets.node("Conv", ["x", "w"], ["c"]), nets.node("Relu", ["c"], ["r"]), nets.node("Flatten", ["r"], ["f"])]
    plain = qdq_nets.floating([*nodes, nets.node("Gemm", ["f", "v"], ["y"], transB=1)], (1, 16, 6, 6), held)
    onnx.save(qdq_nets.quantized(plain, tmp_path), tmp_path / "bytes.onnx")
    done = riscv.deploy(device, "riscv64", str(tmp_path / "bytes.onnx"), tmp_path)
    assert done.difference.max_rel < 5e-2


@pytest.mark.parametrize("has_vectors", [True, False])
def test_the_runner_reads_the_features_that_linux_names(device, has_vectors, tmp_path):
    """With the /proc/cpuinfo of a SpacemiT K1, or with one without vectors, in the place of this machine's."""
    require("a mount of its own", "util-linux, and run as root", os.geteuid() == 0)
    device.setenv("QEMU_CPU", riscv.CPUS["riscv64"])
    kind = dataclasses.replace(board.load("riscv64").resolved(), cpu_features=())
    runner = programs.build(programs.RUNNER, kind.triple, kind.machine)
    deployed("mlp", kind, runner, tmp_path)
    [release] = (tmp_path / "device" / "releases").iterdir()
    [inputs] = (tmp_path / "device" / "inputs").glob("*/*")
    needing = tmp_path / "needing"
    shutil.copytree(release, needing)
    document = json.loads((release / "manifest.json").read_text())
    (needing / "manifest.json").unlink()  # a link into the store
    (needing / "manifest.json").write_text(json.dumps({**document, "cpu_features": ["v", "zicbom"]}))
    text = (DATA / "devices" / "spacemit-k1" / "cpuinfo").read_text()
    (tmp_path / "cpuinfo").write_text(text if has_vectors else text.replace("imafdcv", "imafdc"))
    command = [runner.path, "--release", needing, "--inputs", inputs, "--max-runs", "0"]
    command += ["--report", tmp_path / "report.json", "--outputs", tmp_path / "outputs.safetensors"]
    script = f"mount --bind {tmp_path}/cpuinfo /proc/cpuinfo && exec {shlex.join(map(str, command))}"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == has_vectors, done.stderr
    assert has_vectors or "lacks the features: v" in done.stderr
