"""64-bit RISC-V: networks from the model to a release that runs, under emulation, with and without vectors."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest

from tests.support import nets, qdq_nets
from tests.support.networks import deployed
from tests.support.parts import require
from tests.support.paths import DATA
from toolchain import board
from toolchain.architecture import RISCV64
from toolchain.device.store import Store
from toolchain.errors import DeviceError
from toolchain.native import programs
from toolchain.virtual import emulation

SYSROOT = Path("/usr/riscv64-linux-gnu")
# What QEMU emulates for a board type: without vectors, with the shortest ones, and with those of the SpacemiT X60.
CPUS = {
    "riscv64": "rv64",
    "riscv64-v": "rv64,v=true,vext_spec=v1.0,vlen=128",
    "spacemit-k1": "rv64,v=true,vext_spec=v1.0,vlen=256,zba=true,zbb=true,zbc=true,zbs=true,zbkc=true,Zfh=true",
}
# What QEMU 7.2 lacks of it: conditional moves of whole numbers, and arithmetic in half precision in vectors.
LACKING = {"spacemit-k1": ("-zicond", "-zvfh", "-zvfhmin")}
NETWORKS = (
    *("mlp", "mobilenet", "mobilenet_v2", "squeezenet_v1.1", "resnet-18", "resnet-34", "resnet-50", "resnet-18-v2"),
    "resnet3d-18",
)
# The device programs for RISC-V take a minute to compile; in CI, unit tests compile for these boards.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture
def device(monkeypatch):
    """This machine as a RISC-V: the kernel starts its programs by QEMU, which finds a C library for them."""
    require("a C library for RISC-V", "libc6-riscv64-cross", (SYSROOT / "lib").is_dir())
    try:
        emulation.ensure(RISCV64, lambda _line: None)
    except DeviceError as fault:
        require("emulation of RISC-V", f"qemu-user-static: {fault.details}", present=False)
    monkeypatch.setenv("QEMU_LD_PREFIX", str(SYSROOT))
    plain = Store.facts
    as_riscv = {"machine": "riscv64", "cpu_features": tuple("imafdcv")}
    monkeypatch.setattr(Store, "facts", lambda self: dataclasses.replace(plain(self), **as_riscv))
    return monkeypatch


def deploy(device, kind, model, tmp_path):
    device.setenv("QEMU_CPU", CPUS[kind])
    # /proc/cpuinfo is this machine's, so the runner would miss the vectors.
    chosen = dataclasses.replace(board.load(kind).resolved(), cpu_features=(), toolchain="host")
    target = dataclasses.replace(chosen.target, mattr=(*chosen.target.mattr, *LACKING.get(kind, ())))
    chosen = dataclasses.replace(chosen, target=target)
    runner = programs.build(programs.RUNNER, chosen.triple, chosen.machine)
    return deployed(model, chosen, runner, tmp_path)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", CPUS)
def test_networks_match_onnxruntime(device, kind, name, tmp_path):
    done = deploy(device, kind, name, tmp_path)
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
    done = deploy(device, "riscv64", str(tmp_path / "bytes.onnx"), tmp_path)
    assert done.difference.max_rel < 5e-2


@pytest.mark.parametrize("has_vectors", [True, False])
def test_the_runner_reads_the_features_that_linux_names(device, has_vectors, tmp_path):
    """With the /proc/cpuinfo of a SpacemiT K1, or with one without vectors, in the place of this machine's."""
    require("a mount of its own", "util-linux, and run as root", os.geteuid() == 0)
    device.setenv("QEMU_CPU", CPUS["riscv64"])
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
