"""A virtual board that computes with OpenCL: networks over SSH and over RPC, and the manual's Mali tutorial.

The board is aarch64 under QEMU, and its OpenCL device is its CPU (PoCL): every kernel is compiled under emulation,
which takes seconds, so most networks here are small.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support import boards, images, light, nets
from tests.support.commands import toolchain
from tests.support.paths import ROOT
from tests.support.relax_nets import net, normal
from tests.support.rpc_sessions import computed, visiting
from toolchain import board, bundle, devices, tensors
from toolchain.bundle import Bundle
from toolchain.farm import boards as places
from toolchain.models import zoo
from toolchain.shell import SshOptions, open_shell

# The image of the board takes minutes to build, and each kernel seconds. In CI, test_opencl.py runs the same runtime on
# this machine, and test_deploy_boards.py the same programs on a virtual board.
pytestmark = [pytest.mark.xdist_group("docker"), pytest.mark.nightly]

BOARD, PLAIN = "rk3399", "rpi4"
LIMIT = 1e-3
MANUAL = ROOT / "docs" / "mali.md"
SMALL = {
    "convolutions": lambda: net(
        [
            ("Conv", "x w1 b1", "a", {"pads": [1] * 4}),
            ("Relu", "a", "b"),
            ("MaxPool", "b", "c", {"kernel_shape": [2, 2], "strides": [2, 2]}),
            ("Conv", "c w2", "d", {"strides": [2, 2]}),
            ("Sigmoid", "d", "y"),
        ],
        (1, 3, 17, 17),
        {"w1": normal(8, 3, 3, 3), "b1": normal(8), "w2": normal(5, 8, 3, 3)},
    ),
    "separable": lambda: net(
        [
            ("Conv", "x w1", "a", {"pads": [1] * 4, "group": 8}),
            ("Clip", "a low high", "b"),
            ("Conv", "b w2", "c"),
            ("Add", "c x", "d"),
            ("GlobalAveragePool", "d", "y"),
        ],
        (1, 8, 9, 7),
        {"w1": normal(8, 1, 3, 3), "w2": normal(8, 8, 1, 1), "low": np.float32(0), "high": np.float32(6)},
    ),
    "attention": lambda: net(
        [
            ("MatMul", "x w1", "q"),
            ("Transpose", "x", "k", {"perm": [0, 2, 1]}),
            ("MatMul", "q k", "s"),
            ("Softmax", "s", "p"),
            ("MatMul", "p x", "y"),
        ],
        (2, 11, 16),
        {"w1": normal(16, 16)},
    ),
    "classifier": lambda: net(
        [("Flatten", "x", "a"), ("Gemm", "a w1 b1", "b"), ("LeakyRelu", "b", "c"), ("Gemm", "c w2 b2", "y")],
        (3, 4, 5),
        {"w1": normal(20, 33), "b1": normal(33), "w2": normal(33, 7), "b2": normal(7)},
    ),
}
# More of them, of the zoo and of the light networks, where somebody has an hour.
NETWORKS = ["mlp", *SMALL, *os.environ.get("TOOLCHAIN_BOARD_NETWORKS", "").split()]

# Over RPC all are computed by the same kernels: here, three cover the kinds of operators.
OVER_SSH = ["mlp", "convolutions", "attention"]


@pytest.fixture(scope="module")
def farm(tmp_path_factory):
    images.require(board.load(BOARD).image)
    with boards.running(tmp_path_factory.mktemp("farm"), **{BOARD: 1, PLAIN: 1}) as running:
        yield running


@pytest.fixture(scope="module", params=NETWORKS)
def network(request, tmp_path_factory) -> Bundle:
    return built(request.param, BOARD, tmp_path_factory.mktemp("network"))


def built(name: str, kind: str, folder: Path) -> Bundle:
    outcome = toolchain("build", source(name, folder), "--board", kind, "-o", folder / "bundle")
    assert outcome.code == 0, outcome.err
    return bundle.load(folder / "bundle")


def source(name: str, folder: Path) -> str:
    if name in zoo.NAMES:
        return name
    return nets.save(SMALL[name]() if name in SMALL else light.load(name), folder, f"{name}.onnx")


# --- networks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", OVER_SSH, indirect=True)
def test_a_network_over_ssh(farm, network):
    where = ["--board", BOARD, "--host", farm.name(BOARD), "--devices", farm.devices]
    outcome = toolchain("deploy", network.folder, *where, "--budget", 0, "--json", "-")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert (report["outputs"]["ok"], report["emulated"]) == (True, True)
    assert report["outputs"]["max_rel_diff"] <= LIMIT


def test_a_network_over_rpc(place, network, tmp_path):
    answers = tensors.load(network.reference)
    outputs = {name.removeprefix("output."): array for name, array in answers.items() if name.startswith("output.")}
    with visiting(place, session_s=1200.0) as session:
        computed_outputs = computed(session, network, board.load(BOARD).target.kind, tmp_path)
    for name, output in computed_outputs.items():
        assert np.abs(output - outputs[name]).max() <= LIMIT * np.abs(outputs[name]).max()


@pytest.fixture
def place(farm):
    """The board's server, as tuning reaches it, over SSH; nobody deploys to a board that is held for it."""
    board_request = places.BoardRequest(
        board.load(BOARD).resolved(), farm.name(BOARD), devices.load_devices(farm.devices)
    )
    with places.open_boards(board_request, print) as opened:
        (opened_place,) = opened.places
        yield opened_place


