"""The tutorial of docs/vta.md as a person types it, on a small network; the ten convolutions are ResNet-18's."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import nets, nightly
from tests.support.commands import Outcome, toolchain
from tests.support.nets import node, value
from tests.support.paths import ROOT
from tests.support.vta_layers import RESNET
from toolchain.records import RecordFile

SIM = ("--board", "vta-sim")
TRIALS = 40
CHANNELS, SIZE = 16, 12


def done(*arguments: object) -> Outcome:
    outcome = toolchain(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome


def small() -> nets.onnx.ModelProto:
    """A stem, a basic block, one that halves its rows and has a convolution beside it, and a classifier."""
    random, constants, nodes = np.random.default_rng(0), {}, []

    def conv(data: str, name: str, inputs: int, outputs: int, window: int, stride: int = 1) -> str:
        spread = np.sqrt(2 / (inputs * window * window))
        constants[f"{name}.w"] = (random.standard_normal((outputs, inputs, window, window)) * spread).astype(np.float32)
        constants[f"{name}.b"] = (random.standard_normal(outputs) / 8).astype(np.float32)
        how = {"pads": [window // 2] * 4, "strides": [stride] * 2}
        nodes.append(node("Conv", [data, f"{name}.w", f"{name}.b"], [name], name, **how))
        return name

    def relu(*data: str) -> str:
        if len(data) > 1:
            nodes.append(node("Add", data, [f"{data[0]}.sum"]))
        nodes.append(node("Relu", [f"{data[0]}.sum" if len(data) > 1 else data[0]], [f"{data[0]}.relu"]))
        return f"{data[0]}.relu"

    wide = 2 * CHANNELS
    stem = relu(conv("x", "stem", 3, CHANNELS, 3))
    first = relu(conv(stem, "a1", CHANNELS, CHANNELS, 3))
    block = relu(conv(first, "a2", CHANNELS, CHANNELS, 3), stem)
    second = relu(conv(block, "b1", CHANNELS, wide, 3, 2))
    beside = conv(block, "beside", CHANNELS, wide, 1, 2)
    last = relu(conv(second, "b2", wide, wide, 3), beside)
    constants["classes"] = (random.standard_normal((wide, 10)) / 4).astype(np.float32)
    nodes.extend(
        [
            node("GlobalAveragePool", [last], ["pooled"]),
            node("Flatten", ["pooled"], ["flat"]),
            node("MatMul", ["flat", "classes"], ["y"]),
        ]
    )
    return nets.model(nodes, [value("x", (1, 3, SIZE, SIZE))], [value("y", (1, 10))], constants)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A folder with the network, samples, and all that the commands leave."""
    folder = tmp_path_factory.mktemp("tutorial")
    nets.save(small(), folder, "small.onnx")
    (folder / "samples").mkdir()
    for seed in range(8):
        sample = np.random.default_rng(seed).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)
        np.savez(folder / "samples" / f"{seed}.npz", x=sample)
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setenv("TOOLCHAIN_RECORDS", str(folder / "records"))
        for name in ("DEVICES", "BOARDS"):
            patch.delenv(f"TOOLCHAIN_{name}", raising=False)
        yield folder


@pytest.fixture(autouse=True)
def _records_of_the_lab(lab, monkeypatch):
    """All commands of this module have the same records."""
    monkeypatch.setenv("TOOLCHAIN_RECORDS", str(lab / "records"))


@pytest.fixture(scope="module")
def int8(lab) -> str:
    """The quantized network."""
    done("quantize", "small.onnx", "--calibration", "samples", "-o", "small-int8.onnx", "--report", "quantized.json")
    return "small-int8.onnx"


@pytest.fixture(scope="module")
def tuned(int8) -> dict:
    """The report of a tuning run."""
    return json.loads(done("tune", int8, *SIM, "--trials", TRIALS, "--json").out)


@pytest.fixture(scope="module")
def deployed(lab, int8, tuned) -> dict:
    """The report of a deploy of what was built with the records."""
    outcome = done("build", int8, *SIM, "-o", "built")
    won = sum(task["verdict"] == "faster" for task in tuned["tasks"])
    assert f"kernels: {won} from " in outcome.err
    return json.loads(done("deploy", "built", *SIM, "--root", lab / "root", "--budget", 0.2, "--json", "-").out)


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def test_quantize_reports_each_layer(lab, int8):
    report = json.loads((lab / "quantized.json").read_text())
    assert {layer["name"] for layer in report["layers"]} == {"stem", "a1", "a2", "b1", "beside", "b2"}
    assert report["left"] == []
    assert report["samples"] == 8
    assert all(layer["exact"] for layer in report["layers"])
    assert report["output_snr_db"] > 10


def test_tasks_are_the_convolutions(int8):
    report = json.loads(done("tasks", int8, *SIM, "--op", "vta_conv2d", "--json").out)
    assert [task["weight"] for task in report] == [1, 2, 1, 1, 1], "the stem reads other numbers, and pads with zeros"
    assert {task["operator"] for task in report} == {"vta_conv2d"}