def test_the_second_start_compiles_nothing(farm, tmp_path):
    """With the binaries that the runner keeps, and without those that PoCL keeps itself.

    Whatever the runner compiles from source it keeps in a new file, so the same files mean that it compiled nothing.
    """
    where = ["--board", BOARD, "--host", farm.name(BOARD), "--devices", farm.devices]
    outcome = toolchain("deploy", built("classifier", BOARD, tmp_path).folder, *where, "--budget", 0)
    assert outcome.code == 0, outcome.err
    cached = []
    with open_shell(farm.name(BOARD), config=SshOptions(config_file=farm.config, agent=False)) as shell:
        for forgotten in ("~/.cache", "~/.cache/pocl", "~/.cache/edge-toolchain/opencl"):
            shell.run(f"rm -rf {forgotten}")
            outcome = toolchain("bench", *where, "--budget", 0)
            assert outcome.code == 0, outcome.err
            cached.append(shell.run("ls -i ~/.cache/edge-toolchain/opencl").stdout.split())
    first, second, anew = cached
    assert len(first) > 2
    assert second == first
    assert set(anew[1::2]) == set(first[1::2])  # the same names
    assert anew != first


# --- the tutorial ----------------------------------------------------------------------------------------------------

# The manual's own commands are for a real board: here, trials are few and may take long, and records an emulator's.
ADDED = {"tune": ["--trials", "6", "--timeout", "60"], "build": ["--emulated"]}


def tutorial() -> Iterator[list[str]]:
    """Yield the commands that the manual tells, without the program's name."""
    section = MANUAL.read_text(encoding="utf-8").partition("## The tutorial's steps")[2]
    (block,) = re.findall(r"```sh\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    for line in block.splitlines():
        command = shlex.split(line, comments=True)
        assert command[0] == "toolchain", line
        yield command[1:]


@pytest.mark.timeout(1200)  # under emulation, on a machine that others use too
def test_the_manuals_tutorial(farm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLCHAIN_DEVICES", str(farm.devices))
    outputs = {}
    for command in tutorial():
        here = [farm.name(BOARD) if "@" in argument else argument for argument in command]
        outcome = toolchain(*here, *ADDED.get(command[0], []))
        assert outcome.code == 0, f"{command}: {outcome.err}"
        outputs[command[0]] = outcome
    assert list(outputs) == ["hardware", "tasks", "tune", "build", "deploy"]
    assert re.search(r"\d+ units, \d+ threads and \d+ KiB per block", outputs["hardware"].out)
    assert "22 tasks" in outputs["tasks"].out
    assert "emulated" in outputs["tune"].out
    assert "tuning records for" in outputs["build"].err
    deployed = outputs["deploy"].out
    assert re.search(r"^outputs +match onnxruntime", deployed, re.MULTILINE)
    assert re.search(r"latency +[\d.]+ ms median \(emulated\)", deployed)


# --- what fails ------------------------------------------------------------------------------------------------------


def test_a_board_without_opencl_keeps_its_release(farm, tmp_path):
    name, login = farm.name(PLAIN), ["--ssh-config", farm.config]
    where = ["--board", PLAIN, "--host", name, *login]
    outcome = toolchain("deploy", built("mlp", PLAIN, tmp_path).folder, *where, "--budget", 0)
    assert outcome.code == 0, outcome.err
    before = toolchain("status", "--releases", *where).out
    outcome = toolchain("deploy", "mlp", "--board", BOARD, "--host", name, *login, "--budget", 0)
    assert outcome.code == 4
    assert "lacks the library of OpenCL" in outcome.err
    assert "libopencl1" in outcome.err, "the hint names what brings it"
    assert toolchain("status", "--releases", *where).out == before
    outcome = toolchain("doctor", "--board", BOARD, "--host", name, *login)
    assert (outcome.code, "library of OpenCL" in outcome.out) == (3, True)