def test_tuning_is_in_modelled_cycles(lab, tuned):
    assert (tuned["emulated"], tuned["trials"]["total"], tuned["trials"]["resumed"]) == (True, TRIALS, 0)
    assert tuned["boards"] == [{"name": "model hls-pynq", "trials": TRIALS, "failed": 0, "quarantines": 0}]
    assert {task["operator"] for task in tuned["tasks"]} == {"vta_conv2d"}
    records = RecordFile(lab / "records" / "vta-sim.jsonl").read()
    assert len([trial for trial in records.trials if not trial.is_final]) == TRIALS
    assert all(trial.emulated and trial.board == "hls-pynq" and trial.samples_s for trial in records.trials)
    assert {trial.target["device"] for trial in records.trials} == {"vta-sim"}


def test_the_same_run_again_adds_nothing(lab, int8, tuned):
    records = lab / "records" / "vta-sim.jsonl"
    before = records.read_bytes()
    outcome = done("tune", int8, *SIM, "--trials", TRIALS, "--json")
    again = json.loads(outcome.out)
    assert records.read_bytes() == before
    assert (again["trials"]["total"], again["trials"]["resumed"]) == (TRIALS, TRIALS)
    assert again["boards"][0]["trials"] == 0
    assert again["estimated_s"] == tuned["estimated_s"]


def test_outputs_match_and_times_are_marked(deployed):
    assert deployed["emulated"]
    assert deployed["outputs"]["ok"]
    assert deployed["outputs"]["reference"].endswith("without optimisations")


def test_cycles_are_modelled_and_tuned(lab, int8, deployed):
    modelled = deployed["modelled"]
    assert (modelled["model"], modelled["clock_mhz"], modelled["kernels"]) == ("hls-pynq", 100.0, 6)
    assert modelled["cycles"] == manifest(lab / "built")["modelled"]["cycles"]
    done("build", int8, *SIM, "--no-records", "-o", "untuned")
    assert manifest(lab / "untuned")["modelled"]["cycles"] >= modelled["cycles"] > modelled["macs"] / 256


def test_a_package_is_deployed_as_its_bundle(lab, deployed):
    done("package", "built", "-o", "built.tar")
    report = json.loads(done("deploy", "built.tar", *SIM, "--root", lab / "root", "--budget", 0.1, "--json", "-").out)
    assert report["bundle_digest"] == deployed["bundle_digest"]
    assert report["outputs"]["ok"]


def test_bench_measures_what_is_deployed(lab, deployed):
    report = json.loads(done("bench", *SIM, "--root", lab / "root", "--budget", 0.1, "--json", "-").out)
    assert report["emulated"]
    assert report["bundle_digest"] == deployed["bundle_digest"]
    assert report["modelled"] == deployed["modelled"]


def test_without_the_accelerator_the_cpu_computes_it_all(lab):
    outcome = done("build", "small.onnx", *SIM, "--without", "vta", "-o", "cpu")
    assert "quantizing" not in outcome.err
    assert manifest(lab / "cpu").get("modelled") is None


def test_a_network_without_convolutions_runs_on_the_cpu(lab, tmp_path):
    outcome = done("deploy", "mlp", *SIM, "--no-records", "--root", tmp_path / "root", "--budget", 0.1, "--json", "-")
    report = json.loads(outcome.out)
    assert "mlp has no convolution that can be quantized: the whole model runs on the CPU" in outcome.err
    assert (report["outputs"]["ok"], report.get("modelled")) == (True, None)


def test_tuning_tasks_of_the_cpu_alone_is_refused(lab, int8):
    outcome = toolchain("tune", int8, *SIM, "--op", "dense", "--trials", 3)
    assert (outcome.code, "vta-sim computes none of the 1 chosen tasks" in outcome.err) == (2, True), outcome.err
    assert "toolchain tasks" in outcome.err


@pytest.mark.nightly
def test_the_convolutions_of_resnet_18(lab):
    first, *others = json.loads(done("tasks", "resnet-18", *SIM, "--op", "vta_conv2d", "--json").out)
    data, weights = (arg["shape"] for arg in first["args"][:2])
    assert (data, weights, first["weight"]) == ([1, 1, 115, 115, 1, 16], [4, 1, 4, 4, 16, 16], 1)  # pixels are channels
    assert sorted((shape_of(task), task["weight"]) for task in others) == sorted(RESNET)
    assert [task["weight"] for task in others] == [4, 1, 1, 3, 1, 1, 3, 1, 1, 3]


def shape_of(task: dict) -> tuple[int, ...]:
    """Return what tests/support/vta_layers.py says of a layer: size, channels of x and y, window, padding, stride."""
    data, weights, *_, out = (arg["shape"] for arg in task["args"])
    (_, inputs, size, *_), (outputs, _, window, *_) = data, weights
    return size, 16 * inputs, 16 * outputs, window, window // 2, size // out[2]


@pytest.mark.parametrize("name", ["1x16_i8w8a32_15_15_18_17", nightly.left("4x16_i8w8a32_15_15_18_17")])
def test_the_benchmark_of_the_ten_convolutions(tmp_path, name):
    path, config = tmp_path / "found.json", f"toolchain/backends/vta/configs/{name}.json"
    command = [sys.executable, "benchmarks/vta.py", "--trials", "1", "--config", config, "--json", str(path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    report = json.loads(path.read_text())
    assert [task["calls"] for task in report["tasks"]] == [calls for _, calls in RESNET]
    assert (report["config"], "pynq_z1" in report["cycles"]) == (name, name.startswith("1x16"))
    assert report["cycles"]["ideal"] <= report["cycles"]["hls_pynq"]
    assert all(0 < task["hls_pynq"]["utilisation"] < 1 for task in report["tasks"])
